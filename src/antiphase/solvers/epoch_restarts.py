r"""A fresh start in every epoch: independent encoders, one for each, so that no record meets itself.

Every other way to forget costs more, for prefix sums: the noise of an epoch reaches all later iterates as its sum, so
each epoch's encoder is the optimum of its own steps with more weight on the last of them. What the epochs may cost
together is then shared out, ``s_e² ∝ √error_e``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.base import Factorization, refuse_if_too_large
from antiphase.factorizations.block_diagonal import BlockDiagonal
from antiphase.factorizations.streaming import Streaming
from antiphase.objective import Objective
from antiphase.participation import Once, Participation
from antiphase.problem import searched_for
from antiphase.sensitivity import sensitivity
from antiphase.solvers.dense import optimal_encoder
from antiphase.solvers.streaming import solved_block
from antiphase.workload import Workload

TOLERANCE = 1e-6


def restarted(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    progress: Progress | None = None,
) -> Factorization:
    """The best encoder that restarts with every epoch (or after each minimum separation): a stream for plain SGD and
    weighted iterates, else blocks."""
    starts = list(range(0, workload.steps, min(participation.separation, workload.steps)))
    ranges = list(zip(starts, [*starts[1:], workload.steps], strict=True))
    common: dict[str, Any] = {"options": options}
    row_weights = objective.iterate_weights(workload.steps)
    if workload.is_plain_sgd and not workload.idle.any() and row_weights is not None:
        assert workload.learning_rates is not None
        squares = row_weights**2
        segments, bounds = [], []
        for start, stop in ranges:
            weights = np.sqrt(squares[start:stop])
            weights[-1] = np.sqrt(
                squares[stop - 1 :].sum()
            )  # what an epoch leaves behind stays in every later iterate
            found = solved_block(
                workload.learning_rates[start:stop], weights, TOLERANCE, "auto", progress
            )
            segments.append(found[0])
            bounds.append(found[1])
        scaled = [
            replace(segment, delta=s * segment.delta, g=s * segment.g)
            for segment, s in zip(segments, _shares(participation, np.array(bounds)), strict=True)
        ]
        sequence = tuple(range(len(scaled)))
        return Streaming(
            name, workload, objective, participation, tuple(scaled), sequence, **common
        )
    refuse_if_too_large(workload.steps)
    root = searched_for(objective).root(workload)
    blocks, bounds = [], []
    for start, stop in ranges:
        part = root[:, start:stop]
        if not part.any():
            blocks.append(np.eye(stop - start))
            bounds.append(0.0)
            continue
        encoder, bound = optimal_encoder(
            part, Once().patterns(stop - start), tolerance=TOLERANCE, progress=progress
        )
        blocks.append(encoder / sensitivity(encoder, Once()))
        bounds.append(bound)
    shares = _shares(participation, np.array(bounds))
    matrices = tuple(s * block for s, block in zip(shares, blocks, strict=True))
    return BlockDiagonal(
        name, workload, objective, participation, matrices, tuple(range(len(matrices))), **common
    )


def _shares(participation: Participation, errors: Array) -> Array:
    """The scale of each encoder: the squares add up to 1 over the epochs; all alike where any of them may be met."""
    if not participation.fixed_order:
        return np.ones(len(errors))
    squares = np.sqrt(
        np.maximum(errors, 1e-6 * errors.max())
    )  # an epoch that moves nothing still releases its noise
    shares: Array = np.sqrt(squares / squares.sum())
    return shares
