"""Clopper–Pearson bounds, and the bound for one run, against reference computations."""

import math

import pytest
from scipy.stats import binom, binomtest

from antiphase.auditing import ApproximateClaim, GaussianClaim
from antiphase.auditing.bounds import (
    clopper_pearson_upper,
    is_refuted,
    one_run_lower_bound,
    p_value,
)


def test_clopper_pearson_bounds_agree_with_scipy():
    for count, trials in [(0, 7), (3, 50), (50, 50), (812, 8000)]:
        exact = (
            binomtest(count, trials).proportion_ci(confidence_level=1 - 2e-3, method="exact").high
        )
        assert float(clopper_pearson_upper(count, trials, 1e-3)) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(("guesses", "share"), [(200, 0.6), (200, 0.9), (1000, 0.75), (1000, 0.97)])
def test_p_values_are_upper_bounds_for_randomised_response(epsilon, guesses, share):
    """Guesses are correct with probability e^ε/(1 + e^ε), independently: the ε-private optimum."""
    correct = int(guesses * share)
    claim = ApproximateClaim(epsilon, 1e-300)
    exact = binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-epsilon)))
    bound = p_value(claim, guesses, guesses, correct)
    assert bound >= exact
    assert bound <= max(20 * exact, 2e-12), "the bound is not far above the truth"


def reference_total(claim, m, r, correct, probability):
    """Smallest sum of the probabilities of `correct`, …, 0 correct guesses, without recurrences."""
    p = {correct: probability}
    for i in range(correct, 0, -1):
        hits = sum(k * p[k] for k in p) / m
        needed = m * claim.min_false_positives(min(hits, 1.0))
        p[i - 1] = max((needed - sum((r - k) * p[k] for k in p)) / (r - (i - 1)), 0.0)
    return sum(p.values())


@pytest.mark.parametrize("claim", [GaussianClaim(0.5), ApproximateClaim(0.8, 1e-4)])
@pytest.mark.parametrize(
    ("m", "r", "correct"),
    [(40, 40, 33), (60, 20, 18), (100, 30, 21), (20, 20, 5), (2, 2, 1), (4, 4, 2)],
)
def test_p_values_agree_with_the_recursion_written_out(claim, m, r, correct):
    """A probability is refuted exactly where the probabilities it implies add up to more than 1."""
    low, high = 1e-12, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle) if reference_total(claim, m, r, correct, middle) > 1 else (middle, high)
        )
    assert not is_refuted(claim, m, r, correct, low * (1 - 1e-6))
    assert is_refuted(claim, m, r, correct, low * (1 + 1e-6))
    assert low <= p_value(claim, m, r, correct) <= 1.1 * low
    value = one_run_lower_bound(claim, m, r, correct, 0.05)
    if value:
        assert is_refuted(claim.with_value(value), m, r, correct, 0.05)
    assert not is_refuted(claim.with_value(value + 1e-3), m, r, correct, 0.05)
