"""Best number of bands for banded inverse square roots (BISR), best λ for DP-λCGD."""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy

from antiphase.factorizations.inverse_toeplitz import InverseToeplitz
from antiphase.problem import Problem
from antiphase.solvers.closed_form import inverse_root_coefficients
from antiphase.solvers.toeplitz import ToeplitzLoss

MAX_BANDS = 64


def best_inverse_bands(problem: Problem) -> int:
    """The number of coefficients of the inverse square root, up to 64, that leaves least error.

    The error falls with the first bands and, where records take part several times, rises with the
    last. The search is by sections.

    Example:
        >>> from antiphase import Workload, epochs, objective
        >>> best_inverse_bands(Problem(Workload.sgd(12), objective.Average(), epochs(3, every=4)))
        2
    """
    inverse = inverse_root_coefficients(problem.workload, min(MAX_BANDS, problem.steps))

    @cache
    def error(bands: int) -> float:
        return InverseToeplitz("bisr", **problem.fields, inverse=inverse[:bands]).error

    low, high = 1, len(inverse)
    while high - low > 2:
        third = (high - low) // 3
        if error(low + third) <= error(high - third):
            high -= third
        else:
            low += third
    return min(range(low, high + 1), key=error)


def best_correlation(problem: Problem) -> float:
    """The ``λ`` of least error for ``C⁻¹ = I − λZ``, by bounded scalar minimisation.

    Example:
        >>> from antiphase import Workload, objective, once
        >>> round(best_correlation(Problem(Workload.sgd(64), objective.Average(), once())), 3)
        0.837
    """
    loss, steps = ToeplitzLoss(problem), problem.steps

    def of_log_rate(log_rate: float) -> float:
        with np.errstate(under="ignore"):
            return loss((1.0 - np.exp(log_rate)) ** np.arange(steps))[0]

    # 1 − λ is between a tenth of 1/steps and 1.
    best = scipy.optimize.minimize_scalar(
        of_log_rate, bounds=(-np.log(10.0 * steps), -1e-9), method="bounded"
    )
    return float(1.0 - np.exp(best.x))
