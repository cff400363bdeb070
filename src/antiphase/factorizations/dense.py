r"""The optimum as a dense encoder: any workload and objective, one participation or epochs in a fixed order; O(T³).

Steps that move no iterate are left out of the problem and get independent noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase.factorizations.base import (
    Factorization,
    lower_triangular,
    packed_triangle,
    refuse_if_too_large,
)


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Factorization):
    """An encoder that is stored in full."""

    matrix: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", lower_triangular(self.matrix, self.steps))

    def _build_encoder(self) -> Array:
        return self.matrix

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
