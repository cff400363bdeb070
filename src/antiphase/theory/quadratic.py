r"""Quadratics, exactly: what gradient descent under correlated noise does at every step, without Monte Carlo.

Along an eigendirection of curvature ``h`` an error moves by itself: with ``A_h`` the workload seen through the
curvature (for plain SGD at rate γ, ``γ·Toeplitz((1 − γh)^k)``), what the noise leaves in the iterate is ``A_h C⁻¹Z``.
So ``E‖∇f(x_t)‖² = Σ_h h²(signal_t + σ²‖row_t(A_h C⁻¹)‖²)``, and for a stream the rows' norms are the variances of a
short linear recurrence: the covariances of its buffers are the same for every ``h``, and each ``h`` adds one column.

`simulate` runs the same optimizer with the library's own noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.values import Value
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.segments import Stream
from antiphase.mechanism import Mechanism
from antiphase.noise import Key
from antiphase.workload import Workload

SIMULATED = (
    "0" * 32
)  # the run of a simulation: nothing private is released, so the same seed is the same noise


@dataclass(frozen=True, eq=False, repr=False)
class Quadratic(Value):
    r"""``f(x) = ½ Σ_i h_i (x_i − x*_i)²`` along its eigendirections, from the start ``x_0``.

    ``spectrum`` holds the curvatures ``h_i ≥ 0``, and ``multiplicity`` how many directions each stands for (any
    positive weights, as of an estimated spectrum; `simulate` needs whole numbers). The optimum is drawn with mean
    ``optimum`` and standard deviation ``spread`` (0: it is fixed); one number stands for all directions. The noise is
    the same in every direction, so nothing is lost by looking along these.

    >>> Quadratic([1.0, 4.0], optimum=[2.0, 1.0]).smoothness
    4.0
    """

    spectrum: Any
    optimum: Any = 0.0
    start: Any = 0.0
    spread: Any = 0.0
    multiplicity: Any = 1.0

    def __post_init__(self) -> None:
        spectrum = check.real_array("spectrum", self.spectrum, ndim=1)
        if not len(spectrum) or (spectrum < 0).any() or not spectrum.any():
            raise ValueError(
                f"spectrum = {self.spectrum!r} needs curvatures of at least 0, and one above 0"
            )
        object.__setattr__(self, "spectrum", spectrum)
        for name, least in (
            ("optimum", -math.inf),
            ("start", -math.inf),
            ("spread", 0.0),
            ("multiplicity", 0.0),
        ):
            value = np.asarray(getattr(self, name), dtype=np.float64)
            value = check.real_array(
                name, np.full(len(spectrum), value) if value.ndim == 0 else value, ndim=1
            )
            if len(value) != len(spectrum):
                raise ValueError(
                    f"{name} has {len(value)} entries for {len(spectrum)} curvatures; give one for each"
                )
            if (value < least).any():
                raise ValueError(f"{name} = {value.min():g} must be at least {least:g} everywhere")
            object.__setattr__(self, name, value)

    @classmethod
    def paper(cls, dimension: int = 100, smoothness: float = 10.0) -> Quadratic:
        """The paper's random least squares, appendix H.1: ``f(x) = ½‖Ax − b‖²``, ``b ~ N(0, I)``, ``x_0 = 0``.

        The singular values of ``A`` are spread evenly over ``[0, √L]``, so ``h_i = L(i/(d − 1))²`` and the optimum
        has variance ``1/h_i``; not strongly convex. The paper's σ is the length of the whole noise vector: its
        σ = 20 is ``noise = 20/√d = 2``.
        """
        dimension = check.whole_number("dimension", dimension, minimum=2)
        singular = np.linspace(
            0.0, math.sqrt(check.positive_number("smoothness", smoothness)), dimension
        )
        spread = np.zeros(dimension)
        spread[1:] = 1.0 / singular[1:]
        return cls(singular**2, spread=spread)

    @property
    def dimension(self) -> float:
        """The number of directions."""
        return float(self.multiplicity.sum())

    @property
    def smoothness(self) -> float:
        """``L``, the largest curvature."""
        return float(self.spectrum.max())

    def __repr__(self) -> str:
        return f"<Quadratic, {len(self.spectrum)} curvatures up to {self.smoothness:g}>"


# ---- expectations ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Split:
    """An expectation at the iterates ``x_0 … x_T``: what is left of the start, and what the noise adds."""

    signal: Array
    noise: Array

    @property
    def total(self) -> Array:
        return self.signal + self.noise

    @property
    def average(self) -> float:
        """The mean over ``x_0 … x_T``, all T + 1 of them, as in the paper's theorems."""
        return float(self.total.mean())

    @property
    def last(self) -> float:
        return float(self.total[-1])


