r"""`Objective`: which iterates matter, as ``Λ`` in ``sens(C)²·‖ΛB‖_F²``.

An `Objective` turns a workload into its `root`, a matrix ``M`` with ``MᵀM = W``, so that the error
of an encoder ``C`` is ``sens(C)²·‖M C⁻¹‖_F² = sens(C)²·tr(W X⁻¹)``. For most objectives ``M = ΛA``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.values import Value
from antiphase.workload import Workload

SUM_TOLERANCE = 1e-12  # relative size up to which a row sum is zero but for rounding


class Recurrence(NamedTuple):
    """``M = Λ P⁻¹ N Z^delay`` with banded ``P`` and ``N`` (as in `Workload.recurrence`).

    Attributes:
        P: bands of the left-hand side.
        N: bands of the right-hand side.
        weights: the diagonal of ``Λ``, one number for each row.
    """

    P: Array
    N: Array
    weights: Array


class Block(NamedTuple):
    """The rows ``start:stop`` (counted from 0) between two restarts, with their weights."""

    start: int
    stop: int
    weights: Array


class Objective(Value, ABC):
    """The error that a factorization is designed for: a weighting of the iterates.

    Example:
        >>> Average(final_weight=2.0).root(Workload.sgd(2))
        array([[1., 0.],
               [2., 2.]])
    """

    is_maximum = False
    """Whether `total` is the largest row rather than the sum of all rows."""

    @abstractmethod
    def root(self, workload: Workload) -> Array:
        """Return ``M`` with ``MᵀM = W``: rows are weighted iterates, columns are steps."""

    def recurrence(self, workload: Workload) -> Recurrence | None:
        """Return the root as a short recurrence; None if it is not one."""
        return None

    def total(self, squares: Array) -> float:
        """Combine the squared norms of the rows of ``M C⁻¹`` into the error."""
        return float(squares.sum())

    def toeplitz_weights(self, weights: Array) -> Array:
        """Return the weights of the squared coefficients of a Toeplitz decoder.

        Args:
            weights: the weights of its rows.
        """
        return np.asarray(np.cumsum(weights[::-1] ** 2)[::-1])

    def iterate_weights(self, steps: int) -> Array | None:
        """Return the weights ``w`` if the root is ``diag(w)·A`` for every workload; else None."""
        return None

    def independent_blocks(self, workload: Workload) -> list[Block] | None:
        """Return the blocks of rows if the root is block diagonal; None if it is not."""
        return None

    def block_roots(self, workload: Workload) -> list[Array] | None:
        """Return the diagonal blocks of the root; None if it is not block diagonal.

        A block has the rows between two restarts and the columns of the gradients that arrive
        there, which with a delay ``d`` are ``d`` steps earlier. The last ``d`` gradients never
        arrive: they are a block of zero columns.
        """
        blocks = self.independent_blocks(workload)
        if blocks is None:
            return None
        assert workload.learning_rates is not None
        delay, roots = workload.delay, []
        for start, stop, weights in blocks:
            root = np.tril(np.ones((stop - start,) * 2)) * workload.learning_rates[start:stop]
            root = weights[:, None] * root[:, max(delay - start, 0) :]
            if root.shape[1]:
                roots.append(root)
        return roots + [np.zeros((1, delay))] * (delay > 0)

    @abstractmethod
    def describe(self) -> str:
        """Describe the objective in a few words, as in ``restarts every 50 steps``."""

    def __repr__(self) -> str:
        return f"<Objective {self.describe()}>"


class _WeightedIterates(Objective):
    """Base of the objectives with ``weights`` of iterates and a ``final_weight``."""

    weights: Any
    final_weight: float

    def __post_init__(self) -> None:
        final = check.positive_number("final_weight", self.final_weight)
        object.__setattr__(self, "final_weight", final)
        if self.weights is None:
            return
        weights = check.real_array("weights", self.weights, ndim=1)
        zero = np.flatnonzero(weights <= 0)
        if zero.size:
            i = int(zero[0])
            raise ValueError(
                f"weights[{i}] = {weights[i]:g}: every iterate needs a positive weight. With all "
                "weight on a few iterates, such as the last, the best encoder is singular: all "
                "noise would be put on the steps without weight. Use final_weight, or small "
                "positive weights"
            )
        object.__setattr__(self, "weights", weights)

    def _row_weights(self, steps: int) -> Array:
        weights: Array = np.ones(steps) if self.weights is None else self.weights.copy()
        if len(weights) != steps:
            raise ValueError(
                f"weights has {len(weights)} entries for {steps} steps; give one for each step"
            )
        weights[-1] *= self.final_weight
        return weights

    def _weighted_recurrence(self, workload: Workload) -> Recurrence | None:
        if workload.recurrence is None:
            return None
        return Recurrence(*workload.recurrence, self._row_weights(workload.steps))

    def _weighted(self, iterates: Array) -> Array:
        return self._row_weights(len(iterates))[:, None] * iterates

    def _describe_weights(self) -> str:
        words = "" if self.weights is None else ", weighted"
        if math.isclose(self.final_weight, 1.0):
            return words
        return f"{words}, the last × {self.final_weight:g}"


@dataclass(frozen=True, eq=False, repr=False)
class Average(_WeightedIterates):
    """The mean over all iterates (DP-MF).

    Args:
        weights: one positive number for each iterate; equal unless given.
        final_weight: an additional factor on the weight of the last iterate.

    Example:
        >>> Average([1, 2, 3])
        <Objective every iterate, weighted>
    """

    weights: Any = None
    final_weight: float = 1.0

    def iterate_weights(self, steps: int) -> Array:
        """Return the weights, with ``final_weight`` in the last one."""
        return self._row_weights(steps)

    def recurrence(self, workload: Workload) -> Recurrence | None:
        """Return the workload's own recurrence with these weights."""
        return self._weighted_recurrence(workload)

    def root(self, workload: Workload) -> Array:
        """Return ``ΛA``."""
        return self._weighted(workload.dense())

    def describe(self) -> str:
        """Describe the objective in a few words."""
        return "every iterate" + self._describe_weights()


