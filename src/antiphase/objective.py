r"""Which iterates matter: the weight ``Λ`` in the error ``sens(C)²·‖ΛB‖_F²``.

An `Objective` turns a workload into its `root`: a matrix ``M`` with ``MᵀM = W``, so that the error of an encoder
``C`` is ``sens(C)²·‖M C⁻¹‖_F² = sens(C)²·tr(W X⁻¹)``. Mostly ``M = ΛA``.
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


class Recurrence(NamedTuple):
    """``M = Λ P⁻¹ N Z^delay``: banded ``P`` and ``N`` (as in `Workload.bands`), and the weights, one for each row."""

    P: Array
    N: Array
    weights: Array


class Objective(Value, ABC):
    """What a factorization is judged by."""

    @abstractmethod
    def root(self, workload: Workload) -> Array:
        """``M`` with ``MᵀM = W``: rows are weighted iterates, columns are steps."""

    def recurrence(self, workload: Workload) -> Recurrence | None:
        """The root as a short recurrence; None where there is none."""
        return None

    def total(self, squares: Array) -> float:
        """What the squared noise in each row of the root comes to."""
        return float(squares.sum())

    @property
    def is_maximum(self) -> bool:
        """Whether the largest row counts rather than the sum of all rows."""
        return False

    def independent_blocks(self, workload: Workload) -> list[tuple[int, int, Array]] | None:
        """``(start, stop, weights)`` of the diagonal blocks of the root; None if it has none.

        Where they exist, the rows of each block are weighted sums of its own gradients.
        """
        return None

    def iterate_weights(self, steps: int) -> Array | None:
        """The weight of each iterate; None where the rows of the root are not those of ``ΛA``."""
        return None

    def toeplitz_weights(self, weights: Array) -> Array:
        """Weights of the squared coefficients of a Toeplitz decoder, from those of its rows."""
        return np.asarray(np.cumsum(weights[::-1] ** 2)[::-1])

    @abstractmethod
    def describe(self) -> str:
        """A few words, as in ``restarts every 50 steps``."""

    def __repr__(self) -> str:
        return f"<Objective {self.describe()}>"


@dataclass(frozen=True, eq=False, repr=False)
class Average(Objective):
    """All iterates alike (DP-MF), or by ``weights``, one positive number each; the last also times ``final_weight``.

    >>> Average(final_weight=2.0).root(Workload.sgd(2))
    array([[1., 0.],
           [2., 2.]])
    """

    weights: Any = None
    final_weight: float = 1.0

    def __post_init__(self) -> None:
        _clean_weights(self)

    def recurrence(self, workload: Workload) -> Recurrence | None:
        return _recurrence(self, workload)

    def root(self, workload: Workload) -> Array:
        return _weigh(self, workload.dense())

    def iterate_weights(self, steps: int) -> Array | None:
        """``weights``, the last times ``final_weight``."""
        return _row_weights(self, steps)

    def describe(self) -> str:
        return "every iterate" + _words(self)


@dataclass(frozen=True, eq=False, repr=False)
class Restarts(Objective):
    r"""The paper's ``Λ_τ``: iterates relative to the last restart, restarts relative to the one before (Eq. 9, DP-MF⁺).

    Rows ``t ≡ 0 mod τ`` are ``b_t − b_{t−τ}``, all others ``weight·(b_t − b_{⌊t/τ⌋τ})``; ``weight`` is ``1/√τ``
    unless given. ``include_final`` adds the convex theorem's row ``b_{⌊T/τ⌋τ}``. With ``anchor="end"`` the short
    block comes first, so that the last iterate is a restart and keeps its full weight even if ``τ`` does not divide
    the number of steps.
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

    def blocks(self, steps: int) -> list[tuple[int, int, Array]]:
        """``(start, stop, weights)`` of each segment between restarts, as 0-based half-open ranges of rows."""
        inner = self.tau**-0.5 if self.weight is None else self.weight
        short = steps % self.tau
        starts = list(range(0, steps, self.tau))
        if self.anchor == "end" and short:
            starts = [0, *range(short, steps, self.tau)]
        ranges = zip(starts, [*starts[1:], steps], strict=True)
        out = []
        for start, stop in ranges:
            weights = np.full(stop - start, inner)
            if stop - start == self.tau or self.anchor == "end":
                weights[-1] = 1.0
            out.append((start, stop, weights))
        return out

    def root(self, workload: Workload) -> Array:
        A = workload.dense()
        rows = np.empty_like(A)
        for start, stop, weights in self.blocks(workload.steps):
            origin = A[start - 1] if start else 0.0  # b_0 = 0: never index −1
            rows[start:stop] = weights[:, None] * (A[start:stop] - origin)
        last_restart = self.last_restart(workload.steps)
        if self.include_final and last_restart:
            rows = np.vstack([rows, A[last_restart - 1]])
        return rows

    def recurrence(self, workload: Workload) -> Recurrence | None:
        """Rows of ``P`` that reach back over a restart, rewritten for iterates relative to the last one.

        ``y_t = u_t − u_r`` with r the last restart before t. Where the rows of ``P`` sum to 0 (no decay, no curvature)
        the common ``u_r`` drops out, and what lies before a restart q differs by ``y_q``, which is within reach too.
        """
        if self.include_final or workload.bands is None:
            return None
        P, N = workload.bands
        P = P.copy()
        blocks = self.blocks(workload.steps)
        width = P.shape[1]
        for t in range(min(width - 1, workload.steps)):
            P[t, -1] -= P[t].sum()  # reaches before the first step, where everything is 0
        for start, stop, _ in blocks[1:]:
            for t in range(start, min(stop, start + width - 1)):
                if abs(P[t].sum()) > 1e-12 * np.abs(P[t]).sum():
                    return None
        for start, _, _ in reversed(
            blocks[1:]
        ):  # the last iterate before a restart is the restart itself
            for t in range(start, min(workload.steps, start + width - 1)):
                P[t, t - start + 1] -= P[t, t - start + 1 :].sum()
        return Recurrence(P, N, np.concatenate([weights for _, _, weights in blocks]))

    def independent_blocks(self, workload: Workload) -> list[tuple[int, int, Array]] | None:
        """`blocks`, for plain SGD (schedules and delays allowed) without the final row."""
        if self.include_final or not workload.is_plain_sgd:
            return None
        return self.blocks(workload.steps)

    def last_restart(self, steps: int) -> int:
        """The last restart, counted from 1; 0 if there is none."""
        return steps if self.anchor == "end" else steps // self.tau * self.tau

    def describe(self) -> str:
        words = f"restarts every {self.tau} steps"
        if self.weight is not None:
            words += f", weight {self.weight:g}"
        return (
            words
            + ", final row" * self.include_final
            + ", anchored at the end" * (self.anchor == "end")
        )