@dataclass(frozen=True, eq=False)
class Expectation:
    """``E‖∇f(x_t)‖²`` and ``E f(x_t) − f*``, at every step."""

    gradient: Split
    gap: Split


def exact(
    plan: Factorization | Mechanism,
    problem: Quadratic,
    *,
    learning_rate: float = 1.0,
    noise: float | None = None,
) -> Expectation:
    r"""The expectations on ``problem`` of the optimizer that ``plan`` was designed for, at every step.

    ``learning_rate`` scales the workload's own rates (which are 1 unless given). ``noise`` is the standard deviation,
    in each coordinate, of what independent noise of the same privacy would add to the gradient: noise multiplier ×
    clip norm, over the batch size where gradients are means. A mechanism has its own (that of sums), unless given.

    Guarantee: exact up to rounding for every factorization and workload; agrees with `simulate` in distribution. In
    O(T·buffers·(buffers + curvatures)) for streams and encoders of few diagonals, O(T²·curvatures) for others.

    >>> from antiphase import design
    >>> found = exact(design("dp-sgd", steps=2), Quadratic([1.0], optimum=1.0), learning_rate=0.5, noise=1.0)
    >>> found.gradient.signal, found.gradient.noise
    (array([1.    , 0.25  , 0.0625]), array([0.    , 0.25  , 0.3125]))
    """
    factorization, scale = _noise_of(plan, noise)
    workload = _scaled(factorization.workload, learning_rate)
    h, many = _seen(problem)
    with np.errstate(over="ignore", invalid="ignore"):
        signal = _signal(workload, problem)
        variance = np.vstack([np.zeros(len(h)), scale**2 * _variances(factorization, workload, h)])
    if not (np.isfinite(signal).all() and np.isfinite(variance).all()):
        raise ValueError(
            f"learning_rate = {learning_rate:g}: the optimizer diverges on this spectrum; lower it"
        )
    curved, half = many * h**2, many * h / 2
    return Expectation(
        Split(signal @ curved, variance @ curved), Split(signal @ half, variance @ half)
    )


def _noise_of(plan: Factorization | Mechanism, noise: float | None) -> tuple[Factorization, float]:
    """The factorization, and the standard deviation of its ``Z``."""
    if isinstance(plan, Mechanism):
        if noise is None:
            return plan.factorization, plan.noise_scale
        plan = plan.factorization
    check.instance("plan", plan, Factorization)
    if noise is None:
        raise TypeError(
            "noise = None: a factorization says nothing of its scale; give noise, or a Mechanism"
        )
    return plan, check.real_number("noise", noise, minimum=0.0) * plan.sensitivity


def _scaled(workload: Workload, learning_rate: float) -> Workload:
    if workload.curvature:
        raise ValueError(
            f"the workload has a curvature of its own, {workload.curvature:g}; say it in the spectrum"
        )
    return workload.scaled(check.positive_number("learning_rate", learning_rate))


