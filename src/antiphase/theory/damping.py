"""The damping that serves best on a quadratic: a one-parameter surrogate of the exact objective
(``design("curvature")``), chosen by exact expectations, not by a rule of thumb."""

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
from antiphase.theory.quadratic import Quadratic, exact
from antiphase.workload import Workload

COARSE = 1.5  # between the dampings first tried, in log(1 − ρ)


@dataclass(frozen=True, eq=False)
class DampedChoice:
    """The damping that served best, and all that were tried: ``(rho, final_weight, value)``.

    ``value`` is what noise of standard deviation 1 adds to the average of ``E‖∇f(x_t)‖²``, mixed with the last one's
    if that was asked for.
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
    r"""The ``damped`` design that does best on ``problem``, by exact evaluation of every one tried.

    For each of ``final_weights`` a search over ``ρ``: a few dampings between none (``ρ = 1``) and that of the largest
    curvature, evenly in ``log(1 − ρ)``, then Brent's method around the best of them, to a relative ``precision`` of
    ``1 − ρ``. What counts is the noise in the squared gradient, ``(1 − last)·average + last·last one``: neither its
    scale nor where the optimum is plays a part. ``options`` go to `design`.

    Guarantee: no design that was tried has a lower value.
    """
    last = check.real_number("last", last, minimum=0.0)
    if last > 1:
        raise ValueError(f"last = {last:g} must be at most 1: it is the share of the last step")
    tried: dict[tuple[float, float], float] = {}
    best: list[Factorization] = []

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
            noise = exact(f, problem, learning_rate=learning_rate, noise=1.0).gradient.noise
            found = float((1.0 - last) * noise.mean() + last * noise[-1])
            if not tried or found < min(tried.values()):
                best[:] = [f]
            tried[rho, final_weight] = found
        return tried[rho, final_weight]

    unit = workload.max_learning_rate if workload is not None else 1.0
    total = workload.steps if workload is not None else check.whole_number("steps", steps)
    most = min(learning_rate * unit * problem.smoothness, 1.0)
    least = min(1.0 / total, most) / 10.0
    for final_weight in final_weights:
        weight = check.positive_number("final_weight", final_weight)
        value(1.0, weight)
        points = np.linspace(
            math.log(least), math.log(most), math.ceil(math.log(most / least) / COARSE) + 1
        ).tolist()
        i = int(np.argmin([value(1.0 - math.exp(point), weight) for point in points]))
        around = points[max(i - 1, 0)], points[min(i + 1, len(points) - 1)]
        scipy.optimize.minimize_scalar(
            lambda point, weight=weight: value(1.0 - math.exp(point), weight),
            bounds=around,
            method="bounded",
            options={"xatol": check.positive_number("precision", precision)},
        )
    rho, final_weight = min(tried, key=lambda key: tried[key])
    triples = tuple((r, w, v) for (r, w), v in tried.items())
    return DampedChoice(rho, final_weight, tried[rho, final_weight], best[0], triples)
