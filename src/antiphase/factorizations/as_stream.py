"""An encoder as segments of a stream, so that a recurrence over its few buffers can follow the noise in O(T)."""

from __future__ import annotations

import numpy as np

from antiphase.factorizations.base import Factorization
from antiphase.factorizations.blt import Blt
from antiphase.factorizations.streaming import Segment, Streaming
from antiphase.factorizations.tree import Tree, full_estimator_stream

MOST_BANDS = 64  # diagonals of an encoder up to which it is followed as a stream


def segments(f: Factorization) -> list[Segment] | None:
    """The encoder as segments of a stream; None if it would take many buffers."""
    if isinstance(f, Tree):
        if f.estimator != "full":
            return None
        f = full_estimator_stream(f)
    if isinstance(f, Blt):
        f = f.stream
    if isinstance(f, Streaming):
        return [f.distinct[i] for i in f.sequence]
    if f.bands > MOST_BANDS:
        return None
    rows, q = (
        f.band_rows(0, f.steps),
        max(f.bands - 1, 1),
    )  # the buffers are the last rows of noise themselves
    r, g = np.zeros((f.steps, 1, q)), np.zeros((f.steps, 1, q))
    r[:, 0, : rows.shape[1] - 1] = rows[:, 1:]
    g[:, 0, 0] = 1.0
    return [Segment(f.steps, np.arange(f.steps), rows[:, 0], r, g, np.zeros_like(r))]
