r"""Best encoder known for a minimum separation, with a bound on all encoders.

The optimum is not known. The bound is that of evenly spaced participations, which are a special
case. The encoder is the best of a few candidates, judged by an upper bound on the sensitivity, and
the gap says how good it is. If the objective restarts between any two participations, columns that
far apart share no row, and the candidates stay streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization, refuse_if_too_large
from antiphase.factorizations.dense import Dense
from antiphase.factorizations.streaming import Streaming
from antiphase.participation import Once
from antiphase.problem import Problem
from antiphase.sensitivity import sensitivity


def min_separation_encoder(
    problem: Problem, optimum: Callable[[Problem], Factorization]
) -> Factorization:
    """The best of the candidates, with a certified bound.

    Candidates are the optima for evenly spaced participations and for one participation, as they
    are and cut to as many diagonals as participations are apart.

    Args:
        problem: a problem with a minimum separation.
        optimum: the solver for problems in a fixed order.
    """
    participation = problem.participation
    even = optimum(problem.evenly_spaced())
    single = optimum(replace(problem, participation=Once()))
    if isinstance(even, Streaming) and isinstance(single, Streaming):
        candidates: list[Factorization] = [
            replace(stream, participation=participation, bound=even.lower_bound)
            for stream in (even, single)
        ]
        return min(candidates, key=lambda f: f.error)
    refuse_if_too_large(problem.steps, copies=8)
    matrices = [even.encoder(), single.encoder(), np.eye(problem.steps)]
    matrices += [_cut_to_bands(matrix, participation.separation) for matrix in matrices[:2]]
    # PRIVACY: normalised by the computed sensitivity, not by the search's own estimate.   [G1]
    scaled = [matrix / sensitivity(matrix, participation) for matrix in matrices]
    candidates = [
        Dense("optimal", **problem.fields, matrix=C, bound=even.lower_bound) for C in scaled
    ]
    return min(candidates, key=lambda f: f.error)


def _cut_to_bands(encoder: Array, bands: int) -> Array:
    """The first ``bands`` diagonals, with the columns scaled back to their norms.

    Columns of steps ``bands`` apart are then orthogonal.
    """
    banded = np.triu(encoder, 1 - bands)
    return np.asarray(banded * (np.linalg.norm(encoder, axis=0) / np.linalg.norm(banded, axis=0)))
