r"""Buffered linear Toeplitz encoders (BLT; McMahan, Xu and Zhang 2024): ``c_0 = 1``, ``c_n = Σ_k α_k θ_k^{n−1}``.

The noise of such an encoder needs as many vectors as there are buffers: ``y = z − αᵀS``, ``S ← θS + y``. A few numbers
``0 < θ < 1`` and ``α > 0`` say all; they are found by descent from several starts, with the error of `steady`.
Coefficients of this form are positive and fall (``Σα`` is at most 1), so the sensitivity is exact for every
participation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphase import _checks as check
from antiphase import files
from antiphase._checks import Array
from antiphase.factorization.base import Factorization
from antiphase.factorization.dual import Progress
from antiphase.factorization.searching import descend
from antiphase.factorization.steady import Loss, shifts
from antiphase.factorization.streamed import MOST_BUFFERS, Streamed, Stretch
from antiphase.factorization.toeplitz import ToeplitzColumns
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.sensitivity import Columns
from antiphase.workload import Workload

MOST = 8  # buffers; further ones change nothing that can be measured
MOST_ITERATIONS = 400
SEVERAL_STARTS = 8192  # steps up to which the search is made from more than one start
FASTEST, SLOWEST = 1e-9, 1 - 1e-9  # what a decay is kept between


@dataclass(frozen=True, eq=False, repr=False)
class Blt(Factorization):
    """The encoder of these ``decays`` θ and ``scales`` α, one of each for every buffer."""

    decays: Array
    scales: Array

    def __post_init__(self) -> None:
        decays, scales = (check.real_array(name, getattr(self, name), ndim=1) for name in ("decays", "scales"))
        if len(decays) != len(scales) or not len(decays):
            raise ValueError(f"{len(decays)} decays and {len(scales)} scales: one of each is needed for every buffer")
        if len(decays) > MOST_BUFFERS:
            raise ValueError(f"{len(decays)} buffers; {MOST_BUFFERS} are the most there can be")
        if not ((decays > 0) & (decays < 1)).all() or not (scales >= 0).all():
            raise ValueError("decays of buffers must lie between 0 and 1, and scales must not be negative")
        object.__setattr__(self, "decays", decays)
        object.__setattr__(self, "scales", scales)

    @cached_property
    def coefficients(self) -> Array:
        return coefficients(self.decays, self.scales, self.steps)

    @cached_property
    def stream(self) -> Streamed:
        """The same encoder as a stream: what makes the noise, and what is judged."""
        shape = (self.steps, len(self.decays), 1)
        move, r = (np.broadcast_to(values[:, None], shape) for values in (self.decays, self.scales))
        stretch = Stretch(self.steps, np.arange(self.steps), np.ones(self.steps), r, np.ones(shape), move)
        return Streamed(self.name, self.workload, self.objective, self.participation, (stretch,), (0,))

    @property
    def buffers(self) -> int:
        """How many vectors the noise keeps."""
        return len(self.decays)

    @property
    def bands(self) -> int:
        return self.steps

    def _build_encoder(self) -> Array:
        return np.array(self.stream.encoder())

    def _columns(self, rows: int | None = None) -> Columns:
        steps = self.steps if rows is None else rows
        return ToeplitzColumns(self.coefficients, np.ones(steps), steps)

    def _variances(self, P: Array, N: Array) -> Array:
        return self.stream._variances(P, N)

    def _stored(self) -> dict[str, Any]:
        return {"decays": self.decays, "scales": self.scales}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        return cls(**common, decays=stored["decays"], scales=stored["scales"])


def coefficients(decays: Array, scales: Array, steps: int) -> Array:
    """``c_0 … c_{T−1}``.

    >>> coefficients(np.array([0.5]), np.array([0.25]), 4)
    array([1.    , 0.25  , 0.125 , 0.0625])
    """
    entries = steps * len(decays)
    files.spend(f"steps = {steps}: {len(decays)} buffers", memory=16 * entries, operations=20 * entries)
    with np.errstate(under="ignore"):
        powers = decays ** np.arange(steps - 1)[:, None]
    return np.concatenate([[1.0], powers @ scales])


def blt_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    buffers: int,
    options: dict[str, Any],
    progress: Progress | None = None,
) -> Blt:
    """The best encoder of so many buffers that a descent finds, from a few starts."""
    steps = workload.steps
    loss = Loss(workload, objective, participation)
    pattern = shifts(participation, steps)
    longest = max(steps if len(pattern) == 1 else pattern[1], 4)

    def of_parameters(x: Array) -> tuple[float, Array]:
        decays, scales = _decoded(x)
        n = np.arange(steps - 1)[:, None]
        with np.errstate(under="ignore"):
            powers = decays**n
        value, slope = loss(np.concatenate([[1.0], powers @ scales]))
        # d c_n / d θ = α(n − 1)θ^{n−2}; with respect to the logit of θ, times θ(1 − θ).
        of_decays = slope[1:] @ (n * powers) * scales * (1 - decays)
        return value, np.concatenate([of_decays, slope[1:] @ powers * scales])

    starts = _starts(buffers, longest)
    found = [
        descend(of_parameters, _encoded(*start), iterations=MOST_ITERATIONS, progress=progress, settled=1e-12)
        for start in (starts if steps <= SEVERAL_STARTS else starts[1:2])
    ]
    decays, scales = _decoded(min(found, key=lambda x: of_parameters(x)[0]))
    order = np.argsort(-decays)
    # Σα ≤ 1, so that no coefficient is above the first; then they fall.
    decays, scales = decays[order], scales[order] / max(scales.sum(), 1.0)
    return Blt(name, workload, objective, participation, decays, scales, options=options)


def _starts(buffers: int, longest: int) -> list[tuple[Array, Array]]:
    """Rates from fast to slow, evenly in their logarithms, up to one over a part of the longest memory; scales as the
    square root has them, ``c_n ≈ (πn)^-½``."""
    starts = []
    for part in (1.0, 4.0, 16.0):
        slowest = min(part / longest, 0.5)
        rates = np.geomspace(0.7, slowest, buffers) if buffers > 1 else np.array([slowest**0.5])
        starts.append((1 - rates, 0.6 * rates**0.5 / buffers**0.5))
    return starts


def _encoded(decays: Array, scales: Array) -> Array:
    return np.concatenate([np.log(decays / (1 - decays)), np.log(scales)])


def _decoded(x: Array) -> tuple[Array, Array]:
    logits, logs = np.split(x, 2)
    return np.clip(1 / (1 + np.exp(-logits)), FASTEST, SLOWEST), np.exp(logs)
