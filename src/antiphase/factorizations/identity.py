"""Encoders that need no optimisation: the identity (DP-SGD), Anti-PGD's and Chess'."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase.factorizations.base import Factorization
from antiphase.sensitivity import Columns


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
