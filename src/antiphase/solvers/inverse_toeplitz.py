"""The best number of bands of a banded inverse, and the best correlation of DP-λCGD."""

from __future__ import annotations

import numpy as np
import scipy

from antiphase.factorizations.inverse_toeplitz import InverseToeplitz
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.solvers.closed_form import inverse_root_coefficients
from antiphase.solvers.toeplitz import Loss
from antiphase.workload import Workload

MOST_BANDS = 64


def best_bands(
    name: str, workload: Workload, objective: Objective, participation: Participation
) -> int:
    """How many coefficients of the inverse root to keep: error falls with the first ones and, where records come back,
    rises with the last. By sections, up to as many as there are rows that noise would keep."""
    inverse = inverse_root_coefficients(workload, min(MOST_BANDS, workload.steps))
    known: dict[int, float] = {}

    def error(bands: int) -> float:
        if bands not in known:
            known[bands] = InverseToeplitz(
                name, workload, objective, participation, inverse[:bands]
            ).error
        return known[bands]

    low, high = 1, len(inverse)
    while high - low > 2:
        third = (high - low) // 3
        low, high = (
            (low, high - third)
            if error(low + third) <= error(high - third)
            else (low + third, high)
        )
    return min(range(low, high + 1), key=error)


def best_correlation(
    workload: Workload, objective: Objective, participation: Participation
) -> float:
    """``λ`` of least error for ``C⁻¹ = I − λZ``: one number, by bisection of the golden section."""
    loss = Loss(workload, objective, participation)
    steps = workload.steps

    def of_memory(log_rate: float) -> float:
        with np.errstate(under="ignore"):
            return loss((1.0 - np.exp(log_rate)) ** np.arange(steps))[0]

    # By 1 − λ, from none of the step before to all but one part in ten for each step of the run.
    best = scipy.optimize.minimize_scalar(
        of_memory, bounds=(-np.log(10.0 * steps), -1e-9), method="bounded"
    )
    return float(1.0 - np.exp(best.x))
