r"""`Workload`: a linear optimizer as the matrix from gradients to iterates.

Iterates are ``x_t = x_0 − Σ_j A[t, j] g_j``. Row ``t`` (counted from 1) is the iterate after step
``t``, and the gradient of step ``j`` is taken at ``x_{j−1}`` (paper, §3).

Every optimizer of this class is a short recurrence ``P u = N g`` with banded lower-triangular ``P``
and ``N``, so ``A = P⁻¹ N`` is applied and inverted in O(T) without forming it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.values import Value
from antiphase.linalg import banded

MAX_STEPS = 10_000_000  # a few numbers for each step still fit in memory

# Learning rate as a function of the fraction of the run that is done, relative to the first.
# Positive for every fraction below 1: a step with rate 0 does not move the model.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 + 0.5 * math.cos(math.pi * done),
}


@dataclass(frozen=True, eq=False, repr=False)
class Workload(Value):
    """A linear optimizer over ``steps`` steps, with the conventions of ``torch.optim.SGD``.

    Create one with `Workload.sgd` or `Workload.from_matrix`. Refine it with `with_ema`,
    `with_tail_average` and `with_curvature`, which can be combined.

    Guarantee: `apply` and `dense` agree, and `solve` inverts `apply` on every step that is not
    idle.   [G4]

    Example:
        >>> Workload.sgd(3).dense()
        array([[1., 0., 0.],
               [1., 1., 0.],
               [1., 1., 1.]])
    """

    steps: int
    learning_rates: Array | None = None
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    delay: int = 0
    matrix: Array | None = None
    curvature: float = 0.0
    ema: float | None = None
    tail_start: int | None = None

    @classmethod
    def sgd(
        cls,
        steps: int,
        *,
        learning_rates: Any = 1.0,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        delay: int = 0,
    ) -> Workload:
        """``torch.optim.SGD`` with these options.

        There is no factor ``1 − momentum``, as in torch.

        Args:
            steps: number of optimizer steps.
            learning_rates: one number, or one for each step.
            momentum: momentum factor, below 1.
            dampening: dampening of the momentum, below 1.
            nesterov: whether to use Nesterov momentum; needs momentum and no dampening.
            weight_decay: L2 penalty.
            delay: with ``delay=d`` the update of step ``t`` uses the gradient of step ``t − d``.

        Returns:
            The workload.

        Raises:
            ValueError: an option is out of range, or no step moves the model.

        Example:
            >>> Workload.sgd(3, momentum=0.5).dense()
            array([[1.  , 0.  , 0.  ],
                   [1.5 , 1.  , 0.  ],
                   [1.75, 1.5 , 1.  ]])
        """
        rates = check.per_step("learning_rates", learning_rates, _checked_steps(steps))
        return cls(steps, rates, momentum, dampening, nesterov, weight_decay, delay)

    @classmethod
    def from_matrix(cls, matrix: Any) -> Workload:
        """A workload given by its lower-triangular T × T matrix.

        Example:
            >>> Workload.from_matrix([[1, 0], [0.5, 1]])
            <Workload user's matrix, 2 steps>
        """
        matrix = check.real_array("matrix", matrix, ndim=2)
        return cls(len(matrix), matrix=matrix)

    def with_ema(self, decay: float) -> Workload:
        """Average the iterates: ``y_t = decay·y_{t−1} + (1 − decay)·x_t``, from ``y_0 = x_0``."""
        return replace(self, ema=decay)

    def with_tail_average(self, start: int) -> Workload:
        """Average the iterates ``x_start … x_t`` (steps counted from 1).

        Before ``start`` the average is the iterate itself.
        """
        return replace(self, tail_start=start)

    def scaled(self, factor: float) -> Workload:
        """Multiply the learning rates by ``factor``."""
        factor = check.positive_number("factor", factor)
        if self.matrix is not None:
            return replace(self, matrix=factor * self.matrix)
        assert self.learning_rates is not None
        return replace(self, learning_rates=factor * self.learning_rates)

    def with_curvature(self, curvature: float) -> Workload:
        r"""The same optimizer on a loss of curvature ``h``: the gradient ``g`` becomes ``g + h·x``.

        ``u = A(g − hZu)`` with the shift ``Z``, since each gradient is taken one iterate earlier.
        For plain SGD an error shrinks by the factor ``1 − h·learning_rate`` in each step. Averages
        are taken over these damped iterates.
        """
        more = check.real_number("curvature", curvature, minimum=0.0)
        return replace(self, curvature=self.curvature + more)

    def __post_init__(self) -> None:
        steps = _checked_steps(self.steps)
        if (self.matrix is None) == (self.learning_rates is None):
            raise TypeError(
                "a Workload has either learning_rates or a matrix; use Workload.sgd or .from_matrix"
            )
        clean: dict[str, Any] = {
            "momentum": check.real_number("momentum", self.momentum, minimum=0.0, below=1.0),
            "dampening": check.real_number("dampening", self.dampening, minimum=0.0, below=1.0),
            "nesterov": check.flag("nesterov", self.nesterov),
            "weight_decay": check.real_number("weight_decay", self.weight_decay, minimum=0.0),
            "delay": check.whole_number("delay", self.delay, minimum=0),
            "curvature": check.real_number("curvature", self.curvature, minimum=0.0),
        }
        if self.ema is not None and self.tail_start is not None:
            raise ValueError("with_ema and with_tail_average are two ways to average; choose one")
        if self.ema is not None:
            clean["ema"] = check.real_number("decay", self.ema, minimum=0.0, below=1.0)
        if self.tail_start is not None:
            clean["tail_start"] = check.whole_number("start", self.tail_start)
            if self.tail_start > steps:
                raise ValueError(f"start = {self.tail_start} is past the last of {steps} steps")
        if self.learning_rates is not None:
            clean["learning_rates"] = check.per_step("learning_rates", self.learning_rates, steps)
        if self.matrix is not None:
            clean["matrix"] = check.real_array("matrix", self.matrix, ndim=2)
        check.set_fields(self, **clean)
        if self.matrix is not None:
            self._check_matrix()
        else:
            self._check_optimizer()

    def _check_optimizer(self) -> None:
        assert self.learning_rates is not None
        if self.delay >= self.steps:
            raise ValueError(
                f"delay = {self.delay} leaves nothing of {self.steps} steps; it must be below steps"
            )
        if not self.learning_rates.any():
            raise ValueError("learning_rates are all 0: no step moves the model")
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(
                "nesterov = True needs momentum > 0 and dampening = 0, as in torch; "
                f"they are {self.momentum:g} and {self.dampening:g}"
            )
        resumes = np.flatnonzero((self.learning_rates[:-1] == 0) & (self.learning_rates[1:] > 0))
        if self.momentum > 0 and resumes.size:
            t = int(resumes[0])
            raise ValueError(
                f"learning_rates[{t}] = 0 before learning_rates[{t + 1}] = "
                f"{self.learning_rates[t + 1]:g}, with momentum: step {t} moves only later "
                "iterates, through the momentum buffer, so the workload is singular. Give that "
                "step a small positive rate; rates of 0 at the end are allowed"
            )

    def _check_matrix(self) -> None:
        assert self.matrix is not None
        if self.momentum or self.dampening or self.nesterov or self.weight_decay or self.delay:
            raise TypeError(
                "a matrix workload takes no momentum, dampening, nesterov, weight_decay or delay"
            )
        if self.matrix.shape != (self.steps, self.steps):
            raise ValueError(
                f"matrix has shape {self.matrix.shape}; a workload is square, with one row and "
                "one column for each step"
            )
        above = np.argwhere(np.triu(self.matrix, 1))
        if above.size:
            i, j = (int(k) for k in above[0])
            raise ValueError(
                f"matrix[{i}, {j}] = {self.matrix[i, j]:g} is above the diagonal: iterate {i} "
                f"cannot use gradient {j}. A workload is lower triangular"
            )
        live = ~self.idle
        if not live.any():
            raise ValueError("matrix is 0: no step moves the model")
        if (np.diagonal(self.matrix)[live] == 0).any():
            rank = int(np.linalg.matrix_rank(self.matrix[:, live]))
            if rank < live.sum():
                raise ValueError(
                    f"matrix is singular: its {live.sum()} non-zero columns have rank {rank}, so "
                    "the iterates do not determine the gradients"
                )

    @property
    def is_plain_sgd(self) -> bool:
        """Whether ``A`` is prefix sums times learning rates, ``S·diag(rates)``, after the delay."""
        return self.matrix is None and not (
            self.momentum or self.weight_decay or self.curvature or self.is_averaged
        )

    @property
    def is_averaged(self) -> bool:
        """Whether the iterates are averaged, by an EMA or from some step on."""
        return self.ema is not None or self.tail_start is not None

    @property
    def is_constant_rate_sgd(self) -> bool:
        """Whether it is SGD at one positive learning rate, with at most weight decay."""
        rates = self.learning_rates
        return bool(
            rates is not None
            and not (self.momentum or self.delay or self.curvature or self.is_averaged)
            and rates[0] > 0
            and (rates == rates[0]).all()
        )

    @cached_property
    def idle(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Steps whose gradient moves no iterate: zero columns of ``A``.

        These are steps with learning rate 0 and the last ``delay`` steps.
        """
        if self.matrix is not None:
            return ~np.asarray(self.matrix.any(axis=0))
        assert self.learning_rates is not None
        idle = np.ones(self.steps, dtype=bool)
        idle[: self.steps - self.delay] = self.learning_rates[self.delay :] == 0
        return idle

    @property
    def max_learning_rate(self) -> float:
        """The largest learning rate.

        For a matrix: its largest entry in absolute value on the diagonal, or anywhere if the
        diagonal is 0.
        """
        if self.learning_rates is not None:
            return float(self.learning_rates.max())
        assert self.matrix is not None
        return float(np.abs(np.diagonal(self.matrix)).max() or np.abs(self.matrix).max())

    def __repr__(self) -> str:
        return f"<Workload {self.describe()}, {self.steps} steps>"

    def describe(self) -> str:
        """Describe the optimizer in a few words, without the number of steps.

        Example:
            >>> Workload.sgd(2, momentum=0.9, learning_rates=[1, 0.5]).describe()
            'sgd, momentum 0.9, scheduled rates'
        """
        words = ["user's matrix" if self.matrix is not None else "sgd"]
        if self.momentum:
            words.append(f"{'nesterov ' if self.nesterov else ''}momentum {self.momentum:g}")
        if self.learning_rates is not None and np.ptp(self.learning_rates):
            words.append("scheduled rates")
        words += [
            f"{label} {value:g}"
            for label, value in [
                ("dampening", self.dampening),
                ("weight decay", self.weight_decay),
                ("delay", self.delay),
                ("curvature", self.curvature),
            ]
            if value
        ]
        if self.ema is not None:
            words.append(f"EMA {self.ema:g} of iterates")
        if self.tail_start is not None:
            words.append(f"mean of iterates from {self.tail_start}")
        return ", ".join(words)

    @cached_property
    def recurrence(self) -> tuple[Array, Array] | None:
        r"""``(P, N)`` by bands with ``P u = N Z^delay g``, or None for a matrix.

        From torch's ``buf_t = μ buf_{t−1} + c_t g'_t``, ``g'_t = g_t − λ u_{t−1}``,
        ``u_t = u_{t−1} + η_t d_t`` with the buffer eliminated, ``r_t = η_t/η_{t−1}``. Nesterov's
        ``d_t = g'_t + μ buf_t`` leaves a first-order ``N``.
        """
        if self.matrix is not None:
            return None
        assert self.learning_rates is not None
        rate, mu, decay = self.learning_rates, self.momentum, self.weight_decay
        ratio = np.zeros(self.steps)
        np.divide(rate[1:], rate[:-1], out=ratio[1:], where=rate[:-1] > 0)
        gain = np.full(self.steps, 1.0 - self.dampening)
        gain[0] = 1.0  # torch starts its buffer with the first gradient, without dampening
        P = np.column_stack([np.ones(self.steps), -1.0 - mu * ratio, mu * ratio])
        N = (rate * gain)[:, None]
        if self.nesterov:
            N = np.column_stack([rate * (1 + mu), -rate * mu])
        P = banded.add(P, decay * banded.delay_columns(N, 1))
        P = banded.add(P, self.curvature * banded.delay_columns(N, 1 + self.delay))
        if self.is_averaged:
            P = banded.multiply(P, self._iterates_from_averages)
        return banded.trim(P), N

    @cached_property
    def _iterates_from_averages(self) -> Array:
        """The bidiagonal matrix in ``x_t = first·y_t + second·y_{t−1}``."""
        if self.ema is not None:
            return np.tile([1.0, -self.ema], (self.steps, 1)) / (1.0 - self.ema)
        assert self.tail_start is not None
        count = np.maximum(np.arange(1, self.steps + 1) - self.tail_start + 1, 1).astype(np.float64)
        return np.column_stack([count, 1.0 - count])

    def apply(self, gradients: Any) -> Array:
        """Return ``A g`` in O(T): the displacement ``x_0 − x_t`` of each iterate.

        Args:
            gradients: one row for each step.

        Example:
            >>> Workload.sgd(3, learning_rates=0.5).apply([1.0, 1.0, 1.0])
            array([0.5, 1. , 1.5])
        """
        g = self._rows("gradients", gradients)
        if self.recurrence is None:
            moved: Array = self._dense_iterates @ g
            return banded.solve(self._iterates_from_averages, moved) if self.is_averaged else moved
        P, N = self.recurrence
        return banded.solve(P, banded.apply(N, banded.shift_rows(g, self.delay)))

    def solve(self, iterates: Any) -> Array:
        """Return ``A⁻¹ u`` in O(T): the gradients that displace the iterates by ``u``.

        Idle steps, whose gradients move nothing, get 0.

        Args:
            iterates: the displacements ``x_0 − x_t``, one row for each step.

        Example:
            >>> Workload.sgd(3, learning_rates=0.5).solve([0.5, 1.0, 1.5])
            array([1., 1., 1.])
        """
        u = self._rows("iterates", iterates)
        if self.recurrence is None:
            if self.is_averaged:
                u = banded.apply(self._iterates_from_averages, u)
            solution: Array = np.zeros_like(u)
            live = ~self.idle
            A = self._dense_iterates[:, live]
            if live.all():
                solution[:] = scipy.linalg.solve_triangular(A, u, lower=True)
            else:
                solution[live] = np.linalg.lstsq(A, u, rcond=None)[0]
            return solution
        P, N = self.recurrence
        moved_by = banded.apply(P, u)
        dead = N[:, 0] == 0
        N = N.copy()
        N[dead, 0] = 1.0
        moved_by[dead] = 0.0
        return banded.shift_rows(banded.solve(N, moved_by), -self.delay)

    def dense(self) -> Array:
        """Return ``A`` as a T × T array."""
        return self.apply(np.eye(self.steps))

    @cached_property
    def _dense_iterates(self) -> Array:
        """``(I + hAZ)⁻¹ A``: the matrix workload on a loss of curvature h, before averaging."""
        assert self.matrix is not None
        if not self.curvature:
            return self.matrix
        shifted = np.zeros_like(self.matrix)
        shifted[:, :-1] = self.matrix[:, 1:]  # A Z: the gradient of step j reacts to iterate j − 1
        reaction = np.eye(self.steps) + self.curvature * shifted
        return np.asarray(scipy.linalg.solve_triangular(reaction, self.matrix, lower=True))

    def _rows(self, name: str, value: Any) -> Array:
        array = np.array(value, dtype=np.float64)
        if array.ndim not in (1, 2) or len(array) != self.steps:
            raise ValueError(
                f"{name} has shape {array.shape}; {self.steps} rows are needed, one for each step"
            )
        return array


def _checked_steps(steps: Any) -> int:
    count = check.whole_number("steps", steps)
    if count > MAX_STEPS:
        raise ValueError(f"steps = {count} is above the limit; at most {MAX_STEPS:,} are supported")
    return count
