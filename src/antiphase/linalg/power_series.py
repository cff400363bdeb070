"""Truncated power series: the algebra of triangular Toeplitz matrices."""

from __future__ import annotations

import numpy as np
import scipy

from antiphase._util.checks import Array

MAX_RECURRENCE_TERMS = 64  # up to which a recurrence is as fast as transforms, and more accurate


def multiply(a: Array, b: Array, terms: int) -> Array:
    """The first ``terms`` coefficients of the product.

    Example:
        >>> print(multiply(np.ones(3), np.array([1.0, -1.0]), 4).round(12) + 0.0)
        [ 1.  0.  0. -1.]
    """
    a, b = a[:terms], b[:terms]
    size = scipy.fft.next_fast_len(len(a) + len(b) - 1, real=True)
    product: Array = scipy.fft.irfft(scipy.fft.rfft(a, size) * scipy.fft.rfft(b, size), size)[
        :terms
    ]
    return np.pad(product, (0, max(terms - len(product), 0)))


def correlate(a: Array, b: Array) -> Array:
    """``Σ_t b_t a_{t−n}`` for each n below the length of ``b``: the adjoint of `multiply`.

    Example:
        >>> print(correlate(np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])))
        [11. 14.  5.]
    """
    return multiply(a, b[::-1], len(b))[::-1].copy()


def inverse(c: Array, terms: int) -> Array:
    """The first ``terms`` coefficients of ``1/c``, by Newton's iteration.

    Example:
        >>> inverse(np.array([1.0, -1.0]), 4)
        array([1., 1., 1., 1.])
    """
    start = min(terms, MAX_RECURRENCE_TERMS)
    impulse = np.zeros(terms if len(c) <= MAX_RECURRENCE_TERMS else start)
    impulse[0] = 1.0
    u: Array = scipy.signal.lfilter([1.0], c[: len(impulse)], impulse)
    while len(u) < terms:
        size = min(2 * len(u), terms)
        residual = multiply(c, u, size)
        residual[: len(u)] = 0.0  # exactly 1, then zeros, but for rounding
        u = np.pad(u, (0, size - len(u))) - multiply(u, residual, size)
    return u


def square_root(a: Array, terms: int) -> Array:
    """The first ``terms`` coefficients of ``√a``, by a recurrence; O(terms²).

    Example:
        >>> square_root(np.ones(4), 4)
        array([1.    , 0.5   , 0.375 , 0.3125])
    """
    root = np.zeros(terms)
    a = np.pad(a, (0, max(terms - len(a), 0)))
    root[0] = np.sqrt(a[0])
    for n in range(1, terms):
        root[n] = (a[n] - root[1:n] @ root[n - 1 : 0 : -1]) / (2 * root[0])
    return root
