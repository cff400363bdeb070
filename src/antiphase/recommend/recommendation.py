"""From what a user knows to a recommended mechanism, with the reason. Private data are never touched.

What it may know of the loss is a spectrum of curvatures, from public or synthetic data (`antiphase.torch.spectrum`);
then candidates are judged by exact expectations (`antiphase.recommend.quadratic_ranking`), and otherwise by the worst case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from antiphase._util import checks as check
from antiphase._util.progress import Progress, ProgressReport
from antiphase.comparison import Candidate, Comparison, Entry, Setting, compare
from antiphase.objective import Damped, Objective, Restarts
from antiphase.recommend.quadratic_ranking import DOUBT, JUDGES, Judge, Trial, score, search

FEW = 16  # vectors of memory; a stream that keeps no more is cheap
TIE = 0.005  # mechanisms nearer than this in noise are alike, and the cheaper one is taken
NEAR = 0.1  # learning rates whose expected loss is within this of the best are in the range
OCTAVES = 4  # to either side of the given learning rate, for that range
FLAT = "no spectrum of the loss is known, so all iterates count, the last one √steps times"
UNTOUCHED = "no private data were looked at"


@dataclass(frozen=True)
class Gain:
    """What the recommended mechanism leaves of another's noise: a share, and its range over the curvatures in doubt."""

    over: str
    share: float
    least: float
    most: float


@dataclass(frozen=True)
class Rates:
    """Learning rates (the largest of a schedule) whose expectation is within 10 % of the best one's.

    ``expected`` is that of ``best``: ``E f(x_T) − f*``, or the mean squared gradient. Where ``low`` or ``high`` is the
    end of what was tried, the range may go on there.
    """

    low: float
    high: float
    best: float
    expected: float
    tried: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Advice:
    """Which mechanism to take, why, and what it rests on.

    ``noise`` has, for each candidate, the root of the squared noise that the judge counts, relative to DP-SGD on
    batches in a fixed order. ``best`` has the least of it, or within 0.5 % of that the least memory. ``cheaper`` is an
    alternative that keeps few vectors, where the best one keeps many. ``gains`` compares with DP-SGD, with DP-MF, and
    with DP-MF⁺ at the best τ that was tried. ``rates`` is None where too little is known.
    """

    comparison: Comparison
    best: Entry
    cheaper: Entry | None
    noise: dict[str, float]
    gains: tuple[Gain, ...]
    rates: Rates | None
    reasons: tuple[str, ...]
    rests_on: tuple[str, ...]

    @property
    def damping(self) -> tuple[float, float] | None:
        """(ρ, final weight) of the recommended design, where it has them: DP-MF is (1, 1), DP-MF⁺ with τ = steps
        (1, √steps)."""
        options = self.best.candidate.options
        if self.best.name == "damped":
            return options["rho"], options["final_weight"]
        if self.best.name == "dp-mf+" and options["tau"] == self.comparison.setting.steps:
            return 1.0, math.sqrt(self.comparison.setting.steps)
        return (1.0, 1.0) if self.best.name == "dp-mf" else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "recommended": self.best.to_dict(self.comparison.base),
            "cheaper": None if self.cheaper is None else self.cheaper.to_dict(self.comparison.base),
            "noise": self.noise,
            "gains": [asdict(gain) for gain in self.gains],
            "learning_rates": None if self.rates is None else asdict(self.rates),
            "reasons": list(self.reasons),
            "rests_on": list(self.rests_on),
            "comparison": self.comparison.to_dict(),
        }


