r"""The O(T) recurrences, compiled: selected inversion, generators of the inverse, factor, variances.

A banded lower-triangular matrix is stored as ``bands[t, a]``, the entry ``a`` places left of the diagonal of row t.
``L = PΛ⁻¹``, and ``q`` is the half-bandwidth of ``K_s = LLᵀ + s²NDNᵀ``, for which ``(W⁻¹ + s²D)⁻¹ = NᵀK_s⁻¹N``.
"""

from __future__ import annotations

import numba
import numpy as np

from antiphase._util.checks import Array

_compiled = numba.njit(cache=True, nogil=True)


@_compiled
def factored_from_the_end(
    L: Array, N: Array, v: Array, square: float, q: int
) -> tuple[Array, Array]:
    """``K_s = LLᵀ + s²NDNᵀ = U diag(d) Uᵀ`` with U unit upper banded; ``U[i, a]`` is the entry at (i − a, i).

    The matrix itself is never formed, since that would square its condition number: its factor ``[L, sND^½]`` is
    rotated to triangular form, last row first. What later columns leave for the rows above is carried along, again as
    a factor.
    """
    T, p, nb = len(v), L.shape[1] - 1, N.shape[1] - 1
    U, d = np.zeros((T, q + 1)), np.zeros(T)
    if q == 1 and nb == 0:  # the same without rotations: no square roots, and nothing is subtracted
        carried = L[T - 1, 0] ** 2
        for i in range(T - 1, -1, -1):
            noise = square * v[i] * N[i, 0] ** 2
            left = L[i, 1] if p > 0 and i > 0 else 0.0
            d[i] = carried + left**2 + noise
            if i > 0:
                above = L[i - 1, 0]
                U[i, 1] = left * above / d[i]
                carried = above**2 * (carried + noise) / d[i]
        return U, d
    rows, columns = q + 1, q + 2
    M = np.zeros(
        (rows, columns)
    )  # rows i, i − 1, …, i − q; first what is carried, then the two columns that begin here
    for i in range(T - 1 + q, -1, -1):
        for r in range(rows):
            row = i - r
            inside = 0 <= row < T
            a, b = p - r, nb - r  # the new columns are i − p of L and i − nb of N
            M[r, q] = L[row, a] if inside and a >= 0 and i - p >= 0 else 0.0
            M[r, q + 1] = (
                np.sqrt(square * v[i - nb]) * N[row, b]
                if inside and b >= 0 and 0 <= i - nb < T
                else 0.0
            )
        for r in range(rows):  # row r: everything right of column r goes into column r
            for c in range(r + 1, columns):
                if M[r, c] != 0.0:
                    norm = np.hypot(M[r, r], M[r, c])
                    cosine, sine = M[r, r] / norm, M[r, c] / norm
                    for k in range(r, rows):
                        first, second = M[k, r], M[k, c]
                        M[k, r] = cosine * first + sine * second
                        M[k, c] = cosine * second - sine * first
        if i < T:
            d[i] = M[0, 0] ** 2
            for a in range(1, min(q, i) + 1):
                U[i, a] = M[a, 0] / M[0, 0]
        for r in range(q):
            for c in range(q):
                M[r, c] = M[r + 1, c + 1]
        for c in range(columns):
            M[q, c] = 0.0
    return U, d


@_compiled
def inverse_bands(U: Array, d: Array) -> Array:
    """``G[i, a] = (K⁻¹)_{i, i−a}`` within the band, from ``K = U D Uᵀ``: first row down, no subtraction of large
    numbers."""
    T, width = U.shape
    q = width - 1
    G = np.zeros((T, width))
    for i in range(T):
        # (Uᵀ K⁻¹)_{i j} = 0 for j < i, and 1/d_i for j = i
        for a in range(min(q, i), 0, -1):
            j = i - a
            total = 0.0
            for b in range(1, min(q, i) + 1):
                row = i - b
                total -= U[i, b] * (G[row, row - j] if row >= j else G[j, j - row])
            G[i, a] = total
        total = 1.0 / d[i]
        for b in range(1, min(q, i) + 1):
            total -= U[i, b] * G[i, b]
        G[i, 0] = total
    return G


@_compiled
def diagonal_of(G: Array, N: Array, out: Array, weight: float) -> None:
    """``out += weight · diag(NᵀGN)``, for a bidiagonal (or diagonal) ``N``."""
    T = len(out)
    two = N.shape[1] > 1
    for j in range(T):
        x = N[j, 0] ** 2 * G[j, 0]
        if two and j + 1 < T:
            below = N[j + 1, 1]
            x += 2.0 * N[j, 0] * below * G[j + 1, 1] + below**2 * G[j + 1, 0]
        out[j] += weight * x


@_compiled
def diagonal_of_sum(L: Array, N: Array, v: Array, q: int, squares: Array, weights: Array) -> Array:
    """``diag Σ_k w_k (W⁻¹ + s_k²D)⁻¹``: O(T) a node."""
    out = np.zeros(len(v))
    for k in range(len(squares)):
        U, d = factored_from_the_end(L, N, v, squares[k], q)
        diagonal_of(inverse_bands(U, d), N, out, weights[k])
    return out


