"""Forms in which the noise ``C⁻¹Z`` of a factorization can be computed with little memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from antiphase._util.checks import Array
from antiphase.factorizations.segments import Stream


@dataclass(frozen=True, eq=False)
class BandedInverse:
    """``y_t = Σ_i coefficients[i]·z_{t−i}``: a banded Toeplitz inverse."""

    coefficients: Array


@dataclass(frozen=True, eq=False)
class TreeEstimator:
    """Noise on the nodes of a binary tree over ``steps`` steps.

    With ``honaker`` each node is estimated together with its subtree, otherwise by itself.
    """

    steps: int
    honaker: bool


NoiseForm: TypeAlias = Stream | BandedInverse | TreeEstimator
