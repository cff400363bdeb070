r"""What a linear optimizer does with gradients: the workload ``A``.

Iterates are ``x_t = x_0 − Σ_j A[t, j] g_j``. Row ``t`` (counted from 1) belongs to the iterate after step ``t``, and
the gradient of step ``j`` is taken at ``x_{j−1}`` (paper, §3).

Every optimizer of this class is a short recurrence ``P u = N g`` with banded lower-triangular ``P`` and ``N``, so
``A = P⁻¹ N`` is applied and inverted in O(T) and never needs to be formed.
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

MOST_STEPS = 10_000_000  # for which a few numbers a step still fit anywhere

# The learning rate after a share of the run, relative to the first. Never 0 within it: a step of rate 0 is no step.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 + 0.5 * math.cos(math.pi * done),
}


@dataclass(frozen=True, eq=False, repr=False)
class Workload(Value):
    """A linear optimizer over ``steps`` steps, with the conventions of ``torch.optim.SGD``.

    Build one with `Workload.sgd` or `Workload.from_matrix`, and refine it with `with_ema`, `with_tail_average` and
    `with_curvature`; all of these combine.

    Guarantee: `apply` and `dense` agree, and `solve` undoes `apply` on every step that is not idle.   [G4]

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

    # ---- building one --------------------------------------------------------------------------------------

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
        """``torch.optim.SGD`` with these options, ``learning_rates`` being one number or one for each step.

        With ``delay=d`` the update of step ``t`` uses the gradient of step ``t − d``. There is no factor
        ``1 − momentum``, as there is none in torch.
        """
        steps = _checked_steps(steps)
        rates = check.per_step("learning_rates", learning_rates, steps)
        return cls(
            steps, rates, momentum, dampening, nesterov, weight_decay, delay
        )  # checked in __post_init__

    @classmethod
    def from_matrix(cls, matrix: Any) -> Workload:
        """Any lower-triangular workload, given as the T × T matrix itself."""
        matrix = check.real_array("matrix", matrix, ndim=2)
        return cls(len(matrix), matrix=matrix)

    def with_ema(self, decay: float) -> Workload:
        """The exponential moving average ``y_t = decay·y_{t−1} + (1 − decay)·x_t`` of the iterates, from ``y_0 =
        x_0``."""
        return replace(self, ema=decay)

    def with_tail_average(self, start: int) -> Workload:
        """The running mean of the iterates ``x_start … x_t`` (steps counted from 1); before ``start``, the iterate
        itself."""
        return replace(self, tail_start=start)

    def scaled(self, factor: float) -> Workload:
        """The same optimizer at ``factor`` times its learning rates."""
        factor = check.positive_number("factor", factor)
        if self.matrix is not None:
            return replace(self, matrix=factor * self.matrix)
        assert self.learning_rates is not None
        return replace(self, learning_rates=factor * self.learning_rates)

    def with_curvature(self, curvature: float) -> Workload:
        r"""The same optimizer on a loss of curvature ``h``: the gradient noise ``g`` arrives as ``g + h·x``.

        ``u = A(g − hZu)`` with ``Z`` the shift, since each gradient is taken one iterate earlier: for plain SGD an
        error shrinks by ``1 − h·learning_rate`` a step. Averages are taken of the iterates so damped.
        """
        return replace(
            self, curvature=self.curvature + check.real_number("curvature", curvature, minimum=0.0)
        )

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
        for name, value in clean.items():
            object.__setattr__(self, name, value)
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
                f"nesterov = True needs momentum > 0 and dampening = 0, as in torch; they are {self.momentum:g} "
                f"and {self.dampening:g}"
            )
        resumes = np.flatnonzero((self.learning_rates[:-1] == 0) & (self.learning_rates[1:] > 0))
        if self.momentum > 0 and resumes.size:
            t = int(resumes[0])
            raise ValueError(
                f"learning_rates[{t}] = 0 before learning_rates[{t + 1}] = {self.learning_rates[t + 1]:g}, with "
                f"momentum: step {t} moves no iterate of its own, only later ones through the momentum buffer, so "
                "the workload is singular. Give that step a small positive rate; rates of 0 at the end are fine"
            )

    def _check_matrix(self) -> None:
        assert self.matrix is not None
        if (self.momentum, self.dampening, self.nesterov, self.weight_decay, self.delay) != (
            0,
            0,
            False,
            0,
            0,
        ):
            raise TypeError(
                "a matrix workload takes no momentum, dampening, nesterov, weight_decay or delay"
            )
        if self.matrix.shape != (self.steps, self.steps):
            raise ValueError(
                f"matrix has shape {self.matrix.shape}; a workload is square, one row and column a step"
            )
        above = np.argwhere(np.triu(self.matrix, 1))
        if above.size:
            i, j = (int(k) for k in above[0])
            raise ValueError(
                f"matrix[{i}, {j}] = {self.matrix[i, j]:g} is above the diagonal: iterate {i} cannot use gradient {j}. "
                "A workload is lower triangular"
            )
        live = ~self.idle
        if not live.any():
            raise ValueError("matrix is 0: no step moves the model")
        if (np.diagonal(self.matrix)[live] == 0).any():
            rank = int(np.linalg.matrix_rank(self.matrix[:, live]))
            if rank < live.sum():
                raise ValueError(
                    f"matrix is singular: its {live.sum()} non-zero columns have rank {rank}, so some gradients cannot "
                    "be told apart from the iterates"
                )

    # ---- what it is ----------------------------------------------------------------------------------------

    @property
    def is_plain_sgd(self) -> bool:
        """Prefix sums up to learning rates and a delay: ``A = S·diag(rates)``, shifted by the delay."""
        return self.matrix is None and not (
            self.momentum or self.weight_decay or self.curvature or self.averages
        )

    @property
    def averages(self) -> bool:
        return self.ema is not None or self.tail_start is not None

    @property
    def is_plain(self) -> bool:
        """SGD at one learning rate above 0, with weight decay at most."""
        if (
            self.learning_rates is None
            or self.momentum
            or self.delay
            or self.curvature
            or self.averages
        ):
            return False
        return bool(
            self.learning_rates[0] > 0 and (self.learning_rates == self.learning_rates[0]).all()
        )

    @cached_property
    def idle(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The steps whose gradient moves no iterate (a rate of 0, the end of a delay): zero columns of ``A``."""
        if self.matrix is not None:
            return ~np.asarray(self.matrix.any(axis=0))
        assert self.learning_rates is not None
        idle = np.ones(self.steps, dtype=bool)
        idle[: self.steps - self.delay] = self.learning_rates[self.delay :] == 0
        return idle

    @property
    def largest_rate(self) -> float:
        """The largest learning rate; for a matrix, its largest entry on the diagonal (or at all, if that is 0)."""
        if self.learning_rates is not None:
            return float(self.learning_rates.max())
        assert self.matrix is not None
        return float(np.abs(np.diagonal(self.matrix)).max() or np.abs(self.matrix).max())

    def __repr__(self) -> str:
        return f"<Workload {self.describe()}, {self.steps} steps>"

    def describe(self) -> str:
        """A few words, without the number of steps: ``sgd, momentum 0.9, scheduled rates``."""
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

    # ---- the recurrence ------------------------------------------------------------------------------------

    @cached_property
    def bands(self) -> tuple[Array, Array] | None:
        r"""``(P, N)`` with ``P u = N Z^delay g``, or None for a matrix. Column ``i`` multiplies the value ``i`` steps
        back.

        From torch's ``buf_t = μ buf_{t−1} + c_t g'_t``, ``g'_t = g_t − λ u_{t−1}``, ``u_t = u_{t−1} + η_t d_t`` with
        the buffer eliminated, ``r_t = η_t/η_{t−1}``. Nesterov's ``d_t = g'_t + μ buf_t`` leaves a first-order ``N``.
        """
        if self.matrix is not None:
            return None
        assert self.learning_rates is not None
        rate, mu, decay = self.learning_rates, self.momentum, self.weight_decay
        ratio = np.zeros(self.steps)
        np.divide(rate[1:], rate[:-1], out=ratio[1:], where=rate[:-1] > 0)
        gain = np.full(self.steps, 1.0 - self.dampening)
        gain[0] = 1.0  # torch starts its buffer with the first gradient, undamped
        P = np.column_stack([np.ones(self.steps), -1.0 - mu * ratio, mu * ratio])
        N = (rate * gain)[:, None]
        if self.nesterov:
            N = np.column_stack([rate * (1 + mu), -rate * mu])
        P = _add_bands(P, decay * _shift_bands(N, 1))
        P = _add_bands(P, self.curvature * _shift_bands(N, 1 + self.delay))
        if self.averages:
            P = _multiply_bands(P, self._iterates_from_averages)
        return _trim_bands(P), N

    @cached_property
    def _iterates_from_averages(self) -> Array:
        """Bidiagonal: ``x_t = first·y_t + second·y_{t−1}``."""
        if self.ema is not None:
            return np.tile([1.0, -self.ema], (self.steps, 1)) / (1.0 - self.ema)
        assert self.tail_start is not None
        count = np.maximum(np.arange(1, self.steps + 1) - self.tail_start + 1, 1).astype(np.float64)
        return np.column_stack([count, 1.0 - count])

    def apply(self, gradients: Any) -> Array:
        """``A g`` in O(T): what these gradients (one row a step) have moved each iterate by, ``x_0 − x_t``."""
        g = self._rows("gradients", gradients)
        if self.bands is None:
            moved: Array = self._dense_iterates @ g
            return _solve_bands(self._iterates_from_averages, moved) if self.averages else moved
        P, N = self.bands
        return _solve_bands(P, _apply_bands(N, _shift_rows(g, self.delay)))

    def solve(self, iterates: Any) -> Array:
        """``A⁻¹ u`` in O(T): the gradients that move the iterates so; 0 for idle steps, which move nothing."""
        u = self._rows("iterates", iterates)
        if self.bands is None:
            if self.averages:
                u = _apply_bands(self._iterates_from_averages, u)
            solution: Array = np.zeros_like(u)
            live = ~self.idle
            A = self._dense_iterates[:, live]
            if live.all():
                solution[:] = scipy.linalg.solve_triangular(A, u, lower=True)
            else:
                solution[live] = np.linalg.lstsq(A, u, rcond=None)[0]
            return solution
        P, N = self.bands
        moved_by = _apply_bands(P, u)
        dead = N[:, 0] == 0
        N = N.copy()
        N[dead, 0] = 1.0
        moved_by[dead] = 0.0
        return _shift_rows(_solve_bands(N, moved_by), -self.delay)

    def dense(self) -> Array:
        """``A`` as a T × T array."""
        return self.apply(np.eye(self.steps))

    @cached_property
    def _dense_iterates(self) -> Array:
        """The matrix workload before averaging, seen through the curvature: ``(I + hAZ)⁻¹ A``."""
        assert self.matrix is not None
        if not self.curvature:
            return self.matrix
        shifted = np.zeros_like(self.matrix)
        shifted[:, :-1] = self.matrix[:, 1:]  # A Z: the gradient of step j reacts to iterate j − 1
        reaction = np.eye(self.steps) + self.curvature * shifted
        damped: Array = scipy.linalg.solve_triangular(reaction, self.matrix, lower=True)
        return damped

    def _rows(self, name: str, value: Any) -> Array:
        array = np.array(value, dtype=np.float64)
        if array.ndim not in (1, 2) or len(array) != self.steps:
            raise ValueError(
                f"{name} has shape {array.shape}; {self.steps} rows are needed, one for each step"
            )
        return array


# ---- lower-banded matrices: bands[t, i] multiplies entry t − i ---------------------------------------------


def _checked_steps(steps: Any) -> int:
    count = check.whole_number("steps", steps)
    if count > MOST_STEPS:
        raise ValueError(
            f"steps = {count} is more than any training has; at most {MOST_STEPS:,} are planned for"
        )
    return count


def _shift_rows(rows: Array, by: int) -> Array:
    """``Z^by rows``: down by ``by``, filled with zeros; up if negative."""
    if by == 0:
        return rows
    out = np.zeros_like(rows)
    if by > 0:
        out[by:] = rows[:-by]
    else:
        out[:by] = rows[-by:]
    return out


def _shift_bands(bands: Array, by: int) -> Array:
    """The bands of ``M Z^by``: the same rows, reaching ``by`` steps further back."""
    return np.column_stack([np.zeros((len(bands), by)), bands])


def _add_bands(left: Array, right: Array) -> Array:
    out = np.zeros((len(left), max(left.shape[1], right.shape[1])))
    out[:, : left.shape[1]] += left
    out[:, : right.shape[1]] += right
    return out


def _multiply_bands(left: Array, right: Array) -> Array:
    out = np.zeros((len(left), left.shape[1] + right.shape[1] - 1))
    for i in range(left.shape[1]):
        out[:, i : i + right.shape[1]] += left[:, i, None] * _shift_rows(right, i)
    return out


def _trim_bands(bands: Array) -> Array:
    """Without the far diagonals that are zero, or that lie outside the matrix."""
    inside = np.arange(len(bands))[:, None] >= np.arange(bands.shape[1])
    used = np.flatnonzero((inside & (bands != 0)).any(axis=0))
    trimmed: Array = np.where(inside, bands, 0.0)[:, : used[-1] + 1]
    return trimmed


def _apply_bands(bands: Array, rows: Array) -> Array:
    out = np.zeros_like(rows)
    for i in range(bands.shape[1]):
        band = bands[:, i] if rows.ndim == 1 else bands[:, i, None]
        out += band * _shift_rows(rows, i)
    return out


def _solve_bands(bands: Array, rows: Array) -> Array:
    width, steps = bands.shape[1], len(bands)
    stored = np.zeros((width, steps))  # LAPACK keeps column j of the matrix in column j
    for i in range(min(width, steps)):
        stored[i, : steps - i] = bands[i:, i]
    columns = rows if rows.ndim == 2 else rows[:, None]
    # No pivoting, so what is triangular stays triangular.
    solution, info = scipy.linalg.lapack.dtbtrs(stored, columns, uplo="L")
    if info:
        raise np.linalg.LinAlgError(
            f"row {info - 1} of a banded triangular matrix has a 0 on the diagonal"
        )
    out: Array = np.ascontiguousarray(solution).reshape(rows.shape)
    return out
