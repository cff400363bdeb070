r"""Compiled kernels for streams: encoders given by time-varying buffers.

The coefficients of m buffers with q vectors each are ``delta`` (T,), and ``r``, ``g`` and ``move``
(T, m, q): ``C_jj = δ_j``, ``C_ij = r_iᵀ Φ(i, j+1) g_j`` for i > j, with ``Φ`` the product of the
transitions, of which ``move`` has the first row and which shift the older vectors.
"""

from __future__ import annotations

import numpy as np

from antiphase._util.checks import Array
from antiphase.linalg.resolvents import compiled


@compiled
def pull_back(move: Array, P: Array, work: Array) -> None:
    """``P ← TᵀPT`` for a quadratic form on the flattened state, with ``work`` as large as ``P``."""
    m, q = move.shape
    n = m * q
    for k in range(m):
        for b in range(q):
            for c in range(n):
                value = move[k, b] * P[k * q, c]
                if b + 1 < q:
                    value += P[k * q + b + 1, c]
                work[k * q + b, c] = value
    for r in range(n):
        for k in range(m):
            for b in range(q):
                value = move[k, b] * work[r, k * q]
                if b + 1 < q:
                    value += work[r, k * q + b + 1]
                P[r, k * q + b] = value


@compiled
def apply_form(P: Array, x: Array, out: Array) -> float:
    """``out = P x`` for a flattened state; returns ``xᵀPx``."""
    q = x.shape[1]
    total = 0.0
    for r in range(P.shape[0]):
        value = 0.0
        for c in range(P.shape[0]):
            value += P[r, c] * x[c // q, c % q]
        out[r] = value
        total += value * x[r // q, r % q]
    return total


@compiled
def add_outer(P: Array, x: Array) -> None:
    """``P += x xᵀ`` for a flattened state."""
    q = x.shape[1]
    for a in range(P.shape[0]):
        value = x[a // q, a % q]
        for c in range(P.shape[0]):
            P[a, c] += value * x[c // q, c % q]


@compiled
def factor(move: Array, g: Array, h: Array, x: Array) -> tuple[Array, Array]:
    r"""``δ`` and ``r`` of the lower-triangular ``C`` with ``CᵀC = X``, from generators of X.

    The recurrence starts from the last row; ``P`` is the Gram matrix of later rows as a quadratic
    form on the state.
    """
    T, m, q = g.shape
    n = m * q
    delta, r = np.zeros(T), np.zeros((T, m, q))
    P, work, Pg = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n)
    for i in range(T - 1, -1, -1):
        square = x[i] - apply_form(P, g[i], Pg)
        delta[i] = np.sqrt(square) if square > 0 else np.nan
        for k in range(m):
            for b in range(q):
                value = h[i, k, b]
                if i + 1 < T:
                    value -= move[i + 1, k, b] * Pg[k * q]
                    if b + 1 < q:
                        value -= Pg[k * q + b + 1]
                r[i, k, b] = value / delta[i]
        if i + 1 < T:
            pull_back(move[i + 1], P, work)
        add_outer(P, r[i])
    return delta, r


@compiled
def column_norms(delta: Array, r: Array, g: Array, move: Array) -> Array:
    """``‖C e_j‖²`` from the coefficients that the noise is made with, and nothing else."""
    T, m, q = g.shape
    n = m * q
    out = np.zeros(T)
    P, work, Pg = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n)
    for i in range(T - 1, -1, -1):
        out[i] = delta[i] ** 2 + apply_form(P, g[i], Pg)
        if i + 1 < T:
            pull_back(move[i + 1], P, work)
        add_outer(P, r[i])
    return out


@compiled
def column_norms_of_pairs(delta: Array, r: Array, g: Array, move: Array) -> Array:
    """`column_norms` for q = 2, in the basis (newest, newest − older).

    The two vectors are nearly equal, and in the plain basis their difference would be lost to
    rounding.
    """
    T, m = g.shape[0], g.shape[1]
    n = 2 * m
    out = np.zeros(T)
    P, work, Pg = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n)
    x, step = np.zeros((m, 2)), np.zeros((m, 2, 2))
    for i in range(T - 1, -1, -1):
        for k in range(m):
            x[k, 0], x[k, 1] = g[i, k, 0], g[i, k, 0] - g[i, k, 1]
        out[i] = delta[i] ** 2 + apply_form(P, x, Pg)
        if i + 1 < T:
            for k in range(m):
                first, second = move[i + 1, k, 0], move[i + 1, k, 1]
                step[k, 0, 0], step[k, 0, 1] = first + second, -second
                step[k, 1, 0], step[k, 1, 1] = (first - 1.0) + second, -second
            for k in range(m):
                for b in range(2):
                    for c in range(n):
                        work[2 * k + b, c] = (
                            step[k, 0, b] * P[2 * k, c] + step[k, 1, b] * P[2 * k + 1, c]
                        )
            for a in range(n):
                for k in range(m):
                    for b in range(2):
                        P[a, 2 * k + b] = (
                            work[a, 2 * k] * step[k, 0, b] + work[a, 2 * k + 1] * step[k, 1, b]
                        )
        for k in range(m):
            x[k, 0], x[k, 1] = r[i, k, 0] + r[i, k, 1], -r[i, k, 1]
        add_outer(P, x)
    return out


@compiled
def column_norms_one_by_one(delta: Array, r: Array, g: Array, move: Array) -> Array:
    """`column_norms` by the recursion that makes the noise: O(T²), and as accurate as that."""
    T, m, q = g.shape
    out = np.zeros(T)
    S = np.zeros((m, q))
    for j in range(T):
        S[:] = g[j]
        total = delta[j] ** 2
        for i in range(j + 1, T):
            entry = 0.0
            for k in range(m):
                if i > j + 1:
                    new = 0.0
                    for b in range(q):
                        new += move[i, k, b] * S[k, b]
                    for b in range(q - 1, 0, -1):
                        S[k, b] = S[k, b - 1]
                    S[k, 0] = new
                for b in range(q):
                    entry += r[i, k, b] * S[k, b]
            total += entry * entry
        out[j] = total
    return out


@compiled
def gram_readouts(delta: Array, r: Array, g: Array, move: Array) -> Array:
    """``h`` with ``X_ij = h_i·s`` for i > j, where s is the state at row i that column j leaves.

    For buffers of one vector (q = 1).
    """
    T, m, _ = g.shape
    h = np.zeros((T, m))
    P, work, Pg = np.zeros((m, m)), np.zeros((m, m)), np.zeros(m)
    for i in range(T - 1, -1, -1):
        apply_form(P, g[i], Pg)
        for k in range(m):
            h[i, k] = delta[i] * r[i, k, 0] + (move[i + 1, k, 0] * Pg[k] if i + 1 < T else 0.0)
        if i + 1 < T:
            pull_back(move[i + 1], P, work)
        add_outer(P, r[i])
    return h
