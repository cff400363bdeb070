"""Certified optimum of DP-MF⁺ for one participation, block by block."""

from __future__ import annotations

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.block_diagonal import BlockDiagonal
from antiphase.participation import Once
from antiphase.problem import Problem
from antiphase.sensitivity import sensitivity
from antiphase.solvers.dense import optimal_encoder
from antiphase.solvers.repetition import solve_distinct


def block_diagonal_optimum(
    problem: Problem, *, tolerance: float, progress: Progress | None = None
) -> BlockDiagonal:
    """The optimal factorization, with the sum of the certified bounds of its blocks.

    Args:
        problem: one participation, and an objective whose root is block diagonal.
        tolerance: the relative gap to reach.
        progress: called in every iteration of each block.

    Example:
        >>> from antiphase import Workload, objective, once
        >>> problem = Problem(Workload.sgd(8), objective.Restarts(4), once())
        >>> block_diagonal_optimum(problem, tolerance=1e-9).restarts()
        [0, 4]
    """
    roots = problem.objective.block_roots(problem.workload)
    assert roots is not None
    solved, sequence = solve_distinct(
        [(root.shape, root.tobytes()) for root in roots],
        lambda i: optimal_block(roots[i], tolerance, progress),
    )
    return BlockDiagonal(
        "optimal",
        **problem.fields,
        distinct=tuple(encoder for encoder, _ in solved),
        sequence=sequence,
        bound=sum(solved[i][1] for i in sequence),
    )


def optimal_block(root: Array, tolerance: float, progress: Progress | None) -> tuple[Array, float]:
    """The optimal encoder of sensitivity 1 for one participation, and the certified bound."""
    steps = root.shape[1]
    if not root.any():  # idle steps: independent noise of full scale
        return np.eye(steps), 0.0
    encoder, bound = optimal_encoder(
        root, Once().patterns(steps), tolerance=tolerance, progress=progress
    )
    return encoder / sensitivity(encoder, Once()), bound
