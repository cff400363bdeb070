r"""`Toeplitz`: encoders that are the same at every step.

Where the workload is the same at every step, ``B = A C⁻¹`` is Toeplitz too: error and variances
take O(T log T).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util.checks import Array, Indices
from antiphase.factorizations.banded import MAX_VARIANCE_BANDS, banded_variances
from antiphase.factorizations.base import Factorization
from antiphase.linalg import banded, power_series
from antiphase.sensitivity import Columns


class ToeplitzEncoder(Factorization):
    """Base of the encoders ``C[i, j] = coefficients[i − j]``, 0 past the last coefficient."""

    if TYPE_CHECKING:  # a dataclass would take a property of its base for a field's default

        @property
        def coefficients(self) -> Array:
            """``c_0, c_1, …``, at most one for each step."""

    @property
    def bands(self) -> int:
        """Number of coefficients."""
        return len(self.coefficients)

    def toeplitz_coefficients(self) -> Array | None:
        """Return the coefficients."""
        return self.coefficients

    @cached_property
    def inverse_coefficients(self) -> Array:
        """The first column of ``C⁻¹``."""
        return power_series.inverse(self.coefficients, self.steps)

    def _build_encoder(self) -> Array:
        column = np.zeros(self.steps)
        column[: len(self.coefficients)] = self.coefficients
        return np.asarray(scipy.linalg.toeplitz(column, np.zeros(self.steps)))

    def encoder_columns(self, rows: int | None = None) -> Columns:
        """Return the columns, without a matrix."""
        steps = self.steps if rows is None else rows
        return ToeplitzColumns(self.coefficients, np.ones(steps), steps)

    def band_rows(self, start: int, stop: int) -> Array:
        """Return ``C[t, t − i]`` for ``start <= t < stop`` and ``i < bands``."""
        back = np.arange(start, stop)[:, None] - np.arange(self.bands)
        return np.where(back >= 0, self.coefficients, 0.0)

    def _iterate_variances(self, P: Array, N: Array) -> Array | None:
        """The variances if ``B`` is Toeplitz too: cumulative sums of its squared first column."""
        if not banded.is_time_invariant(P, N):
            return None
        arrives = banded.shift_rows(self.inverse_coefficients, self.workload.delay)
        column = banded.solve(P, banded.apply(N, arrives))
        return np.cumsum(column**2)


@dataclass(frozen=True, eq=False, repr=False)
class Toeplitz(ToeplitzEncoder):
    """A Toeplitz encoder; if ``normalized``, each column is divided by its norm."""

    coefficients: Array
    normalized: bool

    def __post_init__(self) -> None:
        coefficients = check.real_array("coefficients", self.coefficients, ndim=1)[: self.steps]
        if not len(coefficients) or coefficients[0] <= 0:
            raise ValueError(
                "coefficients must begin with a positive one: the encoder must be invertible"
            )
        object.__setattr__(self, "coefficients", coefficients)
        check.flag("normalized", self.normalized)

    @cached_property
    def _column_norms(self) -> Array:
        """The norms that columns are divided by; the last columns are cut off by the last row."""
        norms = np.ones(self.steps)
        if self.normalized:
            lengths = np.minimum(np.arange(self.steps, 0, -1), self.bands)
            norms = np.sqrt(np.cumsum(self.coefficients**2))[lengths - 1]
        return norms

    def toeplitz_coefficients(self) -> Array | None:
        """Return the coefficients; None if the columns are normalized."""
        return None if self.normalized else self.coefficients

    def _build_encoder(self) -> Array:
        return super()._build_encoder() / self._column_norms

    def encoder_columns(self, rows: int | None = None) -> Columns:
        """Return the columns, without a matrix."""
        steps = self.steps if rows is None else rows
        return ToeplitzColumns(self.coefficients, self._column_norms[:steps], steps)

    def band_rows(self, start: int, stop: int) -> Array:
        """Return ``C[t, t − i]`` for ``start <= t < stop`` and ``i < bands``."""
        back = np.arange(start, stop)[:, None] - np.arange(self.bands)
        return np.where(back >= 0, self.coefficients / self._column_norms[back], 0.0)

    def _iterate_variances(self, P: Array, N: Array) -> Array | None:
        variances = None if self.normalized else super()._iterate_variances(P, N)
        if variances is None and self.bands <= MAX_VARIANCE_BANDS:
            return banded_variances(self.band_rows(0, self.steps), P, N, self.workload.delay)
        return variances


class ToeplitzColumns:
    """Shifts of one column, cut off by the last row and divided by ``norms``, without a matrix."""

    def __init__(self, coefficients: Array, norms: Array, steps: int) -> None:
        self._c, self._norms, self.steps = coefficients[:steps], norms, steps
        self._sums: dict[int, Array] = {}

    @property
    def reach(self) -> int:
        """Columns that are this many steps apart, or more, share no row."""
        return len(self._c)

    @cached_property
    def falling(self) -> bool:
        """Whether the columns are shifts with non-negative coefficients that do not increase."""
        # PRIVACY: normalized columns are no shifts; an increase breaks the proof.   [G1]
        c = self._c
        return bool((self._norms == 1).all() and c[-1] >= 0 and (c[1:] <= c[:-1]).all())

    def squared_norms(self) -> Array:
        """Return the squared norm of each column."""
        every = np.arange(self.steps)
        return self._products(every, np.zeros(self.steps, dtype=np.intp)) / self._norms**2

    def gram(self, indices: Indices) -> Array:
        """Return the block of ``CᵀC`` at these steps."""
        if len(indices) > 1 and (strides := np.diff(indices)).min() == strides.max() > 0:
            return self._gram_at_even_distances(indices, int(strides[0]))
        later = np.maximum.outer(indices, indices)
        lag = np.abs(np.subtract.outer(indices, indices))
        scale = np.outer(self._norms[indices], self._norms[indices])
        return self._products(later, lag) / scale

    def _gram_at_even_distances(self, indices: Indices, stride: int) -> Array:
        """By diagonals, each of one lag: no more time and memory than the result takes."""
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
        """``Σ c_k c_{k+lag}`` over the rows of both columns, of which one begins at ``later``."""
        out = np.zeros(later.shape)
        for distance in np.unique(lag[lag < len(self._c)]):
            sums = self._sums_at(int(distance))
            which = lag == distance
            out[which] = sums[np.minimum(self.steps - 1 - later[which], len(sums) - 1)]
        return out
