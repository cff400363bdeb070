r"""`Banded`: encoders with a few diagonals, all entries free.

``u = A C⁻¹z`` obeys ``F u = z`` with ``F = C A⁻¹``, which is banded where ``A⁻¹`` is. The variances
of u are the diagonal of ``(FᵀF)⁻¹``, by a recurrence within the band. The noise keeps p − 1
vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array, Indices
from antiphase.factorizations.base import Factorization
from antiphase.linalg import banded
from antiphase.sensitivity import Columns

MAX_VARIANCE_BANDS = 256  # beyond, a dense solution is faster than a recurrence within the band


@dataclass(frozen=True, eq=False, repr=False)
class Banded(Factorization):
    """``C[j + i, j] = columns[j, i]``: the diagonals of the encoder, column by column."""

    columns: Array

    def __post_init__(self) -> None:
        columns = check.real_array("columns", self.columns, ndim=2)
        if len(columns) != self.steps or not 0 < columns.shape[1] <= self.steps:
            raise ValueError(
                f"columns has shape {columns.shape}; {self.steps} rows are needed, and at most as "
                "many columns"
            )
        if not (columns[:, 0] > 0).all():
            raise ValueError("encoder has a diagonal that is not positive: it must be invertible")
        # PRIVACY: entries past the last row do not exist and must not enter the norms.   [G1]
        if columns[outside(columns)].any():
            raise ValueError("columns has entries past the last row of the encoder")
        object.__setattr__(self, "columns", columns)

    @property
    def bands(self) -> int:
        """Number of diagonals."""
        return int(self.columns.shape[1])

    def band_rows(self, start: int, stop: int) -> Array:
        """Return ``C[t, t − i]`` for ``start <= t < stop`` and ``i < bands``."""
        t, i = np.arange(start, stop)[:, None], np.arange(self.bands)
        return np.where(t >= i, self.columns[t - i, i], 0.0)

    def _build_encoder(self) -> Array:
        encoder = np.zeros((self.steps, self.steps))
        for i in range(self.bands):
            diagonal = self.columns[: self.steps - i, i]
            encoder[np.arange(i, self.steps), np.arange(self.steps - i)] = diagonal
        return encoder

    def encoder_columns(self, rows: int | None = None) -> Columns:
        """Return the columns, without a dense matrix."""
        return BandedColumns(self.columns, self.steps if rows is None else rows)

    def _iterate_variances(self, P: Array, N: Array) -> Array | None:
        if self.bands > MAX_VARIANCE_BANDS:
            return None
        return banded_variances(self.band_rows(0, self.steps), P, N, self.workload.delay)


class BandedColumns:
    """Columns with a few entries each, from the diagonal down, cut off after ``steps`` rows."""

    def __init__(self, columns: Array, steps: int) -> None:
        self._columns = np.array(columns[:steps, :steps])
        self._columns[outside(self._columns)] = 0.0
        self.steps = steps

    @property
    def reach(self) -> int:
        """Columns that are this many steps apart, or more, share no row."""
        return int(self._columns.shape[1])

    def squared_norms(self) -> Array:
        """Return the squared norm of each column."""
        return np.asarray(np.square(self._columns).sum(axis=1))

    def gram(self, indices: Indices) -> Array:
        """Return the block of ``CᵀC`` at these steps."""
        out = np.zeros((len(indices),) * 2)
        lag = np.subtract.outer(indices, indices)  # of the row's step after the column's
        for distance in np.unique(lag[(lag >= 0) & (lag < self.reach)]):
            later, first = np.nonzero(lag == distance)
            i, j = indices[first], indices[later]
            shared = self._columns[i, distance:] * self._columns[j, : self.reach - distance]
            out[later, first] = out[first, later] = shared.sum(axis=1)
        return out


def banded_variances(rows: Array, P: Array, N: Array, delay: int = 0) -> Array | None:
    """Return the variance of every ``u_t``, ``P u = N y`` and ``C y = z``.

    Args:
        rows: the bands of C.
        P: the bands of P.
        N: the bands of N.
        delay: the delay of the workload.

    Returns:
        The variances; None unless N is diagonal and no step is idle.
    """
    if N.shape[1] > 1 or delay or not N.all():
        return None
    from antiphase.linalg import resolvents  # imports Numba, which takes longer than the rest

    F = banded.multiply(rows, P / N)[:, : len(rows)]
    inverse = resolvents.inverse_bands(F / F[:, :1], F[:, 0] ** 2)
    return inverse[:, 0]


def outside(columns: Array) -> Any:
    """Return a mask of the entries that lie past the last row."""
    steps, bands = columns.shape
    return np.arange(steps)[:, None] + np.arange(bands) >= steps
