"""Certified optimum as a dense matrix, for any workload and objective; O(T³)."""

from __future__ import annotations

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress
from antiphase.factorizations.base import refuse_if_too_large
from antiphase.factorizations.dense import Dense
from antiphase.linalg.cholesky import reversed_cholesky
from antiphase.problem import Problem
from antiphase.sensitivity import sensitivity
from antiphase.solvers import dual

IDLE_SHARE = 1e-4  # of an equal share of the budget, for an idle step beside steps that are not
MIN_SINGULAR_VALUE = 1e-14  # of the normalised root; below, the best encoder is singular


def dense_optimum(problem: Problem, *, tolerance: float, progress: Progress | None = None) -> Dense:
    """The optimal factorization, with its certificate.

    Args:
        problem: any problem; for a minimum separation the optimum for evenly spaced participations.
        tolerance: the relative gap to reach.
        progress: called in every iteration; stops the search if it returns True.

    Example:
        >>> from antiphase import Workload, epochs, objective
        >>> problem = Problem(Workload.sgd(8), objective.Average(), epochs(2, every=4))
        >>> dense_optimum(problem, tolerance=1e-9).gap < 1e-8
        True
    """
    participation = problem.participation
    refuse_if_too_large(problem.steps, copies=8)
    root = problem.objective.root(problem.workload)
    encoder, bound = optimal_encoder(
        root, participation.patterns(problem.steps), tolerance=tolerance, progress=progress
    )
    # PRIVACY: normalised by the computed sensitivity, not by the search's own estimate.   [G1]
    encoder = encoder / sensitivity(encoder, participation)
    return Dense("optimal", **problem.fields, matrix=encoder, bound=bound)


def optimal_encoder(
    root: Array, classes: list[Indices], *, tolerance: float, progress: Progress | None = None
) -> tuple[Array, float]:
    """The optimal lower-triangular ``C`` for ``W = rootᵀroot``, and the certified lower bound.

    Zero columns of ``root`` are idle steps. A class of idle steps gets the whole budget, that is,
    independent noise of full scale. In a class with other steps they get a small share of it, since
    their noise moves no iterate.

    Args:
        root: the weighted iterates (rows) as a function of the gradients (columns).
        classes: a partition of the steps into sets that one record may take part in.
        tolerance: the relative gap to reach.
        progress: called in every iteration; stops the search if it returns True.

    Raises:
        ValueError: the objective has no unique optimum, since it does not depend on every gradient.
    """
    steps = root.shape[1]
    live = np.flatnonzero(root.any(axis=0))
    scale, shrink = idle_scale(steps, live, classes)
    place = _places(steps, live)
    kept = [place[pattern[place[pattern] >= 0]] for pattern in classes]
    M = root[:, live]
    _refuse_singular(M)
    best = dual.solve(M, [c for c in kept if len(c)], tolerance=tolerance, progress=progress)
    C = np.diag(scale)
    C[np.ix_(live, live)] = reversed_cholesky(best.factor) * shrink
    return C, best.lower_bound


def idle_scale(steps: int, live: Indices, classes: list[Indices]) -> tuple[Array, Array]:
    """Scales of the columns that share their budget with idle steps.

    Args:
        steps: number of steps.
        live: the steps that move the model.
        classes: a partition of the steps into sets that one record may take part in.

    Returns:
        The diagonal of the encoder at idle steps (1 elsewhere), and the factors by which the
        columns of ``live`` shrink.
    """
    place = _places(steps, live)
    scale, shrink = np.ones(steps), np.ones(len(live))
    for pattern in classes if len(live) < steps else []:
        idle = pattern[place[pattern] < 0]
        rest = place[pattern[place[pattern] >= 0]]
        share = IDLE_SHARE / len(pattern) if len(rest) else 1 / max(len(idle), 1)
        scale[idle] = np.sqrt(share)
        shrink[rest] = np.sqrt(1 - share * len(idle))
    return scale, shrink


def _places(steps: int, live: Indices) -> Indices:
    """The place of each step among ``live``, -1 for the others."""
    place = np.full(steps, -1)
    place[live] = np.arange(len(live))
    return place


def _refuse_singular(root: Array) -> None:
    unit = root / np.linalg.norm(root, axis=0)  # a small column (a rate near 0) is no defect
    if len(root) >= root.shape[1]:
        smallest = np.linalg.svd(unit, compute_uv=False)[-1]
        if smallest > MIN_SINGULAR_VALUE:
            return
    raise ValueError(
        "the objective does not see every gradient (its weights leave some direction of the noise "
        "free), so the best encoder is singular. Put a positive weight on every iterate"
    )
