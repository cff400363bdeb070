"""The search for the best buffers: what each step feeds to each of them, and how fast they decay, all of it free.

``kept`` and ``fed`` say where a buffer is emptied and where nothing enters it. Error and gradient take O(T m²); the
columns are scaled so that the squares of a class of steps add up to 1.
"""

# FORMERLY """Few buffers for one participation: begun as the best Toeplitz ones, then every coefficient is free.
#
# The optimum's own stream, cut to a few quadrature nodes, spends its buffers evenly on the whole spectrum, and with
# momentum two a node; a BLT makes the best of them, but is the same at every step. From the BLT, its columns scaled, a
# descent over what every step feeds to every buffer and how fast it decays finds streams that are better than either: at
# 1,024 steps 2 buffers are 1.9 % above the optimum (cut 19 %, BLT 8.9 %) and 4 are 0.03 % (0.2 % and 7 %).
# """
#
# FORMERLY r"""Few buffers for several epochs: each buffer is emptied once an epoch, one after the other.
#
# A buffer that is emptied every ``b`` steps, at a place of its own, holds a segment of the past that is never longer
# than an epoch. So columns ``b`` apart share no row: the cross terms that several participations bring are exactly 0,
# whatever the coefficients, and the sensitivity is exact, for epochs in a fixed order and for any order with that
# separation. The buffers take turns, so that at every step some of them reach far back. How much each step feeds to each
# buffer and how fast the buffers decay, all of it varying over time, is then found by descent: error and gradient in
# O(T m²), the columns scaled so that every pattern costs 1.
#
# With as many buffers as an epoch has steps this is a general banded encoder; a few are nearly as good.
# """
#

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress
from antiphase.factorizations.segments import Segment
from antiphase.factorizations.streaming import Streaming
from antiphase.linalg.lbfgs import descend
from antiphase.objective import Objective
from antiphase.participation import Once, Participation
from antiphase.problem import Problem, problem_of, recurrence_of
from antiphase.solvers.blt import MOST, blt_optimum
from antiphase.solvers.streaming import WITHIN, split
from antiphase.workload import Workload

STEEPEST = 50.0  # |ln ρ| is kept below this


class BufferSearch:
    """``ln error`` of the scaled encoder and its gradient, as a function of ``(ln δ, g, ln ρ)`` in one vector."""

    def __init__(
        self, P: Array, N: Array, squares: Array, owner: Indices, kept: Array, fed: Array
    ) -> None:
        self._problem, self._owner, self._kept, self._fed = (P, N, squares), owner, kept, fed

    @property
    def buffers(self) -> int:
        return int(self._kept.shape[1])

    def alike(self, decays: Array, scales: Array) -> Array:
        """Parameters that are the same at every step: how fast each buffer decays, and how much it is fed."""
        steps = len(self._kept)
        return np.concatenate(
            [np.zeros(steps), np.tile(scales, steps), np.tile(np.log(decays), steps)]
        )

    def _split(self, x: Array) -> tuple[Array, Array, Array]:
        steps, shape = len(self._kept), self._kept.shape
        g, log_rho = x[steps:].reshape(2, *shape)
        return (
            np.exp(x[:steps]),
            g * self._fed,
            np.exp(np.clip(log_rho, -STEEPEST, STEEPEST)) * self._kept,
        )

    def scaled(self, x: Array) -> tuple[Array, Array, Array]:
        """The coefficients with columns scaled so that the squares of a class add up to 1."""
        from antiphase.linalg import adjoints

        delta, g, rho = self._split(x)
        norms = adjoints.norms(delta, g, rho, np.zeros(len(delta)))[0]
        scale = np.bincount(self._owner, norms)[self._owner] ** -0.5
        return delta * scale, g * scale[:, None], rho

    def segment(self, x: Array, size: int, live: Indices) -> Segment:
        """What the noise is made with."""
        delta, g, rho = self.scaled(x)
        return Segment(size, live, delta, np.ones((*rho.shape, 1)), g[..., None], rho[..., None])

    def loss(self, x: Array) -> tuple[float, Array]:
        from antiphase.linalg import adjoints

        delta, g, rho = self.scaled(x)
        error, of_delta, of_g, of_rho = adjoints.noise(delta, g, rho, *self._problem)
        # The scale of a class follows its sum of squares, which is 1 here: its own part of the gradient.
        by_class = np.bincount(self._owner, of_delta + (of_g * g).sum(axis=1))
        weights: Array = (-0.5 * by_class[self._owner]).astype(np.float64)
        _, *through = adjoints.norms(delta, g, rho, weights)
        of_delta, of_g, of_rho = (
            part + more for part, more in zip((of_delta, of_g, of_rho), through, strict=True)
        )
        raw = self._split(x)[0] / delta  # what the columns were divided by
        slopes = [of_delta, (of_g / raw[:, None] * self._fed).ravel(), of_rho.ravel()]
        return float(np.log(error)), np.concatenate(slopes) / error


