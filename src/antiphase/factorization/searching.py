"""What the searches for the best encoder of a given form share: the problem as a recurrence, and descent."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy

from antiphase._checks import Array
from antiphase.factorization.dual import Progress
from antiphase.objective import Average, Maximum, Objective, Recurrence
from antiphase.workload import Workload

MEMORY = 20  # how many earlier steps the descent looks at
SETTLED = 1e-7  # a relative fall of the error in one step that is not worth another


def without_idle_steps(workload: Workload) -> Workload:
    """The optimizer to search for: no delay, and the least rate there is in place of 0.

    An encoder of few parameters is not asked to tell idle steps from others; what it is worth is judged by the
    workload itself.
    """
    rates = workload.learning_rates
    if rates is None or not workload.idle.any():
        return workload
    return replace(workload, delay=0, learning_rates=np.where(rates > 0, rates, rates[rates > 0].min()))


def recurrence_of(name: str, workload: Workload, objective: Objective) -> Recurrence:
    """The objective as a short recurrence over steps that all move the model; refused where there is none."""
    found = objective.recurrence(without_idle_steps(workload))
    if found is None:
        raise ValueError(
            f"{name} needs a workload that is a short recurrence and an objective of weighted iterates; here they are "
            f"{workload.describe()} and {objective.describe()}. For these, dp-mf or optimal is dense"
        )
    P, N, weights = found
    return Recurrence(np.ascontiguousarray(P), np.ascontiguousarray(N), weights)


def searched_for(objective: Objective) -> Objective:
    """``objective``, or the mean where nothing is known of which row is the largest; and says so."""
    if not isinstance(objective, Maximum):
        return objective
    warnings.warn("the encoder is searched for the mean error, and judged by the largest", stacklevel=2)
    return Average()


def descend(
    loss: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    iterations: int,
    progress: Progress | None = None,
    settled: float = SETTLED,
    positive: bool = False,
) -> Array:
    """Parameters (none below 0, if ``positive``) of less ``loss``, the logarithm of an error, by L-BFGS; ``progress``
    is told by how much it fell in the last step, and may stop it."""
    if not len(start):
        return start
    done, before = 0, np.inf

    def guarded(x: Array) -> tuple[float, Array]:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value, slope = loss(x)
        if np.isfinite(value) and np.isfinite(slope).all():
            return value, slope
        return 1e9, np.zeros_like(x)  # too far: the line search turns back

    def watch(intermediate_result: Any) -> None:
        nonlocal done, before
        done += 1
        fell, before = before - intermediate_result.fun, intermediate_result.fun
        if progress is not None and progress(done, min(fell, 1.0)):
            raise StopIteration

    options = {"maxiter": iterations, "maxfun": 2 * iterations, "maxcor": MEMORY, "ftol": settled, "gtol": 1e-14}
    bounds = [(0.0, None)] * len(start) if positive else None
    found = scipy.optimize.minimize(
        guarded, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=watch, options=options
    )
    best: Array = found.x
    return best