@_compiled
def generators(
    L: Array, N: Array, v: Array, q: int, squares: Array, weights: Array
) -> tuple[Array, Array, Array, Array]:
    r"""``Σ_k w_k (W⁻¹ + s_k²D)⁻¹`` as a recurrence in the row: ``X_ij = h_iᵀ Φ(i, j+1) g_j`` for i > j, ``X_jj = x_j``.

    The state of node k at row i holds ``γ_i, …, γ_{i−q+1}`` with ``γ_i = (K_s⁻¹N)_{ij}``, and ``γ_{i+1} = −Σ_a U[i+1,
    a] γ_{i+1−a}``. Returns ``move`` (T, m, q): the coefficients of that recursion into row i; ``g`` (T, m, q): the
    state at row j + 1 that column j leaves; ``h`` (T, m, q): how row i reads its state; ``x`` (T,).
    """
    T, m = len(v), len(squares)
    move, g, h, x = np.zeros((T, m, q)), np.zeros((T, m, q)), np.zeros((T, m, q)), np.zeros(T)
    two = N.shape[1] > 1
    for k in range(m):
        U, d = factored_from_the_end(L, N, v, squares[k], q)
        G = inverse_bands(U, d)
        diagonal_of(G, N, x, weights[k])
        for i in range(T):
            for a in range(1, q + 1):
                move[i, k, a - 1] = -U[i, a]
        for j in range(T):
            below = N[j + 1, 1] if two and j + 1 < T else 0.0
            if j + 1 < T:
                for b in range(q):  # γ at row j + 1 − b
                    row = j + 1 - b
                    if row < 0:
                        continue
                    here = G[row, row - j] if row >= j else G[j, j - row]
                    if row - j > q:
                        here = 0.0
                    left = G[j + 1, j + 1 - row]
                    g[j, k, b] = weights[k] * (N[j, 0] * here + below * left)
            h[j, k, 0] = N[j, 0]
            if two and j + 1 < T:  # row j reads γ_{j+1} too, through the recursion
                for b in range(q):
                    h[j, k, b] += below * move[j + 1, k, b]
    return move, g, h, x


@_compiled
def pull_back(move: Array, P: Array, work: Array) -> None:
    """``P ← TᵀPT`` for a quadratic form on the flattened state; ``work`` is as large as ``P``."""
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


