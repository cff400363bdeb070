r"""Encoders of independent blocks, one for each epoch.

Columns of different epochs are then orthogonal. For prefix sums this costs less than other ways to
limit the memory. The noise of an epoch reaches all later iterates as its sum, so each epoch's
encoder is the optimum for its own steps with more weight on the last of them. The sensitivity is
then divided among the epochs, ``s_e² ∝ √error_e``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.base import Factorization, refuse_if_too_large
from antiphase.factorizations.block_diagonal import BlockDiagonal
from antiphase.factorizations.streaming import Streaming
from antiphase.participation import Participation
from antiphase.problem import Problem
from antiphase.solvers.block_diagonal import optimal_block
from antiphase.solvers.streaming import solve_sgd_segment

TOLERANCE = 1e-6


def epoch_restarts(problem: Problem, *, progress: Progress | None = None) -> Factorization:
    """The best encoder that restarts with every epoch, or after each minimum separation.

    It is a stream for plain SGD and weighted iterates, else block diagonal.

    Args:
        problem: any problem.
        progress: called in every iteration of each epoch.

    Example:
        >>> from antiphase import Workload, epochs, objective
        >>> problem = Problem(Workload.sgd(12), objective.Average(), epochs(3, every=4))
        >>> epoch_restarts(problem).restarts()
        [0, 4, 8]
    """
    separation = min(problem.participation.separation, problem.steps)
    starts = range(0, problem.steps, separation)
    epochs = [slice(start, min(start + separation, problem.steps)) for start in starts]
    weights = problem.objective.iterate_weights(problem.steps)
    if problem.workload.is_plain_sgd and not problem.workload.idle.any() and weights is not None:
        return _streaming(problem, epochs, weights, progress)
    refuse_if_too_large(problem.steps)
    root = problem.for_mean().objective.root(problem.workload)
    solved = [optimal_block(root[:, epoch], TOLERANCE, progress) for epoch in epochs]
    scales = _scales(problem.participation, [error for _, error in solved])
    blocks = tuple(s * encoder for s, (encoder, _) in zip(scales, solved, strict=True))
    sequence = tuple(range(len(blocks)))
    return BlockDiagonal("epoch-restarts", **problem.fields, distinct=blocks, sequence=sequence)


def _streaming(
    problem: Problem, epochs: list[slice], weights: Array, progress: Progress | None
) -> Streaming:
    rates, squares = problem.workload.learning_rates, weights**2
    assert rates is not None
    solved = []
    for epoch in epochs:
        own = np.sqrt(squares[epoch])
        own[-1] = np.sqrt(squares[epoch.stop - 1 :].sum())  # its sum stays in all later iterates
        solved.append(solve_sgd_segment(rates[epoch], own, TOLERANCE, "auto", progress))
    scales = _scales(problem.participation, [error for _, error in solved])
    segments = tuple(
        replace(segment, delta=s * segment.delta, g=s * segment.g)
        for s, (segment, _) in zip(scales, solved, strict=True)
    )
    sequence = tuple(range(len(segments)))
    return Streaming("epoch-restarts", **problem.fields, distinct=segments, sequence=sequence)


def _scales(participation: Participation, errors: list[float]) -> Array:
    """The scale of each encoder: in a fixed order the squares sum to 1 over the epochs.

    In any order a record may take part in any one of them, and all scales are equal.
    """
    if not participation.fixed_order:
        return np.ones(len(errors))
    floor = 1e-6 * max(errors)  # an epoch that moves no iterate releases noise, too
    squares = np.sqrt(np.maximum(errors, floor))
    return np.asarray(np.sqrt(squares / squares.sum()))
