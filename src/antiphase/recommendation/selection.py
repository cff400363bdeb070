"""`recommend`: design the candidates for a setting and select one.

Without knowledge of the loss, candidates are ranked by a worst case; with a spectrum of curvatures
from public data, by their exact expected loss (`quadratic_ranking`). Private data are never used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from antiphase._util import checks as check
from antiphase._util.progress import Progress, ProgressReport, shown
from antiphase.comparison import (
    Candidate,
    Comparison,
    Entry,
    Setting,
    compare,
    dp_sgd_candidates,
    require_setting,
)
from antiphase.objective import Damped, Objective, Restarts
from antiphase.recommendation import explanation
from antiphase.recommendation.quadratic_ranking import (
    QuadraticCriterion,
    RankedDesign,
    geometric_mean,
    rank,
)
from antiphase.recommendation.result import Gain, LearningRateRange, Recommendation
from antiphase.sampling import CyclicPoisson

MAX_CHEAP_VECTORS = 16  # of memory: a mechanism that keeps no more is cheap
NOISE_TIE = 0.005  # relative difference in noise below which the cheaper mechanism is taken
LOSS_TOLERANCE = 0.1  # learning rates within this of the lowest expected loss are recommended
USABLE_SAMPLERS = {  # samplers that a way of drawing batches allows, besides a fixed order
    "fixed-order": (),
    "poisson": ("poisson",),
    "cyclic-poisson": ("cyclic-poisson", "poisson"),
    "balls-in-bins": ("balls-in-bins",),
}
RATE_OCTAVES = 4  # tried above and below the given learning rate

Values = Mapping[str, Sequence[float]]  # squared noise by label, for each scale of the curvature


def recommend(
    setting: Setting,
    *,
    damping: float | None = None,
    spectrum: Any = None,
    criterion: str = "last",
    batch_size: int | None = None,
    clip_norm: float = 1.0,
    initial_gap: float | None = None,
    tolerance: float = 1e-3,
    progress: Progress | bool = True,
) -> Recommendation:
    """Recommend the mechanism that leaves least noise in the model, for the batches at hand.

    Without ``spectrum``, mechanisms are ranked by the noise in all iterates, the last one counted
    √steps times: the objective of DP-MF⁺ with τ = steps. With ``spectrum``, they are ranked by
    their exact expected loss.

    Guarantee: private data are never used; every candidate is designed for the workload of
    ``setting``, momentum and schedule included; the noise of the recommended mechanism exceeds
    that of no candidate tried by more than 0.5 %.

    Args:
        setting: workload, participation and privacy budget, and how batches can be drawn. With a
            budget, DP-SGD on Poisson batches is compared with even where it cannot be used.
        damping: ρ, the share of an error that is left after a step (1 − learning rate × a typical
            curvature).
        spectrum: what is known of the loss: a `Spectrum` or curvatures, estimated on public data,
            which stand for a range of curvatures; or a `Quadratic`, which is the loss itself.
        criterion: with ``spectrum``: ``"last"`` for the expected loss of the last iterate,
            ``"average"`` for the squared gradient norm averaged over the iterates.
        batch_size: with ``spectrum``: for a range of learning rates, at noise
            ``clip_norm / batch_size`` times the noise multiplier.
        clip_norm: the clip norm of the training.
        initial_gap: ``f(x_0) − f*``, which a range of learning rates needs if ``spectrum`` is an
            estimate; for k classes at most log k.
        tolerance: certified gap at which designs stop.
        progress: whether to show a bar in terminals and notebooks if it takes more than two
            seconds; or a function, called with a report while candidates are designed.

    Returns:
        The recommended mechanism with reasons and assumptions, which notebooks show; ``plot()``
        draws the comparison.

    Raises:
        ValueError: an argument is out of range, or training diverges on the spectrum.
        TypeError: ``setting`` is not a `Setting`.

    Example:
        >>> import antiphase as ap
        >>> recommendation = ap.recommend(ap.Setting.of(steps=16, epochs=2))
        >>> recommendation.best.label
        'DP-MF⁺, τ = 16'
        >>> print(recommendation.reasons[0])
        It leaves ... of the noise of DP-SGD in a fixed order in the model at the same privacy: ...
    """
    require_setting(setting)
    if damping is not None and spectrum is not None:
        raise ValueError(f"damping = {damping} and a spectrum exclude each other; give one")
    with shown(progress, "comparing") as report:
        if spectrum is None:
            return _by_worst_case(setting, damping, tolerance, report)
        score = QuadraticCriterion.of(spectrum, criterion, initial_gap)
        comparison, values, designs = _ranked(setting, score, tolerance, report)
    noise, best, cheaper = _selected(comparison, values)
    gains = _gains(comparison, best, values)
    rates, missing = _learning_rates(score, best, batch_size, clip_norm, initial_gap)
    reasons = explanation.reasons(comparison, best, cheaper, noise, gains)
    reasons.append(explanation.learning_rate_sentence(rates, missing, setting, LOSS_TOLERANCE))
    assumptions = explanation.spectrum_assumptions(
        score, setting, designs, initial_gap if rates is not None else None
    )
    return Recommendation(
        comparison, best, cheaper, noise, gains, rates, tuple(reasons), tuple(assumptions)
    )


def _by_worst_case(
    setting: Setting, damping: float | None, tolerance: float, progress: Progress
) -> Recommendation:
    """Recommend without a spectrum: no damping, or one for all directions."""
    steps, final_weight = setting.steps, math.sqrt(setting.steps)
    objective: Objective = Restarts(steps)
    candidates = _independent_or_amplified(setting)
    candidates += [Candidate("dp-mf"), Candidate("dp-mf+", {"tau": steps})]
    epoch = setting.participation.steps_per_epoch
    if epoch is not None and epoch > 1:
        # Restarts between participations can be streamed with few buffers.
        candidates.append(Candidate("dp-mf+", {"tau": epoch}))
    if damping is not None:
        damping = check.real_number("damping", damping)
        if not 0 <= damping <= 1:
            raise ValueError(
                f"damping = {damping:g} must be between 0 and 1: the share of an error that is "
                "left after a step"
            )
        objective = Damped(damping, None, final_weight)
        candidates.append(Candidate("damped", {"rho": damping, "final_weight": final_weight}))
    comparison = _compared(setting, candidates, tolerance, progress)
    values = {entry.label: (entry.error_under(objective),) for entry in comparison.entries}
    noise, best, cheaper = _selected(comparison, values)
    return Recommendation(
        comparison,
        best,
        cheaper,
        noise,
        _gains(comparison, best, values),
        None,
        tuple(explanation.reasons(comparison, best, cheaper, noise, None)),
        tuple(explanation.worst_case_assumptions(damping, setting)),
    )


def _ranked(
    setting: Setting, criterion: QuadraticCriterion, tolerance: float, progress: Progress
) -> tuple[Comparison, Values, int]:
    """Rank all designs, compare the shortlist; return the values by label and their number."""
    started = 0

    def report(label: str) -> None:
        nonlocal started
        started += 1
        # The total is unknown: approach it without reaching it.
        progress(ProgressReport(started, 2 * started + 8, task=label))

    ranked, refused = rank(setting, criterion, tolerance, report)
    shortlist = _independent_or_amplified(setting) + _shortlist(setting, ranked)
    found = _compared(setting, shortlist, tolerance, progress)
    fixed = found.dp_sgd("fixed-order")
    assert fixed is not None
    values = {r.candidate.label: tuple(map(float, r.values)) for r in ranked}
    values[fixed.label] = values.pop(Candidate("dp-sgd").label)
    for entry in found.entries:
        if entry.amplified:
            scale = (_noise_deviation(entry) / _noise_deviation(fixed)) ** 2
            values[entry.label] = tuple(scale * criterion.noise(entry.factorization))
    comparison = Comparison(setting, found.entries, dict(found.refused) | refused, found.optimum)
    return comparison, values, len(ranked)


def _independent_or_amplified(setting: Setting) -> list[Candidate]:
    """DP-SGD with its samplings and, with cyclic Poisson sampling, encoders with few bands."""
    cyclic = isinstance(setting.sampling, CyclicPoisson)
    return [
        *dp_sgd_candidates(setting),
        *(Candidate(name) for name in ("toeplitz", "dp-mf+") if cyclic),
    ]


def _shortlist(setting: Setting, ranked: list[RankedDesign]) -> list[Candidate]:
    """DP-MF⁺ with τ = steps, and the best design of each name."""
    best: dict[str, Candidate] = {}
    for design in sorted(ranked, key=lambda design: design.score):
        best.setdefault(design.candidate.name, design.candidate)
    label = Candidate("dp-mf+", {"tau": setting.steps}).label
    plus = [design.candidate for design in ranked if design.candidate.label == label]
    return [*plus, *best.values()]


def _compared(
    setting: Setting, candidates: list[Candidate], tolerance: float, progress: Progress
) -> Comparison:
    comparison = compare(setting, candidates, tolerance=tolerance, measure=False, progress=progress)
    if comparison.stopped:  # a recommendation needs all candidates
        raise KeyboardInterrupt
    if comparison.dp_sgd("fixed-order") is None:
        raise ValueError("; ".join(dict.fromkeys(comparison.refused.values())))
    return comparison


def _selected(
    comparison: Comparison, values: Values
) -> tuple[dict[str, float], Entry, Entry | None]:
    """Return the noise relative to DP-SGD by label, the best entry and the cheaper alternative."""
    assert comparison.baseline is not None
    scores = {label: geometric_mean(value) for label, value in values.items()}
    base = scores[comparison.baseline.label]
    noise = {label: math.sqrt(score / base) for label, score in scores.items()}
    usable = [entry for entry in comparison.entries if _is_usable(entry, comparison.setting)]
    ordered = sorted(usable, key=lambda entry: noise[entry.label])
    least = noise[ordered[0].label]
    tied = [entry for entry in ordered if noise[entry.label] <= (1 + NOISE_TIE) * least]
    best = min(tied, key=lambda entry: entry.noise_bytes)
    cheap_bytes = 4 * MAX_CHEAP_VECTORS * comparison.setting.parameters
    cheaper = next((entry for entry in ordered if entry.noise_bytes <= cheap_bytes), None)
    if best.noise_bytes <= cheap_bytes or cheaper is None or cheaper.name == "dp-sgd":
        return noise, best, None
    return noise, best, cheaper


def _is_usable(entry: Entry, setting: Setting) -> bool:
    """Whether the batches of the setting are those that the entry's privacy rests on."""
    needed = entry.mechanism.sampling
    return not needed.amplifies or needed.name in USABLE_SAMPLERS[setting.sampling.name]


