r"""DP-Fourier: the absolute value of the prefix sums, by way of a circulant matrix (Choquette-Choo et al. 2022).

``S`` is the leading T × T block of the 2T × 2T circulant with first column ``(1, …, 1, 0, …, 0)``. The Gram matrix is
the same block of that circulant's absolute value: Toeplitz, constant on the diagonal, and positive definite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import toeplitz

from antiphase._checks import Array
from antiphase.factorization.base import Factorization


@dataclass(frozen=True, eq=False, repr=False)
class Fourier(Factorization):
    """The lower-triangular ``C`` whose Gram matrix is the absolute circulant's leading block, with columns of norm
    1."""

    def _build_encoder(self) -> Array:
        first = np.concatenate([np.ones(self.steps), np.zeros(self.steps)])
        absolute = np.fft.irfft(np.abs(np.fft.rfft(first)), 2 * self.steps)
        X = toeplitz(absolute[: self.steps] / absolute[0])
        # PRIVACY: CᵀC = X needs the reversed Cholesky factor (see dense.reversed_cholesky).   [G1]
        encoder: Array = np.linalg.cholesky(X[::-1, ::-1]).T[::-1, ::-1]
        return np.tril(encoder)
