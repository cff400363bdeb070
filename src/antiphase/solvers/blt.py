"""The best buffered linear Toeplitz encoder, by descent."""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.blt import Blt
from antiphase.linalg.lbfgs import descend
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.solvers.toeplitz import Loss, shifts
from antiphase.workload import Workload

MOST = 8  # buffers; further ones change nothing that can be measured
MOST_ITERATIONS = 400
SEVERAL_STARTS = 8192  # steps up to which the search is made from more than one start
FASTEST, SLOWEST = 1e-9, 1 - 1e-9  # what a decay is kept between


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
        descend(
            of_parameters,
            _encoded(*start),
            iterations=MOST_ITERATIONS,
            progress=progress,
            settled=1e-12,
        )
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
