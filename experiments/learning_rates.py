"""Cached results of tuning the learning rate.

The paper tunes by one training per rate with a separate seed; the lowest training error wins.
Trials need the outcome, but cells do not see each other's results. So trainings for tuning are
cached in the user's cache folder, beside the designs.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from antiphase import __version__
from antiphase._util import cache, files
from antiphase._util.values import digest
from experiments.runner import Cell, Result


def cached_training(train: Callable[[Cell], Result], revision: int, cell: Cell) -> Result:
    """Call ``train(cell)``, or read its result if this revision of the study has computed it."""
    name = f"{train.__module__}.{train.__qualname__}"
    entry = cache.entry_path(
        digest({"version": __version__, "train": name, "revision": revision, "cell": cell})
    )
    path = None if entry is None else entry.with_suffix(".json")
    if path is not None and cache.is_trusted(path):
        result: Result = json.loads(path.read_text())
        return result
    result = train(cell)
    if path is not None:
        files.write_bytes(path, json.dumps(result).encode(), secret=True)
    return result
