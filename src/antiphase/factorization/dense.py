r"""The optimum as a dense encoder: any workload and objective, one participation or epochs in a fixed order; O(T³).

Steps that move no iterate are left out of the problem and get independent noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._checks import Array
from antiphase.factorization import dual
from antiphase.factorization.base import Factorization, lower_triangular, packed_triangle, refuse_if_too_large
from antiphase.objective import Objective
from antiphase.participation import Indices, Participation
from antiphase.sensitivity import sensitivity
from antiphase.workload import Workload

IDLE_SHARE = 1e-4  # of a fair share of the budget, for steps that move nothing but still release noise


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Factorization):
    """An encoder that is stored in full."""

    matrix: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", lower_triangular(self.matrix, self.steps))

    def _build_encoder(self) -> Array:
        return self.matrix

    def _stored(self) -> dict[str, Any]:
        return {"lower": self.matrix[np.tril_indices(self.steps)]}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        steps = common["workload"].steps
        lower = packed_triangle(stored, steps)
        refuse_if_too_large(steps)
        matrix = np.zeros((steps, steps))
        matrix[np.tril_indices(steps)] = lower
        return cls(**common, matrix=matrix)


def dense_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    tolerance: float,
    progress: dual.Progress | None = None,
) -> Dense:
    """The optimal factorization and its certificate."""
    refuse_if_too_large(workload.steps, copies=8)
    classes = participation.classes(workload.steps)
    root = objective.root(workload)
    encoder, bound = optimal_encoder(root, classes, tolerance=tolerance, progress=progress)
    # PRIVACY: normalised by the one sensitivity there is, not by what the optimisation believes.   [G1]
    encoder = encoder / sensitivity(encoder, participation)
    return Dense(name, workload, objective, participation, encoder, options=options, bound=bound)


def optimal_encoder(
    root: Array, classes: list[Indices], *, tolerance: float, progress: dual.Progress | None = None
) -> tuple[Array, float]:
    """The optimal lower-triangular ``C`` for ``W = rootᵀroot``, and the certified lower bound.

    Zero columns of ``root`` are idle steps. In a class of their own they get the whole budget (independent noise of
    full scale, as if alone); beside live steps, a sliver of it, since their noise moves nothing.
    """
    steps = root.shape[1]
    live = np.flatnonzero(root.any(axis=0))
    scale, shrink = idle_scale(steps, live, classes)
    position = np.full(steps, -1)
    position[live] = np.arange(len(live))
    kept = [position[pattern[position[pattern] >= 0]] for pattern in classes]
    kept = [pattern for pattern in kept if len(pattern)]
    M = root[:, live]
    _refuse_degenerate(M)
    best = dual.solve(M, kept, tolerance=tolerance, progress=progress)
    C = np.diag(scale)
    C[np.ix_(live, live)] = reversed_cholesky(best.factor) * shrink
    return C, best.lower_bound


def idle_scale(steps: int, live: Indices, classes: list[Indices]) -> tuple[Array, Array]:
    """The scale of the noise-only columns of idle steps (1 elsewhere), and by how much live columns shrink for them."""
    position = np.full(steps, -1)
    position[live] = np.arange(len(live))
    scale, shrink = np.ones(steps), np.ones(len(live))
    for pattern in classes if len(live) < steps else []:
        idle = pattern[position[pattern] < 0]
        rest = position[pattern[position[pattern] >= 0]]
        share = IDLE_SHARE / len(pattern) if len(rest) else 1 / max(len(idle), 1)
        scale[idle] = np.sqrt(share)
        shrink[rest] = np.sqrt(1 - share * len(idle))
    return scale, shrink


def reversed_cholesky(factor: Array) -> Array:
    """The lower-triangular ``C`` with ``CᵀC = YᵀY`` and a positive diagonal, from ``Y`` (by QR, not through the Gram
    matrix)."""
    # PRIVACY: CᵀC = X, so columns carry the sensitivity; hence the reversed factor. cholesky(X) has CCᵀ = X,
    # whose columns are not of unit norm.   [G1]
    R = np.asarray(np.linalg.qr(factor[:, ::-1], mode="r"))
    R = R * np.where(np.diagonal(R) < 0, -1.0, 1.0)[:, None]
    return np.tril(R[::-1, ::-1])


def _refuse_degenerate(root: Array) -> None:
    unit = root / np.linalg.norm(root, axis=0)  # small columns (a rate near 0) are no defect
    if len(root) < root.shape[1] or np.linalg.svd(unit, compute_uv=False)[-1] <= 1e-14:
        raise ValueError(
            "the objective does not see every gradient (its weights leave some direction of the noise free), so the "
            "best encoder is singular. Put a positive weight on every iterate"
        )
