r"""Audits: is a training as private as it claims, seen from outside?

A *canary* is a record that is as easy to find as a record can be. Many trials are made with it and as many without, and
a score says of each how much it looks as if the canary had been there. Whoever guesses by a threshold has false alarms
(α) and misses (β); of a mechanism with a given promise, no threshold can have too few of both. For μ-Gaussian privacy

    β ≥ Φ(Φ⁻¹(1 − α) − μ),    so    μ ≥ Φ⁻¹(1 − α) − Φ⁻¹(β),

and Clopper and Pearson's upper bounds of α and β make that a lower bound of μ with a confidence. *In one run* there are
many canaries, each put in by a coin of its own, and the number of right guesses is what is bounded.

An audit can show that a claim is false. It cannot show that one is true: a better canary, another score or more trials
may find what this one did not.

Nasr et al. 2023, *Tight auditing of differentially private machine learning*; Steinke, Nasr and Jagielski 2023,
*Privacy auditing with one (1) training run*; Mahloujifar, Melis and Chaudhuri 2024, *Auditing f-differential privacy
in one run*.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.interrupts import graceful_interrupt
from antiphase._util.progress import Progress, ProgressReport
from antiphase.accounting.gaussian import checked_delta
from antiphase.mechanism import Mechanism
from antiphase.noise import Key

CONFIDENCE = 1 - 1e-6
CONFIDENCE_OF_ONE_RUN = (
    0.999  # one run says less: more confidence would leave nothing to be confident of
)
TRIALS = 8000  # with the canary, and as many without
PARTS = 20  # in which trials are made, with a progress bar in between
THRESHOLDS = 9  # that are fixed by trials which are not counted afterwards
CANARIES = 4000
MOST = 10**7  # trials, or canaries: their scores are kept in memory
GUESSED = 0.3  # of all canaries, in one run; of the others it is not said whether they were there
CAN = "An alarm, at this confidence, means that the claim is false: the code, the accounting or the setting is wrong."
CANNOT = (
    "No alarm proves nothing: another canary, a better score or more trials may find what this audit did not, and "
    "weaknesses that it does not look for (a leaked key, logs, side channels, rounding) stay unseen."
)

Scores = Callable[[bool, int], Any]  # (is the canary there?, how many trials) → one score for each


# ---- claims --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GaussianClaim:
    """μ-Gaussian privacy: no test tells the two worlds apart better than N(0, 1) from N(μ, 1)."""

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check.positive_number("mu", self.mu))

    name = "μ"

    @property
    def value(self) -> float:
        return self.mu

    def least_misses(self, false_alarms: Array) -> Array:
        misses: Array = scipy.special.ndtr(-scipy.special.ndtri(false_alarms) - self.mu)
        return misses

    def bound(self, false_alarms: Array, misses: Array) -> Array:
        """The μ below which so few false alarms and misses are out of reach."""
        mu: Array = -scipy.special.ndtri(false_alarms) - scipy.special.ndtri(misses)
        return mu

    def least_false_alarms(self, hits: float) -> float:
        """What so many hits cost at least: the inverse of ``1 − least_misses``."""
        return float(scipy.special.ndtr(scipy.special.ndtri(hits) - self.mu))

    def at(self, value: float) -> GaussianClaim:
        return GaussianClaim(value)

    def __str__(self) -> str:
        return f"{self.mu:.4g}-Gaussian privacy"


@dataclass(frozen=True)
class ApproximateClaim:
    """(ε, δ)-privacy."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check.positive_number("epsilon", self.epsilon))
        object.__setattr__(self, "delta", checked_delta("delta", self.delta))

    name = "ε"

    @property
    def value(self) -> float:
        return self.epsilon

    @property
    def _ratio(self) -> float:
        return math.exp(
            -min(self.epsilon, 700.0)
        )  # beyond, nothing that happens tells them apart, and floats end

    def least_misses(self, false_alarms: Array) -> Array:
        e = self._ratio
        steep = 1 - self.delta - false_alarms / e
        flat = e * (1 - self.delta - false_alarms)
        return np.maximum(np.maximum(steep, flat), 0.0)

    def bound(self, false_alarms: Array, misses: Array) -> Array:
        """The ε below which so few false alarms and misses are out of reach, at this δ."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [
                (1 - self.delta - b) / a
                for a, b in ((false_alarms, misses), (misses, false_alarms))
            ]
            bound: Array = np.log(np.maximum(np.max(ratios, axis=0), 1e-300))
        return bound

    def least_false_alarms(self, hits: float) -> float:
        """What so many hits cost at least: the inverse of ``1 − least_misses``."""
        e = self._ratio
        return max((hits - self.delta) * e, 1 - self.delta - (1 - hits) / e, 0.0)

    def at(self, value: float) -> ApproximateClaim:
        return ApproximateClaim(value, self.delta)

    def __str__(self) -> str:
        return f"({self.epsilon:.4g}, {self.delta:g})-privacy"


Claim = GaussianClaim | ApproximateClaim


def claim_of(promise: Mechanism | Mapping[str, Any]) -> Claim:
    """What a mechanism, or a statement (as `PrivacyStatement.to_json` says it), claims."""
    if isinstance(promise, Mechanism):
        mu = promise.mu()
        return (
            ApproximateClaim(promise.epsilon(), promise._delta(None))
            if mu is None
            else GaussianClaim(mu)
        )
    check.instance("promise", promise, Mapping)
    if promise.get("mu") is not None:
        return GaussianClaim(promise["mu"])
    return ApproximateClaim(promise.get("epsilon", math.nan), promise.get("delta", math.nan))


# ---- many trials ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Audit:
    """What was found. ``lower_bound`` is of μ (or of ε, if that was claimed), and holds with ``confidence``."""

    claim: Claim
    confidence: float
    trials: int  # with the canary, and as many without
    thresholds: Array
    false_alarms: Array
    misses: Array
    lower_bound: float
    alarm: bool
    roc: Array = field(repr=False)  # rows of (false alarms, hits), measured, from (0, 0) to (1, 1)

    def to_json(self) -> str:
        return _json(self)

    def __str__(self) -> str:
        found = f"{self.trials} trials with the canary and {self.trials} without, {len(self.thresholds)} threshold(s)"
        return _in_words(self, found)


def audit(
    scores: Scores,
    claim: Claim,
    *,
    trials: int = TRIALS,
    thresholds: Any = None,
    confidence: float = CONFIDENCE,
    progress: Progress | None = None,
) -> Audit:
    """Test ``claim`` on trials of a training: ``scores(canary, count)`` makes ``count`` of them, with the canary or
    without, and returns one number for each, larger where the canary seems to be there.

    ``thresholds`` are fixed before the trials that count; without them, by other trials, a twentieth as many.

    Guarantee: if the claim is true, there is an alarm with a chance of at most 1 − ``confidence``, whatever the
    scores are; they must come from independent trials. After Ctrl-C this holds for the trials made so far.   [G21]
    """
    check.function("scores", scores)
    _check_claim(claim)
    trials = _counted("trials", trials, PARTS)
    confidence = _checked_confidence(confidence)
    if thresholds is None:
        pilot = max(trials // PARTS, 50)
        both = np.concatenate([_checked(scores(there, pilot), pilot) for there in (False, True)])
        thresholds = np.unique(
            np.quantile(both, np.arange(1, THRESHOLDS + 1) / (THRESHOLDS + 1), method="nearest")
        )
    thresholds = check.real_array("thresholds", np.atleast_1d(thresholds), ndim=1)
    if not len(thresholds):
        raise ValueError("thresholds is empty; one is needed at least")
    made: tuple[list[Array], list[Array]] = [], []
    done = 0
    with graceful_interrupt() as pressed:
        for part in range(PARTS):
            count = trials * (part + 1) // PARTS - trials * part // PARTS
            for there in (False, True):
                made[there].append(_checked(scores(there, count), count))
            done += count
            if progress is not None:
                progress(ProgressReport(done, trials))
            if pressed():
                break
    return _judged(claim, confidence, thresholds, *(np.concatenate(part) for part in made))


def _judged(
    claim: Claim, confidence: float, thresholds: Array, without: Array, present: Array
) -> Audit:
    false_alarms = np.array([(without > t).sum() for t in thresholds])
    misses = np.array([(present <= t).sum() for t in thresholds])
    # One bound for each rate at each threshold, and all of them hold together.
    each = (1 - confidence) / (2 * len(thresholds))
    bounds = claim.bound(
        upper_rate(false_alarms, len(without), each), upper_rate(misses, len(present), each)
    )
    lower = max(float(np.max(bounds)), 0.0)
    grid = np.quantile(np.concatenate([without, present]), np.linspace(1, 0, 400), method="nearest")
    above = [1 - np.searchsorted(np.sort(part), grid) / len(part) for part in (without, present)]
    roc = np.vstack([[0.0, 0.0], np.column_stack(above)])
    return Audit(
        claim, confidence, len(present), thresholds, false_alarms / len(without), misses / len(present), lower,
        lower > claim.value, roc,
    )  # fmt: skip


def upper_rate(count: Any, trials: int, chance: float) -> Array:
    """Clopper and Pearson: a rate that is below the true one with this chance at most.

    >>> float(upper_rate(0, 10, 0.05)), float(upper_rate(10, 10, 0.05))
    (0.258865..., 1.0)
    """
    count = np.asarray(count, dtype=np.float64)
    rate: Array = np.where(
        count >= trials,
        1.0,
        scipy.special.betaincinv(count + 1, np.maximum(trials - count, 0.5), 1 - chance),
    )
    return rate


# ---- one run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OneRun:
    """What was found in one run with many canaries. ``chance`` bounds that of so many right guesses, if the claim is
    true."""

    claim: Claim
    confidence: float
    canaries: int
    guesses: int
    right: int
    chance: float
    lower_bound: float
    alarm: bool
    roc: Array = field(repr=False)

    def to_json(self) -> str:
        return _json(self)

    def __str__(self) -> str:
        found = (
            f"one run with {self.canaries} canaries, of {self.guesses} guesses {self.right} right"
        )
        return _in_words(self, found)


def audit_one_run(
    scores: Callable[[NDArray[np.bool_]], Any],
    claim: Claim,
    *,
    canaries: int = CANARIES,
    guesses: int | None = None,
    confidence: float = CONFIDENCE_OF_ONE_RUN,
    coins: np.random.Generator | None = None,
) -> OneRun:
    """Test ``claim`` on a single training: ``scores(included)`` trains with those canaries that ``included`` says, and
    returns one number for each canary, larger where it seems to be there.

    So many ``guesses`` are made, three tenths of the canaries if nothing is said: half of them for the largest scores,
    half for the smallest. A canary is a record of its own; its place is kept where it is left out.

    Guarantee: if the claim is true, there is an alarm with a chance of at most 1 − ``confidence``, however canaries
    disturb one another. It takes a worse mistake to be noticed than with many trials.   [G21]
    """
    check.function("scores", scores)
    _check_claim(claim)
    canaries = _counted("canaries", canaries, 2)
    guesses = (
        max(int(GUESSED * canaries), 2)
        if guesses is None
        else check.whole_number("guesses", guesses, minimum=2)
    )
    if guesses > canaries:
        raise ValueError(f"guesses = {guesses} is more than the {canaries} canaries")
    confidence = _checked_confidence(confidence)
    included = (coins or np.random.default_rng()).random(canaries) < 0.5
    found = _checked(scores(included.copy()), canaries)
    order = np.argsort(found, kind="stable")
    low, high = order[: guesses // 2], order[canaries - (guesses - guesses // 2) :]
    right = int(included[high].sum() + (~included[low]).sum())
    chance = _chance(claim, canaries, guesses, right)
    there, gone = included[order[::-1]], ~included[order[::-1]]
    roc = np.column_stack(
        [np.cumsum(gone) / max(gone.sum(), 1), np.cumsum(there) / max(there.sum(), 1)]
    )
    roc = np.vstack([[0.0, 0.0], roc[np.unique(np.linspace(0, canaries - 1, 400).astype(int))]])
    lower = _least_value(claim, canaries, guesses, right, 1 - confidence)
    alarm = _refuted(claim, canaries, guesses, right, 1 - confidence)
    return OneRun(claim, confidence, canaries, guesses, right, chance, lower, alarm, roc)


def _refuted(claim: Claim, canaries: int, guesses: int, right: int, chance: float) -> bool:
    """Whether ``right`` or more right guesses have less than this chance, if the claim is true.

    Let p_k be the chance of k right guesses. For each canary, the other way its coin may have fallen turns a right
    guess into a wrong one and k into k − 1; so, on average over the canaries and for every i, with the claim's curve f̄
    (the most hits at so many false alarms),

        Σ_{k≥i} k·p_k / m  ≤  f̄( Σ_{k≥i−1} (r − k)·p_k / m ).

    Given p_v = chance, the least that p_{v−1}, p_{v−2}, … can then be follow one after the other; if they add up to
    more than 1, the chance was too large.
    """
    m, r, total = canaries, guesses, chance
    right_ones, wrong_ones = right * chance, (r - right) * chance  # the two sums, times m
    for i in range(right, 0, -1):
        needed = m * claim.least_false_alarms(min(right_ones / m, 1.0))
        p = max((needed - wrong_ones) / (r - i + 1), 0.0)
        total += p
        right_ones += (i - 1) * p
        wrong_ones += (r - i + 1) * p
        if total > 1:
            return True
    return False


def _chance(claim: Claim, canaries: int, guesses: int, right: int) -> float:
    """A bound of the chance of so many right guesses, to within a tenth; no smaller than 1e-12."""
    low, high = 1e-12, 1.0
    while high > 1.1 * low:
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle) if _refuted(claim, canaries, guesses, right, middle) else (middle, high)
        )
    return high


def _least_value(claim: Claim, canaries: int, guesses: int, right: int, chance: float) -> float:
    """The largest μ (or ε) that so many right guesses refute, to within 1e-3; 0 if none."""

    def refuted(value: float) -> bool:
        return _refuted(claim.at(value), canaries, guesses, right, chance)

    low, high = 0.0, 1e-3
    while refuted(high) and high < 100:
        low, high = high, 2 * high
    while high - low > 1e-3 and low:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


# ---- the library's own mechanisms ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MechanismTrials:
    """Trials of a mechanism's own noise, each a model of one number, all of them rows of one stream.

    The canary has the longest gradient that clipping lets through, in all the steps of the pattern that costs most; the
    score is the likelihood ratio of what is released, in standard deviations. So no audit of the releases is sharper,
    where the sensitivity is attained by gradients of one direction.
    """

    mechanism: Mechanism
    key: Key = field(default_factory=Key.generate)

    def __post_init__(self) -> None:
        check.instance("mechanism", self.mechanism, Mechanism)
        if self.mechanism.amplified:
            raise ValueError(
                'sampler = "poisson": whether a record is in a batch is decided in training, not by the mechanism; '
                "audit the training function"
            )

    @property
    def canary(self) -> Array:
        """1 or −1 in the steps in which the canary takes part: gradients of one direction, in clip norms."""
        f = self.mechanism.factorization
        columns, best = f._columns(), (0.0, np.zeros(f.steps))
        for pattern in f.participation.patterns(f.steps):
            gram = columns.gram(pattern)
            signs = (
                np.where(np.linalg.eigh(gram)[1][:, -1] < 0, -1.0, 1.0)
                if (gram < 0).any()
                else np.ones(len(gram))
            )
            if (square := float(signs @ gram @ signs)) > best[0]:
                best = square, np.zeros(f.steps)
                best[1][pattern] = signs
        return best[1]

    def score(self, released: Array, canary: Array | None = None) -> Array:
        """One score for each column of ``released``, the rows that went out less what is known of them.

        Standard normal without the canary, if the mechanism is what it claims. ``canary`` has its gradient in each
        step, in any unit, if that is another one.
        """
        C = self.mechanism.factorization.encoder()
        shift = C @ (self.canary if canary is None else canary)
        weights = C.T @ shift / (np.linalg.norm(shift) * self.mechanism.noise_scale)
        score: Array = weights @ released
        return score

    def __call__(self, canary: bool, trials: int) -> Array:
        return self.one_run(np.full(trials, canary))

    def one_run(self, included: NDArray[np.bool_]) -> Array:
        """A score for each canary of one run; each has a coordinate of its own, and so is a trial of its own."""
        m = self.mechanism
        rows = np.array(list(m.noise(len(included), key=self.key)), dtype=np.float64)
        absent = -1.0 if m.adjacency == "replace-one" else 0.0
        return self.score(
            rows + m.clip_norm * np.outer(self.canary, np.where(included, 1.0, absent))
        )


# ---- inside ----------------------------------------------------------------------------------------------------


def _check_claim(claim: Any) -> None:
    if not isinstance(claim, GaussianClaim | ApproximateClaim):
        raise TypeError(f"claim = {claim!r} must be a GaussianClaim or an ApproximateClaim")


def _checked(scores: Any, count: int) -> Array:
    found = (
        np.array(scores, dtype=np.float64)
        if np.ndim(scores)
        else np.full(1, scores, dtype=np.float64)
    )
    if found.shape != (count,):
        raise ValueError(
            f"scores has shape {found.shape}; {count} were asked for, one for each trial or canary"
        )
    if np.isnan(found).any():
        raise ValueError(
            "scores has entries that are no numbers; a score says how much it looks like the canary"
        )
    largest = np.finfo(
        np.float64
    ).max  # for the infinite ones: likelihoods of a trainer without noise
    return np.clip(found, -largest, largest)


def _counted(name: str, value: Any, least: int) -> int:
    count = check.whole_number(name, value, minimum=least)
    if count > MOST:
        raise ValueError(f"{name} = {count}: an audit takes at most {MOST:,}")
    return count


def _checked_confidence(confidence: float) -> float:
    confidence = check.positive_number("confidence", confidence)
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence = {confidence:g} must be at least 0.5 and below 1")
    return confidence


def _in_words(found: Audit | OneRun, how: str) -> str:
    name = found.claim.name
    verdict = (
        f"ALARM: {name} is at least {found.lower_bound:.4g}, and {found.claim.value:.4g} was claimed."
        if found.alarm
        else f"No alarm: {name} is at least {found.lower_bound:.4g}, which {found.claim.value:.4g} allows."
    )
    doubt = f"but for a chance of {1 - found.confidence:.2g}"
    paragraphs = [f"{verdict} ({found.claim}; {how}; {doubt}.)", CAN if found.alarm else CANNOT]
    return "\n".join(textwrap.fill(paragraph, 100) for paragraph in paragraphs)


def _json(found: Audit | OneRun) -> str:
    content = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in asdict(found).items()
    }
    content["claim"] = {"name": found.claim.name, **asdict(found.claim)}
    return json.dumps(
        content | {"can_show": CAN, "cannot_show": CANNOT}, indent=2, ensure_ascii=False
    )
