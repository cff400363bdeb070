r"""Sensitivity of an encoder: the only module that computes it.

A record that takes part in the steps π with gradients of norm at most 1 moves ``C·G`` by at most
``max ‖Σ_{i∈π} C[:, i] u_iᵀ‖_F`` over unit vectors ``u_i``. The square is
``Σ_{i,i'∈π} X_ii' ⟨u_i, u_i'⟩`` with ``X = CᵀC``. So the sensitivity depends only on the blocks of
X that belong to the participation patterns.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array, Indices
from antiphase.participation import Epochs, MinSeparation, Once, Participation

BLOCK_ROWS = 32  # rows of |CᵀC| in one step of the dynamic programme; a few fit in the cache
ENTRY_COST = 30  # operations for an entry of CᵀC, about
CALL_COST = 10_000  # operations in the time of one call of `Columns.gram`, about


class Columns(Protocol):
    """What sensitivity needs to know of an encoder, dense or structured.

    If the columns are shifts of one sequence of non-negative, non-increasing coefficients, cut off
    by the last row, an attribute ``falling`` may be True.
    """

    @property
    def steps(self) -> int:
        """Number of columns."""

    @property
    def reach(self) -> int:
        """Columns at least this many steps apart share no row."""

    def squared_norms(self) -> Array:
        """``X_ii`` for every step."""

    def gram(self, indices: Indices) -> Array:
        """The block of ``X = CᵀC`` at these steps."""


class DenseColumns:
    """The columns of an array, which may have more rows than columns.

    Args:
        encoder: the array; its entries must be finite.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = check.real_array("encoder", encoder, ndim=2)
        if not self._encoder.shape[1]:
            raise ValueError("encoder has no columns; one for each step is needed")

    @property
    def steps(self) -> int:
        """Number of columns."""
        return int(self._encoder.shape[1])

    @property
    def reach(self) -> int:
        """Largest distance of two non-zero entries in a row, plus 1."""
        # PRIVACY: in any row, wherever the entries are: it need not be triangular.   [G1]
        nonzero = self._encoder != 0
        last = self.steps - 1 - nonzero[:, ::-1].argmax(axis=1)
        distance = last - nonzero.argmax(axis=1)
        return int(np.max(distance, where=nonzero.any(axis=1), initial=0)) + 1

    def squared_norms(self) -> Array:
        """``X_ii`` for every step."""
        norms: Array = np.einsum("ij,ij->j", self._encoder, self._encoder)
        return norms

    def gram(self, indices: Indices) -> Array:
        """The block of ``X = CᵀC`` at these steps."""
        # PRIVACY: CᵀC, not CCᵀ: a record is a column of the encoder.   [G1]
        columns = self._encoder[:, indices]
        with np.errstate(over="ignore", invalid="ignore"):  # `sensitivity` refuses the result
            return columns.T @ columns


def sensitivity(encoder: Any, participation: Participation) -> float:
    r"""L2 sensitivity of an encoder.

    Guarantee: never below the true value, for gradients that are vectors of any dimension; equal to
    it where `is_exact` returns True. [G1]

    Args:
        encoder: the matrix C, or an object with the `Columns` protocol.
        participation: which steps one record may take part in.

    Returns:
        ``max ‖Σ_{i∈π} C[:, i] u_iᵀ‖_F`` over allowed patterns π and unit vectors ``u_i``.

    Raises:
        ValueError: entries are out of range, or the participation does not cover the steps.

    Example:
        >>> from antiphase.participation import epochs
        >>> sensitivity(np.eye(4), epochs(2, every=2))
        1.4142135623730951

    References:
        Choquette-Choo et al. (2022), Eq. 5.
    """
    columns = _columns(encoder)
    check.instance("participation", participation, Participation)
    files.spend("the sensitivity", **_computation_cost(columns, participation))
    squared = _squared(columns, participation)
    # PRIVACY: squares that overflowed, underflowed or met as inf − inf are no sensitivity.   [G1]
    if not 1e-200 < squared < 1e200:
        raise ValueError(
            f"the squared sensitivity of this encoder is {squared:g}: its entries are out of range"
        )
    return math.sqrt(squared)


def is_exact(encoder: Any, participation: Participation, tolerance: float = 1e-9) -> bool:
    """Whether `sensitivity` is known to be attained, rather than only an upper bound.

    It is attained [G2]

    - for one participation, and for shifts of one non-increasing, non-negative column;
    - in a fixed order, by equal gradients, if no two columns of the worst pattern have a (more than
      negligibly) negative inner product;
    - for a minimum separation, if columns that far apart are orthogonal.

    Args:
        encoder: the matrix C, or an object with the `Columns` protocol.
        participation: which steps one record may take part in.
        tolerance: relative difference that counts as attained.
    """
    columns = _columns(encoder)
    if participation.max_participations == 1 or _is_falling(columns):
        return True
    if columns.reach <= participation.separation:
        return True
    if participation.fixed_order:
        patterns = participation.patterns(columns.steps)
        attained = max(float(np.max([columns.gram(pattern).sum() for pattern in patterns])), 0.0)
        return math.sqrt(attained) >= (1 - tolerance) * sensitivity(columns, participation)
    gram = columns.gram(np.arange(columns.steps))
    return not np.triu(gram, participation.separation).any()


def _columns(encoder: Any) -> Columns:
    return encoder if hasattr(encoder, "squared_norms") else DenseColumns(encoder)


