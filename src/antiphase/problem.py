"""`Problem`: workload, objective and participation, with the banded form."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._util.checks import Array, Indices
from antiphase.errors import AntiphaseWarning
from antiphase.objective import Average, Objective, Recurrence
from antiphase.participation import Participation
from antiphase.workload import Workload

MAX_HALF_BANDWIDTH = 4
MAX_STEPS_OF_WIDE_BANDS = 20_000  # above a half-bandwidth of 2 column norms take O(T²)


@dataclass(frozen=True)
class Problem:
    """What an encoder is designed for: the argument of every solver.

    Attributes:
        workload: what the optimizer computes from gradients.
        objective: how much each iterate counts.
        participation: which steps one record may take part in.

    Example:
        >>> from antiphase.participation import epochs
        >>> Problem(Workload.sgd(12), Average(), epochs(3, every=4)).period
        4
    """

    workload: Workload
    objective: Objective
    participation: Participation

    @property
    def steps(self) -> int:
        """Number of steps of the workload."""
        return self.workload.steps

    @property
    def fields(self) -> dict[str, Any]:
        """The three parts by name, as keyword arguments of a factorization."""
        return {
            "workload": self.workload,
            "objective": self.objective,
            "participation": self.participation,
        }

    @property
    def period(self) -> int:
        """Steps after which the same records come again; all steps if the order is not fixed."""
        return min(self.participation.steps_per_epoch or self.steps, self.steps)

    def evenly_spaced(self) -> Problem:
        """The special case whose participations are evenly spaced, in a fixed order."""
        return replace(self, participation=self.participation.evenly_spaced(self.steps))

    @cached_property
    def banded(self) -> BandedProblem | None:
        """The banded form; None for matrices, spectra, or idle steps that do not drop out."""
        recurrence = self.objective.recurrence(self.workload)
        if recurrence is None:
            return None
        P, N, weights = recurrence
        if self.workload.idle.any():
            reduced = _without_idle_rows(self.workload, P, N, weights)
            if reduced is None:
                return None
            P, N, weights = reduced
        live = np.flatnonzero(~self.workload.idle).astype(np.int64)
        banded = BandedProblem(np.ascontiguousarray(P), np.ascontiguousarray(N), weights, live)
        limit = 2 if banded.size > MAX_STEPS_OF_WIDE_BANDS else MAX_HALF_BANDWIDTH
        return banded if banded.half_bandwidth <= limit else None

    @property
    def short_recurrence(self) -> BandedProblem:
        """The banded form of a problem that has one."""
        assert self.banded is not None
        return self.banded

    @cached_property
    def step_classes(self) -> Indices:
        """Class of each step of the banded form; the steps of a class share one budget."""
        return np.unique(self.short_recurrence.live % self.period, return_inverse=True)[1]

    def recurrence(self, form: str) -> Recurrence:
        """The objective as a recurrence over steps that all move the model.

        Args:
            form: what needs the recurrence, for the error message.

        Raises:
            ValueError: there is none.
        """
        recurrence = self.objective.recurrence(without_idle_steps(self.workload))
        if recurrence is None:
            raise ValueError(
                f"{form} needs a workload that is a short recurrence and an objective of weighted "
                f"iterates; here they are {self.workload.describe()} and "
                f"{self.objective.describe()}. Use dp-mf or optimal, whose encoder is dense"
            )
        P, N, weights = recurrence
        return Recurrence(np.ascontiguousarray(P), np.ascontiguousarray(N), weights)

    def for_mean(self) -> Problem:
        """This problem, or for the maximum the one for the mean error, with a warning.

        It is for searches that cannot tell which iterate will be the noisiest.
        """
        if not self.objective.is_maximum:
            return self
        warnings.warn(
            "the encoder is searched for the mean error, and judged by the largest",
            AntiphaseWarning,
            stacklevel=2,
        )
        return replace(self, objective=Average())


@dataclass(frozen=True)
class BandedProblem:
    """``min tr(W X⁻¹)`` with ``W⁻¹ = N⁻¹PΛ⁻²PᵀN⁻ᵀ`` over the steps that move the model.

    Attributes:
        P: bands of the left-hand side of the recurrence ``P u = N g``.
        N: bands of the right-hand side.
        weights: the diagonal of ``Λ``.
        live: the steps that move the model, among all steps.
    """

    P: Array
    N: Array
    weights: Array
    live: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of steps that move the model."""
        return len(self.weights)

    @property
    def half_bandwidth(self) -> int:
        """Half-bandwidth of ``LLᵀ + s²NDNᵀ``, at least 1."""
        return max(int(self.P.shape[1]), int(self.N.shape[1]), 2) - 1

    @cached_property
    def weighted_bands(self) -> Array:
        """``L = PΛ⁻¹``, by bands."""
        scaled = np.empty_like(self.P)
        for a in range(self.P.shape[1]):
            scaled[:, a] = self.P[:, a]
            scaled[a:, a] /= self.weights[: self.size - a]
        return scaled

    @cached_property
    def segments(self) -> list[tuple[int, int]]:
        """Ranges of steps that are not coupled: no row reaches back beyond its range."""
        reach = np.arange(self.size)
        for bands in (self.P, self.N):
            for a in range(1, bands.shape[1]):
                rows = np.flatnonzero(bands[a:, a]) + a
                reach[rows] = np.minimum(reach[rows], rows - a)
        furthest = np.minimum.accumulate(reach[::-1])[::-1]
        starts = np.flatnonzero(furthest == np.arange(self.size)).tolist()
        return list(zip(starts, [*starts[1:], self.size], strict=True))

    @property
    def longest_segment(self) -> int:
        """Number of steps of the longest of the `segments`."""
        return max(stop - start for start, stop in self.segments)

    def part(self, start: int, stop: int) -> BandedProblem:
        """The problem of one of the `segments`."""
        return BandedProblem(
            self.P[start:stop], self.N[start:stop], self.weights[start:stop], self.live[start:stop]
        )


def _without_idle_rows(
    workload: Workload, P: Array, N: Array, weights: Array
) -> tuple[Array, Array, Array] | None:
    """The recurrence over the steps that move the model; None if it is not short.

    A row in which no gradient arrives repeats the row before, which gets its weight, or is 0.
    """
    rows = np.flatnonzero(~workload.idle) + workload.delay
    idle = np.setdiff1d(np.arange(rows[0], workload.steps), rows)
    unchanged = np.zeros(P.shape[1])
    unchanged[:2] = 1.0, -1.0
    contiguous = len(rows) == rows[-1] - rows[0] + 1
    if (
        workload.is_averaged
        or not (P[idle] == unchanged[: P.shape[1]]).all()
        or not (contiguous or P.shape[1] == 2)
    ):
        return None
    squares = np.zeros(len(rows))
    last_row = np.searchsorted(rows, np.arange(rows[0], workload.steps), side="right") - 1
    np.add.at(squares, last_row, weights[rows[0] :] ** 2)
    P, N = P[rows].copy(), N[rows].copy()
    for bands in (P, N):  # what lies before the first row is 0
        bands[np.arange(len(rows))[:, None] < np.arange(bands.shape[1])] = 0.0
    return P, N, np.sqrt(squares)


def without_idle_steps(workload: Workload) -> Workload:
    """The workload without delay, with the least positive rate in place of 0.

    Encoders of few parameters are searched for it, since they cannot treat idle steps differently;
    their error is that of the workload itself.
    """
    rates = workload.learning_rates
    if rates is None or not workload.idle.any():
        return workload
    return replace(
        workload, delay=0, learning_rates=np.where(rates > 0, rates, rates[rates > 0].min())
    )