@dataclass(frozen=True, eq=False, repr=False)
class Damped(Objective):
    r"""Iterates whose errors shrink by ``ρ`` a step, as on a quadratic of curvature ``(1 − ρ)/learning rate``.

    The curvature is set so that the factor is ``ρ`` where the learning rate is largest; where a schedule is lower,
    errors shrink more slowly. For prefix sums ``M`` is ``Toeplitz(ρ^k)``. ``ρ = 1`` is `Average`.
    """

    rho: float
    weights: Any = None
    final_weight: float = 1.0

    def __post_init__(self) -> None:
        rho = check.real_number("rho", self.rho, minimum=0.0)
        if rho > 1:
            raise ValueError(f"rho = {rho} must be at most 1: errors that grow are not damped")
        object.__setattr__(self, "rho", rho)
        _clean_weights(self)

    def damped(self, workload: Workload) -> Workload:
        return workload.with_curvature((1.0 - self.rho) / workload.largest_rate)

    def recurrence(self, workload: Workload) -> Recurrence | None:
        return _recurrence(self, self.damped(workload))

    def root(self, workload: Workload) -> Array:
        return _weigh(self, self.damped(workload).dense())

    def describe(self) -> str:
        return f"errors damped by {self.rho:g} a step" + _words(self)


@dataclass(frozen=True, eq=False, repr=False)
class Curvature(Objective):
    r"""The exact squared gradient norm on a quadratic: ``W = Σ_h p_h h² M_hᵀ M_h`` over its ``spectrum`` of
    curvatures ``h``.

    ``learning_rate`` scales the workload's own rates (which are 1 unless given). Curvature-aware noise is due to
    NoiseCurve (arXiv 2510.05416).
    """

    spectrum: Any
    learning_rate: float = 1.0
    probabilities: Any = None
    weights: Any = None
    final_weight: float = 1.0

    def __post_init__(self) -> None:
        spectrum = check.real_array("spectrum", self.spectrum, ndim=1)
        if not len(spectrum) or (spectrum < 0).any() or not spectrum.any():
            raise ValueError(
                f"spectrum = {self.spectrum!r} needs curvatures of at least 0, and one above 0"
            )
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
                "probabilities are 0 wherever the spectrum is not: nothing is left to weigh"
            )
        for name, value in (("spectrum", spectrum), ("learning_rate", rate), ("probabilities", p)):
            object.__setattr__(self, name, value)
        _clean_weights(self)

    def root(self, workload: Workload) -> Array:
        live = ~workload.idle
        scaled = workload.scaled(self.learning_rate)
        counts = self.spectrum * self.probabilities > 0
        h, p = self.spectrum[counts], self.probabilities[counts]
        if self.weights is None and scaled.is_plain:
            gram = self._plain_gram(scaled, h, p)
        else:
            gram = np.zeros((int(live.sum()),) * 2)
            for curvature, many in zip(h, p, strict=True):
                M = _weigh(self, scaled.with_curvature(curvature).dense()[:, live])
                gram += many * curvature**2 * (M.T @ M)
        if not np.isfinite(gram).all():
            raise ValueError("on this spectrum the optimizer diverges: lower learning_rate")
        root = np.zeros((len(gram), workload.steps))
        root[:, live] = np.linalg.cholesky(gram, upper=True) / self.learning_rate
        return root

    def _plain_gram(self, workload: Workload, h: Array, p: Array) -> Array:
        r"""``W`` in O(T²), for SGD at one rate η.

        ``M_h`` is ``η·Toeplitz(ρ^k)`` with ``ρ = 1 − η(h + λ)``, so ``(MᵀM)_ij = η²(ρ^{|i−j|} − ρ^{2T−i−j})/(1 − ρ²)``.
        """
        T, rate = workload.steps, workload.largest_rate
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
        return (
            f"squared gradient over {len(self.spectrum)} curvatures up to {self.spectrum.max():g}"
            + _words(self)
        )


