r"""Few buffers for several epochs: each buffer is emptied once an epoch, one after the other.

A buffer that is emptied every ``b`` steps, at a place of its own, holds a stretch of the past that is never longer
than an epoch. So columns ``b`` apart share no row: the cross terms that several participations bring are exactly 0,
whatever the coefficients, and the sensitivity is exact, for epochs in a fixed order and for any order with that
separation. The buffers take turns, so that at every step some of them reach far back. How much each step feeds to each
buffer and how fast the buffers decay, all of it varying over time, is then found by descent: error and gradient in
O(T m²), the columns scaled so that every pattern costs 1.

With as many buffers as an epoch has steps this is a general banded encoder; a few are nearly as good.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._checks import Array
from antiphase.factorization.dual import Progress
from antiphase.factorization.searching import descend, recurrence_of
from antiphase.factorization.streamed import Streamed, Stretch
from antiphase.objective import Objective
from antiphase.participation import Epochs, Indices, MinSeparation, Participation
from antiphase.workload import Workload

MOST_ITERATIONS = 1000
STEEPEST = 50.0  # |ln ρ| is kept below this


def windowed(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    buffers: int,
    progress: Progress | None = None,
) -> Streamed:
    """The best stream of so many buffers that a descent finds, each emptied once in every window."""
    P, N, weights = recurrence_of(name, workload, objective)
    window, owner = _windows(participation, workload.steps)
    search = _Search(P, N, weights**2, owner, *_emptied(workload.steps, window, min(buffers, window)))
    found = descend(search.loss, search.start(window), iterations=MOST_ITERATIONS, progress=progress)
    delta, g, rho = search.scaled(found)
    shape = (*rho.shape, 1)
    stretch = Stretch(
        workload.steps, np.arange(workload.steps), delta, np.ones(shape), g.reshape(shape), rho.reshape(shape)
    )
    return Streamed(name, workload, objective, participation, (stretch,), (0,), options=options)


def _windows(participation: Participation, steps: int) -> tuple[int, Indices]:
    """How long a buffer may hold on, and which steps share a budget."""
    if isinstance(participation, Epochs):
        return min(participation.every, steps), np.arange(steps) % participation.every
    assert isinstance(participation, MinSeparation)
    # Any steps so far apart can be a pattern, so that no step may cost more than another.
    return min(participation.apart, steps), np.arange(steps)


def _emptied(steps: int, window: int, buffers: int) -> tuple[Array, Array]:
    """``(T, m)``: 0 where a buffer is emptied before row t, and where step t feeds one that is emptied at once; else
    1."""
    places = np.arange(buffers) * window // buffers
    t = np.arange(steps)[:, None]
    # PRIVACY: what enters at the step before would be there for one row more, which the column an epoch on has.   [G1]
    return ((t - places) % window != 0).astype(np.float64), ((t + 1 - places) % window != 0).astype(np.float64)


class _Search:
    """``ln error`` of the scaled encoder and its gradient, as a function of ``(ln δ, g, ln ρ)`` in one vector."""

    def __init__(self, P: Array, N: Array, squares: Array, owner: Indices, kept: Array, fed: Array) -> None:
        self._problem, self._owner, self._kept, self._fed = (P, N, squares), owner, kept, fed

    def start(self, window: int) -> Array:
        """All buffers alike: decaying over most of a window, and together about as large as the diagonal."""
        steps, buffers = self._kept.shape
        rate = max(window, 2.0) ** -0.9
        fed, decay = np.full(steps * buffers, 2 / buffers * rate**0.5), np.full(steps * buffers, np.log1p(-rate))
        return np.concatenate([np.zeros(steps), fed, decay])

    def _split(self, x: Array) -> tuple[Array, Array, Array]:
        steps, shape = len(self._kept), self._kept.shape
        g, log_rho = x[steps:].reshape(2, *shape)
        return np.exp(x[:steps]), g * self._fed, np.exp(np.clip(log_rho, -STEEPEST, STEEPEST)) * self._kept

    def scaled(self, x: Array) -> tuple[Array, Array, Array]:
        """The coefficients with columns scaled so that the squares of a class add up to 1."""
        from antiphase.factorization import gradients

        delta, g, rho = self._split(x)
        norms = gradients.norms(delta, g, rho, np.zeros(len(delta)))[0]
        scale = np.bincount(self._owner, norms)[self._owner] ** -0.5
        return delta * scale, g * scale[:, None], rho

    def loss(self, x: Array) -> tuple[float, Array]:
        from antiphase.factorization import gradients

        delta, g, rho = self.scaled(x)
        error, of_delta, of_g, of_rho = gradients.noise(delta, g, rho, *self._problem)
        # The scale of a class follows its sum of squares, which is 1 here: its own part of the gradient.
        by_class = np.bincount(self._owner, of_delta + (of_g * g).sum(axis=1))
        weights: Array = (-0.5 * by_class[self._owner]).astype(np.float64)
        _, *through = gradients.norms(delta, g, rho, weights)
        of_delta, of_g, of_rho = (part + more for part, more in zip((of_delta, of_g, of_rho), through, strict=True))
        raw = self._split(x)[0] / delta  # what the columns were divided by
        slopes = [of_delta, (of_g / raw[:, None] * self._fed).ravel(), of_rho.ravel()]
        return float(np.log(error)), np.concatenate(slopes) / error