@_compiled
def times(P: Array, x: Array, out: Array) -> float:
    """``out = P x`` for a vector of the state, flattened; returns ``xᵀPx``."""
    q = x.shape[1]
    total = 0.0
    for r in range(P.shape[0]):
        value = 0.0
        for c in range(P.shape[0]):
            value += P[r, c] * x[c // q, c % q]
        out[r] = value
        total += value * x[r // q, r % q]
    return total


@_compiled
def factor(move: Array, g: Array, h: Array, x: Array) -> tuple[Array, Array]:
    r"""The lower-triangular ``C`` with ``CᵀC = X``, as ``δ`` and ``r``: ``C_jj = δ_j``, ``C_ij = r_iᵀ Φ(i, j+1) g_j``.

    Last row first, with ``P`` the Gram matrix of the later rows as seen from the state.
    """
    T, m, q = g.shape
    n = m * q
    delta, r = np.zeros(T), np.zeros((T, m, q))
    P, work, Pg = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n)
    for i in range(T - 1, -1, -1):
        square = x[i] - times(P, g[i], Pg)
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


@_compiled
def add_outer(P: Array, x: Array) -> None:
    q = x.shape[1]
    for a in range(P.shape[0]):
        value = x[a // q, a % q]
        for c in range(P.shape[0]):
            P[a, c] += value * x[c // q, c % q]


@_compiled
def column_norms(delta: Array, r: Array, g: Array, move: Array) -> Array:
    """``‖C e_j‖²`` from the coefficients that make the noise, and nothing else."""
    T, m, q = g.shape
    n = m * q
    out = np.zeros(T)
    P, work, Pg = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n)
    for i in range(T - 1, -1, -1):
        out[i] = delta[i] ** 2 + times(P, g[i], Pg)
        if i + 1 < T:
            pull_back(move[i + 1], P, work)
        add_outer(P, r[i])
    return out


@_compiled
def meetings(delta: Array, r: Array, g: Array, move: Array) -> Array:
    """``h`` with ``X_ij = h_i·s`` for i > j, where s is the state that column j has left by row i; one vector a
    buffer."""
    T, m, _ = g.shape
    h = np.zeros((T, m))
    P, work, Pg = np.zeros((m, m)), np.zeros((m, m)), np.zeros(m)
    for i in range(T - 1, -1, -1):
        times(P, g[i], Pg)
        for k in range(m):
            h[i, k] = delta[i] * r[i, k, 0] + (move[i + 1, k, 0] * Pg[k] if i + 1 < T else 0.0)
        if i + 1 < T:
            pull_back(move[i + 1], P, work)
        add_outer(P, r[i])
    return h


@_compiled
def variances(
    delta: Array, r: Array, g: Array, move: Array, live: Array, fresh: Array, P: Array, N: Array
) -> Array:
    r"""The variance of each ``u_t`` when ``P u = N y`` is driven by the noise ``y = C⁻¹z``: joint covariance, step by
    step.

    ``live[t]`` is the row of the coefficients, −1 where the step has independent noise; ``fresh[t]`` says that the
    state is empty there. The vector is (state, earlier u, earlier y). Each entry of the next one is a few entries of
    this one, plus a multiple of ``y_t``.
    """
    T, p, nb = len(live), P.shape[1] - 1, N.shape[1] - 1
    m, q = g.shape[1], g.shape[2]
    n = m * q
    size = n + p + nb
    width = max(q, p + nb, 1)
    V, half = np.zeros((size, size)), np.zeros((size, size))
    index, weight = np.zeros((size, width), np.int64), np.zeros((size, width))
    multiple, with_y, next_with_y = np.zeros(size), np.zeros(size), np.zeros(size)
    out = np.zeros(T)
    for t in range(T):
        if fresh[t]:
            V[:n, :] = 0.0
            V[:, :n] = 0.0
        i = live[t]
        weight[:] = 0.0
        multiple[:] = 0.0
        variance = 1.0
        with_y[:] = 0.0
        if i >= 0:
            for a in range(size):
                value = 0.0
                for c in range(n):
                    value -= V[a, c] * r[i, c // q, c % q]
                with_y[a] = value / delta[i]
            variance = 1.0 / delta[i] ** 2
            for c in range(n):
                variance -= r[i, c // q, c % q] / delta[i] * with_y[c]
        for k in range(m):
            for b in range(q):
                row = k * q + b
                if i < 0:
                    index[row, 0], weight[row, 0] = row, 1.0
                elif b == 0:
                    for c in range(q):
                        index[row, c] = k * q + c
                        weight[row, c] = move[i + 1, k, c] if i + 1 < len(delta) else 0.0
                else:
                    index[row, 0], weight[row, 0] = row - 1, 1.0
                if i >= 0:
                    multiple[row] = g[i, k, b]
        # u_t, first among the earlier u of the next step
        scale = 1.0 / P[t, 0]
        square = (scale * N[t, 0]) ** 2 * variance
        for a in range(p + nb):
            c = -scale * P[t, a + 1] if a < p else scale * N[t, a - p + 1]
            square += 2.0 * scale * N[t, 0] * c * with_y[n + a]
            for b in range(p + nb):
                d = -scale * P[t, b + 1] if b < p else scale * N[t, b - p + 1]
                square += c * d * V[n + a, n + b]
            if p > 0:
                index[n, a], weight[n, a] = n + a, c
        out[t] = square
        if p > 0:
            multiple[n] = scale * N[t, 0]
        for a in range(1, p):
            index[n + a, 0], weight[n + a, 0] = n + a - 1, 1.0
        if nb > 0:
            multiple[n + p] = 1.0
        for a in range(1, nb):
            index[n + p + a, 0], weight[n + p + a, 0] = n + p + a - 1, 1.0
        for a in range(size):
            value = 0.0
            for j in range(width):
                value += weight[a, j] * with_y[index[a, j]]
            next_with_y[a] = value
            for c in range(size):
                value = 0.0
                for j in range(width):
                    if weight[a, j] != 0.0:
                        value += weight[a, j] * V[index[a, j], c]
                half[a, c] = value
        for a in range(size):
            for c in range(size):
                value = multiple[a] * multiple[c] * variance
                value += multiple[a] * next_with_y[c] + multiple[c] * next_with_y[a]
                for j in range(width):
                    if weight[c, j] != 0.0:
                        value += weight[c, j] * half[a, index[c, j]]
                V[a, c] = value
    return out


@_compiled
def column_norms_of_pairs(delta: Array, r: Array, g: Array, move: Array) -> Array:
    """`column_norms` for q = 2, in the basis (newest, newest − older): the two are nearly equal, and squares of what
    they have in common would drown what they differ in."""
    T, m = g.shape[0], g.shape[1]
    n = 2 * m
    out = np.zeros(T)
    P, work, Pg = np.zeros((n, n)), np.zeros((n, n)), np.zeros(n)
    x, step = np.zeros((m, 2)), np.zeros((m, 2, 2))
    for i in range(T - 1, -1, -1):
        for k in range(m):
            x[k, 0], x[k, 1] = g[i, k, 0], g[i, k, 0] - g[i, k, 1]
        out[i] = delta[i] ** 2 + times(P, x, Pg)
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


@_compiled
def column_norms_one_by_one(delta: Array, r: Array, g: Array, move: Array) -> Array:
    """`column_norms` by the very recursion that makes the noise: O(T²), and as accurate as that."""
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
