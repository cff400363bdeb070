r"""Encoders with a few diagonals, all entries free: the best ones by descent, in O(T p²) an evaluation.

``u = A C⁻¹z`` obeys ``F u = z`` with ``F = C A⁻¹``, which is banded where ``A⁻¹`` is; the variances of u are the
diagonal of ``(FᵀF)⁻¹``, by a recurrence within the band, and the gradient by its adjoint. The noise keeps p − 1
vectors.
Columns are scaled so that every pattern of participation costs 1: between the steps of a pattern the budget is free,
which is a little better than columns of one norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from antiphase import _checks as check
from antiphase._checks import Array
from antiphase.factorization.base import Factorization, refuse_if_too_large
from antiphase.factorization.dual import Progress
from antiphase.factorization.searching import MEMORY, descend, recurrence_of, searched_for
from antiphase.objective import Objective
from antiphase.participation import Epochs, Indices, Participation
from antiphase.sensitivity import Columns
from antiphase.workload import Workload, _multiply_bands

MOST_BANDS = 256  # diagonals up to which a recurrence within the band beats a dense solution
MOST_ITERATIONS = 500


@dataclass(frozen=True, eq=False, repr=False)
class Banded(Factorization):
    """``C[j + i, j] = columns[j, i]``: the diagonals of the encoder, column by column."""

    columns: Array

    def __post_init__(self) -> None:
        columns = check.real_array("columns", self.columns, ndim=2)
        if len(columns) != self.steps or not 0 < columns.shape[1] <= self.steps:
            raise ValueError(f"columns has shape {columns.shape}; {self.steps} rows of at most as many are needed")
        if not (columns[:, 0] > 0).all():
            raise ValueError("encoder has a diagonal that is not positive: its noise cannot be made")
        # PRIVACY: entries past the last row do not exist, and must not count as if they did.   [G1]
        if columns[_outside(columns)].any():
            raise ValueError("columns has entries past the last row of the encoder")
        object.__setattr__(self, "columns", columns)

    @property
    def bands(self) -> int:
        return int(self.columns.shape[1])

    def band_rows(self, start: int, stop: int) -> Array:
        t, i = np.arange(start, stop)[:, None], np.arange(self.bands)
        rows: Array = np.where(t >= i, self.columns[t - i, i], 0.0)
        return rows

    def _build_encoder(self) -> Array:
        encoder = np.zeros((self.steps, self.steps))
        for i in range(self.bands):
            encoder[np.arange(i, self.steps), np.arange(self.steps - i)] = self.columns[: self.steps - i, i]
        return encoder

    def _columns(self, rows: int | None = None) -> Columns:
        return BandedColumns(self.columns, self.steps if rows is None else rows)

    def _variances(self, P: Array, N: Array) -> Array | None:
        if self.bands > MOST_BANDS:
            return None
        return banded_variances(self.band_rows(0, self.steps), P, N, self.workload.delay)

    def _stored(self) -> dict[str, Any]:
        return {"columns": self.columns}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common, columns=stored["columns"])


class BandedColumns:
    """Columns of a few entries each, from the diagonal down, cut off after ``steps`` rows."""

    def __init__(self, columns: Array, steps: int) -> None:
        self._columns = np.array(columns[:steps, :steps])
        self._columns[_outside(self._columns)] = 0.0
        self.steps = steps

    @property
    def reach(self) -> int:
        return int(self._columns.shape[1])

    def squared_norms(self) -> Array:
        norms: Array = np.square(self._columns).sum(axis=1)
        return norms

    def gram(self, indices: Indices) -> Array:
        out = np.zeros((len(indices),) * 2)
        lag = np.subtract.outer(indices, indices)  # the column comes first
        for distance in np.unique(lag[(lag >= 0) & (lag < self.reach)]):
            later, first = np.nonzero(lag == distance)
            i, j = indices[first], indices[later]
            shared = (self._columns[i, distance:] * self._columns[j, : self.reach - distance]).sum(axis=1)
            out[later, first] = out[first, later] = shared
        return out


def banded_variances(rows: Array, P: Array, N: Array, delay: int = 0) -> Array | None:
    """The variance of every u, ``P u = N y`` and ``C y = z``, with ``rows`` the bands of C; None unless N is diagonal
    and nothing is idle."""
    if N.shape[1] > 1 or delay or not N.all():
        return None
    from antiphase.factorization import kernels

    F = _multiply_bands(rows, P / N)[:, : len(rows)]
    inverse = kernels.inverse_bands(F / F[:, :1], F[:, 0] ** 2)
    variances: Array = inverse[:, 0]
    return variances


def banded_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    bands: int,
    options: dict[str, Any],
    progress: Progress | None = None,
) -> Banded:
    """The best encoder of so many diagonals that a descent finds, from the square root of the prefix sums on."""
    bands = min(bands, workload.steps)
    refuse_if_too_large(math.isqrt(workload.steps * bands) + 1, copies=4 * MEMORY)
    # With Nesterov's momentum C A⁻¹ is not banded: the search is for heavy-ball momentum, the error what it is.
    P, N, weights = recurrence_of(name, replace(workload, nesterov=False), searched_for(objective))
    search = _Search(P / N, weights**2, participation, bands)
    found = descend(search.loss, search.start(), iterations=MOST_ITERATIONS, progress=progress)
    return Banded(name, workload, objective, participation, search.scaled(found), options=options)


class _Search:
    """``ln error`` of the scaled encoder and its gradient, as a function of the entries of its columns."""

    def __init__(self, inverse: Array, squares: Array, participation: Participation, bands: int) -> None:
        self._inverse, self._squares, self._shape = inverse, squares, (len(inverse), bands)
        self._outside = _outside(np.empty(self._shape))
        # In a fixed order the steps of a pattern share a budget, and lags count that the bands reach; in other orders
        # columns of one norm serve best.
        every = participation.every if isinstance(participation, Epochs) else len(inverse)
        self._owner = np.arange(len(inverse)) % every
        self._lags = range(every, bands, every)

    def start(self) -> Array:
        steps, bands = self._shape
        i = np.arange(1, bands)
        root = np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))
        return np.tile(root, (steps, 1)).ravel()

    def _cut(self, x: Array) -> Array:
        columns = x.reshape(self._shape).copy()
        columns[self._outside] = 0.0
        return columns

    def _budgets(self, columns: Array) -> tuple[Array, list[Array]]:
        """What each class costs, ``Σ|X_ii'|``, and the ``X_ii'`` of each lag."""
        cost: Array = np.square(columns).sum(axis=1)
        products = []
        for lag in self._lags:
            shared = (columns[:-lag, lag:] * columns[lag:, : self._shape[1] - lag]).sum(axis=1)
            cost[:-lag] += 2 * np.abs(shared)
            products.append(shared)
        return np.bincount(self._owner, cost).astype(np.float64), products

    def scaled(self, x: Array) -> Array:
        """The columns scaled to their budget; rows of the encoder with a positive diagonal."""
        columns = self._cut(x)
        columns /= np.sqrt(self._budgets(columns)[0])[self._owner, None]
        signs = np.sign(columns[:, 0])
        t = np.minimum(np.arange(len(columns))[:, None] + np.arange(columns.shape[1]), len(columns) - 1)
        flipped: Array = columns * signs[t]
        return flipped

    def loss(self, x: Array) -> tuple[float, Array]:
        columns = self._cut(x)
        budgets, products = self._budgets(columns)
        scale = budgets[self._owner, None] ** -0.5
        error, slope = self._error(columns * scale)
        slope *= scale
        through = -0.5 * np.bincount(self._owner, (slope * columns).sum(axis=1)) / budgets
        share = through[self._owner]
        slope += 2 * share[:, None] * columns
        for lag, shared in zip(self._lags, products, strict=True):
            weight = (2 * share[:-lag] * np.sign(shared))[:, None]
            kept = self._shape[1] - lag
            slope[:-lag, lag:] += weight * columns[lag:, :kept]
            slope[lag:, :kept] += weight * columns[:-lag, lag:]
        slope[self._outside] = 0.0
        return float(np.log(error)), slope.ravel() / error

    def _error(self, columns: Array) -> tuple[float, Array]:
        from antiphase.factorization import gradients

        steps, bands = self._shape
        t, i = np.arange(steps)[:, None], np.arange(bands)
        rows = np.where(t >= i, columns[t - i, i], 0.0)
        F = _multiply_bands(rows, self._inverse)[:, :steps]
        error, of_F = gradients.banded(F, self._squares)
        width = F.shape[1]
        slope = np.zeros(self._shape)
        for lag in range(bands):
            reach = min(self._inverse.shape[1], width - lag)
            # Row t of F has C[t, t − lag] times row t − lag of A⁻¹.
            slope[: steps - lag, lag] = (of_F[lag:, lag : lag + reach] * self._inverse[: steps - lag, :reach]).sum(
                axis=1
            )
        return error, slope


def _outside(columns: Array) -> Any:
    """Where entries lie past the last row."""
    steps, bands = columns.shape
    return np.arange(steps)[:, None] + np.arange(bands) >= steps
