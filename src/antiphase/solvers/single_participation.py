r"""Dual optimum for one participation, in O(T) with banded recurrences.

For a workload with banded ``P u = N g`` and weights ``Λ``, ``(W⁻¹ + s²D)⁻¹ = NᵀK_s⁻¹N`` with the
banded ``K_s = PΛ⁻²Pᵀ + s²NDNᵀ``, and ``X(v)`` is a sum of these over quadrature nodes. The search
needs its diagonal only. It is the search of `dual` with a diagonal ``V``: for one participation,
and for several where the objective restarts at least once between any two. The iteration is
``m_j ← m_j(Σ X_ii)²`` over the steps i of a class j, with safeguarded extrapolation of ``ln m``.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress, ProgressReport
from antiphase.linalg.anderson import Anderson
from antiphase.linalg.quadrature import inverse_square_root_nodes, nodes_needed
from antiphase.problem import BandedProblem
from antiphase.solvers.spectrum import SAFETY, DiagonalFactor, extreme_eigenvalues, spectral_cutoff

MEMORY = 6  # earlier steps used by the extrapolation
MAX_LOG_SPREAD = 60.0  # ln v is kept within this of its maximum
MIN_PARALLEL_SIZE = 4096  # steps from which on a second thread pays


@dataclass(frozen=True)
class DualPoint:
    """Best dual variable found, and what is known there.

    Attributes:
        v: the diagonal of ``V``, one entry for each step.
        lower_bound: the bound that it certifies.
        low: the least eigenvalue of ``D^-½W⁻¹D^-½``.
        high: the largest one that matters.
        iterations: number of iterations.
        classes: the class of each step.
    """

    v: Array
    lower_bound: float
    low: float
    high: float
    iterations: int
    classes: Indices


def maximise_dual(
    problem: BandedProblem,
    *,
    tolerance: float,
    start: Array | None = None,
    classes: Indices | None = None,
    progress: Progress | None = None,
    max_iterations: int = 200,
) -> DualPoint:
    """Maximise the dual until the feasible point is within about ``tolerance`` of the bound.

    Guarantee: ``lower_bound`` holds for any number of iterations. It is lowered by what rounding
    may have added.   [G5]

    Args:
        problem: the banded problem.
        tolerance: the relative gap to reach.
        start: the first ``v``; ones unless given.
        classes: the class of each step; each is its own unless given. Steps of one class must not
            be coupled.
        progress: called in every iteration; its result is ignored.
        max_iterations: the maximum number of iterations.
    """
    if classes is None:
        classes = np.arange(problem.size)
    dual = _Dual(problem, classes, tolerance)
    log_v = np.zeros(dual.size)
    if start is not None:
        log_v[classes] = np.log(start)
    bound, x = dual.evaluate(log_v, trace=0.0)
    anderson = Anderson(MEMORY)
    iterations = 0
    while iterations < max_iterations:
        v = np.exp(log_v)
        mean = (v @ x) / v.sum()
        spread = float(v @ np.square(x / mean - 1) / v.sum())  # the gap is of this order
        if progress:
            progress(ProgressReport(iterations, gap=spread))
        if spread <= tolerance / 10:
            break
        iterations += 1
        residual = 2 * np.log(x / mean)
        plain, trace = log_v + residual, float(v @ x)
        proposed = anderson.extrapolate(plain, residual, np.sqrt(v))
        rise = None if proposed is None else dual.evaluate(proposed, trace)
        if proposed is None or rise is None or not rise[0] > bound:
            anderson.restart()
            proposed, rise = plain, dual.evaluate(plain, trace)
            if not rise[0] > bound:
                break  # converged up to rounding
        # Steps that hardly move the model reach the floor: the quadrature cannot resolve them.
        log_v, (bound, x) = np.maximum(proposed, proposed.max() - MAX_LOG_SPREAD), rise
    v = np.exp(log_v)
    low, high = dual.interval(v, float(v @ x), accuracy=1e-3)
    rounding = 10 * dual.accuracy + 1e-12 + 1e-15 * problem.size
    return DualPoint(v[classes], bound * (1 - rounding), low, max(high, low), iterations, classes)


@dataclass(frozen=True)
class _Dual:
    """The dual function of ``ln v``, with one ``v`` for each class."""

    problem: BandedProblem
    classes: Indices
    tolerance: float

    @cached_property
    def size(self) -> int:
        return int(self.classes.max()) + 1

    @property
    def accuracy(self) -> float:
        """Relative accuracy of the quadrature."""
        return max(self.tolerance / 1000, 1e-16)

    def interval(
        self, v: Array, trace: float, *, accuracy: float, widening: float = 1.0
    ) -> tuple[float, float]:
        """The spectral interval at ``v``, widened at both ends, up to the cutoff."""
        F = DiagonalFactor(np.sqrt(v[self.classes]))
        low, high = extreme_eigenvalues(self.problem, F, accuracy)
        cutoff = spectral_cutoff(self.problem, trace, self.tolerance)
        return low / widening, min(high * widening, cutoff)

    def evaluate(self, log_v: Array, trace: float) -> tuple[float, Array]:
        """The bound, and the sum of the diagonal of ``X(v)`` over each class."""
        v = np.exp(log_v)
        low, high = self.interval(v, trace, accuracy=0.1, widening=SAFETY)
        nodes = inverse_square_root_nodes(nodes_needed(low, high, self.accuracy), low, high)
        diagonal = _diagonal_of_sum(self.problem, v[self.classes], *nodes)
        x = np.bincount(self.classes, diagonal, minlength=self.size).astype(np.float64)
        return float((v @ x) ** 2 / v.sum()), x


def _diagonal_of_sum(problem: BandedProblem, v: Array, squares: Array, weights: Array) -> Array:
    """``diag Σ_k w_k (W⁻¹ + s_k²D)⁻¹``; for long problems in two threads, with the same result."""
    from antiphase.linalg import resolvents

    half = len(squares) // 2
    common = problem.weighted_bands, problem.N, v, problem.half_bandwidth
    first, second = (
        (*common, squares[nodes], weights[nodes]) for nodes in (slice(half), slice(half, None))
    )
    if len(v) < MIN_PARALLEL_SIZE:
        return resolvents.diagonal_of_sum(*first) + resolvents.diagonal_of_sum(*second)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(resolvents.diagonal_of_sum, *first)
        own = resolvents.diagonal_of_sum(*second)
        return other.result() + own
