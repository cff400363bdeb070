r"""Exact expectations of optimizers with correlated noise on quadratics.

Along an eigendirection of curvature ``h`` the error is independent of all others: with ``A_h`` the
workload on a loss of curvature h (for plain SGD at rate γ, ``γ·Toeplitz((1 − γh)^k)``), the noise
in the iterate is ``A_h C⁻¹Z``. So ``E‖∇f(x_t)‖² = Σ_h h²(signal_t + σ²‖row_t(A_h C⁻¹)‖²)``. For a
stream the row norms are the variances of a short linear recurrence: the covariances of its buffers
are the same for every ``h``, and each ``h`` adds one column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.values import Value
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.segments import Stream
from antiphase.mechanism import Mechanism
from antiphase.workload import Workload

ROUNDING_MARGIN = 1e-12  # by which a distance may grow through rounding alone


@dataclass(frozen=True, eq=False, repr=False)
class Quadratic(Value):
    r"""``f(x) = ½ Σ_i h_i (x_i − x*_i)²`` in the basis of its eigendirections.

    The noise is the same in every direction, so the basis loses no generality.

    Args:
        spectrum: the curvatures ``h_i ≥ 0``.
        optimum: the mean of ``x*``; one number stands for all directions, as below.
        start: ``x_0``.
        spread: the standard deviation of ``x*``; 0 if it is fixed.
        multiplicity: how many directions each curvature stands for: any positive weights, as of an
            estimated spectrum. `simulate` needs whole numbers.

    Example:
        >>> Quadratic([1.0, 4.0], optimum=[2.0, 1.0]).smoothness
        4.0
    """

    spectrum: Any
    optimum: Any = 0.0
    start: Any = 0.0
    spread: Any = 0.0
    multiplicity: Any = 1.0

    def __post_init__(self) -> None:
        spectrum = check.curvatures("spectrum", self.spectrum)
        object.__setattr__(self, "spectrum", spectrum)
        for name, minimum in (
            ("optimum", -math.inf),
            ("start", -math.inf),
            ("spread", 0.0),
            ("multiplicity", 0.0),
        ):
            value = np.asarray(getattr(self, name), dtype=np.float64)
            value = np.full(len(spectrum), value) if value.ndim == 0 else value
            value = check.real_array(name, value, ndim=1)
            if len(value) != len(spectrum):
                raise ValueError(
                    f"{name} has {len(value)} entries for {len(spectrum)} curvatures; give one for "
                    "each"
                )
            if (value < minimum).any():
                raise ValueError(f"{name} = {value.min():g} must be at least {minimum:g}")
            object.__setattr__(self, name, value)

    @classmethod
    def paper(cls, dimension: int = 100, smoothness: float = 10.0) -> Quadratic:
        """The paper's random least squares, appendix H.1: ``f(x) = ½‖Ax − b‖²``, ``b ~ N(0, I)``.

        The start is ``x_0 = 0``. The singular values of ``A`` are spread evenly over ``[0, √L]``,
        so ``h_i = L(i/(d − 1))²`` and the optimum has variance ``1/h_i``; not strongly convex. The
        paper's σ is the norm of the whole noise vector: its σ = 20 is ``noise = 20/√d = 2``.
        """
        dimension = check.whole_number("dimension", dimension, minimum=2)
        top = math.sqrt(check.positive_number("smoothness", smoothness))
        singular = np.linspace(0.0, top, dimension)
        spread = np.zeros(dimension)
        spread[1:] = 1.0 / singular[1:]
        return cls(singular**2, spread=spread)

    @property
    def dimension(self) -> float:
        """Number of directions."""
        return float(self.multiplicity.sum())

    @property
    def smoothness(self) -> float:
        """``L``, the largest curvature."""
        return float(self.spectrum.max())

    def __repr__(self) -> str:
        return f"<Quadratic, {len(self.spectrum)} curvatures up to {self.smoothness:g}>"


@dataclass(frozen=True, eq=False)
class SignalAndNoise:
    """An expectation at the iterates ``x_0 … x_T``, as a sum of two parts.

    Attributes:
        signal: what it is without noise.
        noise: what the noise adds.
    """

    signal: Array
    noise: Array

    @property
    def total(self) -> Array:
        """``signal + noise``."""
        return self.signal + self.noise

    @property
    def average(self) -> float:
        """The mean over all T + 1 iterates, as in the paper's theorems."""
        return float(self.total.mean())

    @property
    def last(self) -> float:
        """The value at the last iterate."""
        return float(self.total[-1])


