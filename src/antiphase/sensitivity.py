r"""``sens(C)``: by how much one record can move ``C·G``. The only place that computes it.

A record that takes part in the steps ``π`` with gradients of norm at most 1 moves the output by at most ``max
‖Σ_{i∈π} C[:, i] u_iᵀ‖_F`` over unit vectors ``u_i``, whose square is ``Σ_{i,i'∈π} X_ii' ⟨u_i, u_i'⟩`` with ``X =
CᵀC``. So only the columns of ``C`` count, through the blocks of ``X`` that the patterns cut out.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array, Indices
from antiphase.loading_cost import sensitivity_cost
from antiphase.participation import Epochs, MinSeparation, Once, Participation

ROWS = 32  # of |CᵀC| that are worked on at once


class Columns(Protocol):
    """What sensitivity needs to know of an encoder, dense or not.

    Columns that are shifts of one another, cut off by the last row, with coefficients that are non-negative and do not
    grow, may say so by an attribute ``falling`` that is True.
    """

    @property
    def steps(self) -> int: ...

    @property
    def reach(self) -> int:
        """Columns that are this many steps apart, or more, share no row."""

    def squared_norms(self) -> Array:
        """``X_ii`` for every step."""

    def gram(self, indices: Indices) -> Array:
        """The block of ``X = CᵀC`` at these steps."""


class DenseColumns:
    """The columns of an array; it may have more rows than columns."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = check.real_array("encoder", encoder, ndim=2)
        if not self._encoder.shape[1]:
            raise ValueError("encoder has no columns; one for each step is needed")

    @property
    def steps(self) -> int:
        return int(self._encoder.shape[1])

    @property
    def reach(self) -> int:
        # PRIVACY: from the first to the last entry of a row, wherever they are: it need not be triangular.   [G1]
        there = self._encoder != 0
        last = self.steps - 1 - there[:, ::-1].argmax(axis=1)
        return int(np.max(last - there.argmax(axis=1), where=there.any(axis=1), initial=0)) + 1

    def squared_norms(self) -> Array:
        norms: Array = np.einsum("ij,ij->j", self._encoder, self._encoder)
        return norms

    def gram(self, indices: Indices) -> Array:
        # PRIVACY: CᵀC, not CCᵀ: a record is a column of the encoder.   [G1]
        columns = self._encoder[:, indices]
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what comes of it is refused as a sensitivity
            return columns.T @ columns


def sensitivity(encoder: Any, participation: Participation) -> float:
    r"""L2 sensitivity of the encoder (an array, or its `Columns`), for records that take part as ``participation``
    allows.

    Guarantee: never below the true value, for gradients that are vectors of any dimension; equal to it where
    `is_exact` says so.   [G1]
    Paper: §2.1; several epochs: Choquette-Choo et al. 2022, Eq. 5.

    >>> from antiphase.participation import epochs
    >>> sensitivity(np.eye(4), epochs(2, every=2))
    1.4142135623730951
    """
    columns = _columns(encoder)
    check.instance("participation", participation, Participation)
    files.spend("the sensitivity", **sensitivity_cost(columns, participation))
    squared = _squared(columns, participation)
    # PRIVACY: squares that overflowed, underflowed or met as inf − inf are no sensitivity.   [G1]
    if not 1e-200 < squared < 1e200:
        raise ValueError(
            f"the squared sensitivity of this encoder is {squared:g}: its entries are out of range"
        )
    return math.sqrt(squared)


def _squared(columns: Columns, participation: Participation) -> float:
    if not isinstance(participation, Once | Epochs | MinSeparation):
        raise TypeError(
            f"participation = {participation!r}: no sensitivity is known for a "
            f"{type(participation).__name__}"
        )
    participation.require_cover(columns.steps)
    if participation.max_participations == 1:
        # PRIVACY: the largest column norm, not row norm.   [G1]
        return float(np.max(columns.squared_norms()))
    if participation.fixed_order:
        patterns = participation.patterns(columns.steps)
        if _is_falling(columns):
            patterns = patterns[:1]
        elif columns.reach <= participation.separation:
            # PRIVACY: columns of one pattern share no row, so that their squares add up; all of them.   [G1]
            return float(
                np.bincount(
                    np.arange(columns.steps) % participation.separation, columns.squared_norms()
                ).max()
            )
        # PRIVACY: |X_ii'|: the signs of cross terms are the adversary's to choose.   [G1]
        return float(np.max([np.abs(columns.gram(pattern)).sum() for pattern in patterns]))
    if _is_falling(columns):
        pattern = np.arange(0, columns.steps, participation.separation)
        pattern = pattern[: participation.max_participations]
        return float(columns.gram(pattern).sum())
    return _min_separation_bound(columns, participation)