def advise(
    setting: Setting,
    *,
    poisson: bool = False,
    damping: float | None = None,
    spectrum: Any = None,
    judge: str = "last",
    batch_size: int | None = None,
    clip_norm: float = 1.0,
    initial_gap: float | None = None,
    tolerance: float = 1e-3,
    progress: Progress | None = None,
) -> Advice:
    """Design what could serve, and take what leaves least noise in the model.

    With ``spectrum`` (a `Spectrum` or curvatures, an estimate from public data; or a `Quadratic`, which is the loss
    itself) mechanisms are judged by what they add to the expected loss of the last iterate, exactly; with
    ``judge="average"`` to the squared gradient, averaged over the iterates. Estimates stand for a range of curvatures
    (`antiphase.recommend.quadratic_ranking`). Where ``batch_size`` is known too and ``initial_gap``, the loss that there is to gain
    (for k classes at most log k), a range of learning rates follows; noise is then ``clip_norm/batch_size`` times the
    noise multiplier.

    Without, they are judged by the noise in all iterates together with that in the last one, which counts √steps
    times: what the paper's DP-MF⁺ minimises with τ = steps. With ``damping`` ρ (1 − learning rate × a typical
    curvature) errors fade by ρ a step, and the judge knows.

    ``poisson`` says that batches can be Poisson samples, so that DP-SGD may claim their amplification.

    Guarantee: private data are never touched; every candidate is designed for the optimizer of ``setting``, momentum
    and schedule included; no candidate that was tried is judged better by more than 0.5 % of the noise.
    """
    if poisson and setting.epsilon is None:
        raise ValueError("poisson needs epsilon and delta: amplification depends on them")
    if damping is not None and spectrum is not None:
        raise ValueError(f"damping = {damping} and a spectrum say the same thing twice; give one")
    if spectrum is not None:
        expected = Judge.of(spectrum, judge, initial_gap)
        return _by_expectation(
            setting, expected, poisson, batch_size, clip_norm, initial_gap, tolerance, progress
        )
    return _by_worst_case(setting, poisson, damping, tolerance, progress)


# ---- where nothing is known of the loss, or one damping ----------------------------------------------------


def _by_worst_case(
    setting: Setting,
    poisson: bool,
    damping: float | None,
    tolerance: float,
    progress: Progress | None,
) -> Advice:
    judge: Objective = Restarts(setting.steps)
    candidates = [
        Candidate("dp-sgd"),
        Candidate("dp-mf"),
        Candidate("dp-mf+", {"tau": setting.steps}),
    ]
    who = setting.participation
    if (who.steps_per_epoch or 1) > 1:
        candidates.append(
            Candidate("dp-mf+", {"tau": who.steps_per_epoch})
        )  # restarts between participations: a stream
    if poisson:
        candidates.insert(1, Candidate("dp-sgd", sampler="poisson"))
    if damping is not None:
        damping = check.real_number("damping", damping)
        if not 0 <= damping <= 1:
            raise ValueError(
                f"damping = {damping:g} must be between 0 and 1: it is what is left of an error after a step"
            )
        judge = Damped(damping, None, math.sqrt(setting.steps))
        candidates.append(
            Candidate("damped", {"rho": damping, "final_weight": math.sqrt(setting.steps)})
        )
    found = _compared(setting, candidates, tolerance, progress)
    squared = {entry.label: entry.error_under(judge) for entry in found.entries}
    noise = _relative(found, squared)
    best, cheaper = _chosen(found, noise)
    gains = tuple(_gains(found, best, lambda entry: (squared[entry.label],)))
    reasons = _reasons(found, best, cheaper, noise, None)
    sampling = _sampling(poisson)
    if damping is None:
        rests_on = [f"{FLAT}, and errors do not fade: a worst case of flat curvature", sampling]
    else:
        rests_on = [
            f"all iterates count, the last one √steps times, and a step leaves ρ = {damping:g} of an error",
            "one curvature stands for all, and the largest is a bad guide where others are far smaller (for logistic "
            "regression on MNIST it cost six points of accuracy at ε = 0.1): a spectrum is a better one",
            sampling,
        ]
    rests_on.append("the exact noise of each design; no data, public or private, was looked at")
    return Advice(found, best, cheaper, noise, gains, None, tuple(reasons), tuple(rests_on))


# ---- where a spectrum is known -----------------------------------------------------------------------------


