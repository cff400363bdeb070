"""Confidence bounds: Clopper–Pearson, and the bound for guesses in one run."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy

from antiphase._util.checks import Array
from antiphase.auditing.claims import Claim

MIN_P_VALUE = 1e-12


def clopper_pearson_upper(count: Any, trials: int, failure: float) -> Array:
    """Clopper–Pearson upper bound of a rate.

    Args:
        count: how many of the trials had the outcome; an array gives a bound for each entry.
        trials: number of trials.
        failure: the probability that the bound is below the true rate.

    Example:
        >>> float(clopper_pearson_upper(0, 10, 0.05)), float(clopper_pearson_upper(10, 10, 0.05))
        (0.258865..., 1.0)
    """
    count = np.asarray(count, dtype=np.float64)
    rate: Array = np.where(
        count >= trials,
        1.0,
        scipy.special.betaincinv(count + 1, np.maximum(trials - count, 0.5), 1 - failure),
    )
    return rate


def is_refuted(claim: Claim, canaries: int, guesses: int, correct: int, probability: float) -> bool:
    """Whether ``correct`` or more correct guesses are less likely than ``probability``.

    Let p_k be the probability of k correct guesses under the claim. Flipping the coin of one canary
    turns a correct guess into a wrong one, and k into k − 1. Let f̄ be the claim's highest true
    positive rate at a false positive rate, with m canaries and r guesses. On average over the
    canaries, for every i:

        Σ_{k≥i} k·p_k / m  ≤  f̄( Σ_{k≥i−1} (r − k)·p_k / m ).

    Given p_v = ``probability``, this yields the smallest possible p_{v−1}, p_{v−2}, … in turn. If
    they add up to more than 1, the true probability is smaller than ``probability``.

    References:
        Mahloujifar, Melis and Chaudhuri (2024), Auditing f-differential privacy in one run.
    """
    m, r, total = canaries, guesses, probability
    hits, misses = correct * probability, (r - correct) * probability  # the two sums, times m
    for i in range(correct, 0, -1):
        needed = m * claim.min_false_positives(min(hits / m, 1.0))
        p = max((needed - misses) / (r - i + 1), 0.0)
        total += p
        hits += (i - 1) * p
        misses += (r - i + 1) * p
        if total > 1:
            return True
    return False


def p_value(claim: Claim, canaries: int, guesses: int, correct: int) -> float:
    """Upper bound of the probability of so many correct guesses under the claim.

    Accurate to a tenth, and never below 1e-12.
    """
    low, high = MIN_P_VALUE, 1.0
    while high > 1.1 * low:
        middle = math.sqrt(low * high)
        if is_refuted(claim, canaries, guesses, correct, middle):
            high = middle
        else:
            low = middle
    return high


def one_run_lower_bound(
    claim: Claim, canaries: int, guesses: int, correct: int, failure: float
) -> float:
    """Lower bound of μ (or of ε) from one run, to within 1e-3; 0 if nothing is refuted.

    ``failure`` is the probability that the bound is above the true value.
    """

    def refuted(value: float) -> bool:
        return is_refuted(claim.with_value(value), canaries, guesses, correct, failure)

    low, high = 0.0, 1e-3
    while refuted(high) and high < 100:
        low, high = high, 2 * high
    while high - low > 1e-3 and low:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
