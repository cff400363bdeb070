r"""The best Toeplitz encoder, and the error of any of them as a function of its coefficients: O(T log T), T up to 10⁶.

With ``u = 1/c`` as power series, ``C⁻¹`` has the coefficients u, and ``‖ΛAC⁻¹‖_F²`` is a quadratic form in u: for a
workload that is the same at every step ``Σ_s ω_s b_s²`` with ``b = Au`` and ``ω_s`` the squared weights from row s on.
A gradient v with respect to u goes back to c as the correlation of ``−u·u`` with v. For non-negative coefficients the
first pattern of participation is the worst, so that the squared sensitivity is ``‖Σ_j Z^{jb} c‖²``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.base import refuse_if_too_large
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.linalg import banded, power_series
from antiphase.linalg.lbfgs import descend
from antiphase.objective import Average, Objective
from antiphase.participation import Epochs, Participation
from antiphase.problem import searched_for, without_idle_steps
from antiphase.solvers.closed_form import square_root_coefficients
from antiphase.solvers.single_participation import _apply_transposed, _solve_transposed
from antiphase.workload import Workload

LONGEST_START = 2048  # steps from which on the search starts from the optimum for fewer
MOST_ITERATIONS = 300
Form = Callable[[Array], tuple[float, Array]]


def toeplitz_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    bands: int | None,
    options: dict[str, Any],
    progress: Progress | None = None,
) -> Toeplitz:
    """The best Toeplitz encoder, of so many diagonals, or of as many as are worth having: all, but no more than lie
    between two participations. Its coefficients are non-negative and do not grow, so that its sensitivity is exact for
    every participation."""
    steps = workload.steps
    pattern = shifts(participation, steps)
    terms = min(bands or steps, steps) if bands or len(pattern) == 1 else pattern[1]
    loss = Loss(workload, objective, participation)
    found = _searched(loss, _start(participation, steps, terms), progress)
    return Toeplitz(name, workload, objective, participation, found, False, options=options)


class Loss:
    """``ln(sens² × noise)`` as a function of coefficients that begin with any positive one, and its gradient."""

    def __init__(
        self, workload: Workload, objective: Objective, participation: Participation
    ) -> None:
        self.steps = workload.steps
        self._form = noise_form(without_idle_steps(workload), objective)
        self._shifts = shifts(participation, self.steps)

    def __call__(self, c: Array) -> tuple[float, Array]:
        u = power_series.inverse(c, self.steps)
        noise, v = self._form(u)
        of_noise = -power_series.correlate(power_series.multiply(u, u, self.steps), v)[: len(c)]
        squared, of_squared = self._squared_sensitivity(c)
        return float(np.log(noise) + np.log(squared)), of_noise / noise + of_squared / squared

    def _squared_sensitivity(self, c: Array) -> tuple[float, Array]:
        summed, slope = np.zeros(self.steps), np.zeros(len(c))
        for shift in self._shifts:
            kept = min(len(c), self.steps - shift)
            summed[shift : shift + kept] += c[:kept]
        for shift in self._shifts:
            kept = min(len(c), self.steps - shift)
            slope[:kept] += 2 * summed[shift : shift + kept]
        return float(summed @ summed), slope


def shifts(participation: Participation, steps: int) -> list[int]:
    """The steps of the worst pattern: from the first on, as close as they may be."""
    return list(range(0, steps, participation.separation))[: participation.max_participations]


def noise_form(workload: Workload, objective: Objective) -> Form:
    """``‖M C⁻¹‖_F²`` of a Toeplitz encoder, and its gradient, from the coefficients of the inverse."""
    followed = objective.recurrence(workload)
    if followed is None or not banded.is_time_invariant(followed.P, followed.N):
        return _dense_form(workload, objective)
    P, N, weights = followed
    omega = objective.toeplitz_weights(weights)

    def form(u: Array) -> tuple[float, Array]:
        b = banded.solve(P, banded.apply(N, u))
        return float(omega @ b**2), 2 * _apply_transposed(N, _solve_transposed(P, omega * b))

    return form


def _dense_form(workload: Workload, objective: Objective) -> Form:
    """``uᵀKu`` with ``K_pq = Σ_s W_{p+s, q+s}``; for the largest row, too, the mean is what is searched for."""
    refuse_if_too_large(workload.steps)
    M = searched_for(objective).root(workload)
    K = M.T @ M
    for lag in range(len(K)):
        sums = np.cumsum(K.diagonal(lag)[::-1])[::-1]
        i = np.arange(len(sums))
        K[i, i + lag] = K[i + lag, i] = sums

    def form(u: Array) -> tuple[float, Array]:
        Ku = K @ u
        return float(u @ Ku), 2 * Ku

    return form


def _searched(loss: Loss, start: Array, progress: Progress | None) -> Array:
    """Relative to the square root's coefficients, which have the right fall: all variables are then of one size."""
    scale = square_root_coefficients(len(start))[1:]

    def relative(x: Array) -> tuple[float, Array]:
        value, slope = loss(np.concatenate([[1.0], scale * x]))
        return value, scale * slope[1:]

    found = descend(
        relative,
        start[1:] / scale,
        iterations=MOST_ITERATIONS,
        progress=progress,
        settled=1e-9,
        positive=True,
    )
    # The sensitivity is exact only where nothing rises.
    falling: Array = np.minimum.accumulate(np.maximum(np.concatenate([[1.0], scale * found]), 0.0))
    return falling


def _start(participation: Participation, steps: int, terms: int) -> Array:
    """The square root; of many steps, with the correction that the optimum for fewer has at the same share of the
    run."""
    root = square_root_coefficients(terms)
    if terms <= LONGEST_START:
        return root
    fewer = steps * LONGEST_START // terms
    smaller: Participation = participation
    if participation.max_participations > 1:
        count = len(shifts(participation, steps))
        smaller = Epochs(count, -(-fewer // count))
    coarse = _searched(
        Loss(Workload.sgd(fewer), Average(), smaller), square_root_coefficients(LONGEST_START), None
    )
    ratio = coarse / square_root_coefficients(LONGEST_START)
    started: Array = root * np.interp(
        np.arange(terms) / terms, np.arange(LONGEST_START) / LONGEST_START, ratio
    )
    return started