def _by_expectation(
    setting: Setting,
    judge: Judge,
    poisson: bool,
    batch_size: int | None,
    clip_norm: float,
    initial_gap: float | None,
    tolerance: float,
    progress: Progress | None,
) -> Advice:
    began: list[str] = []

    def report(label: str) -> None:
        began.append(label)
        if progress is not None:  # how many there will be is not known; each brings it nearer
            progress(ProgressReport(len(began), 2 * len(began) + 8, task=label))

    trials, refused = search(setting, judge, tolerance, report)
    by_label = {trial.candidate.label: trial for trial in trials}
    found = _compared(setting, _shortlist(setting, trials, poisson), tolerance, progress)
    assert found.base is not None
    unit = _deviation(found.base)

    def values(entry: Entry) -> tuple[float, ...]:
        """The judged noise at this entry's own scale: with Poisson samples DP-SGD has less."""
        label = Candidate(entry.name, entry.candidate.options).label
        amplified = (_deviation(entry) / unit) ** 2
        return tuple(float(v) * amplified for v in by_label[label].values)

    entries = [entry for entry in found.entries if entry.amplified]
    squared = {label: trial.score for label, trial in by_label.items()}
    squared |= {
        entry.label: math.prod(values(entry)) ** (1 / len(judge.shares)) for entry in entries
    }
    noise = _relative(found, squared)
    best, cheaper = _chosen(found, noise)
    gains = tuple(_gains(found, best, values))
    rates, no_rates = _rates(judge, best, batch_size, clip_norm, initial_gap)
    found_all = Comparison(setting, found.entries, dict(found.refused) | refused, found.optimum)
    return Advice(
        found_all, best, cheaper, noise, gains, rates,
        tuple(_reasons(found, best, cheaper, noise, gains) + _rate_words(rates, no_rates, setting)),
        tuple(_rests_on_spectrum(judge, rates, initial_gap, poisson, len(trials))),
    )  # fmt: skip


def _deviation(entry: Entry) -> float:
    """The standard deviation that `exact` calls noise, at clip norm 1 and before division by the batch size.

    With Poisson batches one participation counts, not all.
    """
    return entry.mechanism.noise_scale / entry.factorization.sensitivity


def _shortlist(setting: Setting, trials: list[Trial], poisson: bool) -> list[Candidate]:
    """What people compare with, and the best of each kind."""
    ranked = sorted(trials, key=lambda trial: trial.score)
    names = list(dict.fromkeys(trial.candidate.name for trial in ranked))
    chosen = [Candidate("dp-sgd"), *([Candidate("dp-sgd", sampler="poisson")] if poisson else [])]
    chosen += [
        trial.candidate
        for trial in trials
        if trial.candidate.label == f"DP-MF⁺, τ = {setting.steps}"
    ]
    chosen += [next(t.candidate for t in ranked if t.candidate.name == name) for name in names]
    return chosen


def _rates(
    judge: Judge, best: Entry, batch_size: int | None, clip_norm: float, initial_gap: float | None
) -> tuple[Rates | None, str]:
    """The range of learning rates, or why there is none."""
    if batch_size is None:
        return None, "the batch size"
    if judge.is_estimate and initial_gap is None:
        return None, "the loss that there is to gain (initial_gap)"
    batch_size = check.whole_number("batch_size", batch_size)
    f, given = best.factorization, best.factorization.workload.largest_rate
    noise = _deviation(best) * check.positive_number("clip_norm", clip_norm) / batch_size
    found: dict[float, float] = {}
    for half in range(-2 * OCTAVES, 2 * OCTAVES + 1):
        factor = 2.0 ** (half / 2)
        try:
            found[given * factor] = score(judge.total(f, factor, noise))
        except ValueError:  # it diverges from here on
            break
    if not found:
        return None, "a learning rate that does not diverge"
    top = min(found, key=lambda rate: found[rate])
    good = [rate for rate, value in found.items() if value <= (1 + NEAR) * found[top]]
    return Rates(min(good), max(good), top, found[top], (min(found), max(found))), ""


# ---- choosing ----------------------------------------------------------------------------------------------


def _compared(
    setting: Setting, candidates: list[Candidate], tolerance: float, progress: Progress | None
) -> Comparison:
    found = compare(setting, candidates, tolerance=tolerance, measure=False, progress=progress)
    if found.stopped:  # half of the candidates are no ground for advice
        raise KeyboardInterrupt
    if found.base is None:
        raise ValueError("; ".join(found.refused.values()))
    return found


def _relative(found: Comparison, squared: dict[str, float]) -> dict[str, float]:
    assert found.base is not None
    return {label: math.sqrt(value / squared[found.base.label]) for label, value in squared.items()}


def _chosen(found: Comparison, noise: dict[str, float]) -> tuple[Entry, Entry | None]:
    ranked = sorted(found.entries, key=lambda entry: noise[entry.label])
    alike = [entry for entry in ranked if noise[entry.label] <= (1 + TIE) * noise[ranked[0].label]]
    best = min(alike, key=lambda entry: entry.noise_bytes)
    few = 4 * FEW * found.setting.parameters
    cheap = [entry for entry in ranked if entry.noise_bytes <= few]
    return best, cheap[0] if best.noise_bytes > few and cheap and cheap[
        0
    ].name != "dp-sgd" else None


