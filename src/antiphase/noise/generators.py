r"""Five ways to make the rows of ``σ·C⁻¹Z``, each with the memory it needs and no more.

- `Ring`: an encoder with p diagonals remembers p − 1 rows.
- `States`: a few vectors of state, time-varying (the full tree estimator; buffered encoders).
- `Nodes`: the nodes of a tree, as many as it has levels.
- `Moving`: an inverse of p diagonals; a row is a sum of p normals, drawn again where they are few.
- `Regenerated`: any encoder; a block of rows at a time, for which every earlier normal is drawn again.

All work on rows padded to whole chunks, a few chunks at a time, so that several threads can share a row. The results
do not depend on how many, nor on the size of a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import scipy

from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.inverse_toeplitz import InverseToeplitz
from antiphase.factorizations.streaming import Streaming
from antiphase.noise.normals import CHUNK, Normals, Row

PANEL = 64  # how many earlier rows of normals are drawn before they are used
DRAWN_AGAIN = 4  # earlier normals of a row that are drawn again rather than kept


@dataclass(frozen=True)
class Piece:
    """A segment of whole chunks of one tensor, and where it lies in the padded row."""

    normals: Normals
    first_chunk: int
    start: int
    stop: int


class Engine(ABC):
    """Makes rows in order; `begin` once a row, then `work` for each piece, in any order or thread."""

    piece_chunks = 32  # how many chunks a piece has at most

    @property
    @abstractmethod
    def memory(self) -> int:
        """Bytes kept from row to row."""

    @abstractmethod
    def begin(self, step: int) -> bool:
        """Prepare row ``step``. False if the row is there already and `work` has nothing to do."""

    @abstractmethod
    def work(self, step: int, piece: Piece, out: Row) -> None:
        """Make the piece of row ``step`` into ``out``, which is that piece of the row."""

    def copy(self, step: int, piece: Piece, out: Row) -> None:
        """Instead of `work`, where `begin` said False."""
        raise RuntimeError(f"{type(self).__name__} has no row {step} at hand")

    @abstractmethod
    def restart(self, step: int) -> int:
        """Forget everything; the step from which rows must be made again to reach ``step``."""


class Ring(Engine):
    """``y_t = (σz_t − Σ_{i<p} C[t, t−i] y_{t−i}) / C[t, t]``: p − 1 rows of memory."""

    def __init__(self, factorization: Factorization, scale: float, width: int) -> None:
        self._factorization, self._scale = factorization, scale
        self._past = factorization.bands - 1
        self._ring = np.zeros((max(self._past, 1), width if self._past else 0), np.float32)

    @property
    def memory(self) -> int:
        return self._ring.nbytes

    def begin(self, step: int) -> bool:
        row = self._factorization.band_rows(step, step + 1)[0]
        self._diagonal = float(row[0])
        self._coefficients = np.zeros(max(self._past, 1))
        for back in range(1, min(self._past, step) + 1):
            self._coefficients[(step - back) % self._past] = row[back]
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        piece.normals.fill(step, piece.first_chunk, out)
        if self._past:
            slot = step % self._past
            ring_step(
                out, self._ring, piece.start, self._coefficients, self._diagonal, self._scale, slot
            )
        else:
            scale_row(out, self._scale / self._diagonal)

    def restart(self, step: int) -> int:
        self._ring[:] = 0
        if not self._past:
            return step
        return max(start for start in self._factorization.restarts() if start <= step)


class States(Engine):
    """``y_i = (σz_i − r_iᵀS_i)/δ_i``, ``S_{i+1} = T_{i+1}S_i + g_i y_i``: one fused pass over the vectors of the
    state."""

    def __init__(self, factorization: Streaming, scale: float, width: int) -> None:
        self._factorization, self._scale = factorization, scale
        self._state = np.zeros((factorization.buffers, width), state_type(factorization))
        self._row = -1

    @property
    def memory(self) -> int:
        return self._state.nbytes

    def begin(self, step: int) -> bool:
        segment, place = self._factorization.segment_at(step)
        if place == 0:
            self._state[:] = 0
        row = place
        if len(segment.live) < segment.size:  # some steps are idle
            row = int(np.searchsorted(segment.live, place))
        self._row = row if row < len(segment.live) and segment.live[row] == place else -1
        if self._row >= 0:
            after = (
                segment.move[row + 1]
                if row + 1 < len(segment.move)
                else np.zeros_like(segment.move[row])
            )
            self._coefficients = segment.r[row], segment.g[row], after, float(segment.delta[row])
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        piece.normals.fill(step, piece.first_chunk, out)
        if self._row < 0:
            scale_row(out, self._scale)
        else:
            state_step(out, self._state, piece.start, *self._coefficients, self._scale)

    def restart(self, step: int) -> int:
        self._state[:] = 0
        return max(start for start in self._factorization.restarts() if start <= step)


def state_type(factorization: Streaming) -> type[np.float32] | type[np.float64]:
    """float32, but float64 where a node's vectors are nearly equal and their small differences are what counts."""
    longest = max(segment.r.shape[2] for segment in factorization.distinct)
    return np.float32 if longest == 1 else np.float64