def ends_further_off(workload: Workload, curvature: float, learning_rate: float = 1.0) -> bool:
    """Whether training without noise, along a direction of this curvature, ends further from the optimum than it
    began."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved = (
            _scaled(workload, learning_rate)
            .with_curvature(curvature)
            .apply(np.ones(workload.steps))[-1]
        )
    return not abs(1.0 - curvature * moved) <= 1.0 + 1e-12


def _seen(problem: Quadratic) -> tuple[Array, Array]:
    """The curvatures above 0, and how many directions each has: others have no gradient."""
    curved = problem.spectrum > 0
    return problem.spectrum[curved], problem.multiplicity[curved]


def _signal(workload: Workload, problem: Quadratic) -> Array:
    """``E(x_t − x*)²`` without noise, t = 0 … T, for each curvature above 0.

    The gradients ``h(x_0 − x*)`` and the decay ``λx_0`` of the start arrive in every step; the rest of both is in
    ``A_h``. So ``x_t − x* = α_t x_0 − β_t x*``.
    """
    curved = problem.spectrum > 0
    start, decay = problem.start[curved], workload.weight_decay
    if start.any() and decay and workload.delay:
        raise ValueError(
            f"weight_decay = {decay:g} with delay = {workload.delay} needs start = 0: the decay of the start is not "
            "delayed, its gradient is"
        )
    alpha, beta = np.ones((2, workload.steps + 1, int(curved.sum())))
    ones = np.ones(workload.steps)
    for i, h in enumerate(problem.spectrum[curved]):
        answer = workload.with_curvature(h).apply(ones)
        alpha[1:, i] -= (h + decay) * answer
        beta[1:, i] -= h * answer
    fixed = alpha * start - beta * problem.optimum[curved]
    return cast(Array, fixed**2 + (beta * problem.spread[curved]) ** 2)


def _variances(factorization: Factorization, workload: Workload, spectrum: Array) -> Array:
    """``‖row_t(A_h C⁻¹)‖²``: a row for each step, a column for each curvature."""
    stream = None if workload.recurrence is None else factorization.as_stream()
    if stream is None:
        return dense_variances(factorization, workload, spectrum)
    return streamed_variances(stream, workload, spectrum)


def dense_variances(factorization: Factorization, workload: Workload, spectrum: Array) -> Array:
    """The same for any encoder and workload, from ``C⁻¹`` itself: O(T²) a curvature."""
    noising = factorization.noising()
    out = np.empty((workload.steps, len(spectrum)))
    for i, h in enumerate(spectrum):
        rows = workload.with_curvature(h).apply(noising)
        out[:, i] = np.einsum("ij,ij->i", rows, rows)
    return out


def streamed_variances(stream: Stream, workload: Workload, spectrum: Array) -> Array:
    r"""The same by a recurrence over the buffers ``S``: O(T·buffers·(buffers + curvatures)).

    ``P_h u = N y`` is driven by the noise ``y_t = (z_t − r_tᵀS_t)/δ_t``. Carried along are the covariances of ``w =
    (S, earlier y)`` with itself, which know nothing of curvature, and with the earlier ``u`` of every curvature.
    """
    own, kept, N = _recurrences(workload, spectrum)
    segments = [segment for _, segment in stream]
    m, q = (max(s.r.shape[axis] for s in segments) for axis in (1, 2))
    T = workload.steps
    read, gain, move = np.zeros((3, T, m, q))
    variance, rests, fresh = np.ones(T), np.ones(T, np.bool_), np.zeros(T, np.bool_)
    fresh[stream.starts] = True
    for start, s in stream:
        live = start + s.live
        buffers, vectors = np.arange(s.r.shape[1]), np.arange(s.r.shape[2])
        place = np.ix_(live, buffers, vectors)
        read[place] = -s.r / s.delta[:, None, None]
        gain[place] = s.g
        move[place] = np.concatenate([s.move[1:], np.zeros_like(s.move[:1])])
        variance[live], rests[live] = s.delta**-2, False
    out: Array = _compiled()(read, variance, gain, move, rests, fresh, own, kept, N)
    return out


def _recurrences(workload: Workload, spectrum: Array) -> tuple[Array, Array, Array]:
    """``u_t = own·(N y)_t + Σ_a kept_a u_{t−a}`` for each curvature: own (T, n), kept (T, p, n) and the bands of N."""
    bands = [cast(tuple[Array, Array], workload.with_curvature(h).recurrence) for h in spectrum]
    P = np.zeros((workload.steps, max(2, *(P.shape[1] for P, _ in bands)), len(spectrum)))
    for i, (band, _) in enumerate(bands):
        P[:, : band.shape[1], i] = band
    N = np.column_stack([np.zeros((workload.steps, workload.delay)), bands[0][1]])
    return 1.0 / P[:, 0], -P[:, 1:] / P[:, :1], N


def _follow(
    read: Array,
    variance: Array,
    gain: Array,
    move: Array,
    rests: Array,
    fresh: Array,
    own: Array,
    kept: Array,
    N: Array,
) -> Array:
    """The variances of ``u_t = own·(N y)_t + Σ_a kept_a u_{t−a}`` under ``y = read·S + √variance·z``, step by step.

    Then ``S ← move S + gain·y``, unless it ``rests``; where ``fresh``, the buffers begin empty.
    """
    (T, m, q), (p, n), lags = move.shape, kept.shape[1:], N.shape[1] - 1
    s = m * q
    y = s + lags  # the place of y, after S and the earlier y: together, w
    V = np.zeros((y + 1, y + 1))  # covariances of w with itself,
    K = np.zeros((y + 1, p * n))  # of w with the earlier u of every curvature, newest first,
    U = np.zeros((n, p, p))  # and of these with one another
    drive_w, drive_u, new = np.zeros(y + 1), np.zeros(p * n), np.zeros(max(y + 1, p * n))
    u_u, out = np.zeros(p), np.zeros((T, n))
    for t in range(T):
        if fresh[t]:
            V[:s, :] = 0.0
            V[:, :s] = 0.0
            K[:s, :] = 0.0
        # y_t, and the drive (N y)_t
        for rows in (V, K):
            rows[y, :] = 0.0
            for r in range(s):
                factor = read[t, r // q, r % q]
                for c in range(rows.shape[1]):
                    rows[y, c] += factor * rows[r, c]
        for c in range(y):
            V[c, y] = V[y, c]
        V[y, y] = variance[t]
        for r in range(s):
            V[y, y] += read[t, r // q, r % q] * V[y, r]
        for rows, drive in ((V, drive_w), (K, drive_u)):
            for c in range(rows.shape[1]):
                drive[c] = N[t, 0] * rows[y, c]
                for a in range(lags):
                    drive[c] += N[t, 1 + a] * rows[s + a, c]
        square = N[t, 0] * drive_w[y]
        for a in range(lags):
            square += N[t, 1 + a] * drive_w[s + a]
        # u_t: its variance, and its covariances with the earlier u
        for i in range(n):
            total = own[t, i] ** 2 * square
            for a in range(p):
                u_u[a] = own[t, i] * drive_u[a * n + i]
                total += kept[t, a, i] * u_u[a]
                for b in range(p):
                    u_u[a] += U[i, a, b] * kept[t, b, i]
                total += kept[t, a, i] * u_u[a]
            out[t, i] = total
            for a in range(p - 1, 0, -1):
                for b in range(p - 1, 0, -1):
                    U[i, a, b] = U[i, a - 1, b - 1]
            for a in range(1, p):
                U[i, 0, a] = U[i, a, 0] = u_u[a - 1]
            U[i, 0, 0] = total
        # u_t with w, in place of the oldest u
        for r in range(y + 1):
            for i in range(n):
                new[i] = own[t, i] * drive_w[r]
            for a in range(p):
                for i in range(n):
                    new[i] += kept[t, a, i] * K[r, a * n + i]
            for c in range(p * n - 1, n - 1, -1):
                K[r, c] = K[r, c - n]
            for i in range(n):
                K[r, i] = new[i]
        # w one step on: rows of V, its columns, and rows of K
        for turn in range(3):
            if turn == 1:
                V[:] = V.T.copy()
            rows = K if turn == 2 else V
            for k in range(0 if rests[t] else m):
                for c in range(rows.shape[1]):
                    new[c] = gain[t, k, 0] * rows[y, c]
                for b in range(q):
                    for c in range(rows.shape[1]):
                        new[c] += move[t, k, b] * rows[k * q + b, c]
                for b in range(q - 1, 0, -1):
                    for c in range(rows.shape[1]):
                        rows[k * q + b, c] = rows[k * q + b - 1, c] + gain[t, k, b] * rows[y, c]
                for c in range(rows.shape[1]):
                    rows[k * q, c] = new[c]
            for r in range(y - 1, s - 1, -1):
                for c in range(rows.shape[1]):
                    rows[r, c] = rows[r - 1 if r > s else y, c]
    return out


@cache
def _compiled() -> Any:
    import numba  # when first needed: importing it takes longer than most answers

    return numba.njit(cache=True, nogil=True)(_follow)


# ---- simulation --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Paths:
    """``‖∇f(x_t)‖²`` and ``f(x_t) − f*`` along simulated runs: a row a run, a column for each of ``x_0 … x_T``.

    With restarts also those of the virtual sequence ``x̃_t``, and how far it is from the real one, ``‖x_t − x̃_t‖²``.
    """

    gradient: Array
    gap: Array
    virtual_gradient: Array | None = None
    virtual_gap: Array | None = None
    apart: Array | None = None


def simulate(
    plan: Factorization | Mechanism,
    problem: Quadratic,
    *,
    learning_rate: float = 1.0,
    noise: float | None = None,
    runs: int = 1,
    seed: int,
    tau: int | None = None,
) -> Paths:
    r"""Runs of the optimizer that ``plan`` was designed for, with the noise that training would draw.

    ``learning_rate`` and ``noise`` are those of `exact`. With ``tau``, the paper's virtual sequence runs alongside
    (Eq. 7): it takes the same gradients without noise, ``x̃_{t+1} = x̃_t − γ∇f(x_t)``, and restarts at the real iterate
    every ``tau`` steps; for plain SGD.

    Guarantee: the noise is that of the mechanism's own stream, and the same seed gives the same paths.
    """
    factorization, scale = _noise_of(plan, noise)
    workload = _scaled(factorization.workload, learning_rate)
    runs = check.whole_number("runs", runs)
    if workload.recurrence is None:
        raise ValueError(
            "a workload given as a matrix is not simulated: it has no recurrence. Use exact"
        )
    if tau is not None:
        check.whole_number("tau", tau)
        if not workload.is_plain_sgd or workload.delay:
            raise ValueError(
                f"tau = {tau}: the virtual sequence is defined for plain SGD, not {workload.describe()}"
            )
    h, optimum, start = _directions(problem, runs, np.random.default_rng(seed))
    rows = _noise_rows(factorization, scale, optimum.shape, seed)
    found = {name: np.empty((runs, workload.steps + 1)) for name in ("gradient", "gap")}
    if tau is not None:
        found |= {
            name: np.empty((runs, workload.steps + 1))
            for name in ("virtual_gradient", "virtual_gap", "apart")
        }
    x = virtual = np.broadcast_to(start, optimum.shape)
    optimizer = _Optimizer(workload, start)
    for t in range(workload.steps + 1):
        if t:
            gradient = h * (optimizer.iterate - optimum)
            x = optimizer.step(gradient + next(rows))
            if tau is not None:
                assert workload.learning_rates is not None
                virtual = x if t % tau == 0 else virtual - workload.learning_rates[t - 1] * gradient
        found["gradient"][:, t], found["gap"][:, t] = _measured(h, x - optimum)
        if tau is not None:
            found["virtual_gradient"][:, t], found["virtual_gap"][:, t] = _measured(
                h, virtual - optimum
            )
            found["apart"][:, t] = np.square(x - virtual).sum(axis=1)
    return Paths(**found)


def _measured(h: Array, error: Array) -> tuple[Array, Array]:
    curved = error * h
    return np.einsum("ri,ri->r", curved, curved), 0.5 * np.einsum("ri,ri->r", curved, error)


def _directions(
    problem: Quadratic, runs: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """The curvature, the optimum of every run and the start along each direction, one for one."""
    many = problem.multiplicity.astype(np.int64)
    if (many != problem.multiplicity).any():
        raise ValueError("multiplicity has fractions: a simulation needs whole directions")
    h, optimum, start, spread = (
        np.repeat(values, many)
        for values in (problem.spectrum, problem.optimum, problem.start, problem.spread)
    )
    return h, optimum + spread * rng.standard_normal((runs, len(h))), start


def _noise_rows(
    factorization: Factorization, scale: float, shape: tuple[int, ...], seed: int
) -> Iterator[Array]:
    """Row by row ``scale·C⁻¹Z``, from the mechanism's own stream."""
    mechanism = Mechanism(factorization, 1.0)
    stream = mechanism.noise(math.prod(shape), key=Key.insecure(seed), run=SIMULATED)
    for row in stream:
        yield (scale / mechanism.noise_scale) * row.astype(np.float64).reshape(shape)


