"""Reasons and assumptions of a recommendation, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphase.comparison import Comparison, Entry, Setting
from antiphase.comparison.candidates import no_poisson_reason
from antiphase.comparison.conclusion import REQUIREMENTS
from antiphase.recommendation.quadratic_ranking import (
    CRITERIA,
    CURVATURE_SCALES,
    QuadraticCriterion,
)
from antiphase.recommendation.result import Gain, LearningRateRange

NO_SPECTRUM = "without a spectrum of the loss, all iterates count and the last one √steps times"


def reasons(
    comparison: Comparison,
    best: Entry,
    cheaper: Entry | None,
    noise: Mapping[str, float],
    gains: Sequence[Gain] | None,
) -> list[str]:
    """Sentences that justify the choice of ``best``.

    Args:
        comparison: the compared mechanisms, DP-SGD in a fixed order among them, and on Poisson
            batches where its noise can be computed.
        best: the recommended mechanism.
        cheaper: the alternative that keeps few vectors in memory, if there is one.
        noise: noise by label, relative to DP-SGD.
        gains: the ratios to report, if they come from a spectrum; otherwise None.
    """
    poisson = comparison.dp_sgd("poisson")
    sentences = _main_reason(comparison, best, noise, gains)
    if poisson is None or noise[poisson.label] >= noise[best.label]:
        sentences.append(_batches_reason(comparison, best))
    else:
        share = noise[poisson.label] / noise[best.label]
        sentences.insert(
            0,
            f"DP-SGD on Poisson batches is predicted to leave less noise: {share:.1%} of that of "
            f"{best.label}. Take it if you can draw such batches (sampler poisson); it needs "
            f"{REQUIREMENTS['poisson']}.",
        )
    if best.gap is not None:
        sentences.append(
            "Certified: for its objective, no encoder has less squared noise by more than "
            f"{_percent(best.gap)}."
        )
    if cheaper is not None:
        sentences.append(
            f"Cheaper: {cheaper.label} keeps {cheaper.noise_bytes / 1e6:.3g} MB instead of "
            f"{best.noise_bytes / 1e6:.3g} MB for {comparison.setting.parameters:,} parameters "
            f"and leaves {noise[cheaper.label]:.1%} of the noise of "
            f"{_name_of(comparison.baseline)}."
        )
    return sentences


def _main_reason(
    comparison: Comparison, best: Entry, noise: Mapping[str, float], gains: Sequence[Gain] | None
) -> list[str]:
    correlated = [entry.label for entry in comparison.entries if entry.name != "dp-sgd"]
    runner_up = min(correlated, key=lambda label: noise[label])
    share = noise[runner_up] / noise[best.label]
    rivals = [comparison.dp_sgd("poisson"), comparison.dp_sgd("fixed-order")]
    if best.name == "dp-sgd" and not best.amplified:
        return [
            "Independent noise is as good as any mechanism here and needs no memory: "
            f"{runner_up} would leave {share:.1%} of its noise in the model."
        ]
    if gains is not None:
        sentences = [
            f"It leaves {_gains_in_words(gains, best)} at the same privacy, by exact expectation "
            "on the spectrum."
        ]
    else:
        sentences = [
            f"It leaves {noise[best.label] / noise[rival.label]:.1%} of the noise of "
            f"{_name_of(rival)} in the model at the same privacy: "
            f"{best.average / rival.average:.1%} on average over the iterates and "
            f"{best.final / rival.final:.1%} in the last one."
            for rival in rivals
            if rival is not None and rival is not best
        ]
    if best.name == "dp-sgd":
        sentences.append(
            f"The best correlated noise, {runner_up}, would leave {share:.1%} of its noise."
        )
    return sentences


def _batches_reason(comparison: Comparison, best: Entry) -> str:
    """The batches that ``best`` needs, and those that DP-SGD needs."""
    if best.amplified:
        return f"It needs {REQUIREMENTS[best.mechanism.sampling.name]}."
    if comparison.dp_sgd("poisson") is None:
        missing = comparison.refused.get("DP-SGD, Poisson batches")
        return (
            "It works with ordinary batches in a fixed order. DP-SGD on Poisson batches is not "
            f"compared: {no_poisson_reason(comparison.setting) or missing}."
        )
    return (
        "It works with ordinary batches in a fixed order; DP-SGD on Poisson batches needs "
        f"{REQUIREMENTS['poisson']}."
    )


def _name_of(entry: Entry | None) -> str:
    """DP-SGD with its batches, within a sentence."""
    assert entry is not None
    return "DP-SGD (Poisson batches)" if entry.amplified else "DP-SGD in a fixed order"


def _gains_in_words(gains: Sequence[Gain], best: Entry) -> str:
    words = [
        f"{gain.ratio:.1%}"
        + ("" if gain.high - gain.low < 0.01 else f" ({gain.low:.0%} to {gain.high:.0%})")
        + f" of the noise of {gain.over}"
        for gain in gains
        if gain.over != best.label
    ]
    return ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1]


def learning_rate_sentence(
    rates: LearningRateRange | None, missing: str, setting: Setting, tolerance: float
) -> str:
    """Recommended learning rates in words, or what is missing for them."""
    if rates is None:
        return f"Learning rates: a range needs {missing}."
    beyond = "" if rates.tried[0] < rates.low else ", or less"
    beyond += "" if rates.high < rates.tried[1] else ", or more"
    given = setting.workload.max_learning_rate
    inside = rates.low * (1 - 1e-9) <= given <= rates.high * (1 + 1e-9)
    return (
        f"Learning rates from {rates.low:.3g} to {rates.high:.3g}{beyond} are within "
        f"{tolerance:.0%} of the lowest expected loss; yours, {given:.3g}, is "
        f"{'one of them' if inside else 'not'}."
    )


def worst_case_assumptions(damping: float | None, setting: Setting) -> list[str]:
    """Assumptions of a recommendation without a spectrum."""
    if damping is None:
        sentences = [f"{NO_SPECTRUM}, and errors do not decay: the worst case of zero curvature"]
    else:
        sentences = [
            f"all iterates count, the last one √steps times, and a step leaves ρ = {damping:g} of "
            "an error",
            "one curvature stands for all; the largest is a poor choice where others are far "
            "smaller (for logistic regression on MNIST it cost six points of accuracy at "
            "ε = 0.1): a spectrum is a better one",
        ]
    return [*sentences, _batches(setting), "the exact noise of each design; no data were used"]


def spectrum_assumptions(
    criterion: QuadraticCriterion, setting: Setting, designs: int, initial_gap: float | None
) -> list[str]:
    """Assumptions of a recommendation from a spectrum.

    Args:
        criterion: the score that ranked the designs.
        setting: the training, with the batches that it allows.
        designs: how many designs were tried.
        initial_gap: the loss to gain that learning rates were derived from, if they were.
    """
    p, kind = criterion.problem, CRITERIA[criterion.kind]
    if criterion.is_estimate:
        sentences = [
            f"{kind}, on quadratics with the given spectrum ({p.dimension:g} directions, "
            f"curvatures up to {p.smoothness:.3g}) and with down to 1/{1 / min(CURVATURE_SCALES):g}"
            " of it, since clipping and learning flatten a loss and the spectrum is of other data"
        ]
    else:
        sentences = [f"{kind}, on the given quadratic (curvatures up to {p.smoothness:.3g})"]
    if initial_gap is not None and criterion.is_estimate:
        sentences.append(
            f"for learning rates: a loss of {initial_gap:g} to gain, from an optimum equally far "
            "in all directions"
        )
    sentences += [f"{designs} designs were tried", _batches(setting)]
    privacy = "no private data were used"
    if criterion.is_estimate:
        privacy += ", provided that the spectrum is of public data, which antiphase cannot check"
    return [*sentences, privacy]


def _batches(setting: Setting) -> str:
    if setting.sampling.amplifies:
        return f"batches can be drawn at random ({setting.sampling.label}), or in a fixed order"
    return "batches come in a fixed order"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-6 else "0.0001 %"