@dataclass(frozen=True, eq=False)
class Expectation:
    """``E‖∇f(x_t)‖²`` and ``E f(x_t) − f*`` at every step."""

    gradient: SignalAndNoise
    gap: SignalAndNoise


def expectation(
    mechanism: Factorization | Mechanism,
    problem: Quadratic,
    *,
    learning_rate: float = 1.0,
    noise: float | None = None,
) -> Expectation:
    r"""Return the exact expectations on ``problem`` of the optimizer that a mechanism is for.

    Takes O(T·buffers·(buffers + curvatures)) for streams and encoders with few diagonals, and
    O(T²·curvatures) for others.

    Guarantee: exact up to rounding for every factorization and workload; agrees with `simulate` in
    distribution.

    Args:
        mechanism: the mechanism, or a factorization with ``noise``.
        problem: the quadratic.
        learning_rate: a factor on the workload's own learning rates (which are 1 unless given).
        noise: the standard deviation, in each coordinate, of what independent noise of the same
            privacy would add to the gradient: noise multiplier × clip norm, divided by the batch
            size if gradients are means. That of a mechanism (for sums) unless given.

    Raises:
        ValueError: the optimizer diverges on this spectrum.

    Example:
        >>> from antiphase import design
        >>> f, problem = design("dp-sgd", steps=2), Quadratic([1.0], optimum=1.0)
        >>> gradient = expectation(f, problem, learning_rate=0.5, noise=1.0).gradient
        >>> gradient.signal, gradient.noise
        (array([1.    , 0.25  , 0.0625]), array([0.    , 0.25  , 0.3125]))
    """
    factorization, scale = noise_scale(mechanism, noise)
    workload = scaled_workload(factorization.workload, learning_rate)
    curved = problem.spectrum > 0  # in flat directions there is no gradient
    h, many = problem.spectrum[curved], problem.multiplicity[curved]
    with np.errstate(over="ignore", invalid="ignore"):
        signal = _signal(workload, problem, curved)
        variances = scale**2 * row_variances(factorization, workload, h)
    variances = np.vstack([np.zeros(len(h)), variances])
    if not (np.isfinite(signal).all() and np.isfinite(variances).all()):
        raise ValueError(
            f"learning_rate = {learning_rate:g}: the optimizer diverges on this spectrum; lower it"
        )
    gradient, gap = (
        SignalAndNoise(signal @ weights, variances @ weights)
        for weights in (many * h**2, many * h / 2)
    )
    return Expectation(gradient, gap)


def noise_scale(
    mechanism: Factorization | Mechanism, noise: float | None
) -> tuple[Factorization, float]:
    """Return the factorization and the standard deviation of its ``Z``."""
    if isinstance(mechanism, Mechanism):
        if noise is None:
            return mechanism.factorization, mechanism.noise_scale
        mechanism = mechanism.factorization
    check.instance("mechanism", mechanism, Factorization)
    if noise is None:
        raise TypeError("noise = None: a factorization has no scale; give noise, or a Mechanism")
    return mechanism, check.real_number("noise", noise, minimum=0.0) * mechanism.sensitivity