MOST_ITERATIONS = 1000
LONGEST = (
    20_000  # steps up to which there is a descent; from there on the better of the two beginnings
)
ENOUGH = 1e-4  # an excess over the optimum at which no better stream is looked for
MANY, QUICK = (
    8,
    2_000,
)  # from so many buffers on, and up to so many steps, fewer are tried without being asked


def fitted(stream: Streaming, buffers: int, *, progress: Progress | None = None) -> Streaming:
    """``stream``, or one of so many buffers that has less error; with the same certified bound."""
    problem = problem_of(stream.workload, stream.objective)
    if problem is None or stream.error <= (1 + ENOUGH) * stream.lower_bound:
        return stream
    found = _descended(stream, problem, buffers, progress)
    return stream if found is None else min(stream, found, key=lambda f: f.error)


def with_fewest(stream: Streaming, *, progress: Progress | None = None) -> Streaming:
    """``stream``, or where it keeps many vectors, as with momentum, the smallest of fewer that is within 0.1 % too."""
    problem = problem_of(stream.workload, stream.objective)
    if problem is None or stream.buffers < MANY or problem.size > QUICK:
        return stream
    before = 0.1  # two buffers leave a third of that, wherever a few are enough
    for buffers in range(2, MANY):
        found = _descended(stream, problem, buffers, progress)
        excess = np.inf if found is None else found.error / found.lower_bound - 1
        if found is not None and excess <= WITHIN:
            return found
        if excess > max(before / 3, 2 * WITHIN):
            break  # one buffer more hardly helps, as where momentum meets an average
        before = excess
    return stream


def _descended(
    stream: Streaming, problem: Problem, buffers: int, progress: Progress | None
) -> Streaming | None:
    """None if its coefficients cancel one another, so that there is no making noise with them."""
    kept = np.ones((problem.size, min(buffers, MOST)))
    kept[problem.starts] = 0.0
    every = stream.participation.steps_per_epoch or stream.steps
    classes = np.unique(problem.live % every, return_inverse=True)[1]
    search = BufferSearch(
        problem.P, problem.N, problem.weights**2, classes, kept, np.roll(kept, -1, axis=0)
    )
    blt = blt_optimum(
        "blt", stream.workload, stream.objective, Once(), buffers=search.buffers, options={}
    )
    x = search.alike(blt.decays, blt.scales)
    if problem.size <= LONGEST:
        x = descend(search.loss, x, iterations=MOST_ITERATIONS, progress=progress)
    distinct, sequence = split(search.segment(x, stream.steps, problem.live), problem.starts)
    found = replace(stream, distinct=tuple(distinct), sequence=tuple(sequence))
    try:
        return found if np.isfinite(found.error) else None
    except ValueError:
        return None


MOST_ITERATIONS = 1000


def windowed(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    buffers: int,
    progress: Progress | None = None,
) -> Streaming:
    """The best stream of so many buffers that a descent finds, each emptied once in every window."""
    P, N, weights = recurrence_of(name, workload, objective)
    window, owner = _windows(participation, workload.steps)
    search = BufferSearch(
        P, N, weights**2, owner, *_emptied(workload.steps, window, min(buffers, window))
    )
    found = descend(
        search.loss, _start(search, window), iterations=MOST_ITERATIONS, progress=progress
    )
    segment = search.segment(found, workload.steps, np.arange(workload.steps))
    return Streaming(name, workload, objective, participation, (segment,), (0,), options=options)


def _start(search: BufferSearch, window: int) -> Array:
    """All buffers alike: decaying over most of a window, and together about as large as the diagonal."""
    rate = max(window, 2.0) ** -0.9
    return search.alike(
        np.full(search.buffers, 1 - rate), np.full(search.buffers, 2 / search.buffers * rate**0.5)
    )


def _windows(participation: Participation, steps: int) -> tuple[int, Indices]:
    """How long a buffer may hold on, and which steps share a budget."""
    # In any order, steps far enough apart form a pattern, so that no step may cost more than another.
    every = participation.steps_per_epoch or steps
    return min(participation.separation, steps), np.arange(steps) % every


def _emptied(steps: int, window: int, buffers: int) -> tuple[Array, Array]:
    """``(T, m)``: 0 where a buffer is emptied before row t, and where step t feeds one that is emptied at once; else
    1."""
    places = np.arange(buffers) * window // buffers
    t = np.arange(steps)[:, None]
    # PRIVACY: what enters at the step before would be there for one row more, which the column an epoch on has.   [G1]
    return ((t - places) % window != 0).astype(np.float64), ((t + 1 - places) % window != 0).astype(
        np.float64
    )
