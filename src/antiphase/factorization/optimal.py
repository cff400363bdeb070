"""The certified optimum for a workload, an objective and a participation: the cheapest way that applies, and the
cache."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from antiphase import _checks as check
from antiphase import cache, files
from antiphase.errors import FileFormatError
from antiphase.factorization.base import Factorization, restore
from antiphase.factorization.blocks import block_optimum, decouples
from antiphase.factorization.dense import dense_optimum
from antiphase.factorization.dual import Progress
from antiphase.factorization.epochs import bound_only, can_be_ringed, epoch_optimum
from antiphase.factorization.streamed import can_be_streamed, streamed_optimum
from antiphase.objective import Objective
from antiphase.participation import Once, Participation
from antiphase.values import digest
from antiphase.workload import Workload

ALGORITHM = 3  # part of the cache's key: raise it when the same question would get another answer
DENSE_IS_CHEAP = 4096  # steps up to which an encoder is made even if only its bound is asked for
WORTH_KEEPING = 0.1  # seconds


def optimal(
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    name: str = "optimal",
    options: dict[str, Any] | None = None,
    tolerance: float | None = None,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Factorization:
    """The factorization of least error, with a certified bound on how far from least it can be.   [G5]

    In the form of a stream where there is one (a workload that is a short recurrence; one participation, or restarts
    between any two), with as many ``buffers`` as asked for; else by blocks; else dense. ``tolerance`` is the relative
    gap at which the search stops; unless given, 1e-9, and less sharp where several epochs have many steps.
    """
    form = _form(workload, objective, participation, buffers)
    if tolerance is None:
        tolerance = _worth_waiting_for(workload.steps) if form == "epochs" else 1e-9
    question = {
        "algorithm": ALGORITHM,
        "form": form,
        "buffers": buffers if form == "streamed" else None,
        "workload": workload,
        "objective": objective,
        "participation": participation,
        "tolerance": tolerance,
    }
    path = cache.entry(digest(question))
    if path is not None and path.exists():
        try:
            return replace(restore(files.read(path), path), name=name, options=options or {})
        except (FileFormatError, OSError):
            path.unlink(missing_ok=True)  # damaged: as good as none
    began = time.perf_counter()
    solve: Any = {
        "streamed": streamed_optimum,
        "blocks": block_optimum,
        "epochs": epoch_optimum,
        "dense": dense_optimum,
    }[form]
    stopped = False

    def watched(iteration: int, gap: float) -> bool:
        nonlocal stopped
        stopped = bool(progress and progress(iteration, gap)) or stopped
        return stopped

    common: dict[str, Any] = {"options": options or {}, "tolerance": tolerance, "progress": watched}
    if form == "streamed":
        common["buffers"] = buffers
    found: Factorization = solve(name, workload, objective, participation, **common)
    if path is not None and not stopped and time.perf_counter() - began > WORTH_KEEPING:
        with suppress(OSError):  # a full disk costs time next time, nothing else
            found.save(path)
    return found


def best_bound(workload: Workload, objective: Objective, participation: Participation) -> float:
    """A certified bound on the error of every factorization; for many steps and epochs, without making one."""
    if workload.steps > DENSE_IS_CHEAP and _form(workload, objective, participation, "auto") == "epochs":
        low, _ = bound_only(workload, objective, participation, tolerance=_worth_waiting_for(workload.steps))
        return low
    return optimal(workload, objective, participation).lower_bound


def _form(workload: Workload, objective: Objective, participation: Participation, buffers: str | int) -> str:
    if isinstance(buffers, str):
        check.choice("buffers", buffers, ("auto", "exact"))
    else:
        check.whole_number("buffers", buffers)
    if can_be_streamed(workload, objective, participation):
        return "streamed"
    if isinstance(participation, Once) and decouples(workload, objective):
        return "blocks"
    if not isinstance(buffers, str):
        raise ValueError(
            f"buffers = {buffers}: this design has no form with few buffers (that needs a workload that is a short "
            "recurrence, an objective of weighted iterates, and one participation or restarts between any two); leave "
            "buffers out"
        )
    return "epochs" if can_be_ringed(workload, objective, participation) else "dense"


def _worth_waiting_for(steps: int) -> float:
    return 1e-9 if steps <= 1024 else 1e-6 if steps <= 4096 else 1e-4
