r"""DP-MF⁺ for one participation: ``Λ_τ S`` is block diagonal, so an independent τ-step mechanism restarts every τ
steps.

One problem of size τ is solved, and its encoder repeated; blocks that differ (a schedule, a short last block) are
solved once each.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from antiphase._util.checks import Array, Indices
from antiphase.factorizations.base import Factorization, lower_triangular
from antiphase.objective import Objective
from antiphase.sensitivity import Columns


@dataclass(frozen=True, eq=False, repr=False)
class BlockDiagonal(Factorization, form="Blocks"):
    """A block-diagonal encoder: ``sequence[i]`` says which of the ``distinct`` blocks is the i-th."""

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
    def starts(self) -> list[int]:
        sizes = [len(self.distinct[i]) for i in self.sequence]
        return [0, *np.cumsum(sizes)[:-1].tolist()]

    def _build_encoder(self) -> Array:
        encoder: Array = scipy.linalg.block_diag(*(self.distinct[i] for i in self.sequence))
        return encoder

    def _columns(self, rows: int | None = None) -> Columns:
        return _BlockColumns(self.distinct, self.sequence, self.steps if rows is None else rows)

    @property
    def bands(self) -> int:
        return max(len(block) for block in self.distinct)

    def band_rows(self, start: int, stop: int) -> Array:
        out = np.zeros((stop - start, self.bands))
        for t in range(start, stop):
            b = bisect_right(self.starts, t) - 1
            row = self.distinct[self.sequence[b]][t - self.starts[b], : t - self.starts[b] + 1]
            out[t - start, : len(row)] = row[::-1]
        return out

    def restarts(self) -> list[int]:
        return self.starts

    def diagonal_blocks(self) -> list[tuple[int, Array]]:
        return [
            (start, self.distinct[i]) for start, i in zip(self.starts, self.sequence, strict=True)
        ]

    def _noise_squared(self, root: Array) -> Array:
        """Block by block: rows of ``root·C⁻¹`` over a block's columns need that block only."""
        total = np.zeros(len(root))
        for start, i in zip(self.starts, self.sequence, strict=True):
            part = root[:, start : start + len(self.distinct[i])]
            used = np.flatnonzero(part.any(axis=1))
            rows = scipy.linalg.solve_triangular(
                self.distinct[i], part[used].T, lower=True, trans="T"
            )
            total[used] += np.einsum("ij,ij->j", rows, rows)
        return total

    def _total_noise(self, objective: Objective) -> float:
        """Block by block where the objective restarts with the encoder, each distinct one once."""
        roots = objective.block_roots(self.workload)
        sizes = [len(self.distinct[i]) for i in self.sequence]
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


class _BlockColumns:
    """The columns of a block-diagonal encoder: those of different blocks are orthogonal."""

    def __init__(self, distinct: tuple[Array, ...], sequence: tuple[int, ...], rows: int) -> None:
        """The first ``rows`` steps; a block that they end in is cut off there."""
        sizes = np.cumsum([0] + [len(distinct[i]) for i in sequence])
        last = int(np.searchsorted(sizes, rows)) - 1
        self._distinct = [
            *distinct,
            distinct[sequence[last]][: rows - sizes[last], : rows - sizes[last]],
        ]
        self._sequence = np.array([*sequence[:last], len(distinct)])
        self._starts = sizes[: last + 1]
        self.steps = rows
        self.reach = max(len(self._distinct[i]) for i in self._sequence)

    def squared_norms(self) -> Array:
        norms = [np.einsum("ij,ij->j", block, block) for block in self._distinct]
        return np.concatenate([norms[i] for i in self._sequence])

    def gram(self, indices: Indices) -> Array:
        out = np.zeros((len(indices),) * 2)
        owner = np.searchsorted(self._starts, indices, side="right") - 1
        for b in np.unique(owner):
            inside = np.flatnonzero(owner == b)
            columns = self._distinct[self._sequence[b]][:, indices[inside] - self._starts[b]]
            out[np.ix_(inside, inside)] = columns.T @ columns
        return out
