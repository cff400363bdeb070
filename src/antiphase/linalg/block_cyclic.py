r"""The inverse of a ring of blocks: each is coupled to the next, and the last to the first.

Every other block is eliminated at once, which leaves a ring of half as many; n blocks of size B take O(n B³) for all
that lies next to the diagonal of the inverse, and O(n² B³) for the whole of it. A ring of one block is coupled to
itself, and ends the recursion. Everything works on stacks ``(nodes, n, rows, B)``.

There are two ways to say what the matrix is. `Gram` has its blocks, and is fast. `Root` has the blocks of a ``J`` with
``JᵀJ`` the matrix, eliminates by QR, and so loses half as many digits where the matrix is nearly singular.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from antiphase._util.checks import Array, Indices


class Eliminated(NamedTuple):
    """What the odd blocks leave behind: ``D⁻¹``, and ``D⁻¹`` times the coupling to the left and to the right."""

    inverse: Array
    left: Array
    right: Array


@dataclass(frozen=True)
class Gram:
    """``D_i`` on the diagonal, ``E_i`` from block i to the next; one block alone stands for ``D + E + Eᵀ``."""

    D: Array
    E: Array

    @property
    def count(self) -> int:
        return int(self.D.shape[1])

    def alone(self) -> Array:
        return _inverse(self.D + self.E + _t(self.E))

    def halved(self) -> tuple[Gram, Eliminated]:
        odd = self.count // 2
        inverse = _inverse(self.D[:, 1::2])
        to_left, to_right = self.E[:, 0 : 2 * odd : 2], self.E[:, 1::2]
        gone = Eliminated(inverse, inverse @ _t(to_left), inverse @ to_right)
        kept = self.D[:, ::2].copy()
        kept[:, :odd] -= to_left @ gone.left
        kept[:, _right(self.count)] -= _t(to_right) @ gone.right
        between = -(to_left @ gone.right)
        if self.count % 2:  # the last and the first are neighbours and both stay
            between = np.concatenate([between, self.E[:, -1:]], axis=1)
        return Gram(kept, between), gone


@dataclass(frozen=True)
class Root:
    """Equations between each block and the next: coefficients of its ``own`` unknowns, and of the ``other``'s."""

    own: Array
    other: Array

    @property
    def count(self) -> int:
        return int(self.own.shape[1])

    def alone(self) -> Array:
        R = _inverse(np.asarray(np.linalg.qr(self.own + self.other, mode="r")))
        return R @ _t(R)

    def halved(self) -> tuple[Root, Eliminated]:
        odd, B = self.count // 2, self.own.shape[3]
        before, after = slice(0, 2 * odd, 2), slice(1, None, 2)
        rows = self.own.shape[2]
        stacked = np.zeros(
            (len(self.own), odd, 2 * rows, 3 * B)
        )  # unknowns: the one that goes, its left, its right
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
        return Root(own, other), gone


Ring = Gram | Root


def near_diagonal(ring: Ring, neighbours: bool = True) -> tuple[Array, Array]:
    """The blocks of the inverse on the diagonal, and between each block and the next (if asked for).

    >>> S, _ = near_diagonal(Gram(np.full((1, 4, 1, 1), 3.0), np.full((1, 4, 1, 1), -1.0)))
    >>> print(S.ravel().round(6))
    [0.466667 0.466667 0.466667 0.466667]
    """
    if ring.count == 1:
        alone = ring.alone()
        return alone, alone
    rest, gone = ring.halved()
    S, T = near_diagonal(rest)
    odd, right = ring.count // 2, _right(ring.count)
    to_left = -(gone.left @ S[:, :odd] + gone.right @ _t(T[:, :odd]))
    to_right = -(gone.left @ T[:, :odd] + gone.right @ S[:, right])
    diagonal = np.empty((len(S), ring.count, *S.shape[2:]))
    diagonal[:, ::2] = S
    diagonal[:, 1::2] = gone.inverse - to_left @ _t(gone.left) - to_right @ _t(gone.right)
    if not neighbours:
        return diagonal, T
    beside = np.empty_like(diagonal)
    beside[:, 0 : 2 * odd : 2] = _t(to_left)
    beside[:, 1::2] = to_right
    if ring.count % 2:
        beside[:, -1] = T[:, -1]
    return diagonal, beside


def add_inverse(total: Array, ring: Ring, weight: float) -> None:
    """``total += weight · inverse``, the whole of it, of the only ring of a stack; ``total`` is ``(n, B, n, B)``."""
    if ring.count == 1:
        total[0, :, 0] += weight * ring.alone()[0, 0]
        return
    rest, gone = ring.halved()
    inverse, left, right = (part[0] for part in gone)
    kept, odd, B = rest.count, ring.count // 2, total.shape[1]
    S = np.zeros((kept, B, kept, B))
    add_inverse(S, rest, 1.0)
    total[::2, :, ::2] += weight * S
    following = _right(ring.count)
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
    """Which of the kept blocks lies to the right of each odd one."""
    return (np.arange(count // 2) + 1) % (count - count // 2)
