"""`Dense`: an encoder that is stored in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from antiphase._util.checks import Array
from antiphase.factorizations.base import (
    Factorization,
    lower_triangular,
    packed_triangle,
    refuse_if_too_large,
)


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Factorization):
    """An encoder given as a T × T array."""

    matrix: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", lower_triangular(self.matrix, self.steps))

    def _build_encoder(self) -> Array:
        return self.matrix

    def toeplitz_coefficients(self) -> Array | None:
        """Return the first column if every diagonal is constant; else None."""
        column = self.matrix[:, 0]
        toeplitz = scipy.linalg.toeplitz(column, np.zeros(self.steps))
        return column if np.array_equal(self.matrix, toeplitz) else None

    def _stored(self) -> dict[str, Any]:
        return {"lower": self.matrix[np.tril_indices(self.steps)]}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        steps = common["workload"].steps
        lower = packed_triangle(stored, steps)
        refuse_if_too_large(steps)
        matrix = np.zeros((steps, steps))
        matrix[np.tril_indices(steps)] = lower
        return cls(**common, matrix=matrix)
