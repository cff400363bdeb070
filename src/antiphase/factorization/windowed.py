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
from antiphase.factorization.buffers import BufferSearch
from antiphase.factorization.dual import Progress
from antiphase.factorization.searching import descend, recurrence_of
from antiphase.factorization.streamed import Streamed
from antiphase.objective import Objective
from antiphase.participation import Epochs, Indices, MinSeparation, Participation
from antiphase.workload import Workload

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
) -> Streamed:
    """The best stream of so many buffers that a descent finds, each emptied once in every window."""
    P, N, weights = recurrence_of(name, workload, objective)
    window, owner = _windows(participation, workload.steps)
    search = BufferSearch(P, N, weights**2, owner, *_emptied(workload.steps, window, min(buffers, window)))
    found = descend(search.loss, _start(search, window), iterations=MOST_ITERATIONS, progress=progress)
    stretch = search.stretch(found, workload.steps, np.arange(workload.steps))
    return Streamed(name, workload, objective, participation, (stretch,), (0,), options=options)


def _start(search: BufferSearch, window: int) -> Array:
    """All buffers alike: decaying over most of a window, and together about as large as the diagonal."""
    rate = max(window, 2.0) ** -0.9
    return search.alike(np.full(search.buffers, 1 - rate), np.full(search.buffers, 2 / search.buffers * rate**0.5))


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
