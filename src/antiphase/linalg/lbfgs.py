"""Descent by L-BFGS, guarded against overflow, with progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from antiphase._util.checks import Array
from antiphase._util.progress import Progress, ProgressReport

MEMORY = 20  # how many earlier steps the descent looks at
SETTLED = 1e-7  # a relative fall of the error in one step that is not worth another


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
        if progress is not None and progress(ProgressReport(done, gap=min(fell, 1.0))):
            raise StopIteration

    options = {
        "maxiter": iterations,
        "maxfun": 2 * iterations,
        "maxcor": MEMORY,
        "ftol": settled,
        "gtol": 1e-14,
    }
    bounds = [(0.0, None)] * len(start) if positive else None
    found = scipy.optimize.minimize(
        guarded, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=watch, options=options
    )
    best: Array = found.x
    return best
