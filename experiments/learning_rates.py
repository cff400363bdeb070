"""Learning rates as the paper tunes them: one training for each, of a seed of its own; the lowest training error wins.

Trials come after it and need its outcome, while cells know nothing of each other. So a training for tuning is kept in
the user's cache folder, beside the designs, and whoever asks for it again finds it there.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from antiphase import __version__
from antiphase._util import cache, files
from antiphase._util.values import digest
from experiments.runner import Cell, Result


def remembered(train: Callable[[Cell], Result], revision: int, cell: Cell) -> Result:
    """``train(cell)``, from the cache if this revision of the study has computed it before."""
    name = f"{train.__module__}.{train.__qualname__}"
    entry = cache.entry_path(
        digest({"version": __version__, "train": name, "revision": revision, "cell": cell})
    )
    place = None if entry is None else entry.with_suffix(".json")
    if place is not None and cache.is_trusted(place):
        found: Result = json.loads(place.read_text())
        return found
    made = train(cell)
    if place is not None:
        files.write_bytes(place, json.dumps(made).encode(), secret=True)
    return made
