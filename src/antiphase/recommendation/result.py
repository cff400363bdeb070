"""`Recommendation`: the selected mechanism, with its gains and the reasons."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from antiphase._util.display import Plotted
from antiphase.comparison import Comparison, Entry


@dataclass(frozen=True)
class Gain:
    """Noise of the recommended mechanism relative to another's.

    Attributes:
        over: label of the other mechanism.
        ratio: geometric mean of the ratio over the range of curvatures.
        low: smallest ratio over that range.
        high: largest ratio over that range.
    """

    over: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class LearningRateRange:
    """Learning rates (the largest of a schedule) within 10 % of the lowest expected loss.

    Attributes:
        low: smallest such rate; if it is also the smallest tried, the range may extend below.
        high: largest such rate; if it is also the largest tried, the range may extend above.
        best: the rate with the lowest expected loss.
        expected: expected loss at `best`: ``E f(x_T) − f*``, or the mean squared gradient norm.
        tried: smallest and largest rate tried.
    """

    low: float
    high: float
    best: float
    expected: float
    tried: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Recommendation(Plotted):
    """Which mechanism to take, why, and under which assumptions.

    Attributes:
        comparison: the compared mechanisms.
        best: the recommended one of those that the setting's batches allow: least noise under the
            criterion or, within 0.5 % of that, least memory.
        cheaper: an alternative that keeps at most 16 vectors in memory, if `best` keeps more.
        noise: for each label, the root of the squared noise under the criterion, relative to
            DP-SGD: on Poisson batches if ε is given, otherwise in a fixed order.
        gains: `best` relative to DP-SGD on Poisson batches and in a fixed order, to DP-MF, and to
            DP-MF⁺ with the best τ that was tried.
        learning_rates: recommended learning rates; None if too little is known of the loss.
        reasons: sentences that justify the choice.
        assumptions: what the recommendation assumes.
    """

    comparison: Comparison
    best: Entry
    cheaper: Entry | None
    noise: dict[str, float]
    gains: tuple[Gain, ...]
    learning_rates: LearningRateRange | None
    reasons: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def damping(self) -> tuple[float, float] | None:
        """``(ρ, final weight)`` of the recommended design, or None if it has none.

        DP-MF is ``(1, 1)``, DP-MF⁺ with τ = steps is ``(1, √steps)``.
        """
        options = self.best.candidate.options
        if self.best.name == "damped":
            return options["rho"], options["final_weight"]
        if self.best.name == "dp-mf+" and options["tau"] == self.comparison.setting.steps:
            return 1.0, math.sqrt(self.comparison.setting.steps)
        return (1.0, 1.0) if self.best.name == "dp-mf" else None

    def __repr__(self) -> str:
        return f"<Recommendation of {self.best.label} for {self.comparison.setting.describe()}>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        base = self.comparison.baseline
        return {
            "recommended": self.best.to_dict(base),
            "cheaper": None if self.cheaper is None else self.cheaper.to_dict(base),
            "noise": self.noise,
            "gains": [asdict(gain) for gain in self.gains],
            "learning_rates": None if self.learning_rates is None else asdict(self.learning_rates),
            "reasons": list(self.reasons),
            "assumptions": list(self.assumptions),
            "comparison": self.comparison.to_dict(),
        }
