r"""Encoders whose inverse has a few diagonals, the same in every column: each row of noise is a sum of a few normals.

Normals can be drawn again, so such noise needs no memory. The banded inverse square root (BISR; Kalinin and Lampert
2025) cuts off the inverse of the workload's square root; DP-λCGD takes one earlier vector, ``C⁻¹ = I − λZ``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.toeplitz import ToeplitzColumns, toeplitz_variances
from antiphase.linalg import banded, power_series
from antiphase.sensitivity import Columns


@dataclass(frozen=True, eq=False, repr=False)
class InverseToeplitz(Factorization):
    """``C⁻¹[i, j] = inverse[i − j]``, 0 past the last of them."""

    inverse: Array

    def __post_init__(self) -> None:
        inverse = check.real_array("inverse", self.inverse, ndim=1)[: self.steps]
        if not len(inverse) or inverse[0] <= 0:
            raise ValueError(
                "inverse must begin with a positive coefficient: otherwise there is no encoder"
            )
        object.__setattr__(self, "inverse", inverse)
        if not np.abs(self.coefficients).max() < 1e50:
            raise ValueError("the encoder of this inverse is too large: its squares would overflow")

    @cached_property
    def coefficients(self) -> Array:
        """Those of the encoder."""
        with np.errstate(over="ignore", invalid="ignore"):
            return power_series.inverse(self.inverse, self.steps)

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
        if not banded.is_time_invariant(P, N):
            return None
        first = np.concatenate([self.inverse, np.zeros(self.steps - len(self.inverse))])
        return toeplitz_variances(first, P, N, self.workload)

    def _stored(self) -> dict[str, Any]:
        return {"inverse": self.inverse}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common, inverse=stored["inverse"])
