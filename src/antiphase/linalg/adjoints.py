r"""Compiled errors and column norms with gradients, for streams of a few buffers.

The adjoints are derived by hand and take O(T m²). The encoder is a stream with ``r = 1`` and one
vector in each buffer: ``C_jj = δ_j``, ``C_ij = Σ_k g_jk Π_{j+1<l≤i} ρ_lk``.
Gradients are with respect to ``ln δ``, ``g`` and ``ln ρ``.
"""

from __future__ import annotations

import numpy as np

from antiphase._util.checks import Array
from antiphase.linalg.resolvents import compiled


@compiled
def noise(
    delta: Array, g: Array, rho: Array, P: Array, N: Array, squares: Array
) -> tuple[float, Array, Array, Array]:
    r"""``Σ_t squares_t·Var(u_t)`` for ``P u = N y`` with ``y = C⁻¹z``, and its gradient.

    ``x``, the state with the earlier u and the earlier y, obeys ``x' = Hx + μy`` and
    ``y = (z − 1ᵀS)/δ``. The covariances ``V`` of x go forward step by step, their adjoints ``Q``
    back.
    """
    T, m = g.shape
    p, nb = max(P.shape[1] - 1, 1), N.shape[1] - 1
    n = m + p + nb
    V, Q = np.zeros((T + 1, n, n)), np.zeros((n, n))
    half = np.zeros((n, n))
    row, after, mu, c = np.zeros(p + nb), np.zeros(m), np.zeros(n), np.zeros(n)
    Hc = np.zeros((n, 1))
    total = 0.0
    for t in range(T):
        variance = _step(t, delta, g, rho, P, N, V[t], row, after, mu, c)
        _apply(row, after, p, c.reshape(n, 1), Hc)
        _apply(row, after, p, V[t], half)
        _apply(row, after, p, half.T, V[t + 1])
        for a in range(n):
            for b in range(n):
                V[t + 1, a, b] += Hc[a, 0] * mu[b] + mu[a] * Hc[b, 0] + variance * mu[a] * mu[b]
        total += squares[t] * V[t + 1, m, m]
    of_delta, of_g, of_rho = np.zeros(T), np.zeros((T, m)), np.zeros((T, m))
    Q_mu, to_c, Q_Hc = np.zeros(n), np.zeros((n, 1)), np.zeros(n)
    for t in range(T - 1, -1, -1):
        variance = _step(t, delta, g, rho, P, N, V[t], row, after, mu, c)
        Q[m, m] += squares[t]
        _apply(row, after, p, c.reshape(n, 1), Hc)
        to_variance = 0.0
        for a in range(n):
            Q_mu[a] = Q_Hc[a] = 0.0
            for b in range(n):
                Q_mu[a] += Q[a, b] * mu[b]
                Q_Hc[a] += Q[a, b] * Hc[b, 0]
            to_variance += mu[a] * Q_mu[a]
        _apply_transposed(row, after, p, Q_mu.reshape(n, 1), to_c)
        _apply_transposed(row, after, p, Q, half)  # HᵀQ
        through = 0.0
        for k in range(m):
            for a in range(n):
                through += 2.0 * V[t, k, a] * to_c[a, 0]
            through += 2.0 * to_variance * c[k]
            of_g[t, k] = 2.0 * (Q_Hc[k] + variance * Q_mu[k])
            if t + 1 < T:
                value = Q_mu[k] * c[k]
                for a in range(n):
                    value += half[a, k] * V[t, a, k]
                of_rho[t + 1, k] = 2.0 * value * rho[t + 1, k]
        of_delta[t] = (through - 2.0 * to_variance / delta[t]) / delta[t]
        _apply_transposed(row, after, p, half.T, Q)
        _add_readout(Q, to_c, to_variance, delta[t], m)
    return total, of_delta, of_g, of_rho


@compiled
def _add_readout(Q: Array, to_c: Array, to_variance: float, delta: float, m: int) -> None:
    """The part of the adjoints of ``V`` that goes through ``Cov(x, y)`` and the variance of y."""
    for a in range(len(Q)):
        for k in range(m):
            Q[a, k] -= to_c[a, 0] / delta
            Q[k, a] -= to_c[a, 0] / delta
    for a in range(m):
        for b in range(m):
            Q[a, b] += to_variance / delta**2


