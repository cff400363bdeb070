r"""Best Toeplitz encoder, by descent; O(T log T) for each evaluation.

With ``u = 1/c`` as power series, ``C⁻¹`` has the coefficients u, and ``‖ΛAC⁻¹‖_F²`` is a quadratic
form in u. For a workload that is the same at every step it is ``Σ_s ω_s b_s²`` with ``b = Au`` and
``ω_s`` the squared weights from row s on. A gradient v with respect to u becomes one with respect
to c by correlation of ``−u·u`` with v. For non-negative coefficients the earliest pattern of
participation is the worst, so that the squared sensitivity is ``‖Σ_j Z^{jb} c‖²``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.base import refuse_if_too_large
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.linalg import banded, power_series
from antiphase.linalg.lbfgs import descend
from antiphase.objective import Average
from antiphase.participation import Epochs
from antiphase.problem import Problem, without_idle_steps
from antiphase.solvers.closed_form import square_root_coefficients
from antiphase.workload import Workload

MAX_DIRECT_TERMS = 2048  # above, the search starts from the optimum for fewer steps
MAX_ITERATIONS = 300
QuadraticForm = Callable[[Array], tuple[float, Array]]


def toeplitz_optimum(
    problem: Problem, *, bands: int | None = None, progress: Progress | None = None
) -> Toeplitz:
    """The best Toeplitz encoder with non-negative coefficients that do not grow.

    Its sensitivity is exact for every participation.

    Args:
        problem: any problem; without a short recurrence the search is dense.
        bands: number of diagonals. Unless given all, but no more than participations are apart.
        progress: called in every iteration; stops the search if it returns True.

    Example:
        >>> from antiphase import epochs
        >>> problem = Problem(Workload.sgd(12), Average(), epochs(3, every=4))
        >>> toeplitz_optimum(problem).bands
        4
    """
    steps, pattern = problem.steps, earliest_pattern(problem)
    if bands is not None:
        terms = min(check.whole_number("bands", bands), steps)
    else:
        terms = pattern[1] if len(pattern) > 1 else steps
    coefficients = _descend(ToeplitzLoss(problem), _start(problem, terms), progress)
    return Toeplitz("toeplitz", **problem.fields, coefficients=coefficients, normalized=False)


class ToeplitzLoss:
    """``ln(sens² × noise)`` and its gradient, as a function of the coefficients.

    Example:
        >>> from antiphase import once
        >>> loss = ToeplitzLoss(Problem(Workload.sgd(2), Average(), once()))
        >>> value, gradient = loss(np.array([1.0, 0.0]))
        >>> bool(np.isclose(value, np.log(3)))
        True
    """

    def __init__(self, problem: Problem) -> None:
        """Prepare the loss of encoders for ``problem``."""
        self.steps = problem.steps
        searched = replace(problem, workload=without_idle_steps(problem.workload))
        self._form = noise_form(searched)
        self._pattern = earliest_pattern(problem)

    def __call__(self, c: Array) -> tuple[float, Array]:
        """The loss and its gradient; the first coefficient is positive."""
        u = power_series.inverse(c, self.steps)
        noise, v = self._form(u)
        of_noise = -power_series.correlate(power_series.multiply(u, u, self.steps), v)[: len(c)]
        squared, of_squared = self._squared_sensitivity(c)
        return float(np.log(noise) + np.log(squared)), of_noise / noise + of_squared / squared

    def _squared_sensitivity(self, c: Array) -> tuple[float, Array]:
        total, gradient = np.zeros(self.steps), np.zeros(len(c))
        for step in self._pattern:
            kept = min(len(c), self.steps - step)
            total[step : step + kept] += c[:kept]
        for step in self._pattern:
            kept = min(len(c), self.steps - step)
            gradient[:kept] += 2 * total[step : step + kept]
        return float(total @ total), gradient


def earliest_pattern(problem: Problem) -> list[int]:
    """The worst pattern: from the first step on, as often and as early as allowed.

    Example:
        >>> from antiphase import epochs
        >>> earliest_pattern(Problem(Workload.sgd(12), Average(), epochs(3, every=4)))
        [0, 4, 8]
    """
    participation = problem.participation
    steps = range(0, problem.steps, min(participation.separation, problem.steps))
    return list(steps)[: participation.max_participations]


def noise_form(problem: Problem) -> QuadraticForm:
    """``‖M C⁻¹‖_F²`` of a Toeplitz encoder and its gradient, from the coefficients of ``C⁻¹``."""
    recurrence = problem.objective.recurrence(problem.workload)
    if recurrence is None or not banded.is_time_invariant(recurrence.P, recurrence.N):
        return _dense_form(problem)
    P, N, weights = recurrence
    omega = problem.objective.toeplitz_weights(weights)

    def form(u: Array) -> tuple[float, Array]:
        b = banded.solve(P, banded.apply(N, u))
        gradient = banded.apply_transposed(N, banded.solve_transposed(P, omega * b))
        return float(omega @ b**2), 2 * gradient

    return form


def _dense_form(problem: Problem) -> QuadraticForm:
    """``uᵀKu`` with ``K_pq = Σ_s W_{p+s, q+s}``, for the mean if the objective is the maximum."""
    refuse_if_too_large(problem.steps)
    M = problem.for_mean().objective.root(problem.workload)
    K = M.T @ M
    for lag in range(len(K)):
        sums = np.cumsum(K.diagonal(lag)[::-1])[::-1]
        i = np.arange(len(sums))
        K[i, i + lag] = K[i + lag, i] = sums

    def form(u: Array) -> tuple[float, Array]:
        Ku = K @ u
        return float(u @ Ku), 2 * Ku

    return form


def _descend(loss: ToeplitzLoss, start: Array, progress: Progress | None) -> Array:
    """Coefficients of less loss.

    The variables are relative to the coefficients of the square root, which decay at about the
    right rate, so that all are of one size.
    """
    scale = square_root_coefficients(len(start))[1:]

    def relative(x: Array) -> tuple[float, Array]:
        value, gradient = loss(np.concatenate([[1.0], scale * x]))
        return value, scale * gradient[1:]

    x = descend(
        relative,
        start[1:] / scale,
        iterations=MAX_ITERATIONS,
        progress=progress,
        settled=1e-9,
        positive=True,
    )
    # The sensitivity is exact only if no coefficient rises.
    coefficients = np.maximum(np.concatenate([[1.0], scale * x]), 0.0)
    return np.asarray(np.minimum.accumulate(coefficients))


def _start(problem: Problem, terms: int) -> Array:
    """The square root, corrected for many steps by the optimum for fewer at the same scale."""
    root = square_root_coefficients(terms)
    if terms <= MAX_DIRECT_TERMS:
        return root
    fewer = problem.steps * MAX_DIRECT_TERMS // terms
    count = len(earliest_pattern(problem))
    smaller = Problem(Workload.sgd(fewer), Average(), Epochs(count, -(-fewer // count)))
    coarse_root = square_root_coefficients(MAX_DIRECT_TERMS)
    ratio = _descend(ToeplitzLoss(smaller), coarse_root, None) / coarse_root
    places, coarse_places = np.arange(terms) / terms, np.arange(MAX_DIRECT_TERMS) / MAX_DIRECT_TERMS
    return np.asarray(root * np.interp(places, coarse_places, ratio))
