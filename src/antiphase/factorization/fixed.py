"""Encoders that a formula gives and no optimisation touches: identity (DP-SGD), anti (Anti-PGD), chess."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphase._checks import Array
from antiphase.factorization.base import Factorization, lower_triangular


@dataclass(frozen=True, eq=False, repr=False)
class Identity(Factorization):
    """``C = I``: independent noise (DP-SGD, the paper's PGD)."""

    def _build_encoder(self) -> Array:
        return np.eye(self.steps)


@dataclass(frozen=True, eq=False, repr=False)
class Anti(Factorization):
    """``C = A``, ``B = I``: each step takes back the noise of the step before (the paper's Example 2.4).

    For prefix sums ``sens(C)² = T``: at equal privacy far worse than independent noise.
    """

    def __post_init__(self) -> None:
        if self.workload.idle.any() or (np.diagonal(self.workload.dense()) <= 0).any():
            raise ValueError(
                f"anti-pgd has C = A, and the workload ({self.workload.describe()}) has steps that do not move their "
                "own iterate; choose another mechanism, or a workload without delays and zero rates"
            )

    def _build_encoder(self) -> Array:
        return lower_triangular(self.workload.dense(), self.steps)


@dataclass(frozen=True, eq=False, repr=False)
class Chess(Factorization):
    """``C = (I + Z)/√2`` with ``Z`` the shift: noise that alternates in sign and never cancels (appendix A).

    Almost the Frobenius norm of independent noise, yet gradient descent diverges under it.
    """

    def _build_encoder(self) -> Array:
        encoder: Array = (np.eye(self.steps) + np.eye(self.steps, k=-1)) / np.sqrt(2)
        return encoder
