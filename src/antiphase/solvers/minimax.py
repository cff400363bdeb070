r"""Least maximum error, by weights on the iterates.

``min_X max_t ‖b_t‖² = max_w min_X Σ_t w_t‖b_t‖²`` over weights that sum to 1: for any weights, the
bound on the weighted mean is a bound on the maximum, too, and for fixed weights there is a solver.
The dual ``‖diag(w)^½ A diag(v)^½‖_*`` treats rows as it treats columns, so the monotone step is
``w ← w∘‖b_t‖⁴``. With safeguarded extrapolation about fifteen steps reach a gap of 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress, ProgressReport
from antiphase.factorizations.base import Factorization
from antiphase.linalg.anderson import Anderson
from antiphase.objective import Average
from antiphase.problem import Problem

MEMORY = 6  # earlier steps used by the extrapolation
MAX_ITERATIONS = 60
MAX_LOG_SPREAD = 12.0  # ln w is kept within this of its maximum: weight 0 leaves noise unbounded
MAX_CUT_GAP = 1e-3  # gap up to which the number of buffers that is asked for is kept


class WeightedSolver(Protocol):
    """A solver for weighted iterates."""

    def __call__(self, problem: Problem, *, tolerance: float, buffers: str | int) -> Factorization:
        """The optimum of ``problem``."""


def minimax_optimum(
    problem: Problem,
    optimum: WeightedSolver,
    *,
    tolerance: float,
    buffers: str | int = "auto",
    progress: Progress | None = None,
) -> Factorization:
    """The encoder of least maximum error.

    Guarantee: ``bound`` holds whether or not the weights have converged.   [G5]

    Args:
        problem: a problem with the maximum as objective.
        optimum: the solver for weighted iterates.
        tolerance: the relative gap to reach.
        buffers: the form of the encoder, if it is a stream.
        progress: called in every iteration; stops the search if it returns True.
    """
    search = _Search(problem, optimum, tolerance / 10)
    log_w = best_log_w = np.zeros(problem.steps)
    bound, noise = search.evaluate(log_w)
    least = float(noise.max())
    anderson = Anderson(MEMORY)
    for iteration in range(1, MAX_ITERATIONS + 1):
        gap = least / bound - 1
        stopped = progress is not None and progress(ProgressReport(iteration, gap=gap))
        if stopped or gap <= tolerance:
            break
        w = np.exp(log_w)
        residual = 2 * np.log(noise / (w @ noise / w.sum()))
        plain = log_w + residual
        proposed = anderson.extrapolate(plain, residual, np.sqrt(w))
        rise = None if proposed is None else search.evaluate(_floored(proposed))
        if proposed is None or rise is None or not rise[0] > bound:
            anderson.restart()
            proposed, rise = plain, search.evaluate(_floored(plain))
            if not rise[0] > bound:
                break  # converged up to rounding and the floor of the weights
        log_w, (bound, noise) = _floored(proposed), rise
        if noise.max() < least:
            least, best_log_w = float(noise.max()), log_w
    cut = replace(search.solve(best_log_w, buffers), objective=problem.objective, bound=bound)
    if cut.gap <= max(MAX_CUT_GAP, 2 * tolerance):
        return cut
    exact = replace(search.solve(best_log_w, "exact"), objective=problem.objective, bound=bound)
    return min(cut, exact, key=lambda f: f.error)


@dataclass(frozen=True)
class _Search:
    """The dual function of the logarithms of the weights."""

    problem: Problem
    optimum: WeightedSolver
    tolerance: float

    def solve(self, log_w: Array, buffers: str | int) -> Factorization:
        """The optimum for these weights."""
        weighted = replace(self.problem, objective=Average(np.exp(0.5 * log_w)))
        return self.optimum(weighted, tolerance=self.tolerance, buffers=buffers)

    def evaluate(self, log_w: Array) -> tuple[float, Array]:
        """The bound on the maximum, and the noise in each iterate."""
        solution = self.solve(log_w, "exact")
        noise = solution.noise_per_iterate
        bound = solution.lower_bound / float(np.exp(log_w).sum())
        return bound, np.maximum(noise, 1e-9 * noise.max())


def _floored(log_w: Array) -> Array:
    return np.asarray(np.maximum(log_w - log_w.max(), -MAX_LOG_SPREAD))
