"""What the searches for the best encoder of a given form share: the problem as a recurrence, and descent."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from antiphase._util.checks import Array
from antiphase.objective import Average, Objective, Recurrence
from antiphase.workload import Workload

WIDEST = 4  # half-bandwidth up to which this path is taken
LONGEST_WIDE = (
    20_000  # steps up to which it is for a half-bandwidth above 2, where column norms take O(T²)
)


@dataclass(frozen=True)
class Problem:
    """``min tr(W X⁻¹)`` with ``W⁻¹ = N⁻¹PΛ⁻²PᵀN⁻ᵀ``, over the steps that move the model."""

    P: Array
    N: Array
    weights: Array
    live: NDArray[np.int64]  # the steps, of all there are

    @property
    def half_bandwidth(self) -> int:
        return max(int(self.P.shape[1]), int(self.N.shape[1]), 2) - 1

    @cached_property
    def L(self) -> Array:
        """``PΛ⁻¹``, by bands."""
        scaled = np.empty_like(self.P)
        for a in range(self.P.shape[1]):
            scaled[:, a] = self.P[:, a]
            scaled[a:, a] /= self.weights[: self.size - a]
        return scaled

    @property
    def size(self) -> int:
        return len(self.weights)

    @cached_property
    def starts(self) -> list[int]:
        """Where the problem falls apart: no row from there on reaches back beyond it."""
        reach = np.arange(self.size)
        for bands in (self.P, self.N):
            for a in range(1, bands.shape[1]):
                rows = np.flatnonzero(bands[a:, a]) + a
                reach[rows] = np.minimum(reach[rows], rows - a)
        furthest = np.minimum.accumulate(reach[::-1])[::-1]
        return [int(t) for t in np.flatnonzero(furthest == np.arange(self.size))]

    def part(self, start: int, stop: int) -> Problem:
        """The problem between two of the `starts`."""
        return Problem(
            self.P[start:stop], self.N[start:stop], self.weights[start:stop], self.live[start:stop]
        )


def problem_of(workload: Workload, objective: Objective) -> Problem | None:
    """The banded problem, or None where there is none: a matrix, a spectrum, idle steps that do not drop out."""
    followed = objective.recurrence(workload)
    if followed is None:
        return None
    P, N, weights = followed
    if workload.idle.any():
        reduced = _without_idle(workload, P, N, weights)
        if reduced is None:
            return None
        P, N, weights = reduced
    found = Problem(
        np.ascontiguousarray(P),
        np.ascontiguousarray(N),
        weights,
        np.flatnonzero(~workload.idle).astype(np.int64),
    )
    fits = found.half_bandwidth <= (2 if found.size > LONGEST_WIDE else WIDEST)
    return found if fits else None


def _without_idle(
    workload: Workload, P: Array, N: Array, weights: Array
) -> tuple[Array, Array, Array] | None:
    """Rows in which nothing new arrives repeat the one before (their weight goes there), or are 0 (nothing arrived
    yet)."""
    rows = np.flatnonzero(~workload.idle) + workload.delay
    dead = np.setdiff1d(np.arange(rows[0], workload.steps), rows)
    still = np.zeros(P.shape[1])
    still[:2] = 1.0, -1.0
    contiguous = len(rows) == rows[-1] - rows[0] + 1
    if (
        workload.is_averaged
        or not (P[dead] == still[: P.shape[1]]).all()
        or not (contiguous or P.shape[1] == 2)
    ):
        return None
    squares = np.zeros(len(rows))
    np.add.at(
        squares,
        np.searchsorted(rows, np.arange(rows[0], workload.steps), side="right") - 1,
        weights[rows[0] :] ** 2,
    )
    P, N = P[rows].copy(), N[rows].copy()
    for bands in (P, N):  # what came before the first live row is 0
        bands[np.arange(len(rows))[:, None] < np.arange(bands.shape[1])] = 0.0
    return P, N, np.sqrt(squares)


def without_idle_steps(workload: Workload) -> Workload:
    """The optimizer to search for: no delay, and the least rate there is in place of 0.

    An encoder of few parameters is not asked to tell idle steps from others; what it is worth is judged by the
    workload itself.
    """
    rates = workload.learning_rates
    if rates is None or not workload.idle.any():
        return workload
    return replace(
        workload, delay=0, learning_rates=np.where(rates > 0, rates, rates[rates > 0].min())
    )


def recurrence_of(name: str, workload: Workload, objective: Objective) -> Recurrence:
    """The objective as a short recurrence over steps that all move the model; refused where there is none."""
    found = objective.recurrence(without_idle_steps(workload))
    if found is None:
        raise ValueError(
            f"{name} needs a workload that is a short recurrence and an objective of weighted iterates; here they are "
            f"{workload.describe()} and {objective.describe()}. For these, dp-mf or optimal is dense"
        )
    P, N, weights = found
    return Recurrence(np.ascontiguousarray(P), np.ascontiguousarray(N), weights)


def searched_for(objective: Objective) -> Objective:
    """``objective``, or the mean where nothing is known of which row is the largest; and says so."""
    if not objective.is_maximum:
        return objective
    warnings.warn(
        "the encoder is searched for the mean error, and judged by the largest", stacklevel=2
    )
    return Average()
