"""Audit in one run: many canaries, each included by a coin flip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.auditing.bounds import is_refuted, one_run_lower_bound, p_value
from antiphase.auditing.claims import Claim
from antiphase.auditing.result import (
    ROC_POINTS,
    AuditResult,
    checked_confidence,
    checked_count,
    checked_scores,
)

CONFIDENCE = 0.999  # one run has less evidence than many trials: more would leave no bound
CANARIES = 4000
GUESSED_SHARE = 0.3  # of all canaries; the audit abstains on the others


@dataclass(frozen=True, eq=False, kw_only=True)
class OneRunAudit(AuditResult):
    """Result of `audit_one_run`.

    Attributes:
        canaries: number of canaries.
        guesses: number of guesses.
        correct: number of correct guesses.
        p_value: upper bound of the probability of so many correct guesses under the claim.
    """

    canaries: int
    guesses: int
    correct: int
    p_value: float

    def _data(self) -> str:
        return (
            f"one run with {self.canaries} canaries, {self.correct} of {self.guesses} guesses "
            "correct"
        )


def audit_one_run(
    scores: Callable[[NDArray[np.bool_]], Any],
    claim: Claim,
    *,
    canaries: int = CANARIES,
    guesses: int | None = None,
    confidence: float = CONFIDENCE,
    coins: np.random.Generator | None = None,
) -> OneRunAudit:
    """Test a claim on a single training.

    It detects only larger violations than `audit` does. Half of the guesses are that the canaries
    with the largest scores are included, half that those with the smallest are not.

    Guarantee: if the claim is true, there is an alarm with probability at most 1 − ``confidence``,
    however canaries influence one another.   [G21]

    Args:
        scores: ``scores(included)`` trains with the canaries that the boolean array selects, and
            returns a number for each canary: larger where it seems to be present. A canary is a
            record of its own; one that is left out keeps its place in the batches.
        claim: the claim to test.
        canaries: number of canaries.
        guesses: number of guesses, by default three tenths of the canaries.
        confidence: the probability with which the lower bound holds.
        coins: source of the coin flips, for reproducible tests.

    Returns:
        A lower bound of μ (or ε), and whether it refutes the claim.

    Raises:
        ValueError: an argument is out of range, or ``scores`` returned something else.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> from antiphase.auditing import GaussianClaim
        >>> result = audit_one_run(
        ...     lambda included: rng.normal(4.0 * included), GaussianClaim(1.0), coins=rng
        ... )
        >>> result.alarm
        True

    References:
        Mahloujifar, Melis and Chaudhuri (2024), Auditing f-differential privacy in one run.
    """
    check.function("scores", scores)
    check.instance("claim", claim, Claim)
    canaries = checked_count("canaries", canaries, 2)
    if guesses is None:
        guesses = max(int(GUESSED_SHARE * canaries), 2)
    guesses = check.whole_number("guesses", guesses, minimum=2)
    if guesses > canaries:
        raise ValueError(f"guesses = {guesses} must be at most canaries = {canaries}")
    confidence = checked_confidence(confidence)
    included = (coins or np.random.default_rng()).random(canaries) < 0.5
    order = np.argsort(checked_scores(scores(included.copy()), canaries), kind="stable")
    low, high = order[: guesses // 2], order[canaries - (guesses - guesses // 2) :]
    correct = int(included[high].sum() + (~included[low]).sum())
    evidence = claim, canaries, guesses, correct
    return OneRunAudit(
        claim=claim,
        confidence=confidence,
        canaries=canaries,
        guesses=guesses,
        correct=correct,
        p_value=p_value(*evidence),
        lower_bound=one_run_lower_bound(*evidence, 1 - confidence),
        alarm=is_refuted(*evidence, 1 - confidence),
        roc=_roc(included[order[::-1]]),
    )


def _roc(included: NDArray[np.bool_]) -> Array:
    """ROC curve of canaries in the order of falling scores."""
    rates = [np.cumsum(part) / max(part.sum(), 1) for part in (~included, included)]
    kept = np.unique(np.linspace(0, len(included) - 1, ROC_POINTS).astype(int))
    return np.vstack([[0.0, 0.0], np.column_stack(rates)[kept]])
