"""Encoders that need no optimisation: the identity (DP-SGD), Anti-PGD's and Chess'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphase._checks import Array
from antiphase.factorization.base import Factorization
from antiphase.participation import Indices
from antiphase.sensitivity import Columns
from antiphase.workload import Workload


@dataclass(frozen=True, eq=False, repr=False)
class Identity(Factorization):
    """``C = I``: independent noise (DP-SGD, the paper's PGD)."""

    def _build_encoder(self) -> Array:
        return np.eye(self.steps)

    def _columns(self, rows: int | None = None) -> Columns:
        return _UnitColumns(self.steps if rows is None else rows)

    @property
    def bands(self) -> int:
        return 1

    def band_rows(self, start: int, stop: int) -> Array:
        return np.ones((stop - start, 1))


class _UnitColumns:
    """Orthogonal columns of norm 1."""

    reach = 1

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def squared_norms(self) -> Array:
        return np.ones(self.steps)

    def gram(self, indices: Indices) -> Array:
        return np.eye(len(indices))


def anti_encoder(workload: Workload) -> Array:
    """``C = A``, ``B = I``: each step takes back the noise of the step before (the paper's Example 2.4).

    For prefix sums ``sens(C)² = T``: at equal privacy far worse than independent noise.
    """
    encoder = workload.dense()
    if (np.diagonal(encoder) <= 0).any():
        raise ValueError(
            f"anti-pgd has C = A, and the workload ({workload.describe()}) has steps that do not move their own "
            "iterate; choose another mechanism, or a workload without delays and zero rates"
        )
    return encoder


def chess_coefficients() -> Array:
    """``C = (I + Z)/√2`` with ``Z`` the shift: noise that alternates in sign and never cancels (appendix A).

    Almost the Frobenius norm of independent noise, yet gradient descent diverges under it.
    """
    return np.full(2, 0.5**0.5)