class _Optimizer:
    """A workload at work: ``x_t = x_0 − u_t`` with ``P u = N Z^delay g``, one gradient at a time."""

    def __init__(self, workload: Workload, start: Array) -> None:
        self._workload, self._start = workload, start
        iterates = replace(workload, ema=None, tail_start=None)
        self._P, self._N = cast(tuple[Array, Array], iterates.recurrence)
        self._moves: list[Array] = []  # u, newest first
        self._gradients: list[Array] = []  # likewise
        self._t = 0
        self.iterate = self._average = start

    def step(self, gradient: Array) -> Array:
        """The next iterate, or the next average where the workload averages; `iterate` is where gradients are
        taken."""
        P, N, w = self._P[self._t], self._N[self._t], self._workload
        self._gradients.insert(0, gradient)
        arrived = self._gradients[w.delay :]
        decay = w.weight_decay * self._start  # of the start; that of what was moved since is in P
        u = np.zeros_like(gradient)
        for i in range(min(len(N), self._t + 1)):
            u += N[i] * ((arrived[i] if i < len(arrived) else 0.0) + decay)
        for a, earlier in enumerate(self._moves[: len(P) - 1], start=1):
            u -= P[a] * earlier
        self._moves = [u / P[0], *self._moves[: len(P) - 2]]
        self._gradients = self._gradients[: len(N) + w.delay]
        self._t += 1
        self.iterate = self._start - self._moves[0]
        share = 1.0
        if w.ema is not None:
            share = 1.0 - w.ema
        elif w.tail_start is not None and self._t > w.tail_start:
            share = 1.0 / (self._t - w.tail_start + 1)
        self._average = self._average + share * (self.iterate - self._average)
        return self._average
