"""Audit by many trials: trainings with the canary and as many without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.interrupts import graceful_interrupt
from antiphase._util.progress import Progress, ProgressReport
from antiphase.auditing.bounds import clopper_pearson_upper
from antiphase.auditing.claims import Claim
from antiphase.auditing.result import (
    ROC_POINTS,
    AuditResult,
    checked_confidence,
    checked_count,
    checked_scores,
)

CONFIDENCE = 1 - 1e-6
TRIALS = 8000  # with the canary, and as many without
CHUNKS = 20  # progress is reported after each
MIN_PILOT_TRIALS = 50  # that fix the thresholds and are not counted
THRESHOLDS = 9

Scores = Callable[[bool, int], Any]  # (is the canary present?, number of trials) → their scores


@dataclass(frozen=True, eq=False, kw_only=True)
class TrialAudit(AuditResult):
    """Result of `audit`.

    Attributes:
        trials: number of trials with the canary, and of those without.
        thresholds: thresholds on the score.
        false_positives: measured false positive rate at each threshold.
        false_negatives: measured false negative rate at each threshold.
    """

    trials: int
    thresholds: Array
    false_positives: Array
    false_negatives: Array

    def _data(self) -> str:
        return (
            f"{self.trials} trials with the canary and {self.trials} without, "
            f"{len(self.thresholds)} threshold(s)"
        )


def audit(
    scores: Scores,
    claim: Claim,
    *,
    trials: int = TRIALS,
    thresholds: Any = None,
    confidence: float = CONFIDENCE,
    progress: Progress | None = None,
) -> TrialAudit:
    """Test a claim on many trials of a training.

    Guarantee: if the claim is true, there is an alarm with probability at most 1 − ``confidence``,
    whatever the scores are, as long as trials are independent. After Ctrl-C this holds for the
    trials finished so far.   [G21]

    Args:
        scores: ``scores(canary, count)`` runs ``count`` trials, with the canary if ``canary`` is
            True, and returns a number for each: larger where the canary seems to be present.
        claim: the claim to test.
        trials: number of trials with the canary, and of those without.
        thresholds: thresholds on the score, fixed in advance. By default nine quantiles of the
            scores of other trials, a twentieth as many.
        confidence: the probability with which the lower bound holds.
        progress: receives a `ProgressReport` after each twentieth of the trials.

    Returns:
        A lower bound of μ (or ε), and whether it refutes the claim.

    Raises:
        ValueError: an argument is out of range, or ``scores`` returned something else.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> from antiphase.auditing import GaussianClaim
        >>> result = audit(lambda canary, n: rng.normal(3.0 * canary, size=n), GaussianClaim(1.0))
        >>> result.alarm, round(result.lower_bound, 1)
        (True, 2.8)

    References:
        Nasr et al. (2023), Tight auditing of differentially private machine learning.
    """
    check.function("scores", scores)
    check.instance("claim", claim, Claim)
    trials = checked_count("trials", trials, CHUNKS)
    confidence = checked_confidence(confidence)
    if thresholds is None:
        thresholds = _pilot_thresholds(scores, max(trials // CHUNKS, MIN_PILOT_TRIALS))
    thresholds = check.real_array("thresholds", np.atleast_1d(thresholds), ndim=1)
    if not len(thresholds):
        raise ValueError("thresholds is empty; give at least one")
    absent, present = _run_trials(scores, trials, progress)
    return _evaluate(claim, confidence, thresholds, absent, present)


def _pilot_thresholds(scores: Scores, count: int) -> Array:
    """Quantiles of the scores of trials that are not counted afterwards."""
    pilot = np.concatenate(
        [checked_scores(scores(canary, count), count) for canary in (False, True)]
    )
    levels = np.arange(1, THRESHOLDS + 1) / (THRESHOLDS + 1)
    return np.unique(np.quantile(pilot, levels, method="nearest"))


def _run_trials(scores: Scores, trials: int, progress: Progress | None) -> list[Array]:
    """Scores without and with the canary; fewer after Ctrl-C."""
    chunks: tuple[list[Array], list[Array]] = [], []
    done = 0
    with graceful_interrupt() as interrupted:
        for chunk in range(CHUNKS):
            count = trials * (chunk + 1) // CHUNKS - trials * chunk // CHUNKS
            for canary in (False, True):
                chunks[canary].append(checked_scores(scores(canary, count), count))
            done += count
            if progress is not None:
                progress(ProgressReport(done, trials))
            if interrupted():
                break
    return [np.concatenate(part) for part in chunks]


def _evaluate(
    claim: Claim, confidence: float, thresholds: Array, absent: Array, present: Array
) -> TrialAudit:
    false_positives = np.array([(absent > t).sum() for t in thresholds])
    false_negatives = np.array([(present <= t).sum() for t in thresholds])
    # A union bound: all bounds of rates, two at each threshold, hold together with ``confidence``.
    failure = (1 - confidence) / (2 * len(thresholds))
    bounds = claim.lower_bound(
        clopper_pearson_upper(false_positives, len(absent), failure),
        clopper_pearson_upper(false_negatives, len(present), failure),
    )
    lower = max(float(np.max(bounds)), 0.0)
    return TrialAudit(
        claim=claim,
        confidence=confidence,
        trials=len(present),
        thresholds=thresholds,
        false_positives=false_positives / len(absent),
        false_negatives=false_negatives / len(present),
        lower_bound=lower,
        alarm=lower > claim.value,
        roc=_roc(absent, present),
    )


def _roc(absent: Array, present: Array) -> Array:
    levels = np.linspace(1, 0, ROC_POINTS)
    grid = np.quantile(np.concatenate([absent, present]), levels, method="nearest")
    rates = [1 - np.searchsorted(np.sort(part), grid) / len(part) for part in (absent, present)]
    return np.vstack([[0.0, 0.0], np.column_stack(rates)])