@dataclass(frozen=True, eq=False, repr=False)
class Restarts(Objective):
    r"""The paper's ``Λ_τ`` (Eq. 9, DP-MF⁺): iterates relative to the last restart.

    Rows ``t ≡ 0 mod τ`` are ``b_t − b_{t−τ}``, all others ``weight·(b_t − b_{⌊t/τ⌋τ})``.

    Args:
        tau: number of steps between restarts.
        weight: weight of the rows between restarts, ``1/√τ`` unless given.
        include_final: whether to add the row ``b_{⌊T/τ⌋τ}`` of the convex theorem.
        anchor: with ``"end"`` the short block comes first if ``τ`` does not divide the number of
            steps, so that the last iterate is a restart and keeps its full weight.

    Example:
        >>> Restarts(2, weight=0.5).root(Workload.sgd(3))
        array([[0.5, 0. , 0. ],
               [1. , 1. , 0. ],
               [0. , 0. , 0.5]])
    """

    tau: int
    weight: float | None = None
    include_final: bool = False
    anchor: str = "start"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", check.whole_number("tau", self.tau))
        if self.weight is not None:
            object.__setattr__(self, "weight", check.positive_number("weight", self.weight))
        check.flag("include_final", self.include_final)
        check.choice("anchor", self.anchor, ("start", "end"))

    def blocks(self, steps: int) -> list[Block]:
        """Return the blocks of rows between restarts."""
        inner = self.tau**-0.5 if self.weight is None else self.weight
        short = steps % self.tau
        starts = list(range(0, steps, self.tau))
        if self.anchor == "end" and short:
            starts = [0, *range(short, steps, self.tau)]
        blocks = []
        for start, stop in zip(starts, [*starts[1:], steps], strict=True):
            weights = np.full(stop - start, inner)
            if stop - start == self.tau or self.anchor == "end":
                weights[-1] = 1.0
            blocks.append(Block(start, stop, weights))
        return blocks

    def independent_blocks(self, workload: Workload) -> list[Block] | None:
        """Return `blocks` for plain SGD without a final row, where the root is block diagonal."""
        if self.include_final or not workload.is_plain_sgd:
            return None
        return self.blocks(workload.steps)

    def root(self, workload: Workload) -> Array:
        """Return ``Λ_τ A``."""
        A = workload.dense()
        rows = np.empty_like(A)
        for start, stop, weights in self.blocks(workload.steps):
            origin = A[start - 1] if start else 0.0  # b_0 = 0, and index −1 would be the last row
            rows[start:stop] = weights[:, None] * (A[start:stop] - origin)
        last_restart = self.last_restart(workload.steps)
        if self.include_final and last_restart:
            rows = np.vstack([rows, A[last_restart - 1]])
        return rows

    def recurrence(self, workload: Workload) -> Recurrence | None:
        """Return the recurrence for iterates relative to the last restart.

        ``y_t = u_t − u_r`` with r the last restart before t. Where the rows of ``P`` sum to 0 (no
        decay, no curvature) the common ``u_r`` cancels. An iterate before the restart q is relative
        to an earlier restart, and is shifted by ``y_q``, which is within the bands too.
        """
        if self.include_final or workload.recurrence is None:
            return None
        P, N = workload.recurrence
        P = P.copy()
        blocks = self.blocks(workload.steps)
        width = P.shape[1]
        for t in range(min(width - 1, workload.steps)):
            P[t, -1] -= P[t].sum()  # this entry multiplies an iterate before the first step, 0
        for start, stop, _ in blocks[1:]:
            for t in range(start, min(stop, start + width - 1)):
                if abs(P[t].sum()) > SUM_TOLERANCE * np.abs(P[t]).sum():
                    return None
        # The iterate just before the start of a block is its restart.
        for start, _, _ in reversed(blocks[1:]):
            for t in range(start, min(workload.steps, start + width - 1)):
                P[t, t - start + 1] -= P[t, t - start + 1 :].sum()
        return Recurrence(P, N, np.concatenate([block.weights for block in blocks]))

    def last_restart(self, steps: int) -> int:
        """Return the step of the last restart, counted from 1; 0 if there is none."""
        return steps if self.anchor == "end" else steps // self.tau * self.tau

    def describe(self) -> str:
        """Describe the objective in a few words."""
        words = f"restarts every {self.tau} steps"
        if self.weight is not None:
            words += f", weight {self.weight:g}"
        if self.include_final:
            words += ", final row"
        return words + ", anchored at the end" * (self.anchor == "end")


