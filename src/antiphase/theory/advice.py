"""From a setting to a recommended mechanism, with the reason. No data is looked at, private or other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from antiphase import _checks as check
from antiphase.comparison import Candidate, Comparison, Entry, Progress, Setting, compare
from antiphase.objective import Damped, Objective, Restarts
from antiphase.participation import Epochs

FEW = 16  # vectors of memory; a stream that keeps no more is cheap
TIE = 0.01  # mechanisms nearer than this in noise are alike, and the cheaper one is taken


@dataclass(frozen=True, eq=False)
class Advice:
    """Which mechanism to take, why, and what it rests on.

    ``noise`` has, for each candidate, the root of the squared noise that the judge counts, relative to DP-SGD on
    batches in a fixed order. ``cheaper`` is an alternative that keeps few vectors, where the best one keeps many.
    """

    comparison: Comparison
    best: Entry
    cheaper: Entry | None
    noise: dict[str, float]
    reasons: tuple[str, ...]
    rests_on: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "recommended": self.best.to_dict(self.comparison.base),
            "cheaper": None if self.cheaper is None else self.cheaper.to_dict(self.comparison.base),
            "noise": self.noise,
            "reasons": list(self.reasons),
            "rests_on": list(self.rests_on),
            "comparison": self.comparison.to_dict(),
        }


def advise(
    setting: Setting,
    *,
    poisson: bool = False,
    damping: float | None = None,
    tolerance: float = 1e-3,
    progress: Progress | None = None,
) -> Advice:
    """Design what could serve, and take what leaves least noise in the model.

    Mechanisms are judged by the noise in all iterates together with that in the last one, which counts √steps times:
    what the paper's DP-MF⁺ minimises with τ = steps. With ``damping`` ρ (1 − learning rate × a typical curvature)
    errors fade by ρ a step, and the judge knows. ``poisson`` says that batches can be Poisson samples, so that DP-SGD
    may claim their amplification.
    """
    judge: Objective = Restarts(setting.steps)
    candidates = [Candidate("dp-sgd"), Candidate("dp-mf"), Candidate("dp-mf+", {"tau": setting.steps})]
    who = setting.participation
    if isinstance(who, Epochs) and who.every > 1:
        candidates.append(Candidate("dp-mf+", {"tau": who.every}))  # restarts between participations: a stream
    if poisson:
        if setting.epsilon is None:
            raise ValueError("poisson needs epsilon and delta: amplification depends on them")
        candidates.insert(1, Candidate("dp-sgd", poisson=True))
    if damping is not None:
        damping = check.real_number("damping", damping, least=0.0)
        if damping > 1:
            raise ValueError(f"damping = {damping:g} must be at most 1: errors do not grow")
        judge = Damped(damping, None, math.sqrt(setting.steps))
        candidates.append(Candidate("damped", {"rho": damping, "final_weight": math.sqrt(setting.steps)}))
    found = compare(setting, candidates, tolerance=tolerance, progress=progress)
    if found.base is None:
        raise ValueError("; ".join(found.refused.values()))
    squared = {entry.label: entry.error_under(judge) for entry in found.entries}
    noise = {label: math.sqrt(value / squared[found.base.label]) for label, value in squared.items()}
    ranked = sorted(found.entries, key=lambda entry: noise[entry.label])
    alike = [entry for entry in ranked if noise[entry.label] <= (1 + TIE) * noise[ranked[0].label]]
    best = min(alike, key=lambda entry: entry.noise_bytes)
    few = 4 * FEW * setting.parameters
    cheap = [entry for entry in ranked if entry.noise_bytes <= few]
    cheaper = cheap[0] if best.noise_bytes > few and cheap and cheap[0].name != "dp-sgd" else None
    return Advice(
        found, best, cheaper, noise, tuple(_reasons(found, best, cheaper, noise)), _rests_on(damping, poisson)
    )


def _reasons(found: Comparison, best: Entry, cheaper: Entry | None, noise: dict[str, float]) -> list[str]:
    assert found.base is not None
    words = []
    if best.name == "dp-sgd":
        others = min(v for e in found.entries for k, v in noise.items() if k == e.label and e.name != "dp-sgd")
        words.append(
            f"Independent noise on Poisson batches leaves {noise[best.label]:.1%} of plain DP-SGD's noise; the best "
            f"correlated noise would leave {others:.1%}. It needs true Poisson sampling: batches of random size, drawn "
            "anew for every step."
        )
    else:
        words.append(
            f"It leaves {noise[best.label]:.1%} of DP-SGD's noise in the model at the same privacy: "
            f"{best.average / found.base.average:.1%} on average over the iterates and "
            f"{best.final / found.base.final:.1%} in the last one."
        )
        for entry in found.entries:
            if entry.candidate.poisson:
                words.append(
                    f"With Poisson batches DP-SGD would leave {noise[entry.label]:.1%}: amplification brings less here."
                )
    if best.gap is not None:
        words.append(f"No encoder could do better for its objective by more than {best.gap:.1e}: that is certified.")
    if cheaper is not None:
        words.append(
            f"Cheaper: {cheaper.label} keeps {cheaper.noise_bytes / 1e6:.3g} MB instead of "
            f"{best.noise_bytes / 1e6:.3g} MB for {found.setting.parameters:,} parameters and leaves "
            f"{noise[cheaper.label]:.1%}."
        )
    return words


def _rests_on(damping: float | None, poisson: bool) -> tuple[str, ...]:
    judged = (
        "all iterates and the last one (weight √steps) count, and errors do not fade: a worst case of flat curvature"
        if damping is None
        else f"errors fade by ρ = {damping:g} a step, and the last iterate counts √steps times"
    )
    sampling = "batches may be Poisson samples" if poisson else "batches come in a fixed order"
    return (judged, sampling, "exact noise of each design; no data, public or private, was looked at")