class Nodes(Engine):
    """A tree's nodes as a binary counter: when step t completes a node, the estimates below it are taken back."""

    def __init__(self, steps: int, honaker: bool, scale: float, width: int) -> None:
        self._honaker, self._scale = honaker, scale
        self._left = np.zeros((steps.bit_length(), width), np.float32)

    @property
    def memory(self) -> int:
        return self._left.nbytes

    def begin(self, step: int) -> bool:
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        count = step + 1
        top = (count & -count).bit_length() - 1  # the largest node that ends here
        left = self._left[:, piece.start : piece.stop]
        estimate = np.empty_like(out)
        own = np.empty_like(out)
        piece.normals.fill(step, piece.first_chunk, estimate, lane=0 if self._honaker else top)
        estimate *= np.float32(self._scale)
        out[:] = 0
        for level in range(top):
            if self._honaker:
                weight = 2 ** (level + 1) / (2 ** (level + 2) - 1)
                piece.normals.fill(step, piece.first_chunk, own, lane=level + 1)
                estimate += left[level]
                estimate *= np.float32(1 - weight)
                own *= np.float32(weight * self._scale)
                estimate += own
            out -= left[level]
        out += estimate
        left[top] = estimate

    def restart(self, step: int) -> int:
        self._left[:] = 0
        return 0


class Moving(Engine):
    """``y_t = σ Σ_{i<p} c_i z_{t−i}`` with ``c`` the inverse's coefficients: p − 1 rows of normals, or none."""

    def __init__(self, factorization: InverseToeplitz, scale: float, width: int) -> None:
        self._inverse, self._scale = factorization.inverse, scale
        self._past = len(self._inverse) - 1
        self._keeps = self._past > DRAWN_AGAIN
        self._kept = np.zeros((self._past, width) if self._keeps else (0, 0), np.float32)

    @property
    def memory(self) -> int:
        return self._kept.nbytes

    def begin(self, step: int) -> bool:
        self._earlier = range(1, 1 + min(step, self._past))
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        past = np.empty((len(self._earlier), len(out)), np.float32)
        for back in self._earlier:
            if self._keeps:
                past[back - 1] = self._kept[(step - back) % self._past, piece.start : piece.stop]
            else:
                piece.normals.fill(step - back, piece.first_chunk, past[back - 1])
        piece.normals.fill(step, piece.first_chunk, out)
        if self._keeps:
            self._kept[step % self._past, piece.start : piece.stop] = out
        moving_step(out, past, self._inverse, self._scale)

    def restart(self, step: int) -> int:
        return max(step - self._past, 0) if self._keeps else step


