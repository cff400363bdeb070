r"""Encoders given by a few time-varying buffers, in segments between restarts.

A segment is the semiseparable matrix ``C_jj = δ_j``, ``C_ij = r_iᵀ Φ(i, j+1) g_j`` for i > j, with
``Φ`` the product of the transitions ``T``. Its noise is ``y_i = (z_i − r_iᵀS_i)/δ_i`` with the
state ``S_{i+1} = T_{i+1}S_i + g_i y_i`` of ``m·q`` vectors: m buffers with the newest q values
each, of which ``T`` shifts the older ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array, Indices
from antiphase.factorizations.block_sequence import BlockSequence
from antiphase.linalg import banded

FIELDS = ("delta", "r", "g", "move")
MAX_BUFFERS = 2048
MAX_COEFFICIENT = 1e50  # squares of larger coefficients may overflow
MAX_CANCELLATION = 100  # of squared norms: beyond, rows in float32 would be rounding error


@dataclass(frozen=True, eq=False)
class Segment:
    """The coefficients of the rows between two restarts.

    Attributes:
        size: number of steps.
        live: the steps with coefficients; the others get independent noise.
        delta: ``δ``, of shape (n,) for n live steps.
        r: how row i reads the state, of shape (n, m, q).
        g: what row i adds to the state, of shape (n, m, q).
        move: the first row of each buffer's transition into row i, of shape (n, m, q).
    """

    size: int
    live: Indices
    delta: Array
    r: Array
    g: Array
    move: Array

    def __post_init__(self) -> None:
        # PRIVACY: read-only copies, in the type that the norms are computed in.   [G1]
        for name, axes in zip(FIELDS, (1, 3, 3, 3), strict=True):
            object.__setattr__(self, name, check.real_array(name, getattr(self, name), ndim=axes))
        live = np.array(self.live)
        if live.ndim != 1 or live.dtype.kind != "i":
            raise ValueError("the live steps of a stream are not whole numbers")
        live = live.astype(np.int64)
        live.setflags(write=False)
        object.__setattr__(self, "live", live)
        n, shape = len(live), self.r.shape
        if not (self.g.shape == self.move.shape == shape) or not (len(self.delta) == shape[0] == n):
            raise ValueError("the coefficients of a stream have different shapes")
        if n and (live[0] < 0 or live[-1] >= self.size or (np.diff(live) <= 0).any()):
            raise ValueError("the live steps of a stream are not in order")
        if self.buffers > MAX_BUFFERS:
            raise ValueError(
                f"a stream has {self.buffers} buffers; at most {MAX_BUFFERS} are allowed"
            )
        if any(np.abs(getattr(self, name)).max(initial=0.0) > MAX_COEFFICIENT for name in FIELDS):
            raise ValueError(
                "the coefficients of a stream are too large: their squares would overflow"
            )
        if not (self.delta > 0).all():
            raise ValueError("delta is not positive: the noise cannot be computed")

    @property
    def buffers(self) -> int:
        """Number of vectors in the state."""
        return int(self.r.shape[1] * self.r.shape[2])

    def cut(self, rows: int) -> Segment:
        """Return the leading block of this many rows and columns."""
        n = int(np.searchsorted(self.live, rows))
        return Segment(rows, self.live[:n], *(getattr(self, name)[:n] for name in FIELDS))

    def squared_norms(self) -> Array:
        """Return the squared norm of each column, from the coefficients that make the noise."""
        return self._squared_norms.copy()

    @cached_property
    def _squared_norms(self) -> Array:
        from antiphase.linalg import (
            stream_kernels,  # imports Numba, which takes longer than the rest
        )

        n, m, q = self.r.shape
        files.spend("a stream", operations=n * (m * q) ** 2 if q < 3 else n * n * m * q)
        out = np.ones(self.size)
        if len(self.live):
            # PRIVACY: from the coefficients that make the noise, not from the design.   [G1]
            # With two vectors a buffer they nearly cancel; with three, so do their differences.
            methods = (
                stream_kernels.column_norms,
                stream_kernels.column_norms_of_pairs,
                stream_kernels.column_norms_one_by_one,
            )
            norms = methods[min(self.r.shape[2], 3) - 1](self.delta, self.r, self.g, self.move)
            out[self.live] = norms
            if self.r.shape[2] == 1:
                # PRIVACY: rows that cancel in float64 need not cancel in the float32 state.   [G1]
                bound = stream_kernels.column_norms(
                    self.delta, np.abs(self.r), np.abs(self.g), np.abs(self.move)
                )
                if not (bound <= MAX_CANCELLATION * norms).all():
                    raise ValueError(
                        "the coefficients of a stream cancel one another: its noise would be "
                        "rounding error"
                    )
        return out

    @cached_property
    def reach(self) -> int:
        """Columns that are this many steps apart, or more, share no row.

        By then every buffer that the earlier column feeds was reset.
        """
        n, m, q = self.r.shape
        if q > 1 or not n:
            return self.size if n else 1
        furthest = 0
        rows = np.arange(n)
        for k in range(m):
            resets = np.append(np.flatnonzero(self.move[:, k, 0] == 0), [n, n + 1])
            # Column j is in a buffer that it feeds from row j + 1 to the row before the next reset.
            last = np.minimum(resets[np.searchsorted(resets, rows + 2)], n) - 1
            last = np.where(self.g[:, k, 0] != 0, last, rows)
            furthest = max(furthest, int((self.live[last] - self.live).max()))
        return furthest + 1

    def gram(self, indices: Indices) -> Array:
        """Return the products of the columns at these ascending places."""
        products = self._lower_products(indices) if len(indices) > 1 else np.zeros((1, 1))
        return np.diag(self._squared_norms[indices]) + products + products.T

    @cached_property
    def _readings(self) -> Array:
        from antiphase.linalg import stream_kernels

        return stream_kernels.gram_readouts(self.delta, self.r, self.g, self.move)

    def _lower_products(self, indices: Indices) -> Array:
        """``X_ij`` for i > j among these steps; 0 on the diagonal and above."""
        n, m, q = self.r.shape
        files.spend("products of columns of a stream", operations=len(indices) ** 2 * m)
        if q > 1:
            columns = self.dense()[:, indices]
            return np.tril(columns.T @ columns, -1)
        out = np.zeros((len(indices),) * 2)
        rows = np.searchsorted(self.live, indices)
        places: Any = []
        if n:
            places = np.flatnonzero((rows < n) & (self.live[np.minimum(rows, n - 1)] == indices))
        states = np.zeros((0, m))
        for count, place in enumerate(places):
            i = rows[place]
            if count:
                before = rows[places[count - 1]]
                # Move the states from the row after the last of these steps to this one.
                passed = np.prod(self.move[before + 2 : i + 1, :, 0], axis=0)
                states = np.vstack([states * self.move[before + 1, :, 0], self.g[before, :, 0]])
                states = states * passed
                out[place, places[:count]] = states @ self._readings[i]
        return out

    def dense(self) -> Array:
        """Return the segment as an array."""
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


class Stream(BlockSequence[Segment]):
    """An encoder as a sequence of segments; the noise forgets the past at each start."""

    @property
    def buffers(self) -> int:
        """Number of vectors that the noise keeps."""
        return max(segment.buffers for segment in self.distinct)

    def dense(self) -> Array:
        """Return the encoder as an array."""
        out = np.zeros((self.steps, self.steps))
        dense = [segment.dense() for segment in self.distinct]
        for start, i in zip(self.starts, self.sequence, strict=True):
            out[start : start + len(dense[i]), start : start + len(dense[i])] = dense[i]
        return out

    def variances(self, P: Array, N: Array, delay: int = 0) -> Array:
        """Return the variance of every ``u_t`` with ``P u = N Z^delay y`` and ``y = C⁻¹z``."""
        earlier = P[:, 1:] if P.shape[1] > 1 else np.zeros((len(P), 1))
        own, kept = 1.0 / P[:, :1], -(earlier / P[:, :1])[:, :, None]
        return self.driven_variances(own, kept, banded.delay_columns(N, delay))[:, 0]

    def driven_variances(self, own: Array, kept: Array, N: Array) -> Array:
        """Return the variances of recurrences that the noise ``y = C⁻¹z`` drives.

        Args:
            own: the coefficients of ``(N y)_t`` in each recurrence, of shape (T, n).
            kept: the coefficients of earlier values, of shape (T, p, n).
            N: the bands of N.
        """
        from antiphase.linalg import covariances  # imports Numba, which takes longer than the rest

        segments, T = [segment for _, segment in self], self.steps
        m, q = (max(s.r.shape[axis] for s in segments) for axis in (1, 2))
        read, gain, move = np.zeros((3, T, m, q))
        variance, rests, fresh = np.ones(T), np.ones(T, np.bool_), np.zeros(T, np.bool_)
        fresh[self.starts] = True
        for start, s in self:
            live = start + s.live
            place = np.ix_(live, np.arange(s.r.shape[1]), np.arange(s.r.shape[2]))
            read[place] = -s.r / s.delta[:, None, None]
            gain[place] = s.g
            move[place] = np.concatenate([s.move[1:], np.zeros_like(s.move[:1])])
            variance[live], rests[live] = s.delta**-2, False
        return covariances.driven_variances(read, variance, gain, move, rests, fresh, own, kept, N)
