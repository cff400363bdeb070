r"""Which mechanism does best on a loss whose curvature is known: each one judged by its exact expectation.

A spectrum that was estimated is a guide, not the loss. Clipped gradients pull back less the further an iterate is
off, a loss that flattens does too, and public data are not the private ones; so the curvature that a run meets is
rather below the estimate than above it. Measured for logistic regression on MNIST: mechanisms were ranked as by the
quadratic of a tenth to a third of the curvature at the start for ε = 1, and of a thirtieth for ε = 0.1. An estimate
therefore stands for its whole range, from all of it down to 1/64, and what counts is the geometric mean over these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.candidates import REFUSALS, Candidate, Setting
from antiphase.design import design
from antiphase.factorizations.base import Factorization
from antiphase.theory.quadratic import Expectation, Quadratic, Split, ends_further_off, exact
from antiphase.theory.spectrum import Spectrum

DOUBT = (1.0, 1 / 8, 1 / 64)  # shares of an estimated curvature
FEWER = 24  # curvatures that stand for an estimated spectrum
DENSE = 512  # steps up to which the exact objective is designed for: it takes their cube
COARSE = 4.0  # between the values of 1 − ρ that are tried first
JUDGES = {
    "last": "the expected loss of the last iterate",
    "average": "the squared gradient, averaged over the iterates",
}


@dataclass(frozen=True, eq=False)
class Judge:
    """What is expected on ``problem``, for each of the ``shares`` of its curvature that a run may meet.

    ``what`` counts: ``"last"`` is ``E f(x_T) − f*``, ``"average"`` the mean of ``E‖∇f(x_t)‖²`` over ``x_0 … x_T``, by
    which the paper judges.
    """

    problem: Quadratic
    shares: tuple[float, ...]
    what: str

    @classmethod
    def of(cls, known: Any, what: str = "last", initial_gap: float | None = None) -> Judge:
        """A `Quadratic` is the loss itself; a `Spectrum`, or curvatures alone, an estimate.

        With ``initial_gap``, the loss that is there to gain, the optimum of an estimate is equally far in every
        direction; without, only what noise adds is known.
        """
        check.choice("judge", what, tuple(JUDGES))
        if isinstance(known, Quadratic):
            return cls(known, (1.0,), what)
        found = (known if isinstance(known, Spectrum) else Spectrum(known)).condensed(FEWER)
        spread = 0.0
        if initial_gap is not None:
            gap = check.positive_number("initial_gap", initial_gap)
            spread = math.sqrt(2.0 * gap / float(found.weights @ found.values))
        return cls(Quadratic(found.values, spread=spread, multiplicity=found.weights), DOUBT, what)

    @property
    def is_estimate(self) -> bool:
        return len(self.shares) > 1

    def noise(self, f: Factorization) -> Array:
        """What noise of standard deviation 1 adds, for each share."""
        return self._each(f, 1.0, 1.0, lambda split: split.noise)

    def total(self, f: Factorization, learning_rate: float, noise: float) -> Array:
        """All that is expected, at ``learning_rate`` times the rates of the workload."""
        return self._each(f, learning_rate, noise, lambda split: split.total)

    def _each(
        self, f: Factorization, rate: float, noise: float, part: Callable[[Split], Array]
    ) -> Array:
        out = []
        for share in self.shares:
            h = self.problem
            seen = Quadratic(share * h.spectrum, h.optimum, h.start, h.spread, h.multiplicity)
            if ends_further_off(f.workload, seen.smoothness, rate):
                raise ValueError(
                    f"learning rate {rate * f.workload.largest_rate:g} × largest curvature {h.smoothness:g} = "
                    f"{rate * f.workload.largest_rate * h.smoothness:g}: on this spectrum training diverges. Lower "
                    "the rate; or, as gradients are clipped, estimate the spectrum with clip_norm"
                )
            found: Expectation = exact(f, seen, learning_rate=rate, noise=noise)
            # The run is damped by a share of the curvature; what an error costs is the loss itself.
            last = part(found.gap)[-1] / share
            out.append(last if self.what == "last" else part(found.gradient).mean() / share**2)
        return np.array(out)


def score(values: Array) -> float:
    """One number for all shares: their geometric mean."""
    return float(np.exp(np.log(values).mean()))


@dataclass(frozen=True, eq=False)
class Trial:
    """A mechanism, and the noise that it leaves for each share of the curvature, at equal noise multiplier."""

    candidate: Candidate
    values: Array

    @property
    def score(self) -> float:
        return score(self.values)


Report = Callable[[str], None]


def search(
    setting: Setting, judge: Judge, tolerance: float, report: Report
) -> tuple[list[Trial], dict[str, str]]:
    """All that could serve, judged; and what was refused, with the reason.

    DP-SGD, DP-MF, DP-MF⁺ with several τ, damped designs with several ρ and final weights up to √steps (more would buy
    the last iterate with noise on the whole way, of which a quadratic does not know what it costs), and up to 512
    steps the exact objective.
    """
    T = setting.steps
    trials: dict[str, Trial] = {}
    refused: dict[str, str] = {}

    def judged(name: str, **options: Any) -> float:
        candidate = Candidate(name, options)
        if candidate.label not in trials | refused:
            report(candidate.label)
            try:
                how = dict(options) if name == "dp-sgd" else options | {"tolerance": tolerance}
                f = design(
                    name, workload=setting.workload, participation=setting.participation, **how
                )
                trials[candidate.label] = Trial(candidate, judge.noise(f))
            except REFUSALS as error:
                if name == "dp-sgd":
                    raise
                refused[candidate.label] = str(error) or type(error).__name__
        return trials[candidate.label].score if candidate.label in trials else math.inf

    judged("dp-sgd")
    judged("dp-mf")
    for tau in restarts(setting):
        judged("dp-mf+", tau=tau)
    if T == 1:
        return list(trials.values()), refused
    fine = setting.participation.max_participations == 1
    for weight in (1.0, T**0.25, math.sqrt(T)) if fine else (1.0, math.sqrt(T)):
        _search_damping(setting, judge, fine, weight, judged)
    if fine and not judge.is_estimate:
        _refine(
            trials, T, judged
        )  # finer than the curvature is known would be to fit what is in doubt
    if T <= DENSE:
        many = {"spectrum": judge.problem.spectrum, "probabilities": judge.problem.multiplicity}
        judged("curvature", **many, final_weight=1.0)
        judged("curvature", **many, final_weight=math.sqrt(T))
    return list(trials.values()), refused


def restarts(setting: Setting) -> list[int]:
    """τ to try: all steps, an epoch, and powers of two (for several epochs those that divide one, so that nothing is
    kept over a participation)."""
    T, who = setting.steps, setting.participation
    powers = [2**k for k in range(1, T.bit_length()) if 2**k < T]
    if (every := who.steps_per_epoch) is not None:
        return [
            T,
            *([every] if 1 < every < T else []),
            *(p for p in powers if every % p == 0),
        ]
    return [T, *powers] if who.max_participations == 1 else [T]


def _search_damping(
    setting: Setting, judge: Judge, fine: bool, weight: float, judged: Callable[..., float]
) -> None:
    """ρ by 1 − ρ: from one over the steps to the largest curvature, then finer around the best."""

    def value(lost: float) -> float:
        return judged("damped", rho=_damping(lost), final_weight=weight)

    if not (math.isclose(weight, 1.0) or math.isclose(weight**2, setting.steps)):
        judged(
            "damped", rho=1.0, final_weight=weight
        )  # the other two are DP-MF, and DP-MF⁺ with τ = steps
    most = min(setting.workload.largest_rate * judge.problem.smoothness, 0.9)
    least = min(1.0 / setting.steps, most)
    count = max(math.ceil(math.log(most / least) / math.log(COARSE)), 1)
    points = [least * (most / least) ** (i / count) for i in range(count + 1)]
    best = min(points, key=value)
    for factor in (2.0, math.sqrt(2.0)) if fine else ():
        best = min((best, best / factor, min(best * factor, most)), key=value)


def _refine(trials: dict[str, Trial], steps: int, judged: Callable[..., float]) -> None:
    """Around the best damped design: final weights between those of the grid, then ρ for that weight, twice."""
    damped = [trial for trial in trials.values() if trial.candidate.name == "damped"]
    chosen = min(damped, key=lambda trial: trial.score).candidate.options
    lost, weight = 1 - chosen["rho"], chosen["final_weight"]

    def value(lost: float, weight: float) -> float:
        return judged("damped", rho=_damping(lost), final_weight=weight)

    for powers, factors in (
        ((1 / 8, 1 / 16), (2.0, math.sqrt(2.0))),
        ((1 / 16, 1 / 32), (math.sqrt(2.0), 1.2)),
    ):
        for power in powers:
            near = (
                weight,
                max(weight / steps**power, 1.0),
                min(weight * steps**power, math.sqrt(steps)),
            )
            weight = min(near, key=lambda w: value(lost, w))
        for factor in factors if lost > 0 else ():
            lost = min(
                (lost, lost / factor, min(lost * factor, 0.9)), key=lambda x: value(x, weight)
            )


def _damping(lost: float) -> float:
    """ρ from 1 − ρ, in two digits of that."""
    return 1.0 - float(f"{lost:.2g}")
