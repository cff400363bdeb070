"""The optimum of DP-MF⁺ for one participation: one τ-step problem for each block."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.block_diagonal import BlockDiagonal
from antiphase.objective import Objective
from antiphase.participation import Once, Participation
from antiphase.sensitivity import sensitivity
from antiphase.solvers.dense import optimal_encoder
from antiphase.workload import Workload


def block_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    tolerance: float,
    progress: Progress | None = None,
) -> BlockDiagonal:
    """The optimal factorization for one participation, by blocks, and its certificate: the sum of theirs."""
    solved: dict[bytes, tuple[int, float]] = {}
    distinct: list[Array] = []
    sequence, bound = [], 0.0
    for root in objective.block_roots(workload) or []:
        key = root.tobytes() + bytes(str(root.shape), "ascii")
        if key not in solved:
            if root.any():
                classes = Once().patterns(root.shape[1])
                encoder, its_bound = optimal_encoder(
                    root, classes, tolerance=tolerance, progress=progress
                )
                encoder /= sensitivity(encoder, Once())
            else:
                encoder, its_bound = (
                    np.eye(root.shape[1]),
                    0.0,
                )  # idle: independent noise of full scale
            solved[key] = len(distinct), its_bound
            distinct.append(encoder)
        sequence.append(solved[key][0])
        bound += solved[key][1]
    return BlockDiagonal(
        name,
        workload,
        objective,
        participation,
        tuple(distinct),
        tuple(sequence),
        options=options,
        bound=bound,
    )
