r"""Toeplitz encoders, with or without their columns scaled to norm 1, and the square root of the prefix sums.

Where the workload is the same at every step, ``B = A C⁻¹`` is Toeplitz too: error and variances in O(T log T).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util.checks import Array, Indices
from antiphase.factorizations.banded import MOST_BANDS, banded_variances
from antiphase.factorizations.base import Factorization
from antiphase.linalg import banded, power_series
from antiphase.sensitivity import Columns
from antiphase.workload import Workload


@dataclass(frozen=True, eq=False, repr=False)
class Toeplitz(Factorization):
    """``C[i, j] = coefficients[i − j]``, 0 past the last of them; if ``normalized``, over the norm of its column."""

    coefficients: Array
    normalized: bool

    def __post_init__(self) -> None:
        coefficients = check.real_array("coefficients", self.coefficients, ndim=1)[: self.steps]
        if not len(coefficients) or coefficients[0] <= 0:
            raise ValueError(
                "coefficients must begin with a positive one: otherwise the noise cannot be made"
            )
        object.__setattr__(self, "coefficients", coefficients)
        check.flag("normalized", self.normalized)

    def _build_encoder(self) -> Array:
        column = np.zeros(self.steps)
        column[: self.bands] = self.coefficients
        encoder: Array = scipy.linalg.toeplitz(column, np.zeros(self.steps))
        return encoder / self._column_norms

    @cached_property
    def _column_norms(self) -> Array:
        """The last columns are cut off by the end of the matrix; 1 where nothing is scaled."""
        norms = np.ones(self.steps)
        if self.normalized:
            lengths = np.minimum(np.arange(self.steps, 0, -1), self.bands)
            norms = np.sqrt(np.cumsum(self.coefficients**2))[lengths - 1]
        return norms

    def _columns(self, rows: int | None = None) -> Columns:
        steps = self.steps if rows is None else rows
        return ToeplitzColumns(self.coefficients, self._column_norms[:steps], steps)

    @property
    def bands(self) -> int:
        return len(self.coefficients)

    def band_rows(self, start: int, stop: int) -> Array:
        back = np.arange(start, stop)[:, None] - np.arange(self.bands)
        rows: Array = np.where(back >= 0, self.coefficients / self._column_norms[back], 0.0)
        return rows

    # ---- how good it is, without a matrix where there is a way ---------------------------------------------

    def _variances(self, P: Array, N: Array) -> Array | None:
        if not self.normalized and banded.is_time_invariant(P, N):
            return toeplitz_variances(self._inverse, P, N, self.workload)
        if self.bands <= MOST_BANDS:
            return banded_variances(self.band_rows(0, self.steps), P, N, self.workload.delay)
        return None

    @cached_property
    def _inverse(self) -> Array:
        return power_series.inverse(self.coefficients, self.steps)

    # ---- files ---------------------------------------------------------------------------------------------

    def _stored(self) -> dict[str, Any]:
        return {"coefficients": self.coefficients, "normalized": self.normalized}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common, coefficients=stored["coefficients"], normalized=stored["normalized"])


class ToeplitzColumns:
    """Columns that are shifts of one another, cut off by the last row, over ``norms``: no matrix is formed."""

    def __init__(self, coefficients: Array, norms: Array, steps: int) -> None:
        self._c, self._norms, self.steps = coefficients[:steps], norms, steps
        self._sums: dict[int, Array] = {}

    @property
    def reach(self) -> int:
        return len(self._c)

    @cached_property
    def falling(self) -> bool:
        # PRIVACY: scaled columns are no shifts of one another, and a coefficient that rises breaks the proof.   [G1]
        c = self._c
        return bool((self._norms == 1).all() and c[-1] >= 0 and (c[1:] <= c[:-1]).all())

    def squared_norms(self) -> Array:
        every = np.arange(self.steps)
        return self._products(every, np.zeros(self.steps, dtype=np.intp)) / self._norms**2

    def gram(self, indices: Indices) -> Array:
        if len(indices) > 1 and (strides := np.diff(indices)).min() == strides.max() > 0:
            return self._gram_at_even_distances(indices, int(strides[0]))
        later = np.maximum.outer(indices, indices)
        lag = np.abs(np.subtract.outer(indices, indices))
        scale = np.outer(self._norms[indices], self._norms[indices])
        gram: Array = self._products(later, lag) / scale
        return gram

    def _gram_at_even_distances(self, indices: Indices, stride: int) -> Array:
        """By diagonals, on each of which the lag is the same: time and memory of the result alone."""
        n, left = len(indices), self.steps - 1 - indices
        gram = np.zeros((n, n))
        for d in range(min(n, -(-len(self._c) // stride))):
            sums = self._sums_at(d * stride, keep=stride > 1)
            i = np.arange(d, n)
            gram[i, i - d] = gram[i - d, i] = sums[np.minimum(left[d:], len(sums) - 1)]
        for row, norm in zip(gram, self._norms[indices], strict=True):
            row /= norm * self._norms[indices]
        return gram

    def _sums_at(self, distance: int, *, keep: bool = True) -> Array:
        """``Σ_{k ≤ n} c_k c_{k+distance}`` for every n."""
        sums = self._sums.get(distance)
        if sums is None:
            sums = np.cumsum(self._c[: len(self._c) - distance] * self._c[distance:])
            if keep:
                self._sums[distance] = sums
        return sums

    def _products(self, later: Indices, lag: Indices) -> Array:
        """``Σ c_k c_{k+lag}`` over the rows that both columns reach, the later one beginning at ``later``."""
        out = np.zeros(later.shape)
        for distance in np.unique(lag[lag < len(self._c)]):
            sums = self._sums_at(int(distance))
            which = lag == distance
            out[which] = sums[np.minimum(self.steps - 1 - later[which], len(sums) - 1)]
        return out


def toeplitz_variances(inverse: Array, P: Array, N: Array, workload: Workload) -> Array:
    """``‖b_t‖²`` for ``B = P⁻¹N Z^delay C⁻¹``, Toeplitz, from the first column of ``C⁻¹``."""
    arrives = np.concatenate([np.zeros(workload.delay), inverse[: workload.steps - workload.delay]])
    column = banded.solve(P, banded.apply(N, arrives))
    variances: Array = np.cumsum(column**2)
    return variances
