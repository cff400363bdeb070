r"""The optimum in O(T): every quantity by a short recurrence, nothing dense.

For a workload with banded ``P u = N g`` and weights ``Λ``, ``(W⁻¹ + s²D)⁻¹ = NᵀK_s⁻¹N`` with the banded ``K_s =
PΛ⁻²Pᵀ + s²NDNᵀ``, and ``X(v)`` is a sum of these over quadrature nodes. Its diagonal is all that the search needs.
The search is that of `dual` where ``V`` is diagonal: for one participation, and for several where the objective
restarts so often that none comes twice between restarts. It is ``m_j ← m_j(Σ X_ii)²`` over the steps i of a class j,
with safeguarded extrapolation of ``ln m``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import NDArray

from antiphase._util.checks import Array
from antiphase._util.progress import Progress, ProgressReport
from antiphase.linalg import banded
from antiphase.linalg.quadrature import inverse_square_root_nodes, nodes_needed
from antiphase.problem import Problem

MEMORY = 6  # how many earlier steps the extrapolation looks at
FAINTEST = 60.0  # ln v is kept within this of the largest
SAFETY = 2.0  # by which the estimated ends of the spectrum are moved apart in the search


@dataclass(frozen=True)
class DualPoint:
    """The best ``v`` found, the bound it certifies, and the ends of the spectrum of ``D^-½W⁻¹D^-½``."""

    v: Array
    lower_bound: float
    low: float
    high: float
    iterations: int
    owner: NDArray[np.intp]  # the class of each step


def maximise(
    problem: Problem,
    *,
    tolerance: float,
    start: Array | None = None,
    owner: NDArray[np.intp] | None = None,
    progress: Progress | None = None,
    most: int = 200,
) -> DualPoint:
    """The dual optimum, until the feasible point it leads to is within about ``tolerance``.

    ``owner`` says which class each step belongs to; without it each is its own. No two steps of a class may be
    coupled.

    Guarantee: ``lower_bound`` holds for any number of iterations, up to the rounding that it is lowered by.   [G5]
    """
    from antiphase.linalg import kernels

    accuracy = max(tolerance / 1000, 1e-16)
    trace = 0.0
    steps: NDArray[np.intp] = np.arange(problem.size) if owner is None else owner
    size = int(steps.max()) + 1  # classes; in what follows v and x are theirs

    def evaluate(log_v: Array) -> tuple[float, Array]:
        v = np.exp(log_v)
        low, high = spectrum(problem, Diagonal(np.sqrt(v[steps])), accuracy=0.1)
        low, high = low / SAFETY, min(high * SAFETY, worth_seeing(problem, trace, tolerance))
        squares, weights = inverse_square_root_nodes(nodes_needed(low, high, accuracy), low, high)
        each = _in_parallel(kernels.diagonal_of_sum, problem, v[steps], squares, weights)
        x: Array = np.bincount(steps, each, minlength=size).astype(np.float64)
        return float((v @ x) ** 2 / v.sum()), x

    log_v = np.zeros(size)
    if start is not None:
        log_v[steps] = np.log(start)
    bound, x = evaluate(log_v)
    trace = float(np.exp(log_v) @ x)
    history: list[tuple[Array, Array]] = []
    done = 0
    while done < most:
        v = np.exp(log_v)
        mean = (v @ x) / v.sum()
        spread = float(v @ np.square(x / mean - 1) / v.sum())  # the gap is of this order
        if progress:
            progress(ProgressReport(done, gap=spread))
        if spread <= tolerance / 10:
            break
        done += 1
        residual = 2 * np.log(x / mean)
        history = [*history[-MEMORY:], (log_v + residual, residual)]
        tried = None
        if len(history) > 1:
            log_v_tried = _extrapolated(history, np.sqrt(v))
            tried = evaluate(log_v_tried)
        if tried is None or not tried[0] > bound:
            history, log_v_tried = history[-1:], history[-1][0]
            tried = evaluate(log_v_tried)
            if not tried[0] > bound:
                break  # as good as rounding allows
        # Steps that hardly move the model lose their v for good: the sum over the nodes does not see so far.
        log_v, (bound, x) = np.maximum(log_v_tried, log_v_tried.max() - FAINTEST), tried
        trace = float(np.exp(log_v) @ x)
    v = np.exp(log_v)
    low, high = spectrum(problem, Diagonal(np.sqrt(v[steps])), accuracy=1e-3)
    high = min(high, worth_seeing(problem, trace, tolerance))
    rounding = 10 * accuracy + 1e-12 + 1e-15 * problem.size
    return DualPoint(v[steps], bound * (1 - rounding), low, max(high, low), done, steps)


def worth_seeing(problem: Problem, trace: float, tolerance: float) -> float:
    """The largest eigenvalue λ that matters: each adds ``λ^-½`` to the trace, and all beyond this one next to nothing.

    A learning rate η near 0 has eigenvalues like ``η⁻⁴``, whose nodes nobody would miss. Where the sum over the nodes
    does not reach, it is too small, so the bound still holds, and the columns are scaled to norm 1 in any case.
    """
    return (100 * problem.size / (tolerance * trace)) ** 2 if trace else np.inf


def _extrapolated(history: list[tuple[Array, Array]], weight: Array) -> Array:
    """Anderson's combination of the plain steps that makes the weighted residual least."""
    step, residual = history[-1]
    differences = np.column_stack([(residual - earlier) * weight for _, earlier in history[:-1]])
    theta, *_ = np.linalg.lstsq(differences, residual * weight, rcond=1e-10)
    mixed = step.copy()
    for t, (earlier, _) in zip(theta, history[:-1], strict=True):
        mixed -= t * (step - earlier)
    return mixed


