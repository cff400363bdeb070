"""Power series cut off after some terms: the algebra of lower-triangular Toeplitz matrices, by Fourier transforms."""

from __future__ import annotations

import numpy as np
import scipy

from antiphase._util.checks import Array

SHORT = 64  # terms up to which a recurrence is as fast as transforms, and sharper


def multiply(a: Array, b: Array, terms: int) -> Array:
    """The first ``terms`` coefficients of the product.

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
    """``Σ_t b_t a_{t−n}`` for n from 0 on, as many as ``b`` has: how a gradient goes back through `multiply`.

    >>> print(correlate(np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])))
    [11. 14.  5.]
    """
    return multiply(a, b[::-1], len(b))[::-1].copy()


def inverse(c: Array, terms: int) -> Array:
    """The first ``terms`` coefficients of ``1/c``, by Newton's iteration, each twice as long as the one before.

    >>> inverse(np.array([1.0, -1.0]), 4)
    array([1., 1., 1., 1.])
    """
    start = min(terms, SHORT)
    impulse = np.zeros(terms if len(c) <= SHORT else start)
    impulse[0] = 1.0
    u: Array = scipy.signal.lfilter([1.0], c[: len(impulse)], impulse)
    while len(u) < terms:
        size = min(2 * len(u), terms)
        wrong = multiply(c, u, size)
        wrong[: len(u)] = 0.0  # known to be right: 1, then zeros
        u = np.pad(u, (0, size - len(u))) - multiply(u, wrong, size)
    return u


def square_root(a: Array, terms: int) -> Array:
    """The first ``terms`` coefficients of ``√a``, one after the other: O(terms²).

    >>> square_root(np.ones(4), 4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    root = np.zeros(terms)
    a = np.pad(a, (0, max(terms - len(a), 0)))
    root[0] = np.sqrt(a[0])
    for n in range(1, terms):
        root[n] = (a[n] - root[1:n] @ root[n - 1 : 0 : -1]) / (2 * root[0])
    return root
