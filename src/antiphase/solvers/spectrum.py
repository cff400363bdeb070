"""Spectral interval that the quadrature of an inverse square root must cover."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from antiphase._util.checks import Array
from antiphase.linalg import banded
from antiphase.problem import BandedProblem

SAFETY = 2.0  # factor by which searches widen the estimated interval at both ends
MAX_DENSE_SIZE = 48  # steps up to which all eigenvalues are computed


class Factor(Protocol):
    """A factor ``F`` of the dual matrix ``V = FFᵀ``."""

    def times(self, x: Array, transposed: bool = False) -> Array:
        """``F x``, or ``Fᵀx``."""

    def solve(self, x: Array, transposed: bool = False) -> Array:
        """``F⁻¹x``, or ``F⁻ᵀx``."""


@dataclass(frozen=True)
class DiagonalFactor:
    """The factor of a diagonal ``V``.

    Attributes:
        root: the square roots of the diagonal.
    """

    root: Array

    def times(self, x: Array, transposed: bool = False) -> Array:
        """``F x``."""
        return self.root * x

    def solve(self, x: Array, transposed: bool = False) -> Array:
        """``F⁻¹x``."""
        return x / self.root


def extreme_eigenvalues(problem: BandedProblem, F: Factor, accuracy: float) -> tuple[float, float]:
    """The least and the largest eigenvalue of ``F⁻¹W⁻¹F⁻ᵀ``, by Lanczos' method.

    Args:
        problem: the banded problem that gives ``W⁻¹``.
        F: a factor of ``V``.
        accuracy: the relative accuracy at which the iteration stops.
    """
    P, N, n = problem.P, problem.N, problem.size

    def inverse(x: Array) -> Array:
        u = banded.solve(P, banded.apply(N, F.times(x.ravel())))
        u = banded.solve_transposed(P, problem.weights**2 * u)
        return F.times(banded.apply_transposed(N, u), transposed=True)

    def forward(x: Array) -> Array:
        u = banded.solve_transposed(N, F.solve(x.ravel(), transposed=True))
        u = banded.apply_transposed(P, u) / problem.weights**2
        return F.solve(banded.solve(N, banded.apply(P, u)))

    if n <= MAX_DENSE_SIZE:
        dense = np.array([inverse(e) for e in np.eye(n)])
        eigenvalues = np.linalg.eigvalsh((dense + dense.T) / 2)
        return 1 / float(eigenvalues[-1]), 1 / float(eigenvalues[0])
    alternating = np.where(np.arange(n) % 2, 1.0, -1.0) * np.linspace(1, 2, n)
    return (
        1 / _largest_eigenvalue(inverse, np.linspace(1, 2, n), accuracy),
        _largest_eigenvalue(forward, alternating, accuracy),
    )


def _largest_eigenvalue(matvec: Callable[[Array], Array], start: Array, accuracy: float) -> float:
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator = LinearOperator((len(start),) * 2, matvec=matvec, dtype=np.float64)
    try:
        eigenvalues = eigsh(
            operator, k=1, which="LA", tol=accuracy, v0=start, ncv=16, return_eigenvectors=False
        )
    except ArpackNoConvergence:  # power iteration is close enough, as the interval is widened
        x = start / np.linalg.norm(start)
        for _ in range(50):
            x = matvec(x)
            norm = float(np.linalg.norm(x))
            x /= norm
        return norm
    return float(eigenvalues[0])


def spectral_cutoff(problem: BandedProblem, trace: float, tolerance: float) -> float:
    """The eigenvalue above which all together are negligible in the trace.

    An eigenvalue λ adds ``λ^-½`` to the trace. A learning rate η near 0 has eigenvalues like
    ``η⁻⁴``, which would need many nodes. Beyond the interval the quadrature is too small, so that
    the bound still holds; the columns of the encoder are scaled in any case.

    Args:
        problem: the banded problem.
        trace: the trace, or a lower bound; 0 if it is not known.
        tolerance: the relative gap that is asked for.
    """
    if not trace:
        return np.inf
    return (100 * problem.size / (tolerance * trace)) ** 2  # all add a hundredth of the tolerance
