"""The best encoder with a given number of diagonals, by descent; O(T p²) an evaluation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.banded import Banded, outside
from antiphase.factorizations.base import refuse_if_too_large
from antiphase.linalg import banded
from antiphase.linalg.lbfgs import MEMORY, descend
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.problem import recurrence_of, searched_for
from antiphase.workload import Workload

MOST_ITERATIONS = 500


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

    def __init__(
        self, inverse: Array, squares: Array, participation: Participation, bands: int
    ) -> None:
        self._inverse, self._squares, self._shape = inverse, squares, (len(inverse), bands)
        self._outside = outside(np.empty(self._shape))
        # In a fixed order the steps of a pattern share a budget, and lags count that the bands reach; in other orders
        # columns of one norm serve best.
        every = participation.steps_per_epoch or len(inverse)
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
        t = np.minimum(
            np.arange(len(columns))[:, None] + np.arange(columns.shape[1]), len(columns) - 1
        )
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
        from antiphase.linalg import adjoints

        steps, bands = self._shape
        t, i = np.arange(steps)[:, None], np.arange(bands)
        rows = np.where(t >= i, columns[t - i, i], 0.0)
        F = banded.multiply(rows, self._inverse)[:, :steps]
        error, of_F = adjoints.banded(F, self._squares)
        width = F.shape[1]
        slope = np.zeros(self._shape)
        for lag in range(bands):
            reach = min(self._inverse.shape[1], width - lag)
            # Row t of F has C[t, t − lag] times row t − lag of A⁻¹.
            slope[: steps - lag, lag] = (
                of_F[lag:, lag : lag + reach] * self._inverse[: steps - lag, :reach]
            ).sum(axis=1)
        return error, slope