@dataclass(frozen=True, eq=False, repr=False)
class Damped(_WeightedIterates):
    r"""Iterates whose errors shrink by ``ρ`` in each step, as on a quadratic.

    The curvature is ``(1 − ρ)/learning rate``, with the largest learning rate of a schedule. Where
    the rate is lower, errors shrink more slowly. For prefix sums ``M`` is ``Toeplitz(ρ^k)``.

    Args:
        rho: the factor ``ρ``, between 0 and 1; with 1 the objective is `Average`.
        weights: one positive number for each iterate; equal unless given.
        final_weight: an additional factor on the weight of the last iterate.

    Example:
        >>> Damped(0.5).root(Workload.sgd(3))
        array([[1.  , 0.  , 0.  ],
               [0.5 , 1.  , 0.  ],
               [0.25, 0.5 , 1.  ]])
    """

    rho: float
    weights: Any = None
    final_weight: float = 1.0

    def __post_init__(self) -> None:
        rho = check.real_number("rho", self.rho, minimum=0.0)
        if rho > 1:
            raise ValueError(f"rho = {rho} must be at most 1: larger factors amplify errors")
        object.__setattr__(self, "rho", rho)
        super().__post_init__()

    def damped(self, workload: Workload) -> Workload:
        """Return the workload on a loss of the curvature that ``rho`` stands for."""
        return workload.with_curvature((1.0 - self.rho) / workload.max_learning_rate)

    def recurrence(self, workload: Workload) -> Recurrence | None:
        """Return the recurrence of the damped workload with these weights."""
        return self._weighted_recurrence(self.damped(workload))

    def root(self, workload: Workload) -> Array:
        """Return ``ΛA`` of the damped workload."""
        return self._weighted(self.damped(workload).dense())

    def describe(self) -> str:
        """Describe the objective in a few words."""
        return f"errors damped by {self.rho:g} a step" + self._describe_weights()