def _gains(comparison: Comparison, best: Entry, values: Values) -> tuple[Gain, ...]:
    """Compare ``best`` with DP-SGD of every sampling, DP-MF and the best DP-MF⁺."""
    rivals = [entry.label for entry in comparison.entries if entry.name == "dp-sgd"]
    for name in ("dp-mf", "dp-mf+"):
        labels = [e.label for e in comparison.entries if e.name == name and not e.amplified]
        if labels:
            rivals.append(min(labels, key=lambda label: geometric_mean(values[label])))
    gains = []
    for rival in rivals:
        pairs = zip(values[best.label], values[rival], strict=True)
        ratios = [math.sqrt(ours / theirs) for ours, theirs in pairs]
        gains.append(Gain(rival, geometric_mean(ratios), min(ratios), max(ratios)))
    return tuple(gains)


def _noise_deviation(entry: Entry) -> float:
    """Standard deviation of the noise that `exact` takes, at clip norm 1, before batch averaging.

    With Poisson batches the sensitivity of one participation counts, not that of all.
    """
    return entry.mechanism.noise_scale / entry.factorization.sensitivity


def _learning_rates(
    criterion: QuadraticCriterion,
    best: Entry,
    batch_size: int | None,
    clip_norm: float,
    initial_gap: float | None,
) -> tuple[LearningRateRange | None, str]:
    """Return the recommended learning rates, or None and what they need."""
    if batch_size is None:
        return None, "the batch size"
    if criterion.is_estimate and initial_gap is None:
        return None, "the loss to gain (initial_gap)"
    batch_size = check.whole_number("batch_size", batch_size)
    f, given = best.factorization, best.factorization.workload.max_learning_rate
    noise = _noise_deviation(best) * check.positive_number("clip_norm", clip_norm) / batch_size
    expected: dict[float, float] = {}
    for half_octaves in range(-2 * RATE_OCTAVES, 2 * RATE_OCTAVES + 1):
        factor = 2.0 ** (half_octaves / 2)
        try:
            expected[given * factor] = geometric_mean(criterion.total(f, factor, noise))
        except ValueError:  # training diverges at this and at every larger rate
            break
    if not expected:
        return None, "a learning rate at which training does not diverge"
    lowest = min(expected, key=lambda rate: expected[rate])
    limit = (1 + LOSS_TOLERANCE) * expected[lowest]
    good = [rate for rate, loss in expected.items() if loss <= limit]
    tried = (min(expected), max(expected))
    return LearningRateRange(min(good), max(good), lowest, expected[lowest], tried), ""
