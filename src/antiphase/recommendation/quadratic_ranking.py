"""Rank mechanisms by their exact expected loss on a quadratic.

An estimated spectrum approximates the loss; a run rarely meets more curvature than estimated and
often meets less: clipped gradients pull back less the further an iterate is from the optimum, a
loss flattens as it is learned, and public data differ from the private data. For logistic
regression on MNIST, mechanisms ranked as on the quadratic with a tenth to a third of the initial
curvature at ε = 1, and with a thirtieth at ε = 0.1. An estimate therefore stands for a range of
curvatures, from all of it down to 1/64, and mechanisms are ranked by the geometric mean over it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.comparison.candidates import DESIGN_ERRORS, Candidate, Setting, design_for
from antiphase.factorizations.base import Factorization
from antiphase.theory.quadratic import Quadratic, SignalAndNoise, diverges, expectation
from antiphase.theory.spectrum import Spectrum

CURVATURE_SCALES = (1.0, 1 / 8, 1 / 64)  # of an estimated spectrum: the range it stands for
MAX_CURVATURES = 24  # that an estimated spectrum is condensed to
MAX_CURVATURE_DESIGN_STEPS = 512  # the `curvature` design takes time cubic in the steps
COARSE_GRID_RATIO = 4.0  # between neighbouring values of 1 − ρ in the first grid
MAX_DAMPING_LOSS = 0.9  # largest 1 − ρ that is tried
CRITERIA = {
    "last": "the expected loss of the last iterate",
    "average": "the squared gradient norm, averaged over the iterates",
}


@dataclass(frozen=True, eq=False)
class QuadraticCriterion:
    """Expected loss on a quadratic, for each scale of its curvature that a run may meet.

    Attributes:
        problem: the quadratic.
        scales: factors between the curvature of a run and that of `problem`.
        kind: ``"last"`` for ``E f(x_T) − f*``; ``"average"`` for the mean of ``E‖∇f(x_t)‖²`` over
            ``x_0 … x_T``, the criterion of the DP-MF⁺ paper.
    """

    problem: Quadratic
    scales: tuple[float, ...]
    kind: str

    @classmethod
    def of(
        cls, spectrum: Any, kind: str = "last", initial_gap: float | None = None
    ) -> QuadraticCriterion:
        """Criterion for a known loss or an estimated spectrum.

        Args:
            spectrum: a `Quadratic`, which is the loss itself; a `Spectrum` or an array of
                curvatures, which is an estimate and stands for all `CURVATURE_SCALES`.
            kind: ``"last"`` or ``"average"``.
            initial_gap: ``f(x_0) − f*`` of an estimate, whose optimum is then equally far in every
                direction. Without it only the error that noise adds is known.
        """
        check.choice("criterion", kind, tuple(CRITERIA))
        if isinstance(spectrum, Quadratic):
            return cls(spectrum, (1.0,), kind)
        estimate = spectrum if isinstance(spectrum, Spectrum) else Spectrum(spectrum)
        estimate = estimate.condensed(MAX_CURVATURES)
        spread = 0.0
        if initial_gap is not None:
            gap = check.positive_number("initial_gap", initial_gap)
            spread = math.sqrt(2.0 * gap / float(estimate.weights @ estimate.values))
        problem = Quadratic(estimate.values, spread=spread, multiplicity=estimate.weights)
        return cls(problem, CURVATURE_SCALES, kind)

    @property
    def is_estimate(self) -> bool:
        """Whether the spectrum is an estimate, rather than the loss itself."""
        return len(self.scales) > 1

    def noise(self, f: Factorization) -> Array:
        """Error added by noise of standard deviation 1, for each scale."""
        return self._expected(f, 1.0, 1.0, lambda split: split.noise)

    def total(self, f: Factorization, learning_rate: float, noise: float) -> Array:
        """Expected loss for each scale, at ``learning_rate`` times the workload's rates."""
        return self._expected(f, learning_rate, noise, lambda split: split.total)

    def _expected(
        self, f: Factorization, rate: float, noise: float, part: Callable[[SignalAndNoise], Array]
    ) -> Array:
        p = self.problem
        values = []
        for scale in self.scales:
            scaled = Quadratic(scale * p.spectrum, p.optimum, p.start, p.spread, p.multiplicity)
            if diverges(f.workload, scaled.smoothness, rate):
                largest = rate * f.workload.max_learning_rate
                raise ValueError(
                    f"learning rate {largest:g} × largest curvature {p.smoothness:g} = "
                    f"{largest * p.smoothness:g}: training diverges on this spectrum. Lower the "
                    "rate or, as gradients are clipped, estimate the spectrum with clip_norm"
                )
            expected = expectation(f, scaled, learning_rate=rate, noise=noise)
            # The scaled curvature governs the dynamics; the cost is measured on the unscaled loss.
            if self.kind == "last":
                values.append(part(expected.gap)[-1] / scale)
            else:
                values.append(part(expected.gradient).mean() / scale**2)
        return np.array(values)


def geometric_mean(values: Iterable[float]) -> float:
    """Geometric mean over the scales of the curvature: the score of a mechanism."""
    return float(np.exp(np.log(np.asarray(values)).mean()))


@dataclass(frozen=True, eq=False)
class RankedDesign:
    """A design and the error its noise adds, at equal noise multiplier.

    Attributes:
        candidate: the mechanism's name and options.
        values: the error for each scale of the curvature.
    """

    candidate: Candidate
    values: Array

    @property
    def score(self) -> float:
        """Geometric mean of `values`; smaller is better."""
        return geometric_mean(self.values)


