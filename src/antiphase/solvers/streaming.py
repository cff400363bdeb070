"""Certified optimum as a stream of a few buffers, for short recurrences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.segments import FIELDS, Segment
from antiphase.factorizations.streaming import Streaming
from antiphase.linalg.quadrature import inverse_square_root_nodes, nodes_needed
from antiphase.objective import Average, Block
from antiphase.participation import Once
from antiphase.problem import BandedProblem, Problem
from antiphase.solvers.repetition import solve_distinct
from antiphase.solvers.single_participation import DualPoint, maximise_dual
from antiphase.workload import Workload

AUTO_EXCESS = 1e-3  # excess over the optimum that buffers="auto" allows
MAX_SHARP_STEPS = 50_000  # up to which streams of few buffers are searched for to 1e-8


def streaming_optimum(
    problem: Problem,
    *,
    tolerance: float,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Streaming:
    """The optimum in the form of a stream, with its certificate.

    Args:
        problem: a problem that `is_streamable`.
        tolerance: the relative gap to reach; at least 1e-8 unless ``buffers="exact"``.
        buffers: ``"exact"``, ``"auto"`` (the fewest within 0.1 % of the optimum), or how many.
        progress: called in every iteration.

    Example:
        >>> from antiphase.participation import once
        >>> problem = Problem(Workload.sgd(16), Average(), once())
        >>> stream = streaming_optimum(problem, tolerance=1e-6)
        >>> stream.buffers, stream.gap < 1e-3
        (3, True)
    """
    workload, blocks = problem.workload, problem.objective.independent_blocks(problem.workload)
    single = problem.participation.max_participations == 1
    if blocks is not None and workload.delay == 0 and single:
        return _blockwise_optimum(problem, blocks, tolerance, buffers, progress)
    segment, bound = _solve_segment(problem, tolerance, buffers, progress)
    return _stream(problem, segment, bound)


def is_streamable(problem: Problem) -> bool:
    """Whether the optimum is a stream: one participation, or a restart between any two."""
    if problem.banded is None or not problem.participation.fixed_order:
        return False
    if problem.period == problem.steps:
        return True
    return problem.banded.longest_segment <= problem.period and not problem.workload.idle.any()


def _solve_segment(
    problem: Problem, tolerance: float, buffers: str | int, progress: Progress | None
) -> tuple[Segment, float]:
    """The optimum as a single segment, and its certified bound.

    The dual is solved as accurately as the form of the encoder requires: few buffers only
    approximate the optimum, and need fewer digits.
    """
    if buffers == "exact":
        return _exact_segment(problem, tolerance, progress)
    ascend = _ascent(problem, progress)
    tolerance = max(tolerance, 1e-8 if problem.steps <= MAX_SHARP_STEPS else 1e-6)
    start = None
    for _ in range(4):
        point = ascend(tolerance=tolerance, start=start)
        segment = _segment_with_buffers(problem, point, buffers)
        limit = (1 + AUTO_EXCESS) * point.lower_bound
        if buffers != "auto" or _stream(problem, segment).error <= limit:
            break
        tolerance, start = tolerance / 100, point.v  # the bound is too low
    return segment, point.lower_bound


def _exact_segment(
    problem: Problem, tolerance: float, progress: Progress | None
) -> tuple[Segment, float]:
    """As many buffers as full precision needs."""
    ascend = _ascent(problem, progress)
    sharper, start = tolerance / 10, None
    while True:
        point = ascend(tolerance=sharper, start=start)
        nodes = nodes_needed(point.low, point.high, max(tolerance / 1000, 1e-16))
        segment = _segment(problem, point, nodes)
        limit = (1 + tolerance) * point.lower_bound
        if _stream(problem, segment).error <= limit or sharper < 1e-4 * tolerance:
            return segment, point.lower_bound
        sharper, start = sharper / 30, point.v


def _ascent(problem: Problem, progress: Progress | None) -> Callable[..., DualPoint]:
    """The search of the dual, which takes a tolerance and a start."""
    classes = problem.step_classes
    return partial(maximise_dual, problem.short_recurrence, classes=classes, progress=progress)


def _segment_with_buffers(problem: Problem, point: DualPoint, buffers: str | int) -> Segment:
    """So many buffers, or for ``"auto"`` the fewest that leave an excess of `AUTO_EXCESS`."""
    most = nodes_needed(point.low, point.high)
    if buffers != "auto":
        nodes = min(max(int(buffers) // problem.short_recurrence.half_bandwidth, 1), most)
        return _segment(problem, point, nodes)
    limit = (1 + 0.95 * AUTO_EXCESS) * point.lower_bound
    nodes = max(1, min(most, round(0.57 * nodes_needed(point.low, point.high, AUTO_EXCESS))))
    segment = _segment(problem, point, nodes)
    if _stream(problem, segment).error <= limit:
        while nodes > 1:
            smaller = _segment(problem, point, nodes - 1)
            if not _stream(problem, smaller).error <= limit:
                break
            segment, nodes = smaller, nodes - 1
        return segment
    for more in range(nodes + 1, min(most, 2 * nodes + 8) + 1):
        segment = _segment(problem, point, more)
        if _stream(problem, segment).error <= limit:
            break
    return segment


def _segment(problem: Problem, point: DualPoint, nodes: int) -> Segment:
    """The stream with so many quadrature nodes, scaled so that each class has sensitivity 1."""
    from antiphase.linalg import resolvents, stream_kernels

    banded = problem.short_recurrence
    squares, weights = inverse_square_root_nodes(nodes, point.low, point.high)
    common = banded.weighted_bands, banded.N, point.v, banded.half_bandwidth
    move, g, h, x = resolvents.generators(*common, squares, weights)
    total = np.bincount(point.classes, x)[point.classes]
    share, scale = x / total, (total**-0.5)[:, None, None]
    g *= scale
    delta, r = stream_kernels.factor(move, g, h * scale, share)
    # The columns are scaled again, by the norms of the coefficients themselves.
    segment = Segment(problem.steps, banded.live, delta, r, g, move)
    norms = np.sqrt(segment.squared_norms()[banded.live] / share)
    return replace(segment, delta=delta / norms, g=g / norms[:, None, None])


def _stream(problem: Problem, segment: Segment, bound: float | None = None) -> Streaming:
    """The factorization of one segment, split where its steps are not coupled."""
    distinct, sequence = split_segment(segment, problem.short_recurrence)
    return Streaming("optimal", **problem.fields, distinct=distinct, sequence=sequence, bound=bound)


def split_segment(
    segment: Segment, banded: BandedProblem
) -> tuple[tuple[Segment, ...], tuple[int, ...]]:
    """The distinct segments of a problem whose steps are not all coupled, and their sequence."""
    if len(segment.live) < segment.size:
        return (segment,), (0,)
    parts = []
    for start, stop in banded.segments:
        fields = {name: np.array(getattr(segment, name)[start:stop]) for name in FIELDS}
        fields["move"][0] = 0.0  # no state comes from an earlier segment
        parts.append((stop - start, fields))
    keys = [b"".join(field.tobytes() for field in fields.values()) for _, fields in parts]
    distinct, sequence = solve_distinct(
        keys, lambda i: Segment(parts[i][0], np.arange(parts[i][0]), **parts[i][1])
    )
    return tuple(distinct), sequence


def _blockwise_optimum(
    problem: Problem,
    blocks: list[Block],
    tolerance: float,
    buffers: str | int,
    progress: Progress | None,
) -> Streaming:
    """DP-MF⁺: each segment between restarts is a problem of its own."""
    rates = problem.workload.learning_rates
    assert rates is not None
    solved, sequence = solve_distinct(
        [rates[b.start : b.stop].tobytes() + b.weights.tobytes() for b in blocks],
        lambda i: solve_sgd_segment(
            rates[blocks[i].start : blocks[i].stop], blocks[i].weights, tolerance, buffers, progress
        ),
    )
    distinct = tuple(segment for segment, _ in solved)
    bound = sum(solved[i][1] for i in sequence)
    return Streaming("optimal", **problem.fields, distinct=distinct, sequence=sequence, bound=bound)


def solve_sgd_segment(
    rates: Array, weights: Array, tolerance: float, buffers: str | int, progress: Progress | None
) -> tuple[Segment, float]:
    """The optimum for plain SGD with these rates and weights alone, and its certified bound."""
    size = len(rates)
    if not rates.any():  # no step moves the model
        empty = np.zeros((0, 1, 1))
        return Segment(size, np.zeros(0, dtype=np.int64), np.zeros(0), empty, empty, empty), 0.0
    problem = Problem(Workload.sgd(size, learning_rates=rates), Average(weights), Once())
    return _solve_segment(problem, tolerance, buffers, progress)
