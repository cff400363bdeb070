"""Blocks of an encoder that repeat: each distinct one is solved once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Solution = TypeVar("Solution")


def solve_distinct(
    keys: Iterable[Hashable], solve: Callable[[int], Solution]
) -> tuple[list[Solution], tuple[int, ...]]:
    """Solve the first block of each key.

    Args:
        keys: one for each block; equal keys stand for equal blocks.
        solve: called with the index of a block.

    Returns:
        The distinct solutions, and for each block the index of its solution among them.

    Example:
        >>> solve_distinct("abba", lambda i: 10 * i)
        ([0, 10], (0, 1, 1, 0))
    """
    number: dict[Hashable, int] = {}
    solutions: list[Solution] = []
    sequence = []
    for i, key in enumerate(keys):
        if key not in number:
            number[key] = len(solutions)
            solutions.append(solve(i))
        sequence.append(number[key])
    return solutions, tuple(sequence)
