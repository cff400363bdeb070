r"""Variances of linear recurrences that the noise of a stream drives, compiled.

For many recurrences at once, ``u_t = own·(N y)_t + Σ_a kept_a u_{t−a}``, which differ in ``own``
and ``kept`` but have the same ``N`` and noise ``y = read·S + √variance·z``. Importing this imports
Numba.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase.linalg.resolvents import compiled


@compiled
def driven_variances(
    read: Array,
    variance: Array,
    gain: Array,
    move: Array,
    rests: Any,
    fresh: Any,
    own: Array,
    kept: Array,
    N: Array,
) -> Array:
    """Return the variance of every ``u_t`` of every recurrence, of shape (T, n).

    ``V`` holds the covariances of ``w = (S, y_{t−1}, y_{t−2}, …, y_t)`` with itself, ``K`` those of
    w with the earlier u of every recurrence, newest first, and ``U`` those of the u with one
    another.

    Args:
        read: how y reads the state S, of shape (T, m, q).
        variance: the variance of the new noise in y, of shape (T,).
        gain: what y adds to the state, of shape (T, m, q).
        move: the first row of each buffer's transition, of shape (T, m, q).
        rests: the steps in which the state does not change, of shape (T,).
        fresh: the steps before which the state is reset to 0, of shape (T,).
        own: the coefficients of the new value, of shape (T, n).
        kept: the coefficients of earlier values, of shape (T, p, n).
        N: the bands of N, of shape (T, 1 + lags).
    """
    (T, m, q), (p, n), lags = move.shape, kept.shape[1:], N.shape[1] - 1
    s = m * q
    y = s + lags  # the place of y_t in w
    V, K, U = np.zeros((y + 1, y + 1)), np.zeros((y + 1, p * n)), np.zeros((n, p, p))
    drive_w, drive_u, work = np.zeros((1, y + 1)), np.zeros((1, p * n)), np.zeros(max(y + 1, p * n))
    out = np.zeros((T, n))
    for t in range(T):
        if fresh[t]:
            V[:s, :] = 0.0
            V[:, :s] = 0.0
            K[:s, :] = 0.0
        for rows in (V, K):
            rows[y, :] = 0.0
            for r in range(s):
                _add_row(rows, y, read[t, r // q, r % q], rows, r)
        V[:y, y] = V[y, :y]
        V[y, y] = variance[t]
        for r in range(s):
            V[y, y] += read[t, r // q, r % q] * V[y, r]
        for rows, drive in ((V, drive_w), (K, drive_u)):  # of (N y)_t
            _apply_taps(drive, N[t], rows)
        square = N[t, 0] * drive_w[0, y]
        for a in range(lags):
            square += N[t, 1 + a] * drive_w[0, s + a]
        for i in range(n):
            out[t, i] = _next_value(U, i, own[t, i], kept[t], drive_u, square, work)
        for r in range(y + 1):  # u_t replaces the oldest u
            _next_covariances(K, r, own[t], kept[t], drive_w[0, r], work)
        _advance(V, gain[t], move[t], rests[t], work)
        _transpose(V)
        _advance(V, gain[t], move[t], rests[t], work)
        _advance(K, gain[t], move[t], rests[t], work)
    return out


@compiled
def _transpose(V: Array) -> None:
    for i in range(len(V)):
        for j in range(i):
            V[i, j], V[j, i] = V[j, i], V[i, j]


@compiled
def _add_row(target: Array, i: int, factor: float, source: Array, j: int) -> None:
    """Add ``factor`` times row j of ``source`` to row i of ``target``."""
    for c in range(target.shape[1]):
        target[i, c] += factor * source[j, c]


@compiled
def _next_value(
    U: Array, i: int, own: float, kept: Array, drive: Array, square: float, work: Array
) -> float:
    """The variance of recurrence i's ``u_t``, which is put before its earlier u in ``U``."""
    p, n = kept.shape
    total = own**2 * square
    for a in range(p):  # work holds the covariances of u_t with the earlier u
        work[a] = own * drive[0, a * n + i]
        total += kept[a, i] * work[a]
        for b in range(p):
            work[a] += U[i, a, b] * kept[b, i]
        total += kept[a, i] * work[a]
    for a in range(p - 1, 0, -1):
        for b in range(p - 1, 0, -1):
            U[i, a, b] = U[i, a - 1, b - 1]
    for a in range(1, p):
        U[i, 0, a] = U[i, a, 0] = work[a - 1]
    U[i, 0, 0] = total
    return total


@compiled
def _next_covariances(K: Array, r: int, own: Array, kept: Array, drive: float, work: Array) -> None:
    """The covariances of entry r of w with ``u_t`` and the earlier u."""
    p, n = kept.shape
    for i in range(n):
        work[i] = own[i] * drive
    for a in range(p):
        for i in range(n):
            work[i] += kept[a, i] * K[r, a * n + i]
    for c in range(p * n - 1, n - 1, -1):
        K[r, c] = K[r, c - n]
    for i in range(n):
        K[r, i] = work[i]


@compiled
def _apply_taps(drive: Array, taps: Array, rows: Array) -> None:
    """The covariances of ``(N y)_t``, from those of the y in the last rows."""
    y, lags = rows.shape[0] - 1, len(taps) - 1
    drive[:] = 0.0
    _add_row(drive, 0, taps[0], rows, y)
    for a in range(lags):
        _add_row(drive, 0, taps[1 + a], rows, y - lags + a)


@compiled
def _advance(rows: Array, gain: Array, move: Array, rests: bool, work: Array) -> None:
    """Move w on: ``S ← move·S + gain·y``, unless it rests, and y among the earlier y."""
    m, q = gain.shape
    y, columns = rows.shape[0] - 1, rows.shape[1]
    for k in range(0 if rests else m):
        for c in range(columns):
            work[c] = gain[k, 0] * rows[y, c]
        for b in range(q):
            for c in range(columns):
                work[c] += move[k, b] * rows[k * q + b, c]
        for b in range(q - 1, 0, -1):
            for c in range(columns):
                rows[k * q + b, c] = rows[k * q + b - 1, c] + gain[k, b] * rows[y, c]
        for c in range(columns):
            rows[k * q, c] = work[c]
    for r in range(y - 1, m * q - 1, -1):
        for c in range(columns):
            rows[r, c] = rows[r - 1 if r > m * q else y, c]
