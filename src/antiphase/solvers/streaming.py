"""The optimum as a stream of a few buffers, for short recurrences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress
from antiphase.factorizations.segments import FIELDS, Segment, Stream
from antiphase.factorizations.streaming import Streaming
from antiphase.linalg.quadrature import inverse_square_root_nodes, nodes_needed
from antiphase.objective import Average, Objective
from antiphase.participation import Participation
from antiphase.problem import Problem, problem_of
from antiphase.solvers.single_participation import DualPoint, maximise
from antiphase.workload import Workload

WITHIN = 1e-3  # of the optimum: what buffers="auto" keeps to
Maker = Callable[[list["Segment"], list[int], float], "Streaming"]


# ---- making one --------------------------------------------------------------------------------------------


def stretch_of(problem: Problem, size: int, point: DualPoint, nodes: int) -> Segment:
    """The stream with so many quadrature nodes, its columns scaled so that the squares of a class add up to 1."""
    from antiphase.linalg import kernels

    squares, weights = inverse_square_root_nodes(nodes, point.low, point.high)
    common = problem.L, problem.N, point.v, problem.half_bandwidth
    move, g, h, x = kernels.generators(*common, squares, weights)
    total = np.bincount(point.owner, x)[point.owner]
    share = x / total
    scale = (
        total**-0.5
    )  # of the columns; then rounding is put right from the coefficients themselves
    delta, r = kernels.factor(move, g * scale[:, None, None], h * scale[:, None, None], share)
    g = g * scale[:, None, None]
    norms = np.sqrt(
        Segment(size, problem.live, delta, r, g, move).squared_norms()[problem.live] / share
    )
    return Segment(size, problem.live, delta / norms, r, g / norms[:, None, None], move)


def streamed_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    tolerance: float,
    buffers: str | int,
    progress: Progress | None = None,
) -> Streaming:
    """The optimum in stream form, and its certificate."""

    def made(segments: list[Segment], sequence: list[int], bound: float) -> Streaming:
        return Streaming(
            name,
            workload,
            objective,
            participation,
            tuple(segments),
            tuple(sequence),
            options=options,
            bound=bound,
        )

    single = participation.max_participations == 1
    if objective.independent_blocks(workload) is not None and workload.delay == 0 and single:
        return _by_blocks(workload, objective, tolerance, buffers, progress, made)
    problem = problem_of(workload, objective)
    assert problem is not None
    every = participation.steps_per_epoch
    owner = None if every is None else problem.live % every

    def error(segment: Segment) -> float:
        return made(*split(segment, problem.starts), 1.0).error

    segment, bound = _solved(problem, workload.steps, tolerance, buffers, error, progress, owner)
    return made(*split(segment, problem.starts), bound)


def split(segment: Segment, starts: list[int]) -> tuple[list[Segment], list[int]]:
    """A segment in which nothing is coupled across the starts, as one for each of them; equal ones are kept once."""
    if len(segment.live) < segment.size:
        return [segment], [0]
    distinct: dict[bytes, int] = {}
    parts: list[Segment] = []
    sequence = []
    for start, stop in zip(starts, [*starts[1:], segment.size], strict=True):
        fields = [np.array(getattr(segment, name)[start:stop]) for name in FIELDS]
        fields[3][0] = 0.0  # nothing comes from before
        key = b"".join(field.tobytes() for field in fields)
        if key not in distinct:
            distinct[key] = len(parts)
            parts.append(Segment(stop - start, np.arange(stop - start), *fields))
        sequence.append(distinct[key])
    return parts, sequence


def _by_blocks(
    workload: Workload,
    objective: Objective,
    tolerance: float,
    buffers: str | int,
    progress: Progress | None,
    made: Maker,
) -> Streaming:
    """DP-MF⁺: each segment between restarts is a problem of its own; equal ones are solved once."""
    rates = workload.learning_rates
    assert rates is not None
    known: dict[bytes, tuple[int, float]] = {}
    segments: list[Segment] = []
    sequence, bound = [], 0.0
    for start, stop, weights in objective.independent_blocks(workload) or []:
        key = rates[start:stop].tobytes() + weights.tobytes()
        if key not in known:
            segment, its_bound = solved_block(
                rates[start:stop], weights, tolerance, buffers, progress
            )
            known[key] = len(segments), its_bound
            segments.append(segment)
        sequence.append(known[key][0])
        bound += known[key][1]
    return made(segments, sequence, bound)


def solved_block(
    rates: Array, weights: Array, tolerance: float, buffers: str | int, progress: Progress | None
) -> tuple[Segment, float]:
    """The optimum for so many steps of SGD alone, its columns of norm 1, and the certified bound."""
    size = len(rates)
    if not rates.any():
        empty = np.zeros((0, 1, 1))
        return Segment(size, np.zeros(0, dtype=np.int64), np.zeros(0), empty, empty, empty), 0.0
    block, objective = Workload.sgd(size, learning_rates=rates), Average(weights)
    problem = problem_of(block, objective)
    assert problem is not None

    def error(segment: Segment) -> float:
        norms = segment.squared_norms().max()
        assert block.recurrence is not None
        return float(norms * (weights**2 @ Stream((segment,), (0,)).variances(*block.recurrence)))

    return _solved(problem, size, tolerance, buffers, error, progress)


def _solved(
    problem: Problem,
    size: int,
    tolerance: float,
    buffers: str | int,
    error: Any,
    progress: Progress | None,
    owner: Indices | None = None,
) -> tuple[Segment, float]:
    """The segment and its certified bound. The search is as sharp as the form is: few buffers need no more digits."""
    start = None
    if buffers != "exact":
        tolerance = max(tolerance, 1e-8 if size <= 50_000 else 1e-6)
        for _ in range(4):
            point = maximise(
                problem, tolerance=tolerance, start=start, owner=owner, progress=progress
            )
            segment = _with_buffers(problem, size, point, buffers, error)
            if buffers != "auto" or error(segment) <= (1 + WITHIN) * point.lower_bound:
                break
            tolerance, start = tolerance / 100, point.v  # what falls short is the bound
        return segment, point.lower_bound
    sharper = tolerance / 10
    while True:
        point = maximise(problem, tolerance=sharper, start=start, owner=owner, progress=progress)
        nodes = nodes_needed(point.low, point.high, max(tolerance / 1000, 1e-16))
        segment = stretch_of(problem, size, point, nodes)
        if error(segment) <= (1 + tolerance) * point.lower_bound or sharper < 1e-4 * tolerance:
            return segment, point.lower_bound
        sharper, start = sharper / 30, point.v


def _with_buffers(
    problem: Problem, size: int, point: DualPoint, buffers: str | int, error: Any
) -> Segment:
    """As many nodes as ``buffers`` asks for, or the fewest that are within 0.1 % of the optimum."""
    q = problem.half_bandwidth
    full = nodes_needed(point.low, point.high)
    if buffers != "auto":
        return stretch_of(problem, size, point, min(max(int(buffers) // q, 1), full))
    nodes = max(1, min(full, round(0.57 * nodes_needed(point.low, point.high, WITHIN))))
    segment = stretch_of(problem, size, point, nodes)

    def good(segment: Segment) -> bool:
        return bool(error(segment) <= (1 + 0.95 * WITHIN) * point.lower_bound)

    if good(segment):
        while nodes > 1:
            fewer = stretch_of(problem, size, point, nodes - 1)
            if not good(fewer):
                break
            segment, nodes = fewer, nodes - 1
    else:
        most = min(full, 2 * nodes + 8)
        while nodes < most:
            nodes += 1
            segment = stretch_of(problem, size, point, nodes)
            if good(segment):
                break
    return segment


def can_be_streamed(workload: Workload, objective: Objective, participation: Participation) -> bool:
    """Whether the optimum has this form: for one participation, or with a restart between any two."""
    problem = problem_of(workload, objective)
    if problem is None or not participation.fixed_order:
        return False
    if participation.separation >= workload.steps:
        return True
    longest = int(np.diff([*problem.starts, problem.size]).max())
    return longest <= participation.separation and not workload.idle.any()