@dataclass(frozen=True, eq=False, repr=False)
class Curvature(_WeightedIterates):
    r"""The exact squared gradient norm on a quadratic: ``W = Σ_h p_h h² M_hᵀ M_h``.

    Args:
        spectrum: the curvatures ``h``.
        learning_rate: a factor on the workload's own learning rates (which are 1 unless given).
        probabilities: the weights ``p_h``; equal unless given.
        weights: one positive number for each iterate; equal unless given.
        final_weight: an additional factor on the weight of the last iterate.

    Example:
        >>> Curvature([0.1, 1.0], learning_rate=0.5)
        <Objective squared gradient over 2 curvatures up to 1>

    References:
        NoiseCurve: arXiv 2510.05416.
    """

    spectrum: Any
    learning_rate: float = 1.0
    probabilities: Any = None
    weights: Any = None
    final_weight: float = 1.0

    def __post_init__(self) -> None:
        spectrum = check.curvatures("spectrum", self.spectrum)
        rate = check.positive_number("learning_rate", self.learning_rate)
        if rate * spectrum.max() >= 2:
            raise ValueError(
                f"learning_rate = {rate:g} times the largest curvature {spectrum.max():g} is "
                f"{rate * spectrum.max():g}: gradient descent diverges from 2 on"
            )
        p = np.full(len(spectrum), 1.0) if self.probabilities is None else self.probabilities
        p = check.per_step("probabilities", p, len(spectrum))
        if not (p * spectrum).any():
            raise ValueError(
                "probabilities are 0 for every positive curvature; give one of them a weight"
            )
        check.set_fields(self, spectrum=spectrum, learning_rate=rate, probabilities=p)
        super().__post_init__()

    def root(self, workload: Workload) -> Array:
        """Return the Cholesky factor of ``W``, with zero columns for idle steps."""
        live = ~workload.idle
        scaled = workload.scaled(self.learning_rate)
        counts = self.spectrum * self.probabilities > 0
        h, p = self.spectrum[counts], self.probabilities[counts]
        if self.weights is None and scaled.is_constant_rate_sgd:
            gram = self._constant_rate_gram(scaled, h, p)
        else:
            gram = np.zeros((int(live.sum()),) * 2)
            for curvature, probability in zip(h, p, strict=True):
                M = self._weighted(scaled.with_curvature(curvature).dense()[:, live])
                gram += probability * curvature**2 * (M.T @ M)
        if not np.isfinite(gram).all():
            raise ValueError("on this spectrum the optimizer diverges: lower learning_rate")
        root = np.zeros((len(gram), workload.steps))
        root[:, live] = np.linalg.cholesky(gram, upper=True) / self.learning_rate
        return root

    def _constant_rate_gram(self, workload: Workload, h: Array, p: Array) -> Array:
        r"""``W`` in O(T²), for SGD at one rate η.

        ``M_h`` is ``η·Toeplitz(ρ^k)`` with ``ρ = 1 − η(h + λ)``, so
        ``(MᵀM)_ij = η²(ρ^{|i−j|} − ρ^{2T−i−j})/(1 − ρ²)``.
        """
        T, rate = workload.steps, workload.max_learning_rate
        rho = 1.0 - rate * (h + workload.weight_decay)
        if (np.abs(rho) >= 1).any():
            raise ValueError("on this spectrum the optimizer diverges: lower learning_rate")
        share = p * (rate * h) ** 2
        powers = rho ** np.arange(2 * T + 1)[:, None]
        sums = powers @ (share / (1.0 - rho**2))
        final = powers @ (share * (self.final_weight**2 - 1.0))
        near = np.concatenate([sums[T - 1 : 0 : -1], sums[:T]])  # by j − i
        far = sums[2 * T : 1 : -1] - final[2 * T - 2 :: -1]  # by i + j
        return np.asarray(sliding_window_view(near, T)[::-1] - sliding_window_view(far, T))

    def describe(self) -> str:
        """Describe the objective in a few words."""
        curvatures = f"{len(self.spectrum)} curvatures up to {self.spectrum.max():g}"
        return f"squared gradient over {curvatures}" + self._describe_weights()


@dataclass(frozen=True, eq=False, repr=False)
class Maximum(Objective):
    """The noisiest iterate: ``sens(C)²·max_t ‖b_t‖²``, the square of the maximum error.

    Example:
        >>> Maximum()
        <Objective the noisiest iterate>
    """

    is_maximum = True

    def recurrence(self, workload: Workload) -> Recurrence | None:
        """Return the workload's own recurrence with weights 1."""
        if workload.recurrence is None:
            return None
        return Recurrence(*workload.recurrence, np.ones(workload.steps))

    def root(self, workload: Workload) -> Array:
        """Return ``A``."""
        return workload.dense()

    def total(self, squares: Array) -> float:
        """Return the largest of the squared norms."""
        return float(squares.max())

    def toeplitz_weights(self, weights: Array) -> Array:
        """Return ones: row norms of a Toeplitz decoder increase, so the last row is the largest."""
        return np.ones(len(weights))

    def describe(self) -> str:
        """Describe the objective in a few words."""
        return "the noisiest iterate"
