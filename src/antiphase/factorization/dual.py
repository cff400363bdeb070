r"""The certified optimum: ``min tr(W X⁻¹)`` over the Gram matrices ``X = CᵀC`` of sensitivity 1.

The steps fall into classes (one step each for a single participation; the steps of one position within the epoch for
several). The dual has one positive definite matrix ``V_j`` with constant diagonal ``m_j`` for each class:

    g(V) = 2 tr((M V Mᵀ)^½) − Σ m_j,      X(V) = Mᵀ(M V Mᵀ)^-½ M,      lower bound (tr X V)² / Σ m_j

The minorant of ``tr((M V Mᵀ)^½)`` at the current point, a nuclear norm, is maximised class by class by

    Q_j = X_j V_j X_j,      V_j ← (Σ_i √(Q_j)_ii)² · corr(Q_j)

which never lowers the bound. Anderson's extrapolation is tried first and kept only if the bound rises: affine
combinations keep the diagonals constant, so all that can go wrong is definiteness, which the Cholesky factor notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from antiphase._checks import Array
from antiphase.participation import Indices

Progress = Callable[[int, float], None]  # (iteration, gap so far)

MEMORY = 6  # how many earlier steps the extrapolation looks at
ROUNDING = 1e-12  # the bound is lowered by so much, relatively, for the rounding of its own computation


@dataclass(frozen=True)
class Optimum:
    """A feasible Gram matrix in factored form, ``X = YᵀY``, and a bound that certifies how good it is."""

    factor: Array
    lower_bound: float
    gap: float
    iterations: int


@dataclass(frozen=True)
class _Point:
    """A dual point with all that one singular value decomposition tells about it."""

    V: list[Array]  # one stack of k × k matrices for each class size
    X: list[Array]  # the blocks of X(V), likewise
    factor: Array  # Y with X(V) = YᵀY
    bound: float
    error: float  # of the feasible point
    scale: Array  # column scales that make X(V) feasible


def solve(
    root: Array,
    classes: Sequence[Indices],
    *,
    tolerance: float = 1e-9,
    iterations: int = 500,
    progress: Progress | None = None,
) -> Optimum:
    """The optimum for ``W = rootᵀroot``, whose columns are partitioned into ``classes``, to a relative gap of
    ``tolerance``.

    Guarantee: `Optimum.lower_bound` holds whether or not the iteration converged; `Optimum.gap` says how far it got.
    [G5]
    """
    if root.shape[0] > root.shape[1]:
        root = np.asarray(np.linalg.qr(root, mode="r"))
    sizes = sorted({len(c) for c in classes})
    groups = [np.array([c for c in classes if len(c) == size]) for size in sizes]
    start = [np.tile(0.8 * np.eye(g.shape[1]) + 0.2, (len(g), 1, 1)) for g in groups]
    point = best = _evaluate(root, groups, start)
    bound = point.bound
    history: list[tuple[list[Array], list[Array]]] = []
    done = 0
    while best.error / bound - 1 > tolerance and done < iterations:
        done += 1
        plain = _plain_step(point)
        history = [*history[-MEMORY:], (plain, [g - v for g, v in zip(plain, point.V, strict=True)])]
        rise = _accelerated(root, groups, point, history) if len(history) > 1 else None
        if rise is None:
            history = history[-1:]
            rise = _evaluate(root, groups, plain)
        if rise.bound <= point.bound and rise.error >= best.error:
            break  # as good as rounding allows
        point = rise
        bound = max(bound, point.bound)
        best = min(best, point, key=lambda p: p.error)
        if progress:
            progress(done, best.error / bound - 1)
    certified = bound * (1 - ROUNDING)
    return Optimum(best.factor * best.scale, certified, best.error / certified - 1, done)


def _evaluate(root: Array, groups: list[Indices], V: list[Array]) -> _Point:
    """One SVD: ``M F = U Σ Pᵀ`` with ``V = F Fᵀ`` gives ``X(V) = F⁻ᵀ P Σ Pᵀ F⁻¹``, its inverse, and both bounds."""
    n = root.shape[1]
    F = [np.linalg.cholesky(v) for v in V]
    MF = np.empty((len(root), n))
    for g, f in zip(groups, F, strict=True):
        MF[:, g] = np.einsum("rck,ckl->rcl", root[:, g], f)
    _, sigma, Pt = np.linalg.svd(MF, full_matrices=False)
    half = np.sqrt(sigma)[:, None] * Pt
    Y = np.empty_like(half)
    inverse = np.empty((n, len(sigma)))  # X⁻¹ = inverse · inverseᵀ
    scale = np.empty(n)
    X = []
    for g, f in zip(groups, F, strict=True):
        Y[:, g] = np.linalg.solve(f.swapaxes(1, 2), half[:, g].transpose(1, 2, 0)).transpose(2, 0, 1)
        inverse[g] = f @ (Pt[:, g] / np.sqrt(sigma)[:, None, None]).transpose(1, 2, 0)
        columns = Y[:, g].transpose(1, 2, 0)
        blocks = columns @ columns.swapaxes(1, 2)
        # PRIVACY: left-over cross terms are counted, not zeroed: the whole class is scaled by them.   [G1]
        scale[g] = (np.abs(blocks).sum(axis=(1, 2)) ** -0.5)[:, None]
        X.append(blocks)
    bound = sigma.sum() ** 2 / sum(v[:, 0, 0].sum() for v in V)
    error = np.square((root / scale) @ inverse).sum()
    return _Point(V, X, Y, float(bound), float(error), scale)


def _plain_step(point: _Point) -> list[Array]:
    """The maximiser of the minorant, scaled so that the diagonals ``m_j`` have mean 1 (the bound does not see
    scale)."""
    out = []
    for v, x in zip(point.V, point.X, strict=True):
        Q = x @ v @ x
        d = np.sqrt(np.diagonal(Q, axis1=1, axis2=2))
        corr = Q / (d[:, :, None] * d[:, None, :])
        corr = (corr + corr.swapaxes(1, 2)) / 2
        k = corr.shape[1]
        corr[:, range(k), range(k)] = 1.0
        out.append((d.sum(axis=1) ** 2)[:, None, None] * corr)
    mean = np.concatenate([v[:, 0, 0] for v in out]).mean()
    return [v / mean for v in out]


def _accelerated(
    root: Array,
    groups: list[Indices],
    point: _Point,
    history: list[tuple[list[Array], list[Array]]],
) -> _Point | None:
    """Anderson's extrapolation of the plain steps; None unless it is definite and raises the bound."""
    weight = np.concatenate([np.broadcast_to(1 / v[:, :1, :1], v.shape).ravel() for v in point.V])
    flat = [np.concatenate([part.ravel() for part in residual]) * weight for _, residual in history]
    differences = np.column_stack([flat[-1] - earlier for earlier in flat[:-1]])
    theta, *_ = np.linalg.lstsq(differences, flat[-1], rcond=1e-10)
    V = []
    for i, latest in enumerate(history[-1][0]):
        mixed = latest.copy()
        for t, (steps, _) in zip(theta, history[:-1], strict=True):
            mixed -= t * (latest - steps[i])
        if (mixed[:, 0, 0] <= 0).any():
            return None
        V.append(mixed)
    try:
        candidate = _evaluate(root, groups, V)
    except np.linalg.LinAlgError:  # not definite
        return None
    return candidate if candidate.bound > point.bound else None