@compiled
def _step(
    t: int,
    delta: Array,
    g: Array,
    rho: Array,
    P: Array,
    N: Array,
    V: Array,
    row: Array,
    after: Array,
    mu: Array,
    c: Array,
) -> float:
    """``H``, ``μ`` and ``c = Cov(x, y)`` of step t, in place; returns the variance of y.

    ``H`` is given by the ``row`` of u_t and the factors ``after`` of the buffers.
    """
    T, m = g.shape
    p, nb = max(P.shape[1] - 1, 1), N.shape[1] - 1
    variance = 1.0
    for a in range(m + p + nb):
        total = 0.0
        for k in range(m):
            total -= V[a, k]
        c[a] = total / delta[t]
        mu[a] = 0.0
    for k in range(m):
        variance -= c[k] * delta[t]
        after[k] = rho[t + 1, k] if t + 1 < T else 0.0
        mu[k] = g[t, k]
    row[:] = 0.0
    for a in range(1, P.shape[1]):
        row[a - 1] = -P[t, a] / P[t, 0]
    for a in range(nb):
        row[p + a] = N[t, a + 1] / P[t, 0]
    mu[m] = N[t, 0] / P[t, 0]
    if nb > 0:
        mu[m + p] = 1.0
    scaled: float = variance / delta[t] ** 2
    return scaled


@compiled
def _apply(row: Array, after: Array, p: int, M: Array, out: Array) -> None:
    """``out = H M``."""
    m, rest = len(after), len(row)
    for b in range(M.shape[1]):
        for k in range(m):
            out[k, b] = after[k] * M[k, b]
        total = 0.0
        for a in range(rest):
            total += row[a] * M[m + a, b]
        out[m, b] = total
        for a in range(1, rest):
            out[m + a, b] = M[m + a - 1, b] if a != p else 0.0


@compiled
def _apply_transposed(row: Array, after: Array, p: int, M: Array, out: Array) -> None:
    """``out = Hᵀ M``."""
    m, rest = len(after), len(row)
    for b in range(M.shape[1]):
        for k in range(m):
            out[k, b] = after[k] * M[k, b]
        for a in range(rest):
            out[m + a, b] = row[a] * M[m, b]
            if a + 1 < rest and a + 1 != p:
                out[m + a, b] += M[m + a + 1, b]


@compiled
def norms(delta: Array, g: Array, rho: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    r"""The squared norms of the columns, and the gradient of ``Σ_i weights_i ‖C e_i‖²``.

    ``P_i`` is the Gram matrix of the rows after i as a quadratic form on the state at row i + 1:
    ``P_{i−1} = 11ᵀ + ρ_{i+1}P_iρ_{i+1}``.
    """
    T, m = g.shape
    P, out = np.zeros((T, m, m)), np.zeros(T)
    of_delta, of_g, of_rho = np.zeros(T), np.zeros((T, m)), np.zeros((T, m))
    for i in range(T - 1, -1, -1):
        out[i] = delta[i] ** 2
        for a in range(m):
            value = 0.0
            for b in range(m):
                if i + 1 < T:
                    P[i, a, b] = 1.0 + (
                        rho[i + 2, a] * P[i + 1, a, b] * rho[i + 2, b] if i + 2 < T else 0.0
                    )
                value += P[i, a, b] * g[i, b]
            out[i] += g[i, a] * value
            of_g[i, a] = 2.0 * weights[i] * value
        of_delta[i] = 2.0 * weights[i] * delta[i] ** 2
    to_P = np.zeros((m, m))
    for i in range(T - 1):
        for a in range(m):
            value = 0.0
            for b in range(m):
                value += to_P[a, b] * P[i, a, b] * rho[i + 1, b]
            of_rho[i + 1, a] = 2.0 * value * rho[i + 1, a]
        for a in range(m):
            for b in range(m):
                to_P[a, b] = (
                    to_P[a, b] * rho[i + 1, a] * rho[i + 1, b] + weights[i] * g[i, a] * g[i, b]
                )
    return out, of_delta, of_g, of_rho
