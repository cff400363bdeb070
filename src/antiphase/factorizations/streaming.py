r"""The optimum as a stream: an encoder given by a few time-varying buffers.

For one participation, and for several epochs if the objective restarts at least once in each.

Each ``(W⁻¹ + s²D)⁻¹`` of the quadrature is semiseparable, so with m nodes the optimal encoder is ``C_jj = δ_j``,
``C_ij = r_iᵀ Φ(i, j+1) g_j``, and its noise ``y_i = (z_i − r_iᵀS_i)/δ_i``, ``S_{i+1} = T_{i+1}S_i + g_i y_i`` with a
state of ``m·q`` vectors (q the half-bandwidth; ``Φ`` the product of the T). Few nodes give a factor of another,
nearby X, whose columns are then scaled to what they may have: few buffers cost a little utility, never privacy.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array, Indices
from antiphase.factorizations.base import Factorization
from antiphase.sensitivity import Columns

FIELDS = ("delta", "r", "g", "move")
MOST_BUFFERS = 2048


@dataclass(frozen=True)
class Segment:
    """The coefficients of one segment between restarts: rows for its ``live`` steps, independent noise at the
    others."""

    size: int
    live: Indices
    delta: Array  # (n,)
    r: Array  # (n, m, q)
    g: Array  # (n, m, q)
    move: Array  # (n, m, q): T into row i

    def __post_init__(self) -> None:
        # PRIVACY: copies that nobody can change, in the type that the norms are computed in.   [G1]
        for name, axes in zip(FIELDS, (1, 3, 3, 3), strict=True):
            object.__setattr__(self, name, check.real_array(name, getattr(self, name), ndim=axes))
        live = np.array(self.live)
        if live.ndim != 1 or live.dtype.kind != "i":
            raise ValueError("the live steps of a stream are not whole numbers")
        live = live.astype(np.int64)
        live.setflags(write=False)
        object.__setattr__(self, "live", live)
        n = len(live)
        shape = self.r.shape
        if (
            len(shape) != 3
            or shape[0] != n
            or self.g.shape != shape
            or self.move.shape != shape
            or self.delta.shape != (n,)
        ):
            raise ValueError("the coefficients of a stream do not fit together")
        if n and (live[0] < 0 or live[-1] >= self.size or (np.diff(live) <= 0).any()):
            raise ValueError("the live steps of a stream are not in order")
        if shape[1] * shape[2] > MOST_BUFFERS:
            raise ValueError(
                f"a stream of {shape[1] * shape[2]} buffers; {MOST_BUFFERS} are the most there can be"
            )
        if any(np.abs(getattr(self, name)).max(initial=0.0) > 1e50 for name in FIELDS):
            raise ValueError(
                "the coefficients of a stream are too large: their squares would overflow"
            )
        if not (self.delta > 0).all():
            raise ValueError("delta is not positive: the noise cannot be made")

    def cut(self, rows: int) -> Segment:
        n = int(np.searchsorted(self.live, rows))
        return Segment(rows, self.live[:n], self.delta[:n], self.r[:n], self.g[:n], self.move[:n])

    def squared_norms(self) -> Array:
        from antiphase.linalg import kernels

        n, m, q = self.r.shape
        files.spend("a stream", operations=n * (m * q) ** 2 if q < 3 else n * n * m * q)
        out = np.ones(self.size)
        if len(self.live):
            # PRIVACY: from the coefficients that the noise is made with, not from what the design believes.   [G1]
            # With two vectors a node they nearly cancel, with three the difference of their difference counts.
            ways = (
                kernels.column_norms,
                kernels.column_norms_of_pairs,
                kernels.column_norms_one_by_one,
            )
            norms = ways[min(self.r.shape[2], 3) - 1](self.delta, self.r, self.g, self.move)
            out[self.live] = norms
            if self.r.shape[2] == 1:
                # PRIVACY: rows that cancel in float64 need not in the float32 state that makes the noise.   [G1]
                most = kernels.column_norms(
                    self.delta, np.abs(self.r), np.abs(self.g), np.abs(self.move)
                )
                if not (most <= 100 * norms).all():
                    raise ValueError(
                        "the coefficients of a stream cancel one another: its noise would be rounding error"
                    )
        return out

    @cached_property
    def reach(self) -> int:
        """Columns this many steps apart, or more, share no row: every buffer has been emptied in between."""
        n, m, q = self.r.shape
        if q > 1 or not n:
            return self.size if n else 1
        furthest = 0
        rows = np.arange(n)
        for k in range(m):
            emptied = np.append(np.flatnonzero(self.move[:, k, 0] == 0), [n, n + 1])
            # Column j is in a buffer that it feeds from row j + 1 to the one before the next that empties it.
            last = np.minimum(emptied[np.searchsorted(emptied, rows + 2)], n) - 1
            last = np.where(self.g[:, k, 0] != 0, last, rows)
            furthest = max(furthest, int((self.live[last] - self.live).max()))
        return furthest + 1

    @cached_property
    def _meetings(self) -> Array:
        from antiphase.linalg import kernels

        met: Array = kernels.meetings(self.delta, self.r, self.g, self.move)
        return met

    def products(self, indices: Indices) -> Array:
        """``X_ij`` for i > j among these steps, in ascending order; 0 on the diagonal and above."""
        n, _, q = self.r.shape
        rows = np.searchsorted(self.live, indices)
        known: Any = (
            np.flatnonzero((rows < n) & (self.live[np.minimum(rows, n - 1)] == indices))
            if n
            else []
        )
        files.spend(
            "products of columns of a stream", operations=len(indices) ** 2 * self.r.shape[1]
        )
        out = np.zeros((len(indices),) * 2)
        if q > 1:
            columns = self.dense()[:, indices]
            return np.tril(columns.T @ columns, -1)
        states = np.zeros((0, self.r.shape[1]))
        for count, place in enumerate(known):
            i = rows[place]
            if count:
                before = rows[known[count - 1]]
                # From the row after the last of these steps to this one.
                passed = np.prod(self.move[before + 2 : i + 1, :, 0], axis=0)
                moved = np.vstack([states * self.move[before + 1, :, 0], self.g[before, :, 0]])
                states = moved * passed
                out[place, known[:count]] = states @ self._meetings[i]
        return out

    def dense(self) -> Array:
        n, m, q = self.r.shape
        files.spend(f"a dense encoder of {n} steps", operations=2 * n * n * m * q)
        C = np.zeros((n, n))
        S = np.zeros((n, m, q))
        for i in range(n):
            if i:
                new = np.einsum("jkb,kb->jk", S[:i], self.move[i])
                S[:i, :, 1:] = S[:i, :, :-1].copy()
                S[:i, :, 0] = new
                S[i - 1] = self.g[i - 1]
            C[i, :i] = np.einsum("jkb,kb->j", S[:i], self.r[i])
            C[i, i] = self.delta[i]
        out = np.eye(self.size)
        out[np.ix_(self.live, self.live)] = C
        return out


@dataclass(frozen=True, eq=False, repr=False)
class Streaming(Factorization, form="Streamed"):
    """An encoder of buffers: ``sequence[i]`` says which of the ``distinct`` segments is the i-th."""

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

    @property
    def buffers(self) -> int:
        """How many vectors the noise keeps."""
        return max(int(s.r.shape[1] * s.r.shape[2]) for s in self.distinct)

    @cached_property
    def starts(self) -> list[int]:
        sizes = [self.distinct[i].size for i in self.sequence]
        return [0, *np.cumsum(sizes)[:-1].tolist()]

    def restarts(self) -> list[int]:
        return self.starts

    @property
    def bands(self) -> int:
        return max(int(s.size) for s in self.distinct)

    def segment_at(self, step: int) -> tuple[Segment, int]:
        """The segment that holds ``step``, and where in it the step is."""
        b = bisect_right(self.starts, step) - 1
        return self.distinct[self.sequence[b]], step - self.starts[b]

    def _build_encoder(self) -> Array:
        out = np.zeros((self.steps, self.steps))
        dense = [s.dense() for s in self.distinct]
        for start, i in zip(self.starts, self.sequence, strict=True):
            out[start : start + len(dense[i]), start : start + len(dense[i])] = dense[i]
        return out

    def _columns(self, rows: int | None = None) -> Columns:
        return _StreamColumns(self, self.steps if rows is None else rows)

    # ---- how good it is, in O(T m²) ------------------------------------------------------------------------

    def _variances(self, P: Array, N: Array) -> Array:
        return _variances([self.distinct[i] for i in self.sequence], P, N, self.workload.delay)

    # ---- files ---------------------------------------------------------------------------------------------

    def _stored(self) -> dict[str, Any]:
        segments = {
            str(i): {"size": s.size, "live": np.asarray(s.live, dtype=np.int64)}
            | {n: getattr(s, n) for n in FIELDS}
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


class _StreamColumns:
    """The columns of a stream, or of its first ``rows`` rows."""

    def __init__(self, stream: Streaming, rows: int) -> None:
        self._stream, self.steps = stream, rows

    def squared_norms(self) -> Array:
        known = [s.squared_norms() for s in self._stream.distinct]
        parts = []
        for start, i in zip(self._stream.starts, self._stream.sequence, strict=True):
            segment = self._stream.distinct[i]
            if start + segment.size <= self.steps:
                parts.append(known[i])
            elif start < self.steps:
                parts.append(segment.cut(self.steps - start).squared_norms())
        return np.concatenate(parts)

    @cached_property
    def _norms(self) -> Array:
        return self.squared_norms()

    @cached_property
    def reach(self) -> int:
        return min(max(s.reach for s in self._stream.distinct), self.steps)

    def gram(self, indices: Indices) -> Array:
        out = np.diag(self._norms[indices])
        # PRIVACY: columns of different segments share no row, and only of those may the products be left out.   [G1]
        owner = np.searchsorted(self._stream.starts, indices, side="right") - 1
        for b in np.unique(owner):
            inside = np.flatnonzero(owner == b)
            if len(inside) > 1:
                start, segment = (
                    self._stream.starts[b],
                    self._stream.distinct[self._stream.sequence[b]],
                )
                segment = (
                    segment.cut(self.steps - start)
                    if start + segment.size > self.steps
                    else segment
                )
                products = segment.products(indices[inside] - start)
                out[np.ix_(inside, inside)] += products + products.T
        return out


def _variances(segments: list[Segment], P: Array, N: Array, delay: int = 0) -> Array:
    """The variance of every ``u_t``, ``P u = N Z^delay g``, under the noise of the segments, one after the other."""
    from antiphase.linalg import kernels

    N = np.column_stack([np.zeros((len(N), delay)), N])
    m, q = max(s.r.shape[1] for s in segments), max(s.r.shape[2] for s in segments)
    total = sum(len(s.live) for s in segments)
    delta = np.concatenate([s.delta for s in segments])
    arrays = {name: np.zeros((total, m, q)) for name in ("r", "g", "move")}
    live: Any = np.full(len(P), -1)
    fresh: Any = np.zeros(len(P), dtype=np.bool_)
    row = step = 0
    for s in segments:
        n = len(s.live)
        for name, array in arrays.items():
            array[row : row + n, : s.r.shape[1], : s.r.shape[2]] = getattr(s, name)
        live[step + s.live] = np.arange(row, row + n)
        fresh[step] = True
        row, step = row + n, step + s.size
    found: Array = kernels.variances(
        delta,
        arrays["r"],
        arrays["g"],
        arrays["move"],
        live,
        fresh,
        np.ascontiguousarray(P),
        np.ascontiguousarray(N),
    )
    return found
