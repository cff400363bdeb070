"""Block-cyclic layout of the steps of several epochs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._util.checks import Array, Indices


@dataclass(frozen=True)
class EpochLayout:
    """The place of each step in a block-cyclic matrix.

    Positions within the epoch are divided into groups, one for each block. Within a block they are
    in order, with the epochs of a position side by side.

    Attributes:
        size: number of steps.
        every: number of steps in an epoch.
        reach: the half-bandwidth, which a group has at least as many positions as.
    """

    size: int
    every: int
    reach: int

    @property
    def epochs(self) -> int:
        """Number of epochs, of which the last may be short."""
        return -(-self.size // self.every)

    @property
    def groups(self) -> int:
        """Number of blocks."""
        return self.every // self.reach

    @cached_property
    def first(self) -> Indices:
        """The first position of each group, and the end."""
        return np.arange(self.groups + 1) * self.every // self.groups

    @property
    def block(self) -> int:
        """Rows of a block."""
        return int(np.diff(self.first).max()) * self.epochs

    @cached_property
    def group(self) -> Indices:
        """The group of each position."""
        return np.repeat(np.arange(self.groups), np.diff(self.first))

    def place(self, steps: Indices) -> tuple[Indices, Indices]:
        """The group of each step, and its row within the block."""
        position, epoch = steps % self.every, steps // self.every
        group = self.group[position]
        return group, (position - self.first[group]) * self.epochs + epoch

    @cached_property
    def of_positions(self) -> tuple[Indices, Indices]:
        """Group and rows of all positions, with those of a short last epoch that do not exist."""
        steps = np.arange(self.every)[:, None] + self.every * np.arange(self.epochs)
        group, place = self.place(steps)
        return group[:, 0], place

    @cached_property
    def sizes(self) -> list[tuple[slice, int]]:
        """``(positions, number of epochs)``, in two parts if the last epoch is short."""
        long = self.size - (self.epochs - 1) * self.every
        parts = [(slice(0, long), self.epochs), (slice(long, self.every), self.epochs - 1)]
        return [(p, count) for p, count in parts if p.stop > p.start and count]

    def blocks(self, bands: Array) -> tuple[Array, Array]:
        """The blocks of a banded lower-triangular matrix.

        Returns:
            The blocks on the diagonal, with the identity where there is padding, and those from
            each group to the one before.
        """
        own = np.tile(np.eye(self.block), (self.groups, 1, 1))
        before = np.zeros_like(own)
        t = np.arange(self.size)
        own[(*self.place(t), self.place(t)[1])] = bands[:, 0]
        for a in range(1, bands.shape[1]):
            (group, row), (source, column) = self.place(t[a:]), self.place(t[:-a])
            # A step whose position is before that of the step it follows is in the next epoch.
            inside = (source == group) & (t[a:] % self.every >= a)
            own[group[inside], row[inside], column[inside]] += bands[a:, a][inside]
            before[group[~inside], row[~inside], column[~inside]] += bands[a:, a][~inside]
        return own, before

    def full(self, V: list[Array]) -> Array:
        """``V`` as one stack, a matrix for each position, with the identity for missing steps."""
        out = np.tile(np.eye(self.epochs), (self.every, 1, 1))
        for (positions, count), v in zip(self.sizes, V, strict=True):
            out[positions, :count, :count] = v
        return out

    def spread(self, stack: Array) -> Array:
        """One matrix for each position, as blocks on the diagonal of the groups."""
        group, place = self.of_positions
        out = np.tile(np.eye(self.block), (self.groups, 1, 1))
        out[group[:, None, None], place[:, :, None], place[:, None, :]] = stack
        return out

    def gathered(self, blocks: Array) -> list[Array]:
        """The k × k blocks of every position: the inverse of `full` followed by `spread`."""
        group, place = self.of_positions
        stack = blocks[group[:, None, None], place[:, :, None], place[:, None, :]]
        return [
            np.ascontiguousarray(stack[positions, :count, :count])
            for positions, count in self.sizes
        ]


@dataclass(frozen=True)
class EpochFactor:
    """``F`` with ``V = FFᵀ``, applied to vectors in the order of time.

    Attributes:
        layout: the layout of the steps.
        F: a stack of triangular matrices, one for each position.
    """

    layout: EpochLayout
    F: Array

    def times(self, x: Array, transposed: bool = False) -> Array:
        """``F x``, or ``Fᵀx``."""
        return self._apply(self.F, x, transposed)

    def solve(self, x: Array, transposed: bool = False) -> Array:
        """``F⁻¹x``, or ``F⁻ᵀx``."""
        return self._apply(self._inverse, x, transposed)

    @cached_property
    def _inverse(self) -> Array:
        return np.asarray(np.linalg.inv(self.F), dtype=np.float64)

    def _apply(self, stack: Array, x: Array, transposed: bool) -> Array:
        layout = self.layout
        padded = np.zeros(layout.every * layout.epochs)
        padded[: len(x)] = x
        by_position = padded.reshape(layout.epochs, layout.every).T[:, :, None]
        product = (stack.swapaxes(1, 2) if transposed else stack) @ by_position
        return product[:, :, 0].T.ravel()[: layout.size]