def is_exact(encoder: Any, participation: Participation, tolerance: float = 1e-9) -> bool:
    """Whether `sensitivity` is known to be attained (to within a relative ``tolerance``), not only an upper bound.

    So it is for one participation; in a fixed order, where equal gradients attain it, that is where no two columns of
    the worst pattern have a (more than negligibly) negative inner product; for a minimum separation, where columns
    that far apart are orthogonal, or shifts of one another with falling coefficients.   [G2]
    """
    columns = _columns(encoder)
    if participation.max_participations == 1 or _is_falling(columns):
        return True
    if columns.reach <= participation.separation:
        return True
    if participation.fixed_order:
        patterns = participation.patterns(columns.steps)
        attained = math.sqrt(
            max(float(np.max([columns.gram(pattern).sum() for pattern in patterns])), 0.0)
        )
        return attained >= (1 - tolerance) * sensitivity(columns, participation)
    gram = columns.gram(np.arange(columns.steps))
    return not np.triu(gram, participation.separation).any()


def _is_falling(columns: Columns) -> bool:
    """Whether the first pattern, as dense as is allowed, is the worst.

    ``X_ii' = Σ_s c_s c_{s + i' − i}`` over the rows that i' has left: every term is non-negative, a later i' leaves
    fewer of them, and a larger distance makes none larger. So moving participations to the front and together, as far
    as they may, makes no ``X_ii'`` smaller (Kalinin and Lampert 2024, theorem 2).
    """
    return bool(getattr(columns, "falling", False))


def _columns(encoder: Any) -> Columns:
    return encoder if hasattr(encoder, "squared_norms") else DenseColumns(encoder)


def _min_separation_bound(columns: Columns, participation: Participation) -> float:
    r"""``max_π Σ_{i∈π} u_i`` with ``u_i = max_{π∋i} Σ_{i'∈π} |X_ii'|``: each maximum by dynamic programming.

    Never below ``max_π Σ_{i,i'∈π} |X_ii'|``, since each term of the outer sum takes its own best pattern; equal to it
    where columns ``apart`` or more steps apart are orthogonal.
    """
    apart = participation.separation
    count = min(
        participation.max_participations, -(-columns.steps // apart)
    )  # no more fit between the first step and the last
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
    """The largest sum of at most ``count`` of these non-negative numbers, mutually ``apart`` apart."""
    best = np.zeros(len(values))
    for _ in range(count):
        best = _running_best(values, best, apart)
    return float(best[-1])


def _best_sums(weights: Array, count: int, apart: int) -> Array:
    """``out[c, i]``: the largest sum of ``weights[i, j]`` over at most c steps j ≤ i − apart, mutually ``apart``
    apart."""
    steps = len(weights)
    out = np.zeros((count + 1, steps))
    for first in range(
        apart, steps, ROWS
    ):  # rows are independent; a few at a time fit in the cache
        rows = np.arange(first, min(first + ROWS, steps))
        part = np.ascontiguousarray(weights[rows[0] : rows[-1] + 1, : rows[-1] + 1 - apart])
        best = np.zeros_like(part)
        for c in range(1, count + 1):
            best = _running_best(part, best, apart)
            out[c, rows] = best[rows - first, rows - apart]
    return out


def _running_best(weights: Array, best: Array, apart: int) -> Array:
    """One more participation: at step j, on top of the best with last step ≤ j − apart; then the best so far."""
    earlier = np.zeros_like(best)
    earlier[..., apart:] = best[..., :-apart]
    running: Array = np.maximum.accumulate(weights + earlier, axis=-1)
    return running
