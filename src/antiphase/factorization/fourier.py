r"""DP-Fourier: the absolute value of the prefix sums, by way of a circulant matrix (Choquette-Choo et al. 2022).

``S`` is the leading T × T block of the 2T × 2T circulant with first column ``(1, …, 1, 0, …, 0)``. The Gram matrix is
the same block of that circulant's absolute value: Toeplitz, constant on the diagonal, and positive definite.
"""

from __future__ import annotations

import numpy as np
import scipy

from antiphase._checks import Array
from antiphase.factorization.base import refuse_if_too_large


def fourier_encoder(steps: int) -> Array:
    """The lower-triangular ``C``, columns of norm 1, whose Gram matrix is the absolute circulant's leading block."""
    refuse_if_too_large(steps)
    first = np.concatenate([np.ones(steps), np.zeros(steps)])
    absolute = np.fft.irfft(np.abs(np.fft.rfft(first)), 2 * steps)
    X = scipy.linalg.toeplitz(absolute[:steps] / absolute[0])
    # PRIVACY: CᵀC = X needs the reversed Cholesky factor (see dense.reversed_cholesky).   [G1]
    encoder: Array = np.linalg.cholesky(X[::-1, ::-1]).T[::-1, ::-1]
    return np.tril(encoder)
