"""The certified optimum for a workload, an objective and a participation: the cheapest way that applies, and the
cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from antiphase._util import checks as check
from antiphase._util.progress import Progress
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.streaming import Streaming
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.solvers.block_diagonal import block_optimum
from antiphase.solvers.dense import dense_optimum
from antiphase.solvers.design_cache import remembered
from antiphase.solvers.few_buffers import fitted, windowed, with_fewest
from antiphase.solvers.min_separation import separated
from antiphase.solvers.minimax import levelled_optimum
from antiphase.solvers.multi_epoch import bound_only, can_be_ringed, epoch_optimum
from antiphase.solvers.streaming import can_be_streamed, streamed_optimum
from antiphase.workload import Workload

SOLVERS: dict[str, Callable[..., Factorization]] = {
    "streamed": streamed_optimum,
    "windowed": windowed,
    "blocks": block_optimum,
    "epochs": epoch_optimum,
    "dense": dense_optimum,
}
DENSE_IS_CHEAP = 4096  # steps up to which an encoder is made even if only its bound is asked for


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
    between any two), with as many ``buffers`` as asked for; else by blocks; else dense. Where only a dense encoder is
    optimal and so many ``buffers`` are asked for, the best stream of that many that a descent finds. ``tolerance`` is
    the relative gap at which the search stops; unless given, 1e-9, and less sharp where several epochs have many steps.
    """
    form = _form(workload, objective, participation, buffers)
    gap = (
        tolerance if tolerance is not None else _worth_waiting_for(workload.steps, form, objective)
    )
    question = {
        "form": form,
        "buffers": buffers if form in ("streamed", "windowed", "separated") else None,
        "workload": workload,
        "objective": objective,
        "participation": participation,
        "tolerance": gap,
    }

    levelled = objective.is_maximum

    def solved(
        objective: Objective, tolerance: float, buffers: str | int, watched: Progress | None
    ) -> Factorization:
        def of(who: Participation) -> Factorization:
            form = _form(workload, objective, who, buffers)
            wanted: dict[str, Any] = {} if form == "windowed" else {"tolerance": tolerance}
            if form in ("streamed", "windowed"):
                wanted["buffers"] = buffers
            found = SOLVERS[form](
                name, workload, objective, who, options=options or {}, progress=watched, **wanted
            )
            if (
                not isinstance(found, Streaming)
                or form != "streamed"
                or levelled
                or buffers == "exact"
            ):
                return found
            if isinstance(buffers, str):
                return with_fewest(found, progress=watched)
            return fitted(found, buffers, progress=watched)

        if form == "separated":
            return separated(participation, workload.steps, of)
        return of(participation)

    def make(watched: Progress) -> Factorization:
        if not levelled:
            return solved(objective, gap, buffers, watched)

        def weighted(average: Objective, sharply: bool) -> Factorization:
            return solved(average, gap / 10, "exact" if sharply else buffers, None)

        return levelled_optimum(weighted, workload.steps, tolerance=gap, progress=watched)

    return remembered(question, make, name=name, options=options or {}, progress=progress)


def best_bound(workload: Workload, objective: Objective, participation: Participation) -> float:
    """A certified bound on the error of every factorization; for many steps and epochs, without making one."""
    if (
        workload.steps > DENSE_IS_CHEAP
        and not objective.is_maximum
        and _form(workload, objective, participation, "auto") == "epochs"
    ):
        low, _ = bound_only(
            workload,
            objective,
            participation,
            tolerance=_worth_waiting_for(workload.steps, "epochs"),
        )
        return low
    return optimal(workload, objective, participation).lower_bound


def _form(
    workload: Workload, objective: Objective, participation: Participation, buffers: str | int
) -> str:
    if isinstance(buffers, str):
        check.choice("buffers", buffers, ("auto", "exact"))
    else:
        check.whole_number("buffers", buffers)
    if can_be_streamed(workload, objective, participation):
        return "streamed"
    if not participation.fixed_order and (
        isinstance(buffers, str)
        or can_be_streamed(workload, objective, participation.evenly_spaced(workload.steps))
    ):
        return "separated"
    if participation.max_participations == 1 and objective.independent_blocks(workload):
        return "blocks"
    if not isinstance(buffers, str):
        if objective.recurrence(workload) is None:
            raise ValueError(
                f"buffers = {buffers}: this design has no form with few buffers (that needs a workload that is a short "
                "recurrence and an objective of weighted iterates); leave buffers out"
            )
        if objective.is_maximum:
            raise ValueError(
                f"buffers = {buffers}: few buffers for several epochs are searched for weighted iterates, not for the "
                "noisiest one; leave buffers out"
            )
        return "windowed"
    return "epochs" if can_be_ringed(workload, objective, participation) else "dense"


def _worth_waiting_for(steps: int, form: str, objective: Objective | None = None) -> float:
    if objective is not None and objective.is_maximum:
        return 1e-4
    if form not in ("epochs", "separated"):
        return 1e-9
    return 1e-9 if steps <= 1024 else 1e-6 if steps <= 4096 else 1e-4