def _in_parallel(
    work: Callable[..., Array], problem: Problem, v: Array, squares: Array, weights: Array
) -> Array:
    """Half of the nodes in another thread, where that pays; the sum is the same either way."""
    half = len(squares) // 2
    parts = [(squares[:half], weights[:half]), (squares[half:], weights[half:])]
    common = problem.L, problem.N, v, problem.half_bandwidth
    if len(v) < 4096:
        first, second = (work(*common, s, w) for s, w in parts)
    else:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(work, *common, *parts[0])
            second = work(*common, *parts[1])
            first = other.result()
    return first + second


class Scaling(Protocol):
    """``F`` with ``V = FFᵀ``."""

    def times(self, x: Array, transposed: bool = False) -> Array: ...

    def solve(self, x: Array, transposed: bool = False) -> Array: ...


@dataclass(frozen=True)
class Diagonal:
    """``F`` for a diagonal ``V``."""

    root: Array

    def times(self, x: Array, transposed: bool = False) -> Array:
        return self.root * x

    def solve(self, x: Array, transposed: bool = False) -> Array:
        return x / self.root


def spectrum(problem: Problem, F: Scaling, accuracy: float) -> tuple[float, float]:
    """The least and the largest eigenvalue of ``F⁻¹W⁻¹F⁻ᵀ``, by Lanczos' method on it and on its inverse."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    P, N, n = problem.P, problem.N, problem.size

    def inverse(x: Array) -> Array:
        u = banded.solve(P, banded.apply(N, F.times(x.ravel())))
        return F.times(
            _apply_transposed(N, _solve_transposed(P, problem.weights**2 * u)), transposed=True
        )

    def forward(x: Array) -> Array:
        u = (
            _apply_transposed(P, _solve_transposed(N, F.solve(x.ravel(), transposed=True)))
            / problem.weights**2
        )
        return F.solve(banded.solve(N, banded.apply(P, u)))

    if n <= 48:
        dense = np.array([inverse(e) for e in np.eye(n)])
        eigenvalues = np.linalg.eigvalsh((dense + dense.T) / 2)
        return 1 / float(eigenvalues[-1]), 1 / float(eigenvalues[0])

    def largest(matvec: Callable[[Array], Array], start: Array) -> float:
        operator = LinearOperator((n, n), matvec=matvec, dtype=np.float64)
        try:
            found = eigsh(
                operator, k=1, which="LA", tol=accuracy, v0=start, ncv=16, return_eigenvectors=False
            )
        except ArpackNoConvergence:  # close enough for an end that is moved apart anyway
            x = start / np.linalg.norm(start)
            for _ in range(50):
                x = matvec(x)
                norm = float(np.linalg.norm(x))
                x /= norm
            return norm
        return float(found[0])

    alternating = np.where(np.arange(n) % 2, 1.0, -1.0) * np.linspace(1, 2, n)
    return 1 / largest(inverse, np.linspace(1, 2, n)), largest(forward, alternating)


def _apply_transposed(bands: Array, x: Array) -> Array:
    out = np.zeros_like(x)
    for a in range(min(bands.shape[1], len(x))):
        out[: len(x) - a] += bands[a:, a] * x[a:]
    return out


def _solve_transposed(bands: Array, x: Array) -> Array:
    width, n = bands.shape[1], len(x)
    stored = np.zeros((width, n))
    for a in range(min(width, n)):
        stored[a, : n - a] = bands[a:, a]
    solution, _ = scipy.linalg.lapack.dtbtrs(stored, x[:, None], uplo="L", trans="T")
    out: Array = solution[:, 0]
    return out
