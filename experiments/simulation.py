r"""Simulated runs on quadratics, with the noise of the library's own streams."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.noise import Key
from antiphase.theory.quadratic import Quadratic, noise_scale, scaled_workload
from antiphase.workload import Workload

SIMULATED_RUN = "0" * 32  # nothing private is released, so runs may repeat their noise


@dataclass(frozen=True, eq=False)
class Paths:
    """Simulated runs: a row for each run, a column for each of ``x_0 … x_T``.

    Attributes:
        gradient: ``‖∇f(x_t)‖²``.
        gap: ``f(x_t) − f*``.
        virtual_gradient: ``‖∇f(x̃_t)‖²`` of the virtual sequence, if it was simulated.
        virtual_gap: ``f(x̃_t) − f*``.
        virtual_distance: ``‖x_t − x̃_t‖²``.
    """

    gradient: Array
    gap: Array
    virtual_gradient: Array | None = None
    virtual_gap: Array | None = None
    virtual_distance: Array | None = None


def simulate(
    mechanism: Factorization | Mechanism,
    problem: Quadratic,
    *,
    learning_rate: float = 1.0,
    noise: float | None = None,
    runs: int = 1,
    seed: int,
    tau: int | None = None,
) -> Paths:
    r"""Run the optimizer that a mechanism is for, with the noise that training would draw.

    Guarantee: the noise is that of the mechanism's own stream; the same seed gives the same paths.

    Args:
        mechanism: as for `antiphase.theory.quadratic.expectation`.
        problem: the quadratic; its multiplicities must be whole numbers.
        learning_rate: as for `expectation`.
        noise: as for `expectation`.
        runs: the number of runs.
        seed: the seed of the noise and of random optima.
        tau: also simulate the paper's virtual sequence (Eq. 7), which takes the same gradients
            without noise, ``x̃_{t+1} = x̃_t − γ∇f(x_t)``, and restarts at the real iterate every
            ``tau`` steps. For plain SGD only.

    Example:
        >>> from antiphase import design
        >>> f = design("dp-sgd", steps=3)
        >>> simulate(f, Quadratic([1.0]), learning_rate=0.5, noise=1.0, runs=5, seed=0).gap.shape
        (5, 4)
    """
    factorization, scale = noise_scale(mechanism, noise)
    workload = scaled_workload(factorization.workload, learning_rate)
    runs = check.whole_number("runs", runs)
    if workload.recurrence is None:
        raise ValueError(
            "a workload given as a matrix is not simulated: it has no recurrence. Use expectation"
        )
    if tau is not None:
        check.whole_number("tau", tau)
        if not workload.is_plain_sgd or workload.delay:
            raise ValueError(
                f"tau = {tau}: the virtual sequence is defined for plain SGD, not "
                f"{workload.describe()}"
            )
    h, optimum, start = _directions(problem, runs, np.random.default_rng(seed))
    rows = _noise_rows(factorization, scale, optimum.shape, seed)
    optimizer = _Optimizer(workload, start)
    x = virtual = np.broadcast_to(start, optimum.shape)
    columns: list[tuple[Array, ...]] = []
    for t in range(workload.steps + 1):
        if t:
            gradient = h * (optimizer.iterate - optimum)
            x = optimizer.step(gradient + next(rows))
            if tau is not None:
                assert workload.learning_rates is not None
                virtual = x if t % tau == 0 else virtual - workload.learning_rates[t - 1] * gradient
        measured = _measure(h, x - optimum)
        if tau is not None:
            distance = np.square(x - virtual).sum(axis=1)
            measured = (*measured, *_measure(h, virtual - optimum), distance)
        columns.append(measured)
    return Paths(*(np.stack(values, axis=1) for values in zip(*columns, strict=True)))


def _measure(h: Array, error: Array) -> tuple[Array, ...]:
    """``‖∇f‖²`` and ``f − f*`` of each run."""
    curved = error * h
    return np.einsum("ri,ri->r", curved, curved), 0.5 * np.einsum("ri,ri->r", curved, error)


def _directions(
    problem: Quadratic, runs: int, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """The curvature, the optimum in every run and the start along each direction."""
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
    """The rows of ``scale·C⁻¹Z``, from the mechanism's own stream."""
    mechanism = Mechanism(factorization, 1.0)
    stream = mechanism.noise(math.prod(shape), key=Key.insecure(seed), run=SIMULATED_RUN)
    for row in stream:
        yield (scale / mechanism.noise_scale) * row.astype(np.float64).reshape(shape)


class _Optimizer:
    """A workload step by step: ``x_t = x_0 − u_t`` with ``P u = N Z^delay g``."""

    def __init__(self, workload: Workload, start: Array) -> None:
        self._workload, self._start = workload, start
        iterates = replace(workload, ema=None, tail_start=None)
        self._P, self._N = cast(tuple[Array, Array], iterates.recurrence)
        self._moves: list[Array] = []  # u, newest first
        self._gradients: list[Array] = []  # likewise
        self._t = 0
        self.iterate = self._average = start

    def step(self, gradient: Array) -> Array:
        """Return the next iterate, or the next average where the workload averages.

        Gradients must be taken at `iterate`.
        """
        P, N, w = self._P[self._t], self._N[self._t], self._workload
        self._gradients.insert(0, gradient)
        arrived = self._gradients[w.delay :]
        decay = w.weight_decay * self._start  # P has the decay of what was moved since
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
