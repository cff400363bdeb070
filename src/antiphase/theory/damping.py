"""The damping with the least expected noise on a quadratic.

The `damped` designs are a one-parameter surrogate of the exact objective, ``design("curvature")``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase.design import design
from antiphase.factorizations.base import Factorization
from antiphase.participation import Participation
from antiphase.theory.quadratic import Quadratic, expectation
from antiphase.workload import Workload

GRID_SPACING = 1.5  # of the first grid of dampings, in log(1 − ρ)


@dataclass(frozen=True, eq=False)
class DampedChoice:
    """The best damping, and all that were tried.

    Attributes:
        rho: the best factor ``ρ``.
        final_weight: the best weight of the last iterate.
        value: what noise of standard deviation 1 adds to ``E‖∇f(x_t)‖²``, averaged over t, with
            share ``last`` on the last step.
        factorization: the best design.
        tried: ``(rho, final_weight, value)`` of every design.
    """

    rho: float
    final_weight: float
    value: float
    factorization: Factorization
    tried: tuple[tuple[float, float, float], ...]


def best_damping(
    problem: Quadratic,
    *,
    steps: int | None = None,
    workload: Workload | None = None,
    learning_rate: float = 1.0,
    epochs: int = 1,
    participation: Participation | None = None,
    last: float = 0.0,
    final_weights: Sequence[float] = (1.0,),
    precision: float = 0.1,
    **options: Any,
) -> DampedChoice:
    r"""Find the ``damped`` design with the least noise on ``problem``.

    For each final weight, ``ρ`` is searched: first on a grid from no damping (``ρ = 1``) to that
    of the largest curvature, even in ``log(1 − ρ)``; then by Brent's method around the best point.
    Neither the scale of the noise nor the place of the optimum matters.

    Guarantee: no design that was tried has a lower value.

    Args:
        problem: the quadratic.
        steps: as for `design`.
        workload: as for `design`.
        learning_rate: a factor on the workload's own learning rates.
        epochs: as for `design`.
        participation: as for `design`.
        last: the share of the last step in the value; the rest is the average over all steps.
        final_weights: the weights of the last iterate to try.
        precision: the relative precision of ``1 − ρ``.
        options: further options of `design`.
    """
    last = check.real_number("last", last, minimum=0.0)
    if last > 1:
        raise ValueError(f"last = {last:g} must be at most 1: it is the share of the last step")
    tried: dict[tuple[float, float], float] = {}
    best: list[Factorization] = []  # of the lowest value so far

    def value(rho: float, final_weight: float) -> float:
        if (rho, final_weight) not in tried:
            f = design(
                "damped",
                steps=steps,
                workload=workload,
                epochs=epochs,
                participation=participation,
                rho=rho,
                final_weight=final_weight,
                **options,
            )
            noise = expectation(f, problem, learning_rate=learning_rate, noise=1.0).gradient.noise
            average = float((1.0 - last) * noise.mean() + last * noise[-1])
            if average < min(tried.values(), default=math.inf):
                best[:] = [f]
            tried[rho, final_weight] = average
        return tried[rho, final_weight]

    unit = workload.max_learning_rate if workload is not None else 1.0
    total = workload.steps if workload is not None else check.whole_number("steps", steps)
    most = min(learning_rate * unit * problem.smoothness, 1.0)  # largest value of 1 − ρ
    least = min(1.0 / total, most) / 10.0
    count = math.ceil(math.log(most / least) / GRID_SPACING) + 1
    grid = np.linspace(math.log(least), math.log(most), count).tolist()
    for final_weight in final_weights:
        weight = check.positive_number("final_weight", final_weight)
        value(1.0, weight)
        i = int(np.argmin([value(1.0 - math.exp(point), weight) for point in grid]))
        scipy.optimize.minimize_scalar(
            lambda point, weight=weight: value(1.0 - math.exp(point), weight),
            bounds=(grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]),
            method="bounded",
            options={"xatol": check.positive_number("precision", precision)},
        )
    rho, final_weight = min(tried, key=lambda key: tried[key])
    triples = tuple((r, w, v) for (r, w), v in tried.items())
    return DampedChoice(rho, final_weight, tried[rho, final_weight], best[0], triples)