def scaled_workload(workload: Workload, learning_rate: float) -> Workload:
    """Return the workload with its learning rates times ``learning_rate``."""
    if workload.curvature:
        raise ValueError(
            f"the workload has a curvature of its own, {workload.curvature:g}; put it into the "
            "spectrum"
        )
    return workload.scaled(check.positive_number("learning_rate", learning_rate))


def diverges(workload: Workload, curvature: float, learning_rate: float = 1.0) -> bool:
    """Whether training without noise ends further from the optimum than it began.

    Args:
        workload: the optimizer.
        curvature: the curvature of the direction.
        learning_rate: a factor on the workload's own learning rates.
    """
    scaled = scaled_workload(workload, learning_rate)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = scaled.with_curvature(curvature).apply(np.ones(workload.steps))[-1]
    return not abs(1.0 - curvature * moved) <= 1.0 + ROUNDING_MARGIN


def _signal(workload: Workload, problem: Quadratic, curved: Any) -> Array:
    """``E(x_t − x*)²`` without noise, t = 0 … T, for each curvature above 0.

    The gradients ``h(x_0 − x*)`` and the decay ``λx_0`` of the start arrive in every step; ``A_h``
    has the rest of both. So ``x_t − x* = α_t x_0 − β_t x*``.
    """
    start, decay = problem.start[curved], workload.weight_decay
    if start.any() and decay and workload.delay:
        raise ValueError(
            f"weight_decay = {decay:g} with delay = {workload.delay} needs start = 0: the decay of "
            "the start is not delayed, its gradient is"
        )
    alpha, beta = np.ones((2, workload.steps + 1, int(curved.sum())))
    ones = np.ones(workload.steps)
    for i, h in enumerate(problem.spectrum[curved]):
        response = workload.with_curvature(h).apply(ones)
        alpha[1:, i] -= (h + decay) * response
        beta[1:, i] -= h * response
    fixed = alpha * start - beta * problem.optimum[curved]
    return cast(Array, fixed**2 + (beta * problem.spread[curved]) ** 2)


def row_variances(factorization: Factorization, workload: Workload, spectrum: Array) -> Array:
    """Return ``‖row_t(A_h C⁻¹)‖²``: a row for each step, a column for each curvature h."""
    stream = None if workload.recurrence is None else factorization.as_stream()
    if stream is None:
        return dense_variances(factorization, workload, spectrum)
    return streamed_variances(stream, workload, spectrum)


def dense_variances(factorization: Factorization, workload: Workload, spectrum: Array) -> Array:
    """Return `row_variances` from ``C⁻¹``, for any encoder and workload: O(T²) a curvature."""
    noising = factorization.noising()
    out = np.empty((workload.steps, len(spectrum)))
    for i, h in enumerate(spectrum):
        rows = workload.with_curvature(h).apply(noising)
        out[:, i] = np.einsum("ij,ij->i", rows, rows)
    return out


def streamed_variances(stream: Stream, workload: Workload, spectrum: Array) -> Array:
    r"""Return `row_variances` by a recurrence: O(T·buffers·(buffers + curvatures)).

    ``P_h u = N y`` is driven by the noise ``y_t = (z_t − r_tᵀS_t)/δ_t`` of the stream.
    """
    return stream.driven_variances(*_recurrences(workload, spectrum))


def _recurrences(workload: Workload, spectrum: Array) -> tuple[Array, Array, Array]:
    """``u_t = own·(N y)_t + Σ_a kept_a u_{t−a}`` for each curvature.

    The shapes of own and kept are (T, n) and (T, p, n); N is by bands.
    """
    bands = [cast(tuple[Array, Array], workload.with_curvature(h).recurrence) for h in spectrum]
    P = np.zeros((workload.steps, max(2, *(P.shape[1] for P, _ in bands)), len(spectrum)))
    for i, (band, _) in enumerate(bands):
        P[:, : band.shape[1], i] = band
    N = np.column_stack([np.zeros((workload.steps, workload.delay)), bands[0][1]])
    return 1.0 / P[:, 0], -P[:, 1:] / P[:, :1], N
