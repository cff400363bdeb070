"""Encoders in closed form: anti-PGD, chess, DP-Fourier, square roots."""

from __future__ import annotations

import numpy as np
import scipy

from antiphase._util.checks import Array
from antiphase.factorizations.base import refuse_if_too_large
from antiphase.linalg import banded, power_series
from antiphase.linalg.cholesky import reversed_cholesky_of_gram
from antiphase.problem import without_idle_steps
from antiphase.workload import Workload


def anti_encoder(workload: Workload) -> Array:
    """``C = A``, ``B = I``: each step subtracts the noise of the step before (Example 2.4).

    For prefix sums ``sens(C)² = T``, at equal privacy far worse than independent noise.

    Raises:
        ValueError: some step does not change its own iterate.
    """
    encoder = workload.dense()
    if (np.diagonal(encoder) <= 0).any():
        raise ValueError(
            f"anti-pgd has C = A, but the workload ({workload.describe()}) has steps that do not "
            "move their own iterate; choose another mechanism, or a workload without delays and "
            "zero rates"
        )
    return encoder


def chess_coefficients() -> Array:
    """``C = (I + Z)/√2`` with ``Z`` the shift: noise that alternates in sign (appendix A).

    It has almost the Frobenius norm of independent noise, yet gradient descent diverges under it.
    """
    return np.full(2, 0.5**0.5)


def fourier_encoder(steps: int) -> Array:
    """DP-Fourier: ``C`` from the absolute value of a circulant matrix.

    The prefix sums are the leading T × T block of the 2T × 2T circulant with first column
    ``(1, …, 1, 0, …, 0)``. The Gram matrix of ``C`` is the same block of that circulant's absolute
    value, scaled to a unit diagonal: Toeplitz and positive definite.

    References:
        Choquette-Choo et al. (2022).
    """
    refuse_if_too_large(steps)
    first = np.concatenate([np.ones(steps), np.zeros(steps)])
    absolute = np.fft.irfft(np.abs(np.fft.rfft(first)), 2 * steps)
    return reversed_cholesky_of_gram(scipy.linalg.toeplitz(absolute[:steps] / absolute[0]))


def square_root_coefficients(steps: int) -> Array:
    """``c_k = binom(2k, k)/4^k``, so that ``C² = S`` and ``B = C``, as a product to avoid overflow.

    Example:
        >>> square_root_coefficients(4)
        array([1.    , 0.5   , 0.375 , 0.3125])
    """
    i = np.arange(1, steps)
    return np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))


def inverse_root_coefficients(workload: Workload, bands: int) -> Array:
    """The first coefficients of the inverse square root of a time-invariant workload.

    For other workloads they are those of the prefix sums.

    Args:
        workload: the workload.
        bands: number of coefficients.

    Example:
        >>> inverse_root_coefficients(Workload.sgd(9), 4) + 0.0
        array([ 1.    , -0.5   , -0.125 , -0.0625])
    """
    first = np.ones(bands)
    searched = without_idle_steps(workload)
    if searched.recurrence is not None and banded.is_time_invariant(*searched.recurrence):
        impulse = np.zeros(workload.steps)
        impulse[0] = 1.0
        first = searched.apply(impulse)[:bands]
    return power_series.inverse(power_series.square_root(first / first[0], len(first)), len(first))