def _gains(
    found: Comparison, best: Entry, values: Callable[[Entry], tuple[float, ...]]
) -> list[Gain]:
    """Over DP-SGD, DP-MF and the best DP-MF⁺ that there is."""
    out = []
    for name in ("dp-sgd", "dp-mf", "dp-mf+"):
        rivals = [entry for entry in found.entries if entry.name == name and not entry.amplified]
        if rivals:
            rival = min(rivals, key=lambda entry: math.prod(values(entry)))
            shares = [math.sqrt(a / b) for a, b in zip(values(best), values(rival), strict=True)]
            typical = math.prod(shares) ** (1 / len(shares))
            out.append(Gain(rival.label, typical, min(shares), max(shares)))
    return out


# ---- words -------------------------------------------------------------------------------------------------


def _reasons(
    found: Comparison,
    best: Entry,
    cheaper: Entry | None,
    noise: dict[str, float],
    gains: tuple[Gain, ...] | None,
) -> list[str]:
    assert found.base is not None
    rivals = {entry.label: noise[entry.label] for entry in found.entries if entry.name != "dp-sgd"}
    others = min(rivals, key=lambda label: rivals[label])
    share = {label: f"{value:.1%}" for label, value in noise.items()}
    if best is found.base:
        words = [
            f"Independent noise is as good as any here, and keeps nothing from step to step: {others} would leave "
            f"{share[others]} of its noise in the model."
        ]
    elif best.amplified:
        words = [
            f"Independent noise on Poisson batches leaves {share[best.label]} of what DP-SGD leaves on batches in a "
            f"fixed order; the best correlated noise, {others}, would leave {share[others]}.",
            "It needs true Poisson sampling: batches of random size, drawn anew, and in secret, for every step.",
        ]
    elif gains is not None:
        words = [
            f"It leaves {_gain_words(gains, best)} at the same privacy, by exact expectation on the spectrum."
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
        if entry.amplified and entry is not best
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


def _gain_words(gains: tuple[Gain, ...], best: Entry) -> str:
    words = []
    for gain in gains:
        if gain.over == best.label:
            continue
        doubt = "" if gain.most - gain.least < 0.01 else f" ({gain.least:.0%} to {gain.most:.0%})"
        words.append(f"{gain.share:.1%}{doubt} of the noise of {gain.over}")
    return ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1]


def _rate_words(rates: Rates | None, missing: str, setting: Setting) -> list[str]:
    if rates is None:
        return [f"Learning rates: for a range, {missing} would have to be known."]
    more = "" if rates.tried[0] < rates.low else ", or less"
    more += "" if rates.high < rates.tried[1] else ", or more"
    given = setting.workload.largest_rate
    good = rates.low * (1 - 1e-9) <= given <= rates.high * (1 + 1e-9)
    return [
        f"Learning rates from {rates.low:.3g} to {rates.high:.3g}{more} are within {NEAR:.0%} of the best by the same "
        f"expectation; yours, {given:.3g}, is {'one of them' if good else 'not'}."
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-6 else "0.0001 %"


def _sampling(poisson: bool) -> str:
    return "batches can be Poisson samples" if poisson else "batches come in a fixed order"


def _rests_on_spectrum(
    judge: Judge, rates: Rates | None, initial_gap: float | None, poisson: bool, tried: int
) -> list[str]:
    p = judge.problem
    if judge.is_estimate:
        words = [
            f"{JUDGES[judge.what]}, on quadratics of the given spectrum ({p.dimension:g} directions, curvatures up to "
            f"{p.smoothness:.3g}) and of down to 1/{1 / min(DOUBT):g} of it, for clipping and what is learnt flatten "
            "a loss, and the spectrum is of other data",
        ]
    else:
        words = [
            f"{JUDGES[judge.what]}, on the given quadratic (curvatures up to {p.smoothness:.3g}), exactly"
        ]
    if rates is not None and initial_gap is not None and judge.is_estimate:
        words.append(
            f"for learning rates: a loss of {initial_gap:g} to gain, from an optimum as far in all directions"
        )
    words += [f"{tried} designs that were tried", _sampling(poisson), UNTOUCHED]
    if judge.is_estimate:
        words[-1] += ": whether the spectrum came from public data is yours to know"
    return words