def rank(
    setting: Setting, criterion: QuadraticCriterion, tolerance: float, report: Callable[[str], None]
) -> tuple[list[RankedDesign], dict[str, str]]:
    """Design and score every candidate for a setting.

    Candidates are DP-SGD, DP-MF, DP-MF⁺ with several τ, damped designs with several ρ and final
    weights up to √steps (more would trade noise in earlier iterates, whose cost a quadratic does
    not show, for noise in the last), and for at most 512 steps the `curvature` design.

    Args:
        setting: what is trained.
        criterion: the score.
        tolerance: certified gap at which designs stop.
        report: called with the label of each candidate before it is designed.

    Returns:
        The scored designs, and for candidates that could not be designed the reason, by label.
    """
    search = _Search(setting, criterion, tolerance, report)
    search.run()
    return list(search.ranked.values()), search.refused


@dataclass
class _Search:
    setting: Setting
    criterion: QuadraticCriterion
    tolerance: float
    report: Callable[[str], None]
    ranked: dict[str, RankedDesign] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        steps = self.setting.steps
        once = self.setting.participation.max_participations == 1
        self._score("dp-sgd")
        self._score("dp-mf")
        for tau in restart_periods(self.setting):
            self._score("dp-mf+", tau=tau)
        if steps == 1:
            return
        for weight in (1.0, steps**0.25, math.sqrt(steps)) if once else (1.0, math.sqrt(steps)):
            self._search_damping(weight, refine=once)
        if once and not self.criterion.is_estimate:
            # For an estimate, a finer grid would be finer than the accuracy of the spectrum.
            self._refine_damping_and_weight()
        if steps <= MAX_CURVATURE_DESIGN_STEPS:
            p = self.criterion.problem
            for weight in (1.0, math.sqrt(steps)):
                self._score(
                    "curvature",
                    spectrum=p.spectrum,
                    probabilities=p.multiplicity,
                    final_weight=weight,
                )

    def _score(self, name: str, **options: Any) -> float:
        candidate = Candidate(name, options)
        label = candidate.label
        if label not in self.ranked and label not in self.refused:
            self.report(label)
            stop: dict[str, Any] = {} if name == "dp-sgd" else {"tolerance": self.tolerance}
            try:
                f = design_for(self.setting, name, **options, **stop)
                self.ranked[label] = RankedDesign(candidate, self.criterion.noise(f))
            except DESIGN_ERRORS as error:
                if name == "dp-sgd":
                    raise
                self.refused[label] = str(error) or type(error).__name__
        return self.ranked[label].score if label in self.ranked else math.inf

    def _damped(self, loss: float, weight: float) -> float:
        """Score of the damped design with ``ρ = 1 − loss``, to two digits of ``loss``."""
        return self._score("damped", rho=1.0 - float(f"{loss:.2g}"), final_weight=weight)

    def _search_damping(self, weight: float, refine: bool) -> None:
        """Search 1 − ρ from one over the steps to the largest curvature, then around the best."""
        steps = self.setting.steps
        if not (math.isclose(weight, 1.0) or math.isclose(weight**2, steps)):
            # With weight 1 or √steps this is DP-MF, or DP-MF⁺ with τ = steps.
            self._score("damped", rho=1.0, final_weight=weight)
        curvature = self.setting.workload.max_learning_rate * self.criterion.problem.smoothness
        high = min(curvature, MAX_DAMPING_LOSS)
        low = min(1.0 / steps, high)
        count = max(math.ceil(math.log(high / low) / math.log(COARSE_GRID_RATIO)), 1)
        grid = [low * (high / low) ** (i / count) for i in range(count + 1)]
        best = min(grid, key=lambda loss: self._damped(loss, weight))
        for factor in (2.0, math.sqrt(2.0)) if refine else ():
            near = (best, best / factor, min(best * factor, high))
            best = min(near, key=lambda loss: self._damped(loss, weight))

    def _refine_damping_and_weight(self) -> None:
        """Refine final weight and ρ in turn around the best damped design, twice."""
        steps = self.setting.steps
        damped = [r for r in self.ranked.values() if r.candidate.name == "damped"]
        options = min(damped, key=lambda r: r.score).candidate.options
        loss, weight = 1 - options["rho"], options["final_weight"]
        for exponents, factors in (
            ((1 / 8, 1 / 16), (2.0, math.sqrt(2.0))),
            ((1 / 16, 1 / 32), (math.sqrt(2.0), 1.2)),
        ):
            for exponent in exponents:
                ratio = steps**exponent
                weights = (weight, max(weight / ratio, 1.0), min(weight * ratio, math.sqrt(steps)))
                scores = {w: self._damped(loss, w) for w in weights}
                weight = min(scores, key=scores.__getitem__)
            for factor in factors if loss > 0 else ():
                losses = (loss, loss / factor, min(loss * factor, MAX_DAMPING_LOSS))
                scores = {x: self._damped(x, weight) for x in losses}
                loss = min(scores, key=scores.__getitem__)


def restart_periods(setting: Setting) -> list[int]:
    """Values of τ to try: all steps, one epoch, and powers of two.

    For several epochs only powers that divide an epoch, so that nothing is kept across
    participations.
    """
    steps, participation = setting.steps, setting.participation
    powers = [2**k for k in range(1, steps.bit_length()) if 2**k < steps]
    epoch = participation.steps_per_epoch
    if epoch is None:
        return [steps, *powers] if participation.max_participations == 1 else [steps]
    divisors = [power for power in powers if epoch % power == 0]
    return [steps, *([epoch] if 1 < epoch < steps else []), *divisors]