@dataclass(frozen=True, eq=False, repr=False)
class Maximum(Objective):
    """The noisiest iterate alone: ``sens(C)²·max_t ‖b_t‖²``, of which the square root is the maximum error."""

    def recurrence(self, workload: Workload) -> Recurrence | None:
        return (
            None if workload.bands is None else Recurrence(*workload.bands, np.ones(workload.steps))
        )

    def root(self, workload: Workload) -> Array:
        return workload.dense()

    def total(self, squares: Array) -> float:
        return float(squares.max())

    @property
    def is_maximum(self) -> bool:
        """True."""
        return True

    def toeplitz_weights(self, weights: Array) -> Array:
        """1 for each: rows of a Toeplitz decoder only grow, so that the last is the largest."""
        return np.ones(len(weights))

    def describe(self) -> str:
        return "the noisiest iterate"


# ---- per-iterate weights, shared by three objectives -------------------------------------------------------


def _clean_weights(objective: Any) -> None:
    final = check.positive_number("final_weight", objective.final_weight)
    object.__setattr__(objective, "final_weight", final)
    if objective.weights is None:
        return
    weights = check.real_array("weights", objective.weights, ndim=1)
    zero = np.flatnonzero(weights <= 0)
    if zero.size:
        i = int(zero[0])
        raise ValueError(
            f"weights[{i}] = {weights[i]:g}: every iterate needs a positive weight. With all weight on a few iterates, "
            "such as the last, the best encoder is singular (all noise would wait for the steps that do not count); "
            "mix: use final_weight, or small positive weights"
        )
    object.__setattr__(objective, "weights", weights)


def _row_weights(objective: Any, steps: int) -> Array:
    weights: Array = np.ones(steps) if objective.weights is None else objective.weights.copy()
    if len(weights) != steps:
        raise ValueError(
            f"weights has {len(weights)} entries for {steps} steps; give one for each step"
        )
    weights[-1] *= objective.final_weight
    return weights


def _recurrence(objective: Any, workload: Workload) -> Recurrence | None:
    if workload.bands is None:
        return None
    return Recurrence(*workload.bands, _row_weights(objective, workload.steps))


def _weigh(objective: Any, iterates: Array) -> Array:
    return _row_weights(objective, len(iterates))[:, None] * iterates


def _words(objective: Any) -> str:
    words = "" if objective.weights is None else ", weighted"
    return (
        words
        if math.isclose(objective.final_weight, 1.0)
        else f"{words}, the last × {objective.final_weight:g}"
    )
