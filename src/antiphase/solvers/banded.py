"""Best encoder with a given number of diagonals, by descent.

An evaluation takes O(T p²). Columns are scaled so that every pattern of participation costs 1. In a
fixed order the steps of a pattern share one budget, which is a little better than columns of one
norm.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.banded import Banded, outside
from antiphase.factorizations.base import refuse_if_too_large
from antiphase.linalg import banded
from antiphase.linalg.lbfgs import MEMORY, descend
from antiphase.problem import Problem
from antiphase.solvers.closed_form import square_root_coefficients

MAX_ITERATIONS = 500


def banded_optimum(
    problem: Problem, *, bands: int = 16, progress: Progress | None = None
) -> Banded:
    """The best encoder of so many diagonals that a descent finds.

    Args:
        problem: a problem whose workload and objective are a short recurrence.
        bands: number of diagonals; the noise needs one vector less.
        progress: called in every iteration; stops the descent if it returns True.

    Raises:
        ValueError: the problem is no short recurrence.
        TooLargeError: the search needs more memory than there is.

    Example:
        >>> from antiphase import Workload, objective, once
        >>> problem = Problem(Workload.sgd(12), objective.Average(), once())
        >>> banded_optimum(problem, bands=4).columns.shape
        (12, 4)
    """
    bands = min(check.whole_number("bands", bands), problem.steps)
    refuse_if_too_large(math.isqrt(problem.steps * bands) + 1, copies=4 * MEMORY)
    # With Nesterov's momentum C A⁻¹ is not banded: the search is for heavy-ball momentum.
    searched = replace(problem.for_mean(), workload=replace(problem.workload, nesterov=False))
    P, N, weights = searched.recurrence("banded")
    search = BandedSearch(P / N, weights**2, problem.period, bands)
    x = descend(search.loss, search.start(), iterations=MAX_ITERATIONS, progress=progress)
    return Banded("banded", **problem.fields, columns=search.scaled(x))


class BandedSearch:
    """``ln error`` of the scaled encoder and its gradient.

    The parameters are the entries of its columns in one vector.
    """

    def __init__(self, inverse: Array, squares: Array, period: int, bands: int) -> None:
        """Set up the search.

        Args:
            inverse: bands of the inverse workload ``A⁻¹``.
            squares: squared weights of the iterates.
            period: steps after which the same records come again, or all steps.
            bands: number of diagonals.
        """
        self._inverse, self._squares, self._shape = inverse, squares, (len(inverse), bands)
        self._outside = outside(np.empty(self._shape))
        self._classes = np.arange(len(inverse)) % period
        self._lags = range(period, bands, period)

    def start(self) -> Array:
        """The square root of the prefix sums."""
        steps, bands = self._shape
        return np.tile(square_root_coefficients(bands), (steps, 1)).ravel()

    def _columns(self, x: Array) -> Array:
        columns = x.reshape(self._shape).copy()
        columns[self._outside] = 0.0
        return columns

    def _budgets(self, columns: Array) -> tuple[Array, list[Array]]:
        """The squared sensitivity of each class, ``Σ|X_ii'|``, and ``X_ii'`` for each lag."""
        cost: Array = np.square(columns).sum(axis=1)
        products = []
        for lag in self._lags:
            shared = (columns[:-lag, lag:] * columns[lag:, : self._shape[1] - lag]).sum(axis=1)
            cost[:-lag] += 2 * np.abs(shared)
            products.append(shared)
        return np.bincount(self._classes, cost).astype(np.float64), products

    def scaled(self, x: Array) -> Array:
        """The columns scaled to their budget, with the signs that make the diagonal positive."""
        columns = self._columns(x)
        columns /= np.sqrt(self._budgets(columns)[0])[self._classes, None]
        signs = np.sign(columns[:, 0])
        rows = np.arange(len(columns))[:, None] + np.arange(columns.shape[1])
        return np.asarray(columns * signs[np.minimum(rows, len(columns) - 1)])

    def loss(self, x: Array) -> tuple[float, Array]:
        """``ln error`` and its gradient."""
        columns = self._columns(x)
        budgets, products = self._budgets(columns)
        scale = budgets[self._classes, None] ** -0.5
        error, slope = self._error(columns * scale)
        slope *= scale
        through = -0.5 * np.bincount(self._classes, (slope * columns).sum(axis=1)) / budgets
        share = through[self._classes]
        slope += 2 * share[:, None] * columns
        for lag, shared in zip(self._lags, products, strict=True):
            weight = (2 * share[:-lag] * np.sign(shared))[:, None]
            kept = self._shape[1] - lag
            slope[:-lag, lag:] += weight * columns[lag:, :kept]
            slope[lag:, :kept] += weight * columns[:-lag, lag:]
        slope[self._outside] = 0.0
        return float(np.log(error)), slope.ravel() / error

    def _error(self, columns: Array) -> tuple[float, Array]:
        from antiphase.linalg import resolvents

        steps, bands = self._shape
        t, i = np.arange(steps)[:, None], np.arange(bands)
        rows = np.where(t >= i, columns[t - i, i], 0.0)
        F = banded.multiply(rows, self._inverse)[:, :steps]
        error, of_F = resolvents.weighted_variances(F, self._squares)
        width = F.shape[1]
        slope = np.zeros(self._shape)
        for lag in range(bands):
            reach = min(self._inverse.shape[1], width - lag)
            # Row t of F has C[t, t − lag] times row t − lag of A⁻¹.
            slope[: steps - lag, lag] = (
                of_F[lag:, lag : lag + reach] * self._inverse[: steps - lag, :reach]
            ).sum(axis=1)
        return error, slope