class Regenerated(Engine):
    """Rows of ``σC⁻¹`` times the normals, K rows at a time; each earlier normal is drawn once for every K rows."""

    piece_chunks = 8

    def __init__(self, factorization: Factorization, scale: float, width: int, memory: int) -> None:
        self._scale = scale
        self._blocks = factorization.diagonal_blocks()
        self._inverses: dict[int, Row] = {}
        longest = max(len(block) for _, block in self._blocks)
        self._rows = min(memory // (4 * width) // 4 * 4, -(-longest // 4) * 4)
        if self._rows < 4:
            raise ValueError(
                f"memory = {memory} bytes: this mechanism needs room for four rows of noise, {16 * width} bytes"
            )
        # Chunk by chunk, so that what is worked on at one time lies together.
        self._made = np.zeros((width // CHUNK, self._rows, CHUNK), np.float32)
        self._first, self._last, self._block = 0, 0, 0

    @property
    def memory(self) -> int:
        return self._made.nbytes

    def begin(self, step: int) -> bool:
        if self._first <= step < self._last:
            return False
        while self._block + 1 < len(self._blocks) and self._blocks[self._block + 1][0] <= step:
            self._block += 1
        start, block = self._blocks[self._block]
        self._first = start + (step - start) // self._rows * self._rows
        self._last = min(self._first + self._rows, start + len(block))
        key = id(block)
        if key not in self._inverses:
            inverse = self._scale * scipy.linalg.solve_triangular(
                block, np.eye(len(block)), lower=True
            )
            self._inverses[key] = inverse.astype(np.float32)
        self._inverse = self._inverses[key]
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        start = self._blocks[self._block][0]
        first, last = self._first - start, self._last - start
        made = self._made[piece.start // CHUNK : piece.stop // CHUNK]
        made[:] = 0
        panel = np.zeros((len(made), PANEL, CHUNK), np.float32)
        for begin in range(0, last, PANEL):
            end = min(begin + PANEL, last)
            top = max(first, begin) // 4 * 4  # rows above it do not see these normals
            top = max(top, first)
            coefficients = np.zeros((-(-(last - top) // 4) * 4, PANEL), np.float32)
            coefficients[: last - top, : end - begin] = self._inverse[top:last, begin:end]
            if not coefficients.any():
                continue
            for i in range(begin, end):
                piece.normals.fill(start + i, piece.first_chunk, out)
                panel[:, i - begin] = out.reshape(-1, CHUNK)
            accumulate(coefficients, panel, made, top - first)
        self.copy(step, piece, out)

    def copy(self, step: int, piece: Piece, out: Row) -> None:
        made = self._made[piece.start // CHUNK : piece.stop // CHUNK, step - self._first]
        out.reshape(made.shape)[:] = made

    def restart(self, step: int) -> int:
        self._first = self._last = self._block = 0
        return step


# ---- the inner loops; float64 coefficients, float32 rows, no reassociation ---------------------------------


@numba.njit(nogil=True, cache=True, boundscheck=False)
def scale_row(row: Row, scale: float) -> None:
    for i in range(row.shape[0]):
        row[i] = np.float32(row[i] * scale)


@numba.njit(nogil=True, cache=True, boundscheck=False)
def ring_step(
    row: Row, ring: Row, start: int, coefficients: Array, diagonal: float, scale: float, slot: int
) -> None:
    sums = np.empty(CHUNK)
    for offset in range(0, row.shape[0], CHUNK):
        here = row[offset : offset + CHUNK]
        base = start + offset
        for i in range(CHUNK):
            sums[i] = here[i] * scale
        for k in range(ring.shape[0]):
            c = coefficients[k]
            if c != 0.0:
                past = ring[k, base : base + CHUNK]
                for i in range(CHUNK):
                    sums[i] -= c * past[i]
        kept = ring[slot, base : base + CHUNK]
        for i in range(CHUNK):
            here[i] = np.float32(sums[i] / diagonal)
            kept[i] = here[i]


@numba.njit(nogil=True, cache=True, boundscheck=False)
def moving_step(row: Row, past: Row, coefficients: Array, scale: float) -> None:
    sums = np.empty(CHUNK)
    for offset in range(0, row.shape[0], CHUNK):
        here = row[offset : offset + CHUNK]
        for i in range(CHUNK):
            sums[i] = coefficients[0] * here[i]
        for k in range(past.shape[0]):
            c, earlier = coefficients[k + 1], past[k, offset : offset + CHUNK]
            for i in range(CHUNK):
                sums[i] += c * earlier[i]
        for i in range(CHUNK):
            here[i] = np.float32(sums[i] * scale)


@numba.njit(nogil=True, cache=True, boundscheck=False)
def state_step(
    row: Row, state: Any, start: int, r: Array, g: Array, move: Array, delta: float, scale: float
) -> None:
    """The vectors of node k, newest first, are ``state[q·k : q·(k + 1)]``."""
    m, q = r.shape
    sums, new = np.empty(CHUNK), np.empty(CHUNK)
    for offset in range(0, row.shape[0], CHUNK):
        here = row[offset : offset + CHUNK]
        base = start + offset
        for i in range(CHUNK):
            sums[i] = here[i] * scale
        for k in range(m):
            for b in range(q):
                c, s = r[k, b], state[k * q + b, base : base + CHUNK]
                for i in range(CHUNK):
                    sums[i] -= c * s[i]
        for i in range(CHUNK):
            sums[i] /= delta
            here[i] = np.float32(sums[i])
        for k in range(m):
            c, d, s = move[k, 0], g[k, 0], state[k * q, base : base + CHUNK]
            if q == 1:
                for i in range(CHUNK):
                    s[i] = c * s[i] + d * sums[i]
                continue
            for i in range(CHUNK):
                new[i] = c * s[i] + d * sums[i]
            for b in range(1, q):
                c, s = move[k, b], state[k * q + b, base : base + CHUNK]
                for i in range(CHUNK):
                    new[i] += c * s[i]
            for b in range(q - 1, 0, -1):
                d, s, newer = (
                    g[k, b],
                    state[k * q + b, base : base + CHUNK],
                    state[k * q + b - 1, base : base + CHUNK],
                )
                for i in range(CHUNK):
                    s[i] = newer[i] + d * sums[i]
            s = state[k * q, base : base + CHUNK]
            for i in range(CHUNK):
                s[i] = new[i]


@numba.njit(nogil=True, cache=True, boundscheck=False)
def accumulate(c: Row, z: Row, made: Row, top: int) -> None:
    """``made[top:] += c @ z``, chunk by chunk, each entry summed in the order of the steps, whatever the shapes."""
    for chunk in range(made.shape[0]):
        for r in range(0, min(c.shape[0], made.shape[1] - top), 4):  # numba looks at no bounds
            m0, m1 = made[chunk, top + r], made[chunk, top + r + 1]
            m2, m3 = made[chunk, top + r + 2], made[chunk, top + r + 3]
            for j in range(0, c.shape[1], 4):
                z0, z1, z2, z3 = z[chunk, j], z[chunk, j + 1], z[chunk, j + 2], z[chunk, j + 3]
                a0, a1, a2, a3 = c[r, j], c[r, j + 1], c[r, j + 2], c[r, j + 3]
                b0, b1, b2, b3 = c[r + 1, j], c[r + 1, j + 1], c[r + 1, j + 2], c[r + 1, j + 3]
                d0, d1, d2, d3 = c[r + 2, j], c[r + 2, j + 1], c[r + 2, j + 2], c[r + 2, j + 3]
                e0, e1, e2, e3 = c[r + 3, j], c[r + 3, j + 1], c[r + 3, j + 2], c[r + 3, j + 3]
                for i in range(CHUNK):
                    x0, x1, x2, x3 = z0[i], z1[i], z2[i], z3[i]
                    m0[i] = (((m0[i] + a0 * x0) + a1 * x1) + a2 * x2) + a3 * x3
                    m1[i] = (((m1[i] + b0 * x0) + b1 * x1) + b2 * x2) + b3 * x3
                    m2[i] = (((m2[i] + d0 * x0) + d1 * x1) + d2 * x2) + d3 * x3
                    m3[i] = (((m3[i] + e0 * x0) + e1 * x1) + e2 * x2) + e3 * x3
