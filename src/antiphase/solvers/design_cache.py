"""Cache of designs on disk: the same problem is not solved twice."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from antiphase._util import cache, files
from antiphase._util.progress import Progress, ProgressReport
from antiphase._util.values import digest
from antiphase.factorizations.base import MALFORMED, Factorization, restore
from antiphase.problem import Problem

log = logging.getLogger("antiphase")

ALGORITHM = 5  # part of the cache's key: raise it when the same question would get another answer
MIN_SECONDS = 0.1  # searches that take less are not kept


def cached(
    solver: Callable[..., Factorization],
    problem: Problem,
    *,
    progress: Progress | None,
    **options: Any,
) -> Factorization:
    """The result of ``solver(problem, **options)``, from the cache if it is there.

    A result is kept if the search took long and was not stopped.

    Args:
        solver: a function that takes the problem, the options and ``progress``.
        problem: what the encoder is designed for.
        progress: the callback of the search.
        **options: the options of the solver, part of the cache's key.
    """
    question = digest(
        {"algorithm": ALGORITHM, "solver": solver.__qualname__, "options": options} | problem.fields
    )
    path = cache.entry_path(question)
    if path is not None and (entry := _entry(path, question, problem)) is not None:
        log.info("the design is from the cache (%s)", path)
        return entry
    watch = _Watch(progress)
    began = time.perf_counter()
    solution = solver(problem, progress=watch, **options)
    if path is not None and not watch.stopped and time.perf_counter() - began > MIN_SECONDS:
        with suppress(OSError):  # with a full disk the design is searched for again
            files.write(path, solution.content() | {"question": question}, secret=True)
    return solution


class _Watch:
    """A progress callback that notices whether the search was stopped."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.stopped = False

    def __call__(self, report: ProgressReport) -> bool:
        self.stopped |= bool(self._progress and self._progress(report))
        return self.stopped


def _entry(path: Path, question: str, problem: Problem) -> Factorization | None:
    """The cached answer; None if it is missing, damaged or answers another question.

    Guarantee: workload, objective and participation are those asked for. The sensitivity is
    computed from the encoder for that participation, not taken from the file.   [G1]
    """
    if not cache.is_trusted(path):
        return None
    try:
        content = files.read(path)
        entry = restore(content, path)
        same = content.get("question") == question
        # PRIVACY: a file may be in the wrong place. An encoder calibrated for one participation
        # claims too much where records take part in every epoch.   [G1]
        same &= all(getattr(entry, name) == part for name, part in problem.fields.items())
        # The figures are computed here, from the encoder; an entry that has none is not used.
        if same and entry.sensitivity > 0 and (entry.bound or 0.0) <= entry.error * (1 + 1e-9):
            return entry
    except (*MALFORMED, OSError):  # FileFormatError is a ValueError
        pass
    with suppress(OSError):
        path.unlink(missing_ok=True)
    return None
