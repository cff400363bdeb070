r"""Toeplitz encoders, with or without their columns scaled to norm 1, and the square root of the prefix sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from antiphase import _checks as check
from antiphase._checks import Array
from antiphase.factorization.base import Factorization
from antiphase.participation import Indices
from antiphase.sensitivity import Columns


@dataclass(frozen=True, eq=False, repr=False)
class Toeplitz(Factorization):
    """``C[i, j] = coefficients[i − j]``, 0 past the last of them; if ``normalized``, over the norm of its column."""

    coefficients: Array
    normalized: bool

    def __post_init__(self) -> None:
        coefficients = check.real_array("coefficients", self.coefficients, ndim=1)[: self.steps]
        if not len(coefficients) or coefficients[0] <= 0:
            raise ValueError("coefficients must begin with a positive one: otherwise the noise cannot be made")
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
        return _ToeplitzColumns(self.coefficients, self._column_norms[:steps], steps)

    @property
    def bands(self) -> int:
        return len(self.coefficients)

    def band_rows(self, start: int, stop: int) -> Array:
        back = np.arange(start, stop)[:, None] - np.arange(self.bands)
        rows: Array = np.where(back >= 0, self.coefficients / self._column_norms[back], 0.0)
        return rows

    def _stored(self) -> dict[str, Any]:
        return {"coefficients": self.coefficients, "normalized": self.normalized}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common, coefficients=stored["coefficients"], normalized=stored["normalized"])


class _ToeplitzColumns:
    """Columns that are shifts of one another, cut off by the last row, over ``norms``: no matrix is formed."""

    def __init__(self, coefficients: Array, norms: Array, steps: int) -> None:
        self._c, self._norms, self.steps = coefficients[:steps], norms, steps

    def squared_norms(self) -> Array:
        every = np.arange(self.steps)
        return self._products(every, np.zeros(self.steps, dtype=np.intp)) / self._norms**2

    def gram(self, indices: Indices) -> Array:
        later = np.maximum.outer(indices, indices)
        lag = np.abs(np.subtract.outer(indices, indices))
        scale = np.outer(self._norms[indices], self._norms[indices])
        gram: Array = self._products(later, lag) / scale
        return gram

    def _products(self, later: Indices, lag: Indices) -> Array:
        """``Σ c_k c_{k+lag}`` over the rows that both columns reach, the later one beginning at ``later``."""
        out = np.zeros(later.shape)
        for distance in np.unique(lag[lag < len(self._c)]):
            sums = np.cumsum(self._c[: len(self._c) - distance] * self._c[distance:])
            which = lag == distance
            out[which] = sums[np.minimum(self.steps - 1 - later[which], len(sums) - 1)]
        return out


def square_root_coefficients(steps: int) -> Array:
    """``c_k = binom(2k, k)/4^k``, so that ``C² = S`` and ``B = C``; as a product, so that nothing overflows.

    >>> square_root_coefficients(4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    i = np.arange(1, steps)
    coefficients: Array = np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))
    return coefficients
