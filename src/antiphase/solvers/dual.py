r"""Dual ascent with a certified bound, for any set of classes of steps.

The problem is ``min tr(W X⁻¹)`` over Gram matrices ``X = CᵀC`` of sensitivity 1. The steps are
divided into classes: single steps for one participation, the steps at one position within the epoch
for several. The dual has one positive definite matrix ``V_j`` with constant diagonal ``m_j`` for
each class:

    g(V) = 2 tr((M V Mᵀ)^½) − Σ m_j,      X(V) = Mᵀ(M V Mᵀ)^-½ M,      lower bound (tr X V)² / Σ m_j

``tr((M V Mᵀ)^½)`` is a nuclear norm. It has a minorant at the current point, whose maximum is found
class by class:

    Q_j = X_j V_j X_j,      V_j ← (Σ_i √(Q_j)_ii)² · corr(Q_j)

which never lowers the bound. Anderson's extrapolation is tried first and kept only if the bound
rises. It combines the matrix logarithms of ``V_j``, so that its result is positive definite and
directions in which ``V_j`` is nearly singular count as much as others.

`climb` needs the blocks ``X_j`` only. `solve` computes them by a dense singular value
decomposition, for any workload; `multi_epoch` by block-cyclic matrices, for short recurrences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress, ProgressReport
from antiphase.linalg.anderson import Anderson

MEMORY = 20  # earlier steps used by the extrapolation
ROUNDING = 1e-12  # relative margin by which the bound is lowered for rounding
MAX_ITERATIONS = 500
DEFINITE = 1e-13  # least eigenvalue of correlation matrices, so that rounding leaves them definite
PATIENCE = 10  # iterations without a better feasible point after which rounding prevails


@dataclass(frozen=True)
class Point:
    """A dual point, and what is known there.

    Attributes:
        V: one stack of k × k matrices for each class size k.
        X: the blocks of X(V), likewise.
        bound: the lower bound that V certifies.
        error: the error of the feasible point, or an estimate of it.
        noise: the relative rounding error of the bound.
        more: what `evaluate` keeps for its own use.
    """

    V: list[Array]
    X: list[Array]
    bound: float
    error: float
    noise: float = 1e-15
    more: Any = None

    @property
    def gap(self) -> float:
        """Relative difference of error and bound."""
        return self.error / self.bound - 1

    def is_level_with(self, other: Point) -> bool:
        """Whether the bound is not lower, up to rounding."""
        return self.bound >= other.bound * (1 - max(self.noise, other.noise))

    def rises_from(self, other: Point) -> bool:
        """Whether the bound is higher, or equal up to rounding with a better feasible point."""
        return self.bound > other.bound or (self.is_level_with(other) and self.gap < other.gap)


Evaluate = Callable[[list[Array], Point | None], Point]
"""The dual function of V. Its second argument is the point before, if there is one; where its gap
is large, few digits are enough. Raises LinAlgError where V is not positive definite."""


@dataclass(frozen=True)
class Ascent:
    """Result of `climb`.

    Attributes:
        best: the point of least gap.
        bounds: the bound at the start and after every iteration.
        stopped: whether the progress callback stopped the search.
    """

    best: Point
    bounds: list[float]
    stopped: bool = False

    @property
    def bound(self) -> float:
        """The best bound."""
        return max(self.bounds)


def climb(
    evaluate: Evaluate,
    V: list[Array],
    *,
    tolerance: float,
    iterations: int = MAX_ITERATIONS,
    progress: Progress | None = None,
) -> Ascent:
    """Raise the bound until the feasible point is within ``tolerance`` of it.

    It ends earlier where rounding errors prevent further progress.

    Guarantee: the bound of every point visited holds, and none is below the one before by more than
    rounding.   [G5]

    Args:
        evaluate: the dual function.
        V: the first point.
        tolerance: the relative gap to reach.
        iterations: the maximum number of iterations.
        progress: called in every iteration; stops the search if it returns True.
    """
    point = best = evaluate(V, None)
    bounds, stalled, coarse = [point.bound], 0, True
    anderson = Anderson(MEMORY)
    while best.gap > tolerance and len(bounds) <= iterations:
        previous = point if coarse else None
        plain = plain_step(point)
        rise = _extrapolated(evaluate, point, previous, plain, anderson)
        if rise is None:
            anderson.restart()
            rise = evaluate(plain, previous)
        if stalled >= PATIENCE or not rise.is_level_with(point):
            if not coarse:
                break
            coarse, stalled, point = False, 0, evaluate(point.V, None)
            continue
        point = rise
        bounds.append(point.bound)
        stalled = 0 if point.gap < best.gap else stalled + 1
        best = min(best, point, key=lambda p: p.gap)
        if progress and progress(ProgressReport(len(bounds) - 1, gap=best.gap)):
            return Ascent(best, bounds, stopped=True)
    return Ascent(best, bounds)


def plain_step(point: Point) -> list[Array]:
    """The maximiser of the minorant, scaled so that the diagonals ``m_j`` have mean 1."""
    out = []
    for v, x in zip(point.V, point.X, strict=True):
        root = x @ np.linalg.cholesky(v)
        out.append(_correlations(root) * np.square(_row_norms(root).sum(axis=1, keepdims=True)))
    mean = np.concatenate([v[:, 0, 0] for v in out]).mean()
    return [v / mean for v in out]


def _extrapolated(
    evaluate: Evaluate, point: Point, previous: Point | None, plain: list[Array], anderson: Anderson
) -> Point | None:
    """The extrapolated point; None unless it is definite and raises the bound."""
    step, current = (np.concatenate([_log(v).ravel() for v in V]) for V in (plain, point.V))
    mixed = anderson.extrapolate(step, step - current, np.ones(1))
    if mixed is None:
        return None
    ends = np.cumsum([v.size for v in plain])[:-1]
    parts = zip(np.split(mixed, ends), plain, strict=True)
    try:
        candidate = evaluate([_exp(part.reshape(v.shape)) for part, v in parts], previous)
    except np.linalg.LinAlgError:  # not definite within rounding
        return None
    return candidate if candidate.rises_from(point) else None


def _log(V: Array) -> Array:
    """The logarithms of a stack of positive definite matrices.

    Eigenvalues that rounding makes 0 or negative count as the smallest that it can tell from 0.
    """
    values, vectors = np.linalg.eigh(V)
    values = np.maximum(values, np.finfo(float).eps * values[:, -1:])
    out: Array = (vectors * np.log(values)[:, None, :]) @ vectors.swapaxes(1, 2)
    return out


def _exp(logarithms: Array) -> Array:
    """The exponentials, with the diagonal of each scaled to a constant."""
    values, vectors = np.linalg.eigh(logarithms)
    root = vectors * np.exp(values / 2)[:, None, :]
    out: Array = _correlations(root) * np.square(_row_norms(root)).mean(axis=1, keepdims=True)
    return out


def _row_norms(stack: Array) -> Array:
    norms: Array = np.linalg.norm(stack, axis=2, keepdims=True)
    return norms


def _correlations(root: Array) -> Array:
    """``corr(root·rootᵀ)`` for a stack: definite within rounding, however different its rows."""
    rows = root / _row_norms(root)
    corr: Array = (1 - DEFINITE) * (rows @ rows.swapaxes(1, 2))
    k = corr.shape[1]
    corr[:, range(k), range(k)] = 1.0
    return corr


@dataclass(frozen=True)
class Optimum:
    """A feasible Gram matrix in factored form, with the bound that certifies it.

    Attributes:
        factor: ``Y`` with ``X = YᵀY``.
        lower_bound: the certified bound.
        gap: the relative gap of error and bound.
        iterations: number of iterations.
    """

    factor: Array
    lower_bound: float
    gap: float
    iterations: int


def solve(
    root: Array,
    classes: Sequence[Indices],
    *,
    tolerance: float = 1e-9,
    iterations: int = MAX_ITERATIONS,
    progress: Progress | None = None,
) -> Optimum:
    """The optimum for ``W = rootᵀroot``, by dense linear algebra.

    Guarantee: `Optimum.lower_bound` holds whether or not the iteration converged.   [G5]

    Args:
        root: the weighted iterates (rows) as a function of the gradients (columns).
        classes: a partition of the columns into sets that one record may take part in.
        tolerance: the relative gap to reach.
        iterations: the maximum number of iterations.
        progress: called in every iteration; stops the search if it returns True.
    """
    if root.shape[0] > root.shape[1]:
        root = np.asarray(np.linalg.qr(root, mode="r"))
    sizes = sorted({len(c) for c in classes})
    groups = [np.array([c for c in classes if len(c) == size]) for size in sizes]
    ascent = climb(
        lambda V, _: _evaluate(root, groups, V),
        [np.tile(0.8 * np.eye(g.shape[1]) + 0.2, (len(g), 1, 1)) for g in groups],
        tolerance=tolerance,
        iterations=iterations,
        progress=progress,
    )
    bound = ascent.bound * (1 - ROUNDING)
    factor, scale = ascent.best.more
    return Optimum(factor * scale, bound, ascent.best.error / bound - 1, len(ascent.bounds) - 1)


def _evaluate(root: Array, groups: list[Indices], V: list[Array]) -> Point:
    """``X(V) = F⁻ᵀ P Σ Pᵀ F⁻¹``, its inverse and both bounds, by the SVD ``M F = U Σ Pᵀ``."""
    n = root.shape[1]
    F = [np.linalg.cholesky(v) for v in V]
    root_F = np.empty((len(root), n))
    for g, f in zip(groups, F, strict=True):
        root_F[:, g] = np.einsum("rck,ckl->rcl", root[:, g], f)
    _, sigma, Pt = np.linalg.svd(root_F, full_matrices=False)
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
        # PRIVACY: cross terms within a class count in its norm; they are not set to zero.   [G1]
        scale[g] = (np.abs(blocks).sum(axis=(1, 2)) ** -0.5)[:, None]
        X.append(blocks)
    bound = sigma.sum() ** 2 / sum(v[:, 0, 0].sum() for v in V)
    error = np.square((root / scale) @ inverse).sum()
    return Point(V, X, float(bound), float(error), more=(Y, scale))
