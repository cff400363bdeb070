r"""`InverseToeplitz`: encoders whose inverse is Toeplitz with a few diagonals.

Each row of noise is a sum of a few normals, which can be drawn again, so such noise needs no
memory. The banded inverse square root (BISR; Kalinin and Lampert 2025) truncates the inverse of the
workload's square root; DP-λCGD takes one earlier vector, ``C⁻¹ = I − λZ``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.factorizations.noise_forms import BandedInverse
from antiphase.factorizations.toeplitz import ToeplitzEncoder
from antiphase.linalg import power_series

MAX_ENTRY = 1e50  # of the encoder: squares of larger entries may overflow


@dataclass(frozen=True, eq=False, repr=False)
class InverseToeplitz(ToeplitzEncoder):
    """``C⁻¹[i, j] = inverse[i − j]``, 0 past the last coefficient."""

    inverse: Array

    def __post_init__(self) -> None:
        inverse = check.real_array("inverse", self.inverse, ndim=1)[: self.steps]
        if not len(inverse) or inverse[0] <= 0:
            raise ValueError(
                "inverse must begin with a positive coefficient: otherwise there is no encoder"
            )
        object.__setattr__(self, "inverse", inverse)
        if not np.abs(self.coefficients).max() < MAX_ENTRY:
            raise ValueError("the encoder of this inverse is too large: its squares would overflow")

    @cached_property
    def coefficients(self) -> Array:
        """The coefficients of the encoder."""
        with np.errstate(over="ignore", invalid="ignore"):
            return power_series.inverse(self.inverse, self.steps)

    @cached_property
    def inverse_coefficients(self) -> Array:
        """The first column of ``C⁻¹``."""
        return np.concatenate([self.inverse, np.zeros(self.steps - len(self.inverse))])

    def noise_form(self) -> BandedInverse:
        """A row of noise is a sum of a few normals."""
        return BandedInverse(self.inverse)
