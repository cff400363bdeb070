r"""The certified optimum: ``min tr(W X⁻¹)`` over the Gram matrices ``X = CᵀC`` of sensitivity 1.

The steps fall into classes (one step each for a single participation; the steps of one position within the epoch for
several). The dual has one positive definite matrix ``V_j`` with constant diagonal ``m_j`` for each class:

    g(V) = 2 tr((M V Mᵀ)^½) − Σ m_j,      X(V) = Mᵀ(M V Mᵀ)^-½ M,      lower bound (tr X V)² / Σ m_j

The minorant of ``tr((M V Mᵀ)^½)`` at the current point, a nuclear norm, is maximised class by class by

    Q_j = X_j V_j X_j,      V_j ← (Σ_i √(Q_j)_ii)² · corr(Q_j)

which never lowers the bound. Anderson's extrapolation is tried first and kept only if the bound rises: affine
combinations keep the diagonals constant, so all that can go wrong is definiteness, which the Cholesky factor notices.

`climb` needs nothing but the blocks ``X_j``. `solve` gets them from a dense singular value decomposition, for any
workload; `epochs` from a ring of blocks, for short recurrences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress, ProgressReport

MEMORY = 10  # how many earlier steps the extrapolation looks at
ROUNDING = (
    1e-12  # the bound is lowered by so much, relatively, for the rounding of its own computation
)


@dataclass(frozen=True)
class Point:
    """A dual point and what is known there."""

    V: list[Array]  # one stack of k × k matrices for each class size
    X: list[Array]  # the blocks of X(V), likewise
    bound: float
    error: float  # of the feasible point, or an estimate of it
    noise: float = 1e-15  # relative rounding error of the bound
    more: Any = None  # whatever `evaluate` wants to keep

    @property
    def gap(self) -> float:
        return self.error / self.bound - 1

    def rises_from(self, other: Point) -> bool:
        """Whether the bound is higher; or the same as far as can be told, with a better feasible point."""
        level = other.bound * (1 - max(self.noise, other.noise))
        return self.bound > other.bound or (self.bound >= level and self.gap < other.gap)


Evaluate = Callable[[list[Array]], Point]  # raises LinAlgError where V is not definite


@dataclass(frozen=True)
class Climbed:
    """Where a climb ended: the point of least gap, the best bound, and the bound after every iteration."""

    best: Point
    bound: float
    bounds: list[float]
    stopped: bool = False  # because `progress` said so


def start(sizes: Sequence[tuple[int, int]]) -> list[Array]:
    """A first ``V`` for so many classes (first) of such a size (second)."""
    return [np.tile(0.8 * np.eye(size) + 0.2, (count, 1, 1)) for count, size in sizes]


def climb(
    evaluate: Evaluate,
    V: list[Array],
    *,
    tolerance: float,
    iterations: int = 500,
    progress: Progress | None = None,
) -> Climbed:
    """Raise the bound from ``V`` until the feasible point is within ``tolerance`` of it, or rounding stops the rise.

    Guarantee: the bound of every point visited holds, and none is below the one before by more than rounding.   [G5]
    """
    point = best = evaluate(V)
    bounds = [point.bound]
    history: list[tuple[list[Array], list[Array]]] = []
    while best.gap > tolerance and len(bounds) <= iterations:
        plain = plain_step(point)
        history = [
            *history[-MEMORY:],
            (plain, [g - v for g, v in zip(plain, point.V, strict=True)]),
        ]
        rise = _accelerated(evaluate, point, history) if len(history) > 1 else None
        if rise is None:
            history = history[-1:]
            rise = evaluate(plain)
        if not rise.rises_from(point):
            break  # as good as rounding allows
        point = rise
        bounds.append(point.bound)
        best = min(best, point, key=lambda p: p.gap)
        if progress and progress(ProgressReport(len(bounds) - 1, gap=best.gap)):
            return Climbed(best, max(bounds), bounds, stopped=True)
    return Climbed(best, max(bounds), bounds)


def plain_step(point: Point) -> list[Array]:
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
    evaluate: Evaluate, point: Point, history: list[tuple[list[Array], list[Array]]]
) -> Point | None:
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
        candidate = evaluate(V)
    except np.linalg.LinAlgError:  # not definite
        return None
    return candidate if candidate.rises_from(point) else None


# ---- the dense way -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Optimum:
    """A feasible Gram matrix in factored form, ``X = YᵀY``, and a bound that certifies how good it is."""

    factor: Array
    lower_bound: float
    gap: float
    iterations: int


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
    first = start([(len(g), g.shape[1]) for g in groups])
    found = climb(
        lambda V: _evaluate(root, groups, V),
        first,
        tolerance=tolerance,
        iterations=iterations,
        progress=progress,
    )
    certified = found.bound * (1 - ROUNDING)
    factor, scale = found.best.more
    return Optimum(
        factor * scale, certified, found.best.error / certified - 1, len(found.bounds) - 1
    )


def _evaluate(root: Array, groups: list[Indices], V: list[Array]) -> Point:
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
        Y[:, g] = np.linalg.solve(f.swapaxes(1, 2), half[:, g].transpose(1, 2, 0)).transpose(
            2, 0, 1
        )
        inverse[g] = f @ (Pt[:, g] / np.sqrt(sigma)[:, None, None]).transpose(1, 2, 0)
        columns = Y[:, g].transpose(1, 2, 0)
        blocks = columns @ columns.swapaxes(1, 2)
        # PRIVACY: left-over cross terms are counted, not zeroed: the whole class is scaled by them.   [G1]
        scale[g] = (np.abs(blocks).sum(axis=(1, 2)) ** -0.5)[:, None]
        X.append(blocks)
    bound = sigma.sum() ** 2 / sum(v[:, 0, 0].sum() for v in V)
    error = np.square((root / scale) @ inverse).sum()
    return Point(V, X, float(bound), float(error), more=(Y, scale))
