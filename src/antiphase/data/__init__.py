"""Data sets by name or from your own files: ``load("mnist")``.

Example:
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
from antiphase._util.extras import optional
from antiphase._util.progress import Progress
from antiphase.data.dataset import Dataset, Split, train_test_split
from antiphase.data.fetch import fetch_files
from antiphase.data.image_folder import from_folder
from antiphase.data.own_files import from_csv, from_npz
from antiphase.data.registry import DIGITS, REGISTRY
from antiphase.data.texts import Texts, load_texts
from antiphase.errors import DataError

__all__ = ["Dataset", "Split", "Texts", "load", "load_texts", "names"]


def names() -> tuple[str, ...]:
    """The names that `load` knows."""
    return ("digits", *REGISTRY)


def load(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load a data set by name, or from files of your own.

    Guarantee: the files of a named data set have the hashes of the originals. Nothing that is read
    is executed (no pickles). Inputs are finite float32, and images of named data sets are in
    [0, 1]; targets are int64, counted from 0.

    Args:
        source: one of `names`, or the path of an ``.npz``, a ``.csv`` or a folder of images.
        folder: look for the files of a named data set here and nowhere else. By default they are
            looked for in ``ANTIPHASE_DATA`` and the cache, and then downloaded. ``digits`` come
            with scikit-learn.
        progress: receives a `ProgressReport` after each block of a download.

    Returns:
        Training and test examples, as NumPy arrays.

    Raises:
        DataError: the data cannot be found, stored or read; with the reason and the remedy.

    Example:
        >>> load("digits").train.inputs.dtype
        dtype('float32')
    """
    source = check.name_or_path("data", source)
    if source in REGISTRY:
        dataset = REGISTRY[str(source)]
        contents = fetch_files(dataset, None if folder is None else Path(folder), progress)
        splits = dataset.read(contents)
        return Dataset(dataset.name, *splits, dataset.classes, dataset.mean, dataset.std)
    if folder is not None:
        raise DataError(
            f"folder = {str(folder)!r} is for {', '.join(REGISTRY)}; leave it out for data = "
            f"{source!r}"
        )
    return _digits() if source == "digits" else _own(Path(source))


def _digits() -> Dataset:
    with optional("data", "data = 'digits'", "scikit-learn", DataError):
        bunch = importlib.import_module("sklearn.datasets").load_digits()
    inputs = (bunch.images[:, None] / 16).astype(np.float32)
    splits = train_test_split(inputs, bunch.target.astype(np.int64))
    return Dataset("digits", *splits, DIGITS, mean=(0.3055,), std=(0.3761,))


def _own(path: Path) -> Dataset:
    if path.is_dir():
        return from_folder(path)
    if not path.exists():
        raise DataError(
            f"data = {str(path)!r} is neither one of {', '.join(names())} nor a folder, .npz or "
            f".csv that exists{check.suggestion(str(path), names())}"
        )
    readers = {".npz": from_npz, ".csv": from_csv}
    if path.suffix.lower() not in readers:
        raise DataError(f"data = {str(path)!r} must be a folder of images, an .npz or a .csv")
    return readers[path.suffix.lower()](path)
