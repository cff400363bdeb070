r"""Engines that make rows of ``σ·C⁻¹Z``, each with only the memory it needs.

- `RingBufferEngine`: an encoder with p diagonals; keeps p − 1 rows.
- `BufferEngine`: a state of a few vectors, time-varying (buffered encoders, the full tree
  estimator).
- `TreeEngine`: the nodes of a binary tree; keeps one vector for each level.
- `BandedInverseEngine`: an inverse with p diagonals; a row is a sum of p normals.
- `RegenerationEngine`: any encoder; makes blocks of rows, and draws all earlier normals again for
  each.

Rows are padded to whole chunks and made a few chunks at a time, so that threads can share a row.
The result depends neither on the number of threads nor on the size of a block.
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
from antiphase.factorizations.noise_forms import BandedInverse, TreeEstimator
from antiphase.factorizations.segments import Stream
from antiphase.noise.normals import CHUNK, Normals, Row

PANEL = 64  # rows of earlier normals that are drawn before they are used
MAX_REDRAWN = 4  # earlier normals of a row up to which they are drawn again rather than kept
MAX_RING_BANDS = 64  # beyond, drawing normals again is faster than reading so many rows


@dataclass(frozen=True)
class Piece:
    """A range of whole chunks of one tensor.

    Attributes:
        normals: the normals of the tensor.
        first_chunk: the first chunk, counted within the tensor.
        start: where the range starts in the padded row.
        stop: where it ends there.
    """

    normals: Normals
    first_chunk: int
    start: int
    stop: int


class Engine(ABC):
    """Makes rows in order: `begin` once for each row, then `work` for each piece, in any order."""

    piece_chunks = 32
    """Number of chunks in a piece, at most."""

    regenerates = False
    """Whether earlier normals are drawn again for every block of rows."""

    _kept: Any
    """What is kept from row to row."""

    @property
    def memory(self) -> int:
        """Bytes kept from row to row."""
        return int(self._kept.nbytes)

    @abstractmethod
    def begin(self, step: int) -> bool:
        """Prepare row ``step``; return False if it exists already and only `copy` is needed."""

    @abstractmethod
    def work(self, step: int, piece: Piece, out: Row) -> None:
        """Make a piece of row ``step`` into ``out``, which is that part of the row."""

    def copy(self, step: int, piece: Piece, out: Row) -> None:
        """Copy a piece of row ``step``, after `begin` returned False."""
        raise RuntimeError(f"{type(self).__name__} does not keep row {step}")

    @abstractmethod
    def restart(self, step: int) -> int:
        """Forget the past and return the step from which to make rows again to reach ``step``."""


def engine_for(factorization: Factorization, scale: float, width: int, memory: int) -> Engine:
    """Return the engine for a factorization.

    Args:
        factorization: the factorization with encoder ``C``.
        scale: σ, the standard deviation of ``Z``.
        width: the length of a padded row.
        memory: the bytes that may be kept from row to row.

    Raises:
        ValueError: the engine needs more memory. No other engine takes over.
    """
    match factorization.noise_form():
        case Stream() as stream:
            return BufferEngine(stream, scale, width, memory)
        case TreeEstimator() as tree:
            return TreeEngine(tree, scale, width, memory)
        case BandedInverse() as inverse:
            return BandedInverseEngine(inverse, scale, width, memory)
    if factorization.bands <= MAX_RING_BANDS:
        return RingBufferEngine(factorization, scale, width, memory)
    return RegenerationEngine(factorization, scale, width, memory)


def _check_memory(memory: int, needed: int, kept: str) -> None:
    # PRIVACY: another engine rounds differently, and a resumed run must not change a bit.   [G12]
    if needed > memory:
        raise ValueError(
            f"memory = {memory} bytes: {kept} takes {needed} bytes from step to step; give at "
            "least that"
        )


class RingBufferEngine(Engine):
    """``y_t = (σz_t − Σ_{i<p} C[t, t−i] y_{t−i}) / C[t, t]``: keeps p − 1 rows."""

    def __init__(self, factorization: Factorization, scale: float, width: int, memory: int) -> None:
        self._factorization, self._scale = factorization, scale
        bands = factorization.bands
        _check_memory(memory, 4 * width * (bands - 1), f"an encoder of {bands} diagonals")
        self._past = bands - 1
        self._kept = np.zeros((max(self._past, 1), width if self._past else 0), np.float32)

    def begin(self, step: int) -> bool:
        """Read the row of the encoder."""
        row = self._factorization.band_rows(step, step + 1)[0]
        self._diagonal = float(row[0])
        self._coefficients = np.zeros(max(self._past, 1))
        for back in range(1, min(self._past, step) + 1):
            self._coefficients[(step - back) % self._past] = row[back]
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        """Make a piece of the row and keep it in the ring."""
        piece.normals.fill(step, piece.first_chunk, out)
        if self._past:
            slot = step % self._past
            ring_step(
                out, self._kept, piece.start, self._coefficients, self._diagonal, self._scale, slot
            )
        else:
            scale_row(out, self._scale / self._diagonal)

    def restart(self, step: int) -> int:
        """Start again at the encoder's last restart."""
        self._kept[:] = 0
        if not self._past:
            return step
        return max(start for start in self._factorization.restarts() if start <= step)


