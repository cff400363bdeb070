"""The optimum as a dense matrix, for any workload and objective; O(T³)."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress
from antiphase.factorizations.base import refuse_if_too_large
from antiphase.factorizations.dense import Dense
from antiphase.linalg.cholesky import reversed_cholesky
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.sensitivity import sensitivity
from antiphase.solvers import dual
from antiphase.workload import Workload

IDLE_SHARE = (
    1e-4  # of a fair share of the budget, for steps that move nothing but still release noise
)


def dense_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    tolerance: float,
    progress: Progress | None = None,
) -> Dense:
    """The optimal factorization and its certificate."""
    refuse_if_too_large(workload.steps, copies=8)
    classes = participation.patterns(workload.steps)
    root = objective.root(workload)
    encoder, bound = optimal_encoder(root, classes, tolerance=tolerance, progress=progress)
    # PRIVACY: normalised by the one sensitivity there is, not by what the optimisation believes.   [G1]
    encoder = encoder / sensitivity(encoder, participation)
    return Dense(name, workload, objective, participation, encoder, options=options, bound=bound)


def optimal_encoder(
    root: Array, classes: list[Indices], *, tolerance: float, progress: Progress | None = None
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


def _refuse_degenerate(root: Array) -> None:
    unit = root / np.linalg.norm(root, axis=0)  # small columns (a rate near 0) are no defect
    if len(root) < root.shape[1] or np.linalg.svd(unit, compute_uv=False)[-1] <= 1e-14:
        raise ValueError(
            "the objective does not see every gradient (its weights leave some direction of the noise free), so the "
            "best encoder is singular. Put a positive weight on every iterate"
        )
