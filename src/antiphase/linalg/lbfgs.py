"""Descent by L-BFGS, guarded against overflow, with progress reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from antiphase._util.checks import Array
from antiphase._util.progress import Progress, ProgressReport

MEMORY = 20  # earlier steps used by the approximation of the Hessian
SETTLED = 1e-7  # relative decrease in one step at which the descent stops
REJECTED = 1e9  # loss reported where it is not finite, so that the line search turns back


def descend(
    loss: Callable[[Array], tuple[float, Array]],
    start: Array,
    *,
    iterations: int,
    progress: Progress | None = None,
    settled: float = SETTLED,
    positive: bool = False,
) -> Array:
    """Parameters of less loss.

    Args:
        loss: the logarithm of an error and its gradient.
        start: the first parameters.
        iterations: the maximum number of iterations.
        progress: called in every iteration with the decrease in the last step as ``gap``; stops the
            descent if it returns True.
        settled: the relative decrease in one step at which the descent stops.
        positive: whether parameters must not be negative.

    Example:
        >>> x = descend(lambda x: (float(x @ x), 2 * x), np.ones(2), iterations=10)
        >>> print(x.round(6) + 0.0)
        [0. 0.]
    """
    if not len(start):
        return start
    done, before = 0, np.inf

    def guarded(x: Array) -> tuple[float, Array]:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            value, slope = loss(x)
        if np.isfinite(value) and np.isfinite(slope).all():
            return value, slope
        return REJECTED, np.zeros_like(x)

    def watch(intermediate_result: Any) -> None:
        nonlocal done, before
        done += 1
        decrease, before = before - intermediate_result.fun, intermediate_result.fun
        if progress is not None and progress(ProgressReport(done, gap=min(decrease, 1.0))):
            raise StopIteration

    options = {
        "maxiter": iterations,
        "maxfun": 2 * iterations,
        "maxcor": MEMORY,
        "ftol": settled,
        "gtol": 1e-14,
    }
    bounds = [(0.0, None)] * len(start) if positive else None
    result = scipy.optimize.minimize(
        guarded, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=watch, options=options
    )
    return np.asarray(result.x)
