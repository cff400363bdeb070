r"""Inverses of block-cyclic tridiagonal matrices, by cyclic reduction.

Each block is coupled to the next, and the last to the first. Every other block is eliminated at
once, which leaves a matrix of half as many. n blocks of size B take O(n B³) for the blocks next to
the diagonal of the inverse, and O(n² B³) for all of it. The recursion ends at one block, which is
coupled to itself. All functions work on stacks ``(nodes, n, rows, B)``.

A matrix has one of two forms. `GramForm` has its blocks, and is fast. `RootForm` has the blocks of
a ``J`` with ``JᵀJ`` the matrix, eliminates by QR, and loses half as many digits where the matrix is
nearly singular.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from antiphase._util.checks import Array, Indices


class Eliminated(NamedTuple):
    """The eliminated odd blocks.

    Attributes:
        inverse: ``D⁻¹`` for each of them.
        left: ``D⁻¹`` times the coupling to the block on the left.
        right: ``D⁻¹`` times the coupling to the block on the right.
    """

    inverse: Array
    left: Array
    right: Array


class BlockCyclicMatrix(Protocol):
    """A stack of symmetric block-cyclic matrices."""

    @property
    def count(self) -> int:
        """Number of blocks."""

    @property
    def diagonal(self) -> Array:
        """The entries on the diagonal, ``(nodes, n, B)``."""

    def single_inverse(self) -> Array:
        """The inverse of a matrix of one block."""

    def halved(self) -> tuple[BlockCyclicMatrix, Eliminated]:
        """The Schur complement of the odd blocks, and what was eliminated."""


@dataclass(frozen=True)
class GramForm:
    """A matrix by its blocks; a single block stands for ``D + E + Eᵀ``.

    Attributes:
        D: the blocks on the diagonal.
        E: the blocks from each block row to the next.
    """

    D: Array
    E: Array

    @property
    def count(self) -> int:
        """Number of blocks."""
        return int(self.D.shape[1])

    @property
    def diagonal(self) -> Array:
        """The entries on the diagonal."""
        blocks = self.D + self.E + _t(self.E) if self.count == 1 else self.D
        return np.asarray(np.diagonal(blocks, axis1=2, axis2=3))

    def single_inverse(self) -> Array:
        """The inverse of a matrix of one block."""
        return _inverse(self.D + self.E + _t(self.E))

    def halved(self) -> tuple[GramForm, Eliminated]:
        """The Schur complement of the odd blocks, and what was eliminated."""
        odd = self.count // 2
        inverse = _inverse(self.D[:, 1::2])
        to_left, to_right = self.E[:, 0 : 2 * odd : 2], self.E[:, 1::2]
        gone = Eliminated(inverse, inverse @ _t(to_left), inverse @ to_right)
        kept = self.D[:, ::2].copy()
        kept[:, :odd] -= to_left @ gone.left
        kept[:, _right(self.count)] -= _t(to_right) @ gone.right
        between = -(to_left @ gone.right)
        if self.count % 2:  # the last and the first are neighbours, and both are kept
            between = np.concatenate([between, self.E[:, -1:]], axis=1)
        return GramForm(kept, between), gone


@dataclass(frozen=True)
class RootForm:
    """A matrix ``JᵀJ`` by the rows of ``J``, which couple each block to the next.

    Attributes:
        own: the coefficients of each block.
        other: those of the next block, in the same rows.
    """

    own: Array
    other: Array

    @property
    def count(self) -> int:
        """Number of blocks."""
        return int(self.own.shape[1])

    @property
    def diagonal(self) -> Array:
        """The entries on the diagonal."""
        if self.count == 1:
            return np.asarray(np.square(self.own + self.other).sum(axis=2))
        other = np.roll(np.square(self.other).sum(axis=2), 1, axis=1)
        return np.asarray(np.square(self.own).sum(axis=2) + other)

    def single_inverse(self) -> Array:
        """The inverse of a matrix of one block."""
        R = _inverse(np.asarray(np.linalg.qr(self.own + self.other, mode="r")))
        return R @ _t(R)

    def halved(self) -> tuple[RootForm, Eliminated]:
        """The Schur complement of the odd blocks, and what was eliminated."""
        odd, B = self.count // 2, self.own.shape[3]
        before, after = slice(0, 2 * odd, 2), slice(1, None, 2)
        rows = self.own.shape[2]
        # Columns: the eliminated block, the one on its left, the one on its right.
        stacked = np.zeros((len(self.own), odd, 2 * rows, 3 * B))
        stacked[:, :, :rows, :B] = self.other[:, before]
        stacked[:, :, :rows, B : 2 * B] = self.own[:, before]
        stacked[:, :, rows:, :B] = self.own[:, after]
        stacked[:, :, rows:, 2 * B :] = self.other[:, after]
        R: Array = np.asarray(np.linalg.qr(stacked, mode="r"))
        inverse = _inverse(R[:, :, :B, :B])
        gone = Eliminated(
            inverse @ _t(inverse), inverse @ R[:, :, :B, B : 2 * B], inverse @ R[:, :, :B, 2 * B :]
        )
        own, other = R[:, :, B:, B : 2 * B], R[:, :, B:, 2 * B :]
        if self.count % 2:
            own = np.concatenate([own, self.own[:, -1:]], axis=1)
            other = np.concatenate([other, self.other[:, -1:]], axis=1)
        return RootForm(own, other), gone


def near_diagonal(matrix: BlockCyclicMatrix, neighbours: bool = True) -> tuple[Array, Array]:
    """Blocks of the inverse on the diagonal, and between each block and the next.

    Args:
        matrix: the matrices to invert.
        neighbours: whether the blocks between neighbours are needed; without it they are not valid.

    Example:
        >>> diagonal, next_to_diagonal = np.full((2, 1, 4, 1, 1), [[[[[3.0]]]], [[[[-1.0]]]]])
        >>> S, _ = near_diagonal(GramForm(diagonal, next_to_diagonal))
        >>> print(S.ravel().round(6))
        [0.466667 0.466667 0.466667 0.466667]
    """
    if matrix.count == 1:
        inverse = matrix.single_inverse()
        return inverse, inverse
    rest, gone = matrix.halved()
    S, T = near_diagonal(rest)
    odd, right = matrix.count // 2, _right(matrix.count)
    to_left = -(gone.left @ S[:, :odd] + gone.right @ _t(T[:, :odd]))
    to_right = -(gone.left @ T[:, :odd] + gone.right @ S[:, right])
    diagonal = np.empty((len(S), matrix.count, *S.shape[2:]))
    diagonal[:, ::2] = S
    diagonal[:, 1::2] = gone.inverse - to_left @ _t(gone.left) - to_right @ _t(gone.right)
    if not neighbours:
        return diagonal, T
    beside = np.empty_like(diagonal)
    beside[:, 0 : 2 * odd : 2] = _t(to_left)
    beside[:, 1::2] = to_right
    if matrix.count % 2:
        beside[:, -1] = T[:, -1]
    return diagonal, beside


def add_inverse(total: Array, matrix: BlockCyclicMatrix, weight: float) -> None:
    """``total += weight · inverse`` for a stack of one matrix.

    Args:
        total: ``(n, B, n, B)``, changed in place.
        matrix: the matrix to invert.
        weight: its weight.
    """
    if matrix.count == 1:
        total[0, :, 0] += weight * matrix.single_inverse()[0, 0]
        return
    rest, gone = matrix.halved()
    inverse, left, right = (part[0] for part in gone)
    kept, odd, B = rest.count, matrix.count // 2, total.shape[1]
    S = np.zeros((kept, B, kept, B))
    add_inverse(S, rest, 1.0)
    total[::2, :, ::2] += weight * S
    following = _right(matrix.count)
    rows = S.reshape(kept, B, kept * B)
    beside = -(left @ rows[:odd] + right @ rows[following]).reshape(odd, B, kept, B)
    del S, rows
    total[1::2, :, ::2] += weight * beside
    columns = beside.transpose(2, 3, 0, 1)
    total[::2, :, 1::2] += weight * columns
    columns = columns.reshape(kept, B, odd * B)
    between = -(left @ columns[:odd] + right @ columns[following]).reshape(odd, B, odd, B)
    between[range(odd), :, range(odd)] += inverse
    total[1::2, :, 1::2] += weight * between


def _t(blocks: Array) -> Array:
    return blocks.swapaxes(-1, -2)


def _inverse(blocks: Array) -> Array:
    inverse: Any = np.linalg.inv(blocks)
    return np.asarray(inverse, dtype=np.float64)


def _right(count: int) -> Indices:
    """The kept block on the right of each odd one."""
    return (np.arange(count // 2) + 1) % (count - count // 2)
