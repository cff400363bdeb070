"""Audits in one run: guesses, their p-value, and the lower bound."""

import numpy as np

from antiphase.auditing import audit_one_run
from antiphase.auditing.bounds import is_refuted
from tests.auditing.scores import CLAIM, normal


def test_the_bound_for_gaussian_scores_is_below_the_truth():
    for mu, alarm in ((1.0, False), (3.0, True)):
        result = audit_one_run(normal(mu)[1], CLAIM, coins=np.random.default_rng(3))
        assert result.alarm is alarm
        assert result.lower_bound < mu
        assert (result.canaries, result.guesses) == (4000, 1200)
        assert (result.p_value <= 1e-3) is alarm


def test_half_the_guesses_are_for_the_largest_scores_and_half_for_the_smallest():
    """With perfect scores all guesses are correct; with inverted ones, none."""
    seen = []

    def perfect(sign):
        def scores(included):
            seen.append(included.copy())
            return sign * included

        return scores

    for guesses in (2, 7, 50, 100):
        coins = np.random.default_rng(1)
        right = audit_one_run(perfect(1.0), CLAIM, canaries=100, guesses=guesses, coins=coins)
        present = int(seen[-1].sum())
        high, low = guesses - guesses // 2, guesses // 2
        assert right.correct == min(high, present) + min(low, 100 - present)
        coins = np.random.default_rng(1)
        wrong = audit_one_run(perfect(-1.0), CLAIM, canaries=100, guesses=guesses, coins=coins)
        assert wrong.correct == max(high - (100 - present), 0) + max(low - present, 0)
        assert (right.canaries, right.guesses) == (100, guesses)
    assert right.roc[0].tolist() == [0.0, 0.0]
    assert right.roc[-1].tolist() == [1.0, 1.0]
    assert [0.0, 1.0] in right.roc.tolist(), "all true positives before the first false positive"
    assert [1.0, 0.0] in wrong.roc.tolist()
    assert len(right.roc) == 101, "a point for each canary"
    assert (np.diff(right.roc, axis=0) >= 0).all()


class Coins:
    """A generator whose coin flips are given."""

    def __init__(self, included):
        self.included = np.array(included)

    def random(self, count):
        assert count == len(self.included)
        return np.where(self.included, 0.25, 0.75)


def test_one_run_works_with_two_canaries_and_any_coin_flips():
    """Two canaries and two guesses are the minimum; all of them, or none, may be included."""
    for included in ([True, False], [True, True], [False, False]):
        result = audit_one_run(
            lambda included: included * 1.0, CLAIM, canaries=2, coins=Coins(included)
        )
        assert (result.canaries, result.guesses) == (2, 2)
        assert result.correct == (2 if included == [True, False] else 1)
        assert result.roc[-1].tolist() == [float(not all(included)), float(any(included))]
    everything = audit_one_run(normal(1.0)[1], CLAIM, canaries=10, guesses=10)
    assert everything.guesses == 10


def test_the_lower_bound_is_the_largest_value_refuted_at_the_confidence():
    """It falls with the confidence, and is 0 without evidence."""
    results = [
        audit_one_run(normal(3.0)[1], CLAIM, confidence=c, coins=np.random.default_rng(3))
        for c in (0.9, 0.999, 1 - 1e-9)
    ]
    bounds = [one.lower_bound for one in results]
    assert bounds == sorted(bounds, reverse=True)
    assert 0.5 < bounds[2] < bounds[1] < bounds[0] < 3.0
    for one in results:
        failure = 1 - one.confidence
        assert is_refuted(CLAIM.with_value(one.lower_bound), 4000, 1200, one.correct, failure)
        assert not is_refuted(
            CLAIM.with_value(one.lower_bound + 1e-3), 4000, 1200, one.correct, failure
        )
    blind = audit_one_run(
        lambda included: np.zeros(len(included)),
        CLAIM,
        canaries=100,
        coins=Coins([True] * 50 + [False] * 50),
    )
    assert blind.lower_bound == 0.0
    assert not blind.alarm
