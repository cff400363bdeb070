r"""The best encoder known for a minimum separation, and a bound on all of them.

The optimum itself is not known. The bound is that of evenly spaced participations, which are a special case; the
encoder is the best of a few candidates, judged by the safe sensitivity, and the gap says how good that is. With a
restart between any two participations columns so far apart share no row, and the candidates stay streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization, refuse_if_too_large
from antiphase.factorizations.dense import Dense
from antiphase.factorizations.streaming import Streaming
from antiphase.participation import Once, Participation
from antiphase.sensitivity import sensitivity


def separated(
    participation: Participation, steps: int, optimum: Callable[[Participation], Factorization]
) -> Factorization:
    """The best of the optima for evenly spaced participations and for one, as they are and with as many diagonals as
    participations are apart."""
    even, single = optimum(participation.evenly_spaced(steps)), optimum(Once())

    def judged(candidate: Factorization) -> Factorization:
        return replace(candidate, participation=participation, bound=even.lower_bound)

    if isinstance(even, Streaming) and isinstance(single, Streaming):
        return min(map(judged, (even, single)), key=lambda f: f.error)
    refuse_if_too_large(steps, copies=8)
    matrices = [even.encoder(), single.encoder(), np.eye(steps)]
    matrices += [_banded(matrix, participation.separation) for matrix in matrices[:2]]
    # PRIVACY: normalised by the one sensitivity there is, not by what the optimisation believes.   [G1]
    scaled = [matrix / sensitivity(matrix, participation) for matrix in matrices]
    candidates = [
        judged(Dense(even.name, even.workload, even.objective, Once(), m, options=even.options))
        for m in scaled
    ]
    return min(candidates, key=lambda f: f.error)


def _banded(encoder: Array, bands: int) -> Array:
    """The first ``bands`` diagonals, columns scaled back to their norms: steps ``bands`` apart become orthogonal."""
    banded = np.triu(encoder, 1 - bands)
    scaled: Array = banded * (np.linalg.norm(encoder, axis=0) / np.linalg.norm(banded, axis=0))
    return scaled
