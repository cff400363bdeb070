"""Best buffered linear Toeplitz (BLT) encoder, by descent."""

from __future__ import annotations

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.progress import Progress
from antiphase.factorizations.blt import Blt
from antiphase.linalg.lbfgs import descend
from antiphase.problem import Problem
from antiphase.solvers.toeplitz import ToeplitzLoss, earliest_pattern

MAX_BUFFERS = 8  # more change nothing that can be measured
MAX_ITERATIONS = 400
MAX_MULTISTART_STEPS = 8192  # up to which there is more than one start
MIN_DECAY, MAX_DECAY = 1e-9, 1 - 1e-9


def blt_optimum(problem: Problem, *, buffers: int = 4, progress: Progress | None = None) -> Blt:
    """The best encoder of so many buffers that a descent finds, from a few starts.

    Args:
        problem: any problem.
        buffers: how many, up to `MAX_BUFFERS`.
        progress: called in every iteration; stops the current descent if it returns True.

    Example:
        >>> from antiphase import Workload, objective, once
        >>> problem = Problem(Workload.sgd(64), objective.Average(), once())
        >>> blt_optimum(problem, buffers=2).buffers
        2
    """
    if check.whole_number("buffers", buffers) > MAX_BUFFERS:
        raise ValueError(
            f"buffers = {buffers}: at most {MAX_BUFFERS}; more change nothing that can be measured"
        )
    steps, pattern = problem.steps, earliest_pattern(problem)
    longest_memory = max(pattern[1] if len(pattern) > 1 else steps, 4)
    loss = BltLoss(problem)
    starts = _starts(buffers, longest_memory)
    if steps > MAX_MULTISTART_STEPS:
        starts = starts[1:2]
    descents = [
        descend(loss, _encoded(*start), iterations=MAX_ITERATIONS, progress=progress, settled=1e-12)
        for start in starts
    ]
    decays, scales = _decoded(min(descents, key=lambda x: loss(x)[0]))
    order = np.argsort(-decays)
    # With Σα ≤ 1 the first coefficient is the largest; the others fall.
    decays, scales = decays[order], scales[order] / max(scales.sum(), 1.0)
    return Blt("blt", **problem.fields, decays=decays, scales=scales)


class BltLoss:
    """`ToeplitzLoss` as a function of the logits of the decays and the logarithms of the scales."""

    def __init__(self, problem: Problem) -> None:
        """Prepare the loss of encoders for ``problem``."""
        self._loss = ToeplitzLoss(problem)

    def __call__(self, x: Array) -> tuple[float, Array]:
        """The loss and its gradient."""
        decays, scales = _decoded(x)
        n = np.arange(self._loss.steps - 1)[:, None]
        with np.errstate(under="ignore"):
            powers = decays**n
        value, slope = self._loss(np.concatenate([[1.0], powers @ scales]))
        # d c_n / d θ = α(n − 1)θ^{n−2}; with respect to the logit of θ, times θ(1 − θ).
        of_decays = slope[1:] @ (n * powers) * scales * (1 - decays)
        return value, np.concatenate([of_decays, slope[1:] @ powers * scales])


def _starts(buffers: int, longest: int) -> list[tuple[Array, Array]]:
    """Rates evenly spaced in their logarithms, down to one over a part of the longest memory.

    Scales are those of the square root, ``c_n ≈ (πn)^-½``.
    """
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
    return np.clip(1 / (1 + np.exp(-logits)), MIN_DECAY, MAX_DECAY), np.exp(logs)
