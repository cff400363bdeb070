"""Choice of the solver for the certified optimum of a problem."""

from __future__ import annotations

from functools import partial

from antiphase._util import checks as check
from antiphase._util.progress import Progress
from antiphase.factorizations.base import Factorization
from antiphase.problem import Problem
from antiphase.solvers.block_diagonal import block_diagonal_optimum
from antiphase.solvers.dense import dense_optimum
from antiphase.solvers.design_cache import cached
from antiphase.solvers.few_buffers import few_buffers, refine
from antiphase.solvers.min_separation import min_separation_encoder
from antiphase.solvers.minimax import minimax_optimum
from antiphase.solvers.multi_epoch import is_block_cyclic, multi_epoch_bounds, multi_epoch_optimum
from antiphase.solvers.streaming import is_streamable, streaming_optimum

MAX_DENSE_BOUND_STEPS = 4096  # steps above which a bound is computed without an encoder


def optimal(
    problem: Problem,
    *,
    tolerance: float | None = None,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Factorization:
    """The factorization of least error, from the cache or from the solver that fits the problem.

    It is a stream if the workload is a short recurrence and records take part once, or the
    objective restarts between any two participations. Else it is block diagonal or dense, or with a
    number of buffers the best stream that a descent finds.

    Guarantee: ``lower_bound`` is a bound on the error of every factorization.   [G5]

    Args:
        problem: what the encoder is designed for.
        tolerance: the relative gap to reach; `default_tolerance` unless given.
        buffers: for streams ``"exact"``, ``"auto"`` (the fewest within 0.1 % of the optimum), or
            how many.
        progress: called while a search runs; returns True to stop a search for several epochs.

    Raises:
        ValueError: no solver yields the number of buffers that is asked for.
        TooLargeError: the encoder is dense, and too large for the memory.

    Example:
        >>> from antiphase import Workload, epochs, objective
        >>> optimal(Problem(Workload.sgd(8), objective.Average(), epochs(2, every=4)))
        <Factorization optimal: 8 steps, 2 epochs of 4 steps, error 36.8..., gap ..., sensitivity 1>
    """
    _check_buffers(problem, buffers)
    if tolerance is None:
        tolerance = default_tolerance(problem)
    return cached(solve, problem, progress=progress, tolerance=tolerance, buffers=buffers)


def solve(
    problem: Problem,
    *,
    tolerance: float,
    buffers: str | int = "auto",
    refined: bool = True,
    progress: Progress | None = None,
) -> Factorization:
    """The factorization of least error, by the solver that fits the problem.

    Args:
        problem: what the encoder is designed for.
        tolerance: the relative gap to reach.
        buffers: as in `optimal`.
        refined: whether streams of few buffers are improved by a descent.
        progress: as in `optimal`.
    """
    if problem.objective.is_maximum:
        weighted_solver = partial(solve, refined=False)
        return minimax_optimum(
            problem, weighted_solver, tolerance=tolerance, buffers=buffers, progress=progress
        )
    if is_streamable(problem):
        stream = streaming_optimum(problem, tolerance=tolerance, buffers=buffers, progress=progress)
        return refine(problem, stream, buffers, progress=progress) if refined else stream
    if _only_evenly_spaced_is_solved(problem, buffers):
        fixed_order_solver = partial(
            solve, tolerance=tolerance, buffers=buffers, refined=refined, progress=progress
        )
        return min_separation_encoder(problem, fixed_order_solver)
    if _is_block_diagonal(problem):
        return block_diagonal_optimum(problem, tolerance=tolerance, progress=progress)
    if not isinstance(buffers, str):
        return few_buffers(problem, buffers=buffers, progress=progress)
    if is_block_cyclic(problem):
        return multi_epoch_optimum(problem, tolerance=tolerance, progress=progress)
    return dense_optimum(problem, tolerance=tolerance, progress=progress)


def best_bound(problem: Problem) -> float:
    """A certified bound on the error of every factorization.

    For many steps and epochs it is computed without an encoder.
    """
    if (
        problem.steps > MAX_DENSE_BOUND_STEPS
        and not problem.objective.is_maximum
        and not is_streamable(problem)
        and is_block_cyclic(problem)
    ):
        return multi_epoch_bounds(problem, tolerance=default_tolerance(problem))[0]
    return optimal(problem).lower_bound


def default_tolerance(problem: Problem) -> float:
    """The relative gap at which a search stops unless told otherwise.

    For several epochs it grows with the number of steps, so that searches take seconds.
    """
    if problem.objective.is_maximum:
        return 1e-4
    several_epochs = is_block_cyclic(problem) or not problem.participation.fixed_order
    if is_streamable(problem) or not several_epochs:
        return 1e-9
    return multi_epoch_tolerance(problem.steps)


def multi_epoch_tolerance(steps: int) -> float:
    """The default relative gap for several epochs."""
    if steps <= 512:
        return 1e-9
    return 1e-6 if steps <= 4096 else 1e-4


def _only_evenly_spaced_is_solved(problem: Problem, buffers: str | int) -> bool:
    """Whether participations are in any order, and the solver is that for evenly spaced ones."""
    if problem.participation.fixed_order:
        return False
    return isinstance(buffers, str) or is_streamable(problem.evenly_spaced())


def _is_block_diagonal(problem: Problem) -> bool:
    single = problem.participation.max_participations == 1
    return single and problem.objective.independent_blocks(problem.workload) is not None


def _check_buffers(problem: Problem, buffers: str | int) -> None:
    if isinstance(buffers, str):
        check.choice("buffers", buffers, ("auto", "exact"))
        return
    check.whole_number("buffers", buffers)
    if (
        is_streamable(problem)
        or _only_evenly_spaced_is_solved(problem, buffers)
        or _is_block_diagonal(problem)
    ):
        return
    if problem.objective.recurrence(problem.workload) is None:
        raise ValueError(
            f"buffers = {buffers}: this design has no form with few buffers, which needs a "
            "workload that is a short recurrence and an objective of weighted iterates; leave "
            "buffers out"
        )
    if problem.objective.is_maximum:
        raise ValueError(
            f"buffers = {buffers}: with several epochs, few buffers need an objective of weighted "
            "iterates rather than the maximum; leave buffers out"
        )
