"""The design cache: the same design is not searched for twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from antiphase._util import cache, files
from antiphase._util.progress import Progress, ProgressReport
from antiphase._util.values import digest
from antiphase.factorizations.base import MALFORMED, Factorization, restore

ALGORITHM = 5  # part of the cache's key: raise it when the same question would get another answer
WORTH_KEEPING = 0.1  # seconds
ASKED = ("workload", "objective", "participation")  # parts of a question that its answer must have


def remembered(
    question: dict[str, Any],
    make: Callable[[Progress], Factorization],
    *,
    name: str,
    options: dict[str, Any],
    progress: Progress | None,
) -> Factorization:
    """What ``make`` returns, or what the cache has for the same ``question``; kept there if it took long and was not
    stopped."""
    asked = digest({"algorithm": ALGORITHM} | question)
    path = cache.entry_path(asked)
    if path is not None and (kept := _kept(path, asked, question)) is not None:
        return replace(kept, name=name, options=options)
    began = time.perf_counter()
    stopped = False

    def watched(report: ProgressReport) -> bool:
        nonlocal stopped
        stopped = bool(progress and progress(report)) or stopped
        return stopped

    found = make(watched)
    if path is not None and not stopped and time.perf_counter() - began > WORTH_KEEPING:
        with suppress(OSError):  # a full disk costs time next time, nothing else
            files.write(path, found.content() | {"question": asked}, secret=True)
    return found


def _kept(path: Path, asked: str, question: dict[str, Any]) -> Factorization | None:
    """The cached answer to ``question``; None if the entry is missing, damaged or answers another one.

    Guarantee: workload, objective and participation are those asked for; the sensitivity is computed
    from the encoder for that participation, and nothing of it is taken from the file.   [G1]
    """
    if not cache.is_trusted(path):
        return None
    try:
        content = files.read(path)
        found = restore(content, path)
        same = content.get("question") == asked
        # PRIVACY: the name of a file proves nothing; an encoder calibrated for records that take part
        # once promises too much where they take part in every epoch.   [G1]
        same &= all(getattr(found, part) == question[part] for part in ASKED)
        # The figures are computed here, from the encoder, so that one without figures is not used.
        if same and found.sensitivity > 0 and (found.bound or 0.0) <= found.error * (1 + 1e-9):
            return found
    except (*MALFORMED, OSError):  # FileFormatError is a ValueError
        pass
    with suppress(OSError):
        path.unlink(missing_ok=True)
    return None