def _squared(columns: Columns, participation: Participation) -> float:
    if not isinstance(participation, Once | Epochs | MinSeparation):
        raise TypeError(
            f"participation = {participation!r}: the sensitivity for a "
            f"{type(participation).__name__} is not known; use once, epochs or min_separation"
        )
    participation.require_cover(columns.steps)
    separation = participation.separation
    if participation.max_participations == 1:
        # PRIVACY: the largest column norm, not row norm.   [G1]
        return float(np.max(columns.squared_norms()))
    if participation.fixed_order and columns.reach <= separation:
        # PRIVACY: columns of a pattern share no row, so their squares add up; all of them.   [G1]
        owners = np.arange(columns.steps) % separation
        return float(np.bincount(owners, columns.squared_norms()).max())
    if _is_falling(columns):
        pattern = np.arange(0, columns.steps, separation)[: participation.max_participations]
        return float(columns.gram(pattern).sum())
    if not participation.fixed_order:
        return _min_separation_bound(columns, participation)
    patterns = participation.patterns(columns.steps)
    # PRIVACY: |X_ii'|: the signs of cross terms are the adversary's to choose.   [G1]
    return float(np.max([np.abs(columns.gram(pattern)).sum() for pattern in patterns]))


def _is_falling(columns: Columns) -> bool:
    """Whether the first pattern, as dense as is allowed, is the worst.

    ``X_ii' = Σ_s c_s c_{s + i' − i}`` over the rows that i' has left: every term is non-negative, a
    later i' leaves fewer of them, and a larger distance makes none larger. So moving participations
    to the front and together, as far as is allowed, makes no ``X_ii'`` smaller (Kalinin and Lampert
    2024, theorem 2).
    """
    return bool(getattr(columns, "falling", False))


def _min_separation_bound(columns: Columns, participation: Participation) -> float:
    r"""Upper bound on the squared sensitivity for a minimum separation, by dynamic programming.

    ``max_π Σ_{i∈π} u_i`` with ``u_i = max_{π∋i} Σ_{i'∈π} |X_ii'|``. It is never below
    ``max_π Σ_{i,i'∈π} |X_ii'|``, since each term of the outer sum takes its own best pattern, and
    equal to it if columns at least the separation apart are orthogonal.
    """
    apart = participation.separation
    # No more participations fit between the first step and the last.
    count = min(participation.max_participations, -(-columns.steps // apart))
    norms = columns.squared_norms()
    if count == 1:
        return float(norms.max())
    if columns.reach <= apart:
        return _best_total(norms, count, apart)
    weights = columns.gram(np.arange(columns.steps))
    np.abs(weights, out=weights)
    before = _best_sums(weights, count - 1, apart)
    after = _best_sums(weights[::-1, ::-1], count - 1, apart)[:, ::-1]
    # PRIVACY: c participations before step i and count − 1 − c after it, in the best split.   [G1]
    others = np.max([before[c] + after[count - 1 - c] for c in range(count)], axis=0)
    return _best_total(norms + others, count, apart)


def _best_total(values: Array, count: int, apart: int) -> float:
    """Largest sum of at most ``count`` non-negative values whose steps are ``apart`` apart."""
    best = np.zeros(len(values))
    for _ in range(count):
        best = _running_best(values, best, apart)
    return float(best[-1])


def _best_sums(weights: Array, count: int, apart: int) -> Array:
    """``out[c, i]``: the best sum of ``weights[i, j]`` over at most c steps ``j ≤ i − apart``.

    The steps j are mutually ``apart`` apart.
    """
    steps = len(weights)
    out = np.zeros((count + 1, steps))
    for first in range(apart, steps, BLOCK_ROWS):
        rows = np.arange(first, min(first + BLOCK_ROWS, steps))
        part = np.ascontiguousarray(weights[rows[0] : rows[-1] + 1, : rows[-1] + 1 - apart])
        best = np.zeros_like(part)
        for c in range(1, count + 1):
            best = _running_best(part, best, apart)
            out[c, rows] = best[rows - first, rows - apart]
    return out


def _running_best(weights: Array, best: Array, apart: int) -> Array:
    """Best sums up to each step with one participation more than in ``best``."""
    earlier = np.zeros_like(best)
    earlier[..., apart:] = best[..., :-apart]
    running: Array = np.maximum.accumulate(weights + earlier, axis=-1)
    return running


def _computation_cost(columns: Columns, participation: Participation) -> dict[str, float]:
    """Upper estimate of the memory and the operations of `sensitivity`, for `files.spend`."""
    steps, separation = columns.steps, participation.separation
    if participation.fixed_order:
        if columns.reach <= separation:
            return {"memory": 8 * steps, "operations": steps}
        patterns = 1 if _is_falling(columns) else min(separation, steps)
        n = -(-steps // separation)
        return {"memory": 40 * n * n, "operations": patterns * (ENTRY_COST * n * n + CALL_COST)}
    count = min(participation.max_participations, -(-steps // separation))
    if _is_falling(columns):
        return {"memory": 40 * count * count, "operations": ENTRY_COST * count * count}
    if columns.reach > separation and count > 1:
        entries = steps * steps
        return {"memory": 16 * entries, "operations": (2 * count + ENTRY_COST) * entries}
    return {"memory": 8 * steps, "operations": count * (steps + CALL_COST // 10)}
