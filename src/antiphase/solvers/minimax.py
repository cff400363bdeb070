r"""The least maximum error: weights on the iterates, shifted towards the noisiest until all that count are alike.

``min_X max_t ‖b_t‖² = max_w min_X Σ_t w_t‖b_t‖²`` over weights that add up to 1: whatever the weights, the bound on the
weighted mean is one on the maximum too. For fixed weights that is a problem with a certified optimum already. The dual
``‖diag(w)^½ A diag(v)^½‖_*`` treats rows as it treats columns, so the monotone step is ``w ← w∘‖b_t‖⁴``; with the same
safeguarded extrapolation as elsewhere some fifteen of them lead to a gap of 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress, ProgressReport
from antiphase.factorizations.base import Factorization
from antiphase.objective import Average, Maximum, Objective
from antiphase.solvers.single_participation import MEMORY, _extrapolated

MOST_ITERATIONS = 60
FAINTEST = 12.0  # ln w is kept within this of the largest: iterates without any weight would leave their noise free


def levelled_optimum(
    solve: Callable[[Objective, bool], Factorization],
    steps: int,
    *,
    tolerance: float,
    progress: Progress | None = None,
) -> Factorization:
    """The encoder of least maximum error. ``solve(objective, sharply)`` gives the optimum for weighted iterates, to
    full precision or in the form that is asked for.

    Guarantee: ``bound`` holds whether or not the weights have settled.   [G5]
    """

    def evaluate(log_w: Array) -> tuple[float, Array]:
        found = solve(_weighted(log_w), True)
        noise = found.noise_per_iterate
        return found.lower_bound / float(np.exp(log_w).sum()), np.maximum(noise, 1e-9 * noise.max())

    log_w = np.zeros(steps)
    bound, noise = evaluate(log_w)
    best = float(noise.max()), log_w
    history: list[tuple[Array, Array]] = []
    for iteration in range(1, MOST_ITERATIONS + 1):
        gap = best[0] / bound - 1
        if (
            progress is not None and progress(ProgressReport(iteration, gap=gap))
        ) or gap <= tolerance:
            break
        w = np.exp(log_w)
        residual = 2 * np.log(noise / (w @ noise / w.sum()))
        history = [*history[-MEMORY:], (log_w + residual, residual)]
        tried = _settled(_extrapolated(history, np.sqrt(w))) if len(history) > 1 else log_w
        rise = evaluate(tried) if len(history) > 1 else (0.0, noise)
        if not rise[0] > bound:
            history, tried = history[-1:], _settled(history[-1][0])
            rise = evaluate(tried)
            if not rise[0] > bound:
                break  # as good as the floor of the weights, and rounding, allow
        log_w, (bound, noise) = tried, rise
        best = min(best, (float(noise.max()), log_w), key=lambda pair: pair[0])

    def made(sharply: bool) -> Factorization:
        return replace(solve(_weighted(best[1]), sharply), objective=Maximum(), bound=bound)

    asked_for = made(False)
    return (
        asked_for
        if asked_for.gap <= max(1e-3, 2 * tolerance)
        else min(asked_for, made(True), key=lambda f: f.error)
    )


def _settled(log_w: Array) -> Array:
    settled: Array = np.maximum(log_w - log_w.max(), -FAINTEST)
    return settled


def _weighted(log_w: Array) -> Average:
    return Average(np.exp(0.5 * log_w))