class BufferEngine(Engine):
    """``y_i = (σz_i − r_iᵀS_i)/δ_i``, ``S_{i+1} = T_{i+1}S_i + g_i y_i``: keeps the state."""

    def __init__(self, stream: Stream, scale: float, width: int, memory: int) -> None:
        self._stream, self._scale = stream, scale
        kind = state_type(stream)
        needed = stream.buffers * width * np.dtype(kind).itemsize
        _check_memory(memory, needed, f"a state of {stream.buffers} buffers")
        self._kept = np.zeros((stream.buffers, width), kind)
        self._row = -1

    def begin(self, step: int) -> bool:
        """Look up the coefficients of the step; -1 as the row stands for independent noise."""
        segment, place = self._stream.at(step)
        if place == 0:
            self._kept[:] = 0
        row = place
        if len(segment.live) < segment.size:  # some steps are idle
            row = int(np.searchsorted(segment.live, place))
        self._row = row if row < len(segment.live) and segment.live[row] == place else -1
        if self._row >= 0:
            last = row + 1 == len(segment.move)
            after = np.zeros_like(segment.move[row]) if last else segment.move[row + 1]
            self._coefficients = segment.r[row], segment.g[row], after, float(segment.delta[row])
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        """Make a piece of the row and move its state on."""
        piece.normals.fill(step, piece.first_chunk, out)
        if self._row < 0:
            scale_row(out, self._scale)
        else:
            state_step(out, self._kept, piece.start, *self._coefficients, self._scale)

    def restart(self, step: int) -> int:
        """Start again at the start of the segment."""
        self._kept[:] = 0
        return max(start for start in self._stream.starts if start <= step)


def state_type(stream: Stream) -> type[np.float32] | type[np.float64]:
    """Return the type of the state: float64 if a buffer has several vectors.

    These are nearly equal, and their small differences matter.
    """
    longest = max(segment.r.shape[2] for segment in stream.distinct)
    return np.float32 if longest == 1 else np.float64


class TreeEngine(Engine):
    """A tree's nodes as a binary counter: a completed node replaces the estimates below it."""

    def __init__(self, tree: TreeEstimator, scale: float, width: int, memory: int) -> None:
        self._honaker, self._scale = tree.honaker, scale
        levels = tree.steps.bit_length()
        _check_memory(memory, 4 * width * levels, f"a tree over {tree.steps} steps")
        self._kept = np.zeros((levels, width), np.float32)

    def begin(self, step: int) -> bool:
        """Prepare nothing."""
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        """Make a piece of the row and the estimate of the node that it completes."""
        count = step + 1
        top = (count & -count).bit_length() - 1  # the largest node that ends here
        left = self._kept[:, piece.start : piece.stop]
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
        """Start again at the first step."""
        self._kept[:] = 0
        return 0


class BandedInverseEngine(Engine):
    """``y_t = σ Σ_{i<p} c_i z_{t−i}`` with ``c`` the inverse's coefficients.

    Earlier normals are kept, or drawn again if they are few.
    """

    def __init__(self, inverse: BandedInverse, scale: float, width: int, memory: int) -> None:
        self._inverse, self._scale = inverse.coefficients, scale
        self._past = len(self._inverse) - 1
        self._keeps = self._past > MAX_REDRAWN
        needed = 4 * width * self._past * self._keeps
        _check_memory(memory, needed, f"an inverse of {self._past + 1} diagonals")
        self._kept = np.zeros((self._past, width) if self._keeps else (0, 0), np.float32)

    def begin(self, step: int) -> bool:
        """Find which earlier normals the row uses."""
        self._earlier = range(1, 1 + min(step, self._past))
        return True

    def work(self, step: int, piece: Piece, out: Row) -> None:
        """Make a piece of the row."""
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
        """Start again where the first of the normals that are needed was kept."""
        return max(step - self._past, 0) if self._keeps else step


