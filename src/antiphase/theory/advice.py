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
    batches in a fixed order. ``best`` has the least of it, or within 1 % of that the least memory. ``cheaper`` is an
    alternative that keeps few vectors, where the best one keeps many.
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
        damping = check.real_number("damping", damping)
        if not 0 <= damping <= 1:
            raise ValueError(
                f"damping = {damping:g} must be between 0 and 1: it is what is left of an error after a step"
            )
        judge = Damped(damping, None, math.sqrt(setting.steps))
        candidates.append(Candidate("damped", {"rho": damping, "final_weight": math.sqrt(setting.steps)}))
    found = compare(setting, candidates, tolerance=tolerance, measure=False, progress=progress)
    if found.stopped:  # half of the candidates are no ground for advice
        raise KeyboardInterrupt
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
    rivals = {entry.label: noise[entry.label] for entry in found.entries if entry.name != "dp-sgd"}
    others = min(rivals, key=lambda label: rivals[label])
    share = {label: f"{value:.1%}" for label, value in noise.items()}
    if best is found.base:
        words = [
            f"Independent noise is as good as any here, and keeps nothing from step to step: {others} would leave "
            f"{share[others]} of its noise in the model."
        ]
    elif best.candidate.poisson:
        words = [
            f"Independent noise on Poisson batches leaves {share[best.label]} of what DP-SGD leaves on batches in a "
            f"fixed order; the best correlated noise, {others}, would leave {share[others]}.",
            "It needs true Poisson sampling: batches of random size, drawn anew, and in secret, for every step.",
        ]
    else:
        words = [
            f"It leaves {share[best.label]} of DP-SGD's noise in the model at the same privacy: "
            f"{best.average / found.base.average:.1%} on average over the iterates and "
            f"{best.final / found.base.final:.1%} in the last one."
        ]
    words += [
        f"With Poisson batches DP-SGD would leave {share[entry.label]}: amplification brings less here."
        for entry in found.entries
        if entry.candidate.poisson and entry is not best
    ]
    if best.gap is not None:
        words.append(
            f"Certified: no encoder has less squared noise by more than {_percent(best.gap)} for its objective."
        )
    if cheaper is not None:
        words.append(
            f"Cheaper: {cheaper.label} keeps {cheaper.noise_bytes / 1e6:.3g} MB instead of "
            f"{best.noise_bytes / 1e6:.3g} MB for {found.setting.parameters:,} parameters and leaves "
            f"{share[cheaper.label]}."
        )
    return words


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-6 else "0.0001 %"


def _rests_on(damping: float | None, poisson: bool) -> tuple[str, ...]:
    judged = (
        "all iterates count, the last one √steps times, and errors do not fade: a worst case of flat curvature"
        if damping is None
        else f"all iterates count, the last one √steps times, and a step leaves ρ = {damping:g} of an error"
    )
    sampling = "batches can be Poisson samples" if poisson else "batches come in a fixed order"
    return (judged, sampling, "the exact noise of each design; no data, public or private, was looked at")
