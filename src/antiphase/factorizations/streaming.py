r"""`Streaming`: encoders given by a few time-varying buffers.

For one participation, and for several epochs if the objective restarts at least once in each.

Each ``(W⁻¹ + s²D)⁻¹`` of the quadrature is semiseparable, so with m nodes the optimal encoder is a
stream of m buffers with q vectors each (q the half-bandwidth). With few nodes it is the factor of
another, nearby X, whose columns are then scaled to the norms that they may have: few buffers cost a
little utility, never privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.segments import FIELDS, Segment, Stream
from antiphase.sensitivity import Columns


@dataclass(frozen=True, eq=False, repr=False)
class Streaming(Factorization, form="Streamed"):
    """An encoder of buffers: its i-th segment is ``distinct[sequence[i]]``."""

    distinct: tuple[Segment, ...]
    sequence: tuple[int, ...]

    def __post_init__(self) -> None:
        used = set(self.sequence)
        if used != set(range(len(self.distinct))):
            raise ValueError(
                f"the sequence of a stream must use each of its {len(self.distinct)} segments"
            )
        if sum(self.distinct[i].size for i in self.sequence) != self.steps:
            raise ValueError(f"the segments do not add up to {self.steps} steps")
        object.__setattr__(self, "sequence", tuple(int(i) for i in self.sequence))

    @cached_property
    def _stream(self) -> Stream:
        return Stream(self.distinct, self.sequence)

    def as_stream(self) -> Stream:
        """Return the segments in their order."""
        return self._stream

    def noise_form(self) -> Stream:
        """Noise is made from the buffers."""
        return self._stream

    @property
    def buffers(self) -> int:
        """Number of vectors that the noise keeps."""
        return self._stream.buffers

    def restarts(self) -> list[int]:
        """Return the first step of each segment."""
        return self._stream.starts

    @property
    def bands(self) -> int:
        """Number of diagonals: the length of the longest segment."""
        return max(int(s.size) for s in self.distinct)

    def encoder_columns(self, rows: int | None = None) -> Columns:
        """Return the columns, from the coefficients."""
        return self._stream.columns(self.steps if rows is None else rows)

    def _build_encoder(self) -> Array:
        return self._stream.dense()

    def _iterate_variances(self, P: Array, N: Array) -> Array:
        return self._stream.variances(P, N, self.workload.delay)

    def _stored(self) -> dict[str, Any]:
        segments = {
            str(i): {"size": s.size, "live": np.asarray(s.live, dtype=np.int64)}
            | {name: getattr(s, name) for name in FIELDS}
            for i, s in enumerate(self.distinct)
        }
        return {"stretches": segments, "sequence": np.array(self.sequence, dtype=np.int64)}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        distinct = []
        for i in range(len(stored["stretches"])):
            fields = dict(stored["stretches"][str(i)])
            fields["size"] = check.whole_number("size", fields["size"])
            distinct.append(Segment(**fields))
        return cls(**common, distinct=tuple(distinct), sequence=tuple(stored["sequence"].tolist()))
