r"""`BlockDiagonal`: encoders of independent blocks, each stored in full.

DP-MF⁺ for one participation has such an encoder: ``Λ_τ S`` is block diagonal, so that an
independent τ-step mechanism restarts every τ steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from antiphase._util.checks import Array, Indices
from antiphase.factorizations.base import Factorization, lower_triangular
from antiphase.factorizations.block_sequence import BlockSequence
from antiphase.objective import Objective
from antiphase.sensitivity import Columns


@dataclass(frozen=True, eq=False, repr=False)
class BlockDiagonal(Factorization, form="Blocks"):
    """A block-diagonal encoder: its i-th block is ``distinct[sequence[i]]``."""

    distinct: tuple[Array, ...]
    sequence: tuple[int, ...]

    def __post_init__(self) -> None:
        blocks = tuple(lower_triangular(block, len(block)) for block in self.distinct)
        sequence = tuple(int(i) for i in self.sequence)
        if sum(len(blocks[i]) for i in sequence) != self.steps:
            raise ValueError(f"the blocks do not add up to {self.steps} steps")
        object.__setattr__(self, "distinct", blocks)
        object.__setattr__(self, "sequence", sequence)

    @cached_property
    def _blocks(self) -> BlockSequence[DenseBlock]:
        return BlockSequence(tuple(DenseBlock(block) for block in self.distinct), self.sequence)

    def _build_encoder(self) -> Array:
        return np.asarray(scipy.linalg.block_diag(*(block.matrix for _, block in self._blocks)))

    def encoder_columns(self, rows: int | None = None) -> Columns:
        """Return the columns, from the blocks."""
        return self._blocks.columns(self.steps if rows is None else rows)

    @property
    def bands(self) -> int:
        """Number of diagonals: the size of the largest block."""
        return max(len(block) for block in self.distinct)

    def band_rows(self, start: int, stop: int) -> Array:
        """Return ``C[t, t − i]`` for ``start <= t < stop`` and ``i < bands``."""
        out = np.zeros((stop - start, self.bands))
        for t in range(start, stop):
            block, place = self._blocks.at(t)
            out[t - start, : place + 1] = block.matrix[place, place::-1]
        return out

    def restarts(self) -> list[int]:
        """Return the first step of each block."""
        return self._blocks.starts

    def diagonal_blocks(self) -> list[tuple[int, Array]]:
        """Return ``(start, block)`` for each block."""
        return [(start, block.matrix) for start, block in self._blocks]

    def squared_row_norms(self, root: Array) -> Array:
        """Return the squared norm of each row of ``root·C⁻¹``, block by block."""
        total = np.zeros(len(root))
        for start, block in self._blocks:
            part = root[:, start : start + block.size]
            used = np.flatnonzero(part.any(axis=1))
            total[used] += block.squared_row_norms(part[used])
        return total

    def _total_noise(self, objective: Objective) -> float:
        """Block by block if the objective restarts with the encoder, each distinct block once."""
        roots = objective.block_roots(self.workload)
        sizes = [block.size for _, block in self._blocks]
        if roots is None or [root.shape[1] for root in roots] != sizes:
            return super()._total_noise(objective)
        known: dict[tuple[int, bytes], float] = {}
        total = 0.0
        for i, root in zip(self.sequence, roots, strict=True):
            key = (i, root.tobytes())
            if key not in known:
                rows = scipy.linalg.solve_triangular(
                    self.distinct[i], root.T, lower=True, trans="T"
                )
                known[key] = float(np.square(rows).sum())
            total += known[key]
        return total

    def _stored(self) -> dict[str, Any]:
        blocks = {
            str(i): block[np.tril_indices(len(block))] for i, block in enumerate(self.distinct)
        }
        return {"blocks": blocks, "sequence": np.array(self.sequence, dtype=np.int64)}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        distinct = []
        for i in range(len(stored["blocks"])):
            packed = stored["blocks"][str(i)]
            size = int((np.sqrt(8 * len(packed) + 1) - 1) / 2)
            block = np.zeros((size, size))
            block[np.tril_indices(size)] = packed
            distinct.append(block)
        return cls(**common, distinct=tuple(distinct), sequence=tuple(stored["sequence"].tolist()))


class DenseBlock:
    """A diagonal block that is stored in full."""

    def __init__(self, matrix: Array) -> None:
        self.matrix = matrix
        self.size = self.reach = len(matrix)

    def cut(self, rows: int) -> DenseBlock:
        """Return the leading block of this many rows and columns."""
        return DenseBlock(self.matrix[:rows, :rows])

    def squared_norms(self) -> Array:
        """Return the squared norm of each column."""
        return np.asarray(np.einsum("ij,ij->j", self.matrix, self.matrix))

    def gram(self, indices: Indices) -> Array:
        """Return the products of the columns at these places."""
        columns = self.matrix[:, indices]
        return columns.T @ columns

    def squared_row_norms(self, root: Array) -> Array:
        """Return the squared norm of each row of ``root`` times the inverse of the block."""
        rows = scipy.linalg.solve_triangular(self.matrix, root.T, lower=True, trans="T")
        return np.asarray(np.einsum("ij,ij->j", rows, rows))
