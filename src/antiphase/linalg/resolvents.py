r"""Compiled kernels for resolvents ``(W⁻¹ + s²D)⁻¹`` with banded ``W⁻¹``, in O(T).

A banded lower-triangular matrix is stored as ``bands[t, a]``, the entry ``a`` places left of the
diagonal in row t. ``L = PΛ⁻¹``, and ``q`` is the half-bandwidth of ``K_s = LLᵀ + s²NDNᵀ``. The
resolvents are ``(W⁻¹ + s²D)⁻¹ = NᵀK_s⁻¹N``.
"""

from __future__ import annotations

import numba
import numpy as np

from antiphase._util.checks import Array

compiled = numba.njit(cache=True, nogil=True)
"""Decorator of compiled functions.

They call functions of their own file only: the cache does not notice changes in other files.
"""


@compiled
def udu_factor(L: Array, N: Array, v: Array, square: float, q: int) -> tuple[Array, Array]:
    """``K_s = LLᵀ + s²NDNᵀ = U diag(d) Uᵀ`` with U unit upper banded.

    ``U[i, a]`` is the entry at (i − a, i). The matrix is not formed, which would square its
    condition number: its factor ``[L, sND^½]`` is rotated to triangular form, last row first. What
    later columns contribute to the rows above is carried along, again as a factor.
    """
    T, p, nb = len(v), L.shape[1] - 1, N.shape[1] - 1
    if q == 1 and nb == 0:
        return _bidiagonal_udu_factor(L, N, v, square)
    U, d = np.zeros((T, q + 1)), np.zeros(T)
    # Rows i, i − 1, …, i − q. Columns: what is carried, then the two columns that begin here.
    M = np.zeros((q + 1, q + 2))
    for i in range(T - 1 + q, -1, -1):
        for r in range(q + 1):
            row = i - r
            inside = 0 <= row < T
            a, b = p - r, nb - r  # the new columns are i − p of L and i − nb of N
            M[r, q] = L[row, a] if inside and a >= 0 and i - p >= 0 else 0.0
            M[r, q + 1] = (
                np.sqrt(square * v[i - nb]) * N[row, b]
                if inside and b >= 0 and 0 <= i - nb < T
                else 0.0
            )
        _rotate_to_triangular(M)
        if i < T:
            d[i] = M[0, 0] ** 2
            for a in range(1, min(q, i) + 1):
                U[i, a] = M[a, 0] / M[0, 0]
        for r in range(q):
            for c in range(q):
                M[r, c] = M[r + 1, c + 1]
        M[q, :] = 0.0
    return U, d


@compiled
def _bidiagonal_udu_factor(L: Array, N: Array, v: Array, square: float) -> tuple[Array, Array]:
    """`udu_factor` for q = 1 and diagonal N: no rotations, and nothing is subtracted."""
    T, p = len(v), L.shape[1] - 1
    U, d = np.zeros((T, 2)), np.zeros(T)
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


@compiled
def _rotate_to_triangular(M: Array) -> None:
    """Rotate columns so that nothing is left right of the diagonal, in place."""
    rows, columns = M.shape
    for r in range(rows):
        for c in range(r + 1, columns):
            if M[r, c] != 0.0:
                norm = np.hypot(M[r, r], M[r, c])
                cosine, sine = M[r, r] / norm, M[r, c] / norm
                for k in range(r, rows):
                    first, second = M[k, r], M[k, c]
                    M[k, r] = cosine * first + sine * second
                    M[k, c] = cosine * second - sine * first


@compiled
def inverse_bands(U: Array, d: Array) -> Array:
    """``G[i, a] = (K⁻¹)_{i, i−a}`` within the band, from ``K = U diag(d) Uᵀ``.

    The recurrence runs from the first row down, and subtracts no large numbers.
    """
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


@compiled
def add_diagonal(G: Array, N: Array, out: Array, weight: float) -> None:
    """``out += weight · diag(NᵀGN)``, for a bidiagonal (or diagonal) ``N``."""
    T = len(out)
    two = N.shape[1] > 1
    for j in range(T):
        x = N[j, 0] ** 2 * G[j, 0]
        if two and j + 1 < T:
            below = N[j + 1, 1]
            x += 2.0 * N[j, 0] * below * G[j + 1, 1] + below**2 * G[j + 1, 0]
        out[j] += weight * x


@compiled
def diagonal_of_sum(L: Array, N: Array, v: Array, q: int, squares: Array, weights: Array) -> Array:
    """``diag Σ_k w_k (W⁻¹ + s_k²D)⁻¹``: O(T) a node."""
    out = np.zeros(len(v))
    for k in range(len(squares)):
        U, d = udu_factor(L, N, v, squares[k], q)
        add_diagonal(inverse_bands(U, d), N, out, weights[k])
    return out


@compiled
def generators(
    L: Array, N: Array, v: Array, q: int, squares: Array, weights: Array
) -> tuple[Array, Array, Array, Array]:
    r"""``X = Σ_k w_k (W⁻¹ + s_k²D)⁻¹`` as a recurrence in the row.

    ``X_ij = h_iᵀ Φ(i, j+1) g_j`` for i > j, and ``X_jj = x_j``. The state of node k at row i holds
    ``γ_i, …, γ_{i−q+1}`` with ``γ_i = (K_s⁻¹N)_{ij}``, and ``γ_{i+1} = −Σ_a U[i+1, a] γ_{i+1−a}``.

    Returns:
        ``move`` (T, m, q), the coefficients of that recursion into row i; ``g`` (T, m, q), the
        state that column j leaves at row j + 1; ``h`` (T, m, q), how row i reads its state; and
        ``x`` (T,).
    """
    T, m = len(v), len(squares)
    move, g, h, x = np.zeros((T, m, q)), np.zeros((T, m, q)), np.zeros((T, m, q)), np.zeros(T)
    two = N.shape[1] > 1
    for k in range(m):
        U, d = udu_factor(L, N, v, squares[k], q)
        G = inverse_bands(U, d)
        add_diagonal(G, N, x, weights[k])
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


@compiled
def weighted_variances(F: Array, squares: Array) -> tuple[float, Array]:
    r"""``Σ_t squares_t·Var(u_t)`` for ``F u = z``, and its gradient by the bands ``F[t, a]``.

    The covariances ``G[i, a] = Cov(u_i, u_{i−a})`` are the bands of ``(FᵀF)⁻¹``, which follow from
    those of earlier rows; ``to[i, a]`` are their adjoints.
    """
    T, width = F.shape
    q = width - 1
    f = F / F[:, :1]
    G = inverse_bands(f, F[:, 0] ** 2)
    to, out, of_f = np.zeros((T, width)), np.zeros((T, width)), np.zeros(width)
    total = 0.0
    for i in range(T):
        total += squares[i] * G[i, 0]
    for i in range(T - 1, -1, -1):
        most = min(q, i)
        own = to[i, 0] + squares[i]
        for b in range(1, most + 1):
            of_f[b] = -own * G[i, b]
            to[i, b] -= own * f[i, b]
        for a in range(1, most + 1):
            other = to[i, a]
            for b in range(1, most + 1):
                row, lag = (i - b, a - b) if b <= a else (i - a, b - a)
                of_f[b] -= other * G[row, lag]
                to[row, lag] -= other * f[i, b]
        out[i, 0] = -2.0 * own / F[i, 0] ** 3
        for b in range(1, most + 1):
            out[i, b] = of_f[b] / F[i, 0]
            out[i, 0] -= of_f[b] * f[i, b] / F[i, 0]
    return total, out
