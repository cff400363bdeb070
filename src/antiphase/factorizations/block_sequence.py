"""Sequences of diagonal blocks of which equal ones are stored once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, Self, TypeVar

import numpy as np

from antiphase._util.checks import Array, Indices


class Block(Protocol):
    """A square diagonal block of an encoder, as far as the sensitivity needs to know it."""

    @property
    def size(self) -> int:
        """Number of rows and columns."""

    @property
    def reach(self) -> int:
        """Columns that are this many steps apart, or more, share no row."""

    def cut(self, rows: int) -> Self:
        """Return the leading block of this many rows and columns."""

    def squared_norms(self) -> Array:
        """Return the squared norm of each column."""

    def gram(self, indices: Indices) -> Array:
        """Return the products of the columns at these ascending places."""


BlockT = TypeVar("BlockT", bound=Block)


@dataclass(frozen=True, eq=False)
class BlockSequence(Generic[BlockT]):
    """A block-diagonal matrix whose i-th block is ``distinct[sequence[i]]``."""

    distinct: tuple[BlockT, ...]
    sequence: tuple[int, ...]

    @cached_property
    def starts(self) -> list[int]:
        """The first step of each block."""
        sizes = [self.distinct[i].size for i in self.sequence]
        return [0, *np.cumsum(sizes)[:-1].tolist()]

    @property
    def steps(self) -> int:
        """Number of rows and columns in total."""
        return self.starts[-1] + self.distinct[self.sequence[-1]].size

    def __iter__(self) -> Iterator[tuple[int, BlockT]]:
        """Yield the first step of each block and the block."""
        return zip(self.starts, (self.distinct[i] for i in self.sequence), strict=True)

    def at(self, step: int) -> tuple[BlockT, int]:
        """Return the block that contains ``step`` and the step's place in it."""
        b = bisect_right(self.starts, step) - 1
        return self.distinct[self.sequence[b]], step - self.starts[b]

    def columns(self, rows: int) -> BlockColumns:
        """Return the columns of the leading block of ``rows`` rows, for the sensitivity."""
        return BlockColumns([(start, block) for start, block in self if start < rows], rows)


class BlockColumns:
    """The columns of a block-diagonal encoder, cut off after ``steps`` rows."""

    def __init__(self, blocks: list[tuple[int, BlockT]], steps: int) -> None:
        start, last = blocks[-1]
        if start + last.size > steps:
            blocks = [*blocks[:-1], (start, last.cut(steps - start))]
        self.steps = steps
        self._blocks: list[Block] = [block for _, block in blocks]
        self._starts = [start for start, _ in blocks]

    @cached_property
    def reach(self) -> int:
        """Columns that are this many steps apart, or more, share no row."""
        return max(block.reach for block in self._distinct.values())

    @property
    def _distinct(self) -> dict[int, Block]:
        return {id(block): block for block in self._blocks}

    def squared_norms(self) -> Array:
        """Return the squared norm of each column."""
        norms = {key: block.squared_norms() for key, block in self._distinct.items()}
        return np.concatenate([norms[id(block)] for block in self._blocks])

    def gram(self, indices: Indices) -> Array:
        """Return the block of ``CᵀC`` at these steps."""
        out = np.zeros((len(indices),) * 2)
        # PRIVACY: columns of different blocks share no row; only theirs may be left out.   [G1]
        owner = np.searchsorted(self._starts, indices, side="right") - 1
        for b in np.unique(owner):
            inside = np.flatnonzero(owner == b)
            out[np.ix_(inside, inside)] = self._blocks[b].gram(indices[inside] - self._starts[b])
        return out