class RegenerationEngine(Engine):
    """Rows of ``σC⁻¹`` times the normals, K rows at a time.

    Each earlier normal is drawn once for every K rows.
    """

    piece_chunks = 8
    regenerates = True

    def __init__(self, factorization: Factorization, scale: float, width: int, memory: int) -> None:
        self._scale = scale
        self._blocks = factorization.diagonal_blocks()
        self._inverses: dict[int, Row] = {}
        longest = max(len(block) for _, block in self._blocks)
        self._rows = min(memory // (4 * width) // 4 * 4, -(-longest // 4) * 4)
        if self._rows < 4:
            raise ValueError(
                f"memory = {memory} bytes: this mechanism needs room for four rows of noise, "
                f"{16 * width} bytes"
            )
        # Chunk by chunk, so that what is worked on at one time is contiguous.
        self._kept = np.zeros((width // CHUNK, self._rows, CHUNK), np.float32)
        self._first, self._last, self._block = 0, 0, 0

    def begin(self, step: int) -> bool:
        """Invert the encoder's block, unless the row was made with an earlier one."""
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
        """Make a piece of all rows of the block, and copy it for this one."""
        start = self._blocks[self._block][0]
        first, last = self._first - start, self._last - start
        made = self._kept[piece.start // CHUNK : piece.stop // CHUNK]
        made[:] = 0
        panel = np.zeros((len(made), PANEL, CHUNK), np.float32)
        for begin in range(0, last, PANEL):
            end = min(begin + PANEL, last)
            top = max(first, begin) // 4 * 4  # rows above do not depend on these normals
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
        """Copy a piece of a row that was made with an earlier one."""
        made = self._kept[piece.start // CHUNK : piece.stop // CHUNK, step - self._first]
        out.reshape(made.shape)[:] = made

    def restart(self, step: int) -> int:
        """Start again at ``step`` itself."""
        self._first = self._last = self._block = 0
        return step


# ---- inner loops: float64 coefficients, float32 rows, no reassociation ------------------------


@numba.njit(nogil=True, cache=True, boundscheck=False)
def scale_row(row: Row, scale: float) -> None:
    """Multiply the row by ``scale``."""
    for i in range(row.shape[0]):
        row[i] = np.float32(row[i] * scale)


@numba.njit(nogil=True, cache=True, boundscheck=False)
def ring_step(
    row: Row, ring: Row, start: int, coefficients: Array, diagonal: float, scale: float, slot: int
) -> None:
    """Replace normals by a row of noise, and keep it in the ring at ``slot``."""
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
    """Replace normals by a sum of them and of the ``past`` ones."""
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
    """Replace normals by a row of noise, and move the state on.

    The vectors of buffer k, newest first, are ``state[q·k : q·(k + 1)]``.
    """
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
            if q > 1:
                shift_buffer(state, q * k, base, g[k], move[k], sums, new)
                continue
            for i in range(CHUNK):
                s[i] = c * s[i] + d * sums[i]


@numba.njit(nogil=True, cache=True, boundscheck=False)
def shift_buffer(
    state: Any, first: int, base: int, g: Array, move: Array, y: Array, new: Array
) -> None:
    """Move on a buffer of several vectors, newest first, and add ``g·y``."""
    q = len(g)
    c, d, s = move[0], g[0], state[first, base : base + CHUNK]
    for i in range(CHUNK):
        new[i] = c * s[i] + d * y[i]
    for b in range(1, q):
        c, s = move[b], state[first + b, base : base + CHUNK]
        for i in range(CHUNK):
            new[i] += c * s[i]
    for b in range(q - 1, 0, -1):
        d, s = g[b], state[first + b, base : base + CHUNK]
        newer = state[first + b - 1, base : base + CHUNK]
        for i in range(CHUNK):
            s[i] = newer[i] + d * y[i]
    s = state[first, base : base + CHUNK]
    for i in range(CHUNK):
        s[i] = new[i]


@numba.njit(nogil=True, cache=True, boundscheck=False)
def accumulate(c: Row, z: Row, made: Row, top: int) -> None:
    """Add ``c @ z`` to ``made[top:]``, chunk by chunk.

    Each entry is summed in the order of the steps, whatever the shapes.
    """
    for chunk in range(made.shape[0]):
        for r in range(0, min(c.shape[0], made.shape[1] - top), 4):  # Numba does not check bounds
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
