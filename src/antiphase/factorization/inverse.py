r"""Encoders whose inverse has a few diagonals, the same in every column: each row of noise is a sum of a few normals.

Normals can be drawn again, so such noise needs no memory. The banded inverse square root (BISR; Kalinin and Lampert
2025) cuts off the inverse of the workload's square root; DP-λCGD takes one earlier vector, ``C⁻¹ = I − λZ``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from antiphase import _checks as check
from antiphase._checks import Array
from antiphase.factorization import series
from antiphase.factorization.base import Factorization
from antiphase.factorization.searching import without_idle_steps
from antiphase.factorization.steady import Loss
from antiphase.factorization.toeplitz import ToeplitzColumns, is_steady, steady_variances
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.sensitivity import Columns
from antiphase.workload import Workload

MOST_BANDS = 64


@dataclass(frozen=True, eq=False, repr=False)
class InverseToeplitz(Factorization):
    """``C⁻¹[i, j] = inverse[i − j]``, 0 past the last of them."""

    inverse: Array

    def __post_init__(self) -> None:
        inverse = check.real_array("inverse", self.inverse, ndim=1)[: self.steps]
        if not len(inverse) or inverse[0] <= 0:
            raise ValueError("inverse must begin with a positive coefficient: otherwise there is no encoder")
        object.__setattr__(self, "inverse", inverse)
        if not np.abs(self.coefficients).max() < 1e50:
            raise ValueError("the encoder of this inverse is too large: its squares would overflow")

    @cached_property
    def coefficients(self) -> Array:
        """Those of the encoder."""
        with np.errstate(over="ignore", invalid="ignore"):
            return series.inverse(self.inverse, self.steps)

    def _build_encoder(self) -> Array:
        lag = np.subtract.outer(np.arange(self.steps), np.arange(self.steps))
        encoder: Array = np.where(lag >= 0, self.coefficients[lag], 0.0)
        return encoder

    def _columns(self, rows: int | None = None) -> Columns:
        steps = self.steps if rows is None else rows
        return ToeplitzColumns(self.coefficients, np.ones(steps), steps)

    @property
    def bands(self) -> int:
        return self.steps

    def _variances(self, P: Array, N: Array) -> Array | None:
        if not is_steady(P, N):
            return None
        first = np.concatenate([self.inverse, np.zeros(self.steps - len(self.inverse))])
        return steady_variances(first, P, N, self.workload)

    def _stored(self) -> dict[str, Any]:
        return {"inverse": self.inverse}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common, inverse=stored["inverse"])


def inverse_root_coefficients(workload: Workload, bands: int) -> Array:
    """The first ``bands`` coefficients of the inverse square root of the workload, where it is the same at every step;
    else of the prefix sums.

    >>> inverse_root_coefficients(Workload.sgd(9), 4) + 0.0
    array([ 1.    , -0.5   , -0.125 , -0.0625])
    """
    first = np.ones(bands)
    searched = without_idle_steps(workload)
    if searched.bands is not None and is_steady(*searched.bands):
        impulse = np.zeros(workload.steps)
        impulse[0] = 1.0
        first = searched.apply(impulse)[:bands]
    return series.inverse(series.square_root(first / first[0], len(first)), len(first))


def best_bands(name: str, workload: Workload, objective: Objective, participation: Participation) -> int:
    """How many coefficients of the inverse root to keep: error falls with the first ones and, where records come back,
    rises with the last. By sections, up to as many as there are rows that noise would keep."""
    inverse = inverse_root_coefficients(workload, min(MOST_BANDS, workload.steps))
    known: dict[int, float] = {}

    def error(bands: int) -> float:
        if bands not in known:
            known[bands] = InverseToeplitz(name, workload, objective, participation, inverse[:bands]).error
        return known[bands]

    low, high = 1, len(inverse)
    while high - low > 2:
        third = (high - low) // 3
        low, high = (low, high - third) if error(low + third) <= error(high - third) else (low + third, high)
    return min(range(low, high + 1), key=error)


def best_correlation(workload: Workload, objective: Objective, participation: Participation) -> float:
    """``λ`` of least error for ``C⁻¹ = I − λZ``: one number, by bisection of the golden section."""
    loss = Loss(workload, objective, participation)
    steps = workload.steps

    def of_memory(log_rate: float) -> float:
        with np.errstate(under="ignore"):
            return loss((1.0 - np.exp(log_rate)) ** np.arange(steps))[0]

    # By 1 − λ, from none of the step before to all but one part in ten for each step of the run.
    best = scipy.optimize.minimize_scalar(of_memory, bounds=(-np.log(10.0 * steps), -1e-9), method="bounded")
    return float(1.0 - np.exp(best.x))
