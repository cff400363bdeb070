r"""Best streams with a given number of buffers, by descent.

What each step feeds to each buffer and how fast the buffers decay are free at every step. Error and
gradient take O(T m²). Columns are scaled so that the squared norms of a class of steps sum to 1.

*One participation.* The optimum's own stream, cut to a few quadrature nodes, spends its buffers
evenly on the whole spectrum, and with momentum two on each node. The best BLT uses them better, but
is the same at every step. A descent that starts from the BLT finds streams better than either: at
1,024 steps 2 buffers are 1.9 % above the optimum (cut 19 %, BLT 8.9 %) and 4 are 0.03 % (0.2 % and
7 %).

*Several participations.* Each buffer is emptied once in every b steps, at its own step, where b is
the separation of participations. It never holds more than the last b steps, so columns b apart
share no row: their cross terms are 0 for any coefficients, and the sensitivity is exact for epochs
in a fixed order and for any order with that separation. Since the buffers take turns, some of them
reach far back at every step. With b buffers this is a general banded encoder; a few are nearly as
good.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress
from antiphase.factorizations.segments import Segment
from antiphase.factorizations.streaming import Streaming
from antiphase.linalg.lbfgs import descend
from antiphase.participation import Once
from antiphase.problem import Problem
from antiphase.solvers.blt import MAX_BUFFERS, blt_optimum
from antiphase.solvers.streaming import AUTO_EXCESS, split_segment

MAX_ITERATIONS = 1000
MAX_LOG_DECAY = 50.0  # |ln ρ| is kept below this
MAX_DESCENT_STEPS = 20_000  # up to which there is a descent; above, the better start is taken
NEGLIGIBLE_EXCESS = 1e-4  # excess over the optimum at which no better stream is searched for
MANY_BUFFERS = 8  # from which on buffers="auto" tries fewer
MAX_TRIAL_STEPS = 2_000  # up to which buffers="auto" tries fewer


class BufferSearch:
    """``ln error`` of the scaled encoder and its gradient.

    The parameters are ``(ln δ, g, ln ρ)`` in one vector.
    """

    def __init__(
        self, P: Array, N: Array, squares: Array, classes: Indices, kept: Array, fed: Array
    ) -> None:
        """Set up the search.

        Args:
            P: bands of the left-hand side of the recurrence.
            N: bands of its right-hand side.
            squares: squared weights of the iterates.
            classes: the class of each step.
            kept: ``(T, m)``, 0 where a buffer is emptied before row t, else 1.
            fed: ``(T, m)``, 0 where step t does not feed a buffer, else 1.
        """
        self._problem, self._classes, self._kept, self._fed = (P, N, squares), classes, kept, fed

    @property
    def buffers(self) -> int:
        """Number of buffers."""
        return int(self._kept.shape[1])

    def uniform(self, decays: Array, scales: Array) -> Array:
        """Parameters that are equal at every step: the decay of each buffer, and its input."""
        steps = len(self._kept)
        return np.concatenate(
            [np.zeros(steps), np.tile(scales, steps), np.tile(np.log(decays), steps)]
        )

    def _coefficients(self, x: Array) -> tuple[Array, Array, Array]:
        steps, shape = len(self._kept), self._kept.shape
        g, log_rho = x[steps:].reshape(2, *shape)
        rho = np.exp(np.clip(log_rho, -MAX_LOG_DECAY, MAX_LOG_DECAY)) * self._kept
        return np.exp(x[:steps]), g * self._fed, rho

    def scaled(self, x: Array) -> tuple[Array, Array, Array]:
        """Coefficients ``δ, g, ρ`` with the columns of each class scaled to their budget."""
        from antiphase.linalg import adjoints

        delta, g, rho = self._coefficients(x)
        norms = adjoints.norms(delta, g, rho, np.zeros(len(delta)))[0]
        scale = np.bincount(self._classes, norms)[self._classes] ** -0.5
        return delta * scale, g * scale[:, None], rho

    def segment(self, x: Array, size: int, live: Indices) -> Segment:
        """The stream with these parameters."""
        delta, g, rho = self.scaled(x)
        return Segment(size, live, delta, np.ones((*rho.shape, 1)), g[..., None], rho[..., None])

    def loss(self, x: Array) -> tuple[float, Array]:
        """``ln error`` and its gradient."""
        from antiphase.linalg import adjoints

        delta, g, rho = self.scaled(x)
        error, of_delta, of_g, of_rho = adjoints.noise(delta, g, rho, *self._problem)
        # The scale of a class depends on its sum of squares, which is 1 here.
        by_class = np.bincount(self._classes, of_delta + (of_g * g).sum(axis=1))
        weights: Array = (-0.5 * by_class[self._classes]).astype(np.float64)
        _, *through_scale = adjoints.norms(delta, g, rho, weights)
        of_delta, of_g, of_rho = (
            direct + through
            for direct, through in zip((of_delta, of_g, of_rho), through_scale, strict=True)
        )
        unscaling = self._coefficients(x)[0] / delta
        slopes = [of_delta, (of_g / unscaling[:, None] * self._fed).ravel(), of_rho.ravel()]
        return float(np.log(error)), np.concatenate(slopes) / error


# ---- one participation, or a restart between any two -------------------------------------------


def refine(
    problem: Problem, stream: Streaming, buffers: str | int, *, progress: Progress | None = None
) -> Streaming:
    """A better stream of so many buffers, or a smaller one, with the same certified bound.

    Args:
        problem: the problem that the stream solves.
        stream: the optimum, or the optimum cut to a few buffers.
        buffers: ``"exact"`` returns the stream; ``"auto"`` searches for a smaller one within 0.1 %
            of the optimum; a number searches for a better one of that many.
        progress: called in every iteration; stops a descent if it returns True.
    """
    if problem.banded is None or buffers == "exact":
        return stream
    if isinstance(buffers, str):
        return _with_fewest_buffers(problem, stream, progress)
    if stream.error <= (1 + NEGLIGIBLE_EXCESS) * stream.lower_bound:
        return stream
    better = _descend_from_blt(problem, stream, buffers, progress)
    return stream if better is None else min(stream, better, key=lambda f: f.error)


def _with_fewest_buffers(
    problem: Problem, stream: Streaming, progress: Progress | None
) -> Streaming:
    """The stream, or where it has many buffers, as with momentum, the smallest that will do."""
    if stream.buffers < MANY_BUFFERS or problem.short_recurrence.size > MAX_TRIAL_STEPS:
        return stream
    before = 0.1  # where a few buffers suffice, two leave less than a third of this
    for buffers in range(2, MANY_BUFFERS):
        smaller = _descend_from_blt(problem, stream, buffers, progress)
        excess = np.inf if smaller is None else smaller.error / smaller.lower_bound - 1
        if smaller is not None and excess <= AUTO_EXCESS:
            return smaller
        if excess > max(before / 3, 2 * AUTO_EXCESS):
            break  # another buffer hardly helps, as where momentum meets an average
        before = excess
    return stream


def _descend_from_blt(
    problem: Problem, stream: Streaming, buffers: int, progress: Progress | None
) -> Streaming | None:
    """The stream that a descent from the best BLT finds; None if its coefficients cancel."""
    banded = problem.short_recurrence
    kept = np.ones((banded.size, min(buffers, MAX_BUFFERS)))
    kept[[start for start, _ in banded.segments]] = 0.0
    equation, fed = (banded.P, banded.N, banded.weights**2), np.roll(kept, -1, axis=0)
    search = BufferSearch(*equation, problem.step_classes, kept, fed)
    blt = blt_optimum(replace(problem, participation=Once()), buffers=search.buffers)
    x = search.uniform(blt.decays, blt.scales)
    if banded.size <= MAX_DESCENT_STEPS:
        x = descend(search.loss, x, iterations=MAX_ITERATIONS, progress=progress)
    distinct, sequence = split_segment(search.segment(x, problem.steps, banded.live), banded)
    descended = replace(stream, distinct=distinct, sequence=sequence)
    try:
        return descended if np.isfinite(descended.error) else None
    except ValueError:
        return None


# ---- several participations --------------------------------------------------------------------


def few_buffers(problem: Problem, *, buffers: int, progress: Progress | None = None) -> Streaming:
    """The best stream of so many buffers that a descent finds, each emptied once per separation.

    Args:
        problem: a problem whose workload and objective are a short recurrence.
        buffers: how many; more than participations are apart change nothing.
        progress: called in every iteration; stops the descent if it returns True.

    Example:
        >>> from antiphase import Workload, epochs, objective
        >>> problem = Problem(Workload.sgd(12), objective.Average(), epochs(2, every=6))
        >>> few_buffers(problem, buffers=2).buffers
        2
    """
    steps = problem.steps
    P, N, weights = problem.recurrence(f"buffers = {buffers}: a stream of few buffers")
    window = min(problem.participation.separation, steps)
    # In any order, steps far enough apart form a pattern, so that each step is a class of its own.
    classes = np.arange(steps) % problem.period
    emptied = _emptied(steps, window, min(buffers, window))
    search = BufferSearch(P, N, weights**2, classes, *emptied)
    x = descend(search.loss, _start(search, window), iterations=MAX_ITERATIONS, progress=progress)
    segment = search.segment(x, steps, np.arange(steps))
    return Streaming("optimal", **problem.fields, distinct=(segment,), sequence=(0,))


def _start(search: BufferSearch, window: int) -> Array:
    """Equal buffers that decay over most of a window, together about as large as the diagonal."""
    rate = max(window, 2.0) ** -0.9
    return search.uniform(
        np.full(search.buffers, 1 - rate), np.full(search.buffers, 2 / search.buffers * rate**0.5)
    )


def _emptied(steps: int, window: int, buffers: int) -> tuple[Array, Array]:
    """The arrays ``kept`` and ``fed`` of `BufferSearch`.

    A step does not feed a buffer that is emptied at once.
    """
    places = np.arange(buffers) * window // buffers
    t = np.arange(steps)[:, None]
    kept = ((t - places) % window != 0).astype(np.float64)
    # PRIVACY: otherwise a column would reach one row further, and share it with the column of the
    # next participation.   [G1]
    fed = ((t + 1 - places) % window != 0).astype(np.float64)
    return kept, fed
