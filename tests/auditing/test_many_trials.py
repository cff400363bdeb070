"""Audits of many trials: an alarm where the claim is false, and rarely where it is true."""

import math
import os
import signal

import numpy as np
import pytest

from antiphase.auditing import ApproximateClaim, audit
from antiphase.auditing.bounds import clopper_pearson_upper
from tests.auditing.scores import CLAIM, normal


def test_the_measured_roc_is_that_of_the_scores():
    """Φ(Φ⁻¹(α) + μ) for normal scores, from (0, 0) to (1, 1)."""
    result = audit(normal(1.0)[0], CLAIM, trials=20000)
    fpr, tpr = result.roc.T
    assert (np.diff(result.roc, axis=0) >= 0).all()
    assert result.roc[0].tolist() == [0.0, 0.0]
    assert result.roc[-1].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(tpr, 1 - CLAIM.min_false_negatives(fpr), atol=0.02)
    assert ((fpr > 0.2) & (fpr < 0.8)).sum() > 100


def test_an_alarm_is_raised_where_the_claim_is_clearly_exceeded():
    """Claimed μ = 1: 1.25 is detected, 1.02 is not. The bound is close below the truth."""
    for mu, alarm in ((0.5, False), (1.0, False), (1.02, False), (1.25, True), (3.0, True)):
        result = audit(normal(mu)[0], CLAIM)
        assert result.alarm is alarm, mu
        assert mu - 0.25 < result.lower_bound < mu
    assert audit(normal(1.0)[0], ApproximateClaim(4.3, 1e-5)).alarm is False
    assert audit(normal(3.0)[0], ApproximateClaim(1.0, 1e-5)).alarm is True
    assert (
        audit(lambda canary, count: np.full(count, float(canary)), CLAIM, trials=1000).lower_bound
        > 4
    )


def test_without_evidence_the_lower_bound_is_zero():
    assert audit(normal(0.0)[0], CLAIM, trials=100).lower_bound == 0.0


def test_false_alarms_are_as_rare_as_promised():
    """200 audits of a claim that just holds, at confidence 0.8 and one threshold: fewer than 40."""
    scores = normal(1.0, seed=5)[0]
    alarms = sum(
        audit(scores, CLAIM, trials=200, thresholds=[0.5], confidence=0.8).alarm for _ in range(200)
    )
    assert 0 < alarms < 40


def test_the_confidence_is_split_over_all_rates_and_thresholds():
    """Each of 2k bounds fails with probability (1 − confidence)/2k, so that all hold at once."""
    grid = np.linspace(-4, 4, 9)
    scores = {canary: np.repeat(grid + 4 * canary, 20) for canary in (False, True)}
    used = {False: 0, True: 0}

    def in_turn(canary, count):
        used[canary] += count
        return scores[canary][used[canary] - count : used[canary]]

    for thresholds in ([2.25], [2.0], [-0.75, 2.25, 5.25]):
        used.update({False: 0, True: 0})
        result = audit(in_turn, CLAIM, trials=180, thresholds=thresholds, confidence=0.9)
        failure = 0.1 / (2 * len(thresholds))
        false_positives = [int((scores[False] > t).sum()) for t in thresholds]
        false_negatives = [int((scores[True] <= t).sum()) for t in thresholds]
        bounds = CLAIM.lower_bound(
            clopper_pearson_upper(false_positives, 180, failure),
            clopper_pearson_upper(false_negatives, 180, failure),
        )
        assert result.lower_bound == pytest.approx(max(bounds), rel=1e-12)
        np.testing.assert_allclose(result.false_positives, np.divide(false_positives, 180))
        np.testing.assert_allclose(result.false_negatives, np.divide(false_negatives, 180))


@pytest.mark.issue(21)
@pytest.mark.parametrize("count", [2, 20])
def test_several_thresholds_share_the_confidence(count):
    """The best of 20 bounds: each fails with a 20th of the probability."""
    several = audit(
        normal(1.0, seed=3)[0],
        CLAIM,
        trials=500,
        thresholds=[0.5] + [50.0] * (count - 1),
        confidence=0.9,
    )
    one = audit(
        normal(1.0, seed=3)[0], CLAIM, trials=500, thresholds=[0.5], confidence=1 - 0.1 / count
    )
    less = audit(normal(1.0, seed=3)[0], CLAIM, trials=500, thresholds=[0.5], confidence=0.9)
    assert several.lower_bound == pytest.approx(one.lower_bound, rel=1e-9)
    assert several.lower_bound < less.lower_bound


def test_thresholds_are_fixed_before_the_trials_that_count():
    calls = []

    def scores(canary, count):
        calls.append((canary, count))
        return normal(1.0, seed=len(calls))[0](canary, count)

    result = audit(scores, CLAIM, trials=200)
    assert calls[:2] == [(False, 50), (True, 50)], "the pilot trials"
    assert sum(count for canary, count in calls[2:] if canary) == result.trials == 200
    pilot = np.concatenate([normal(1.0, seed=1)[0](False, 50), normal(1.0, seed=2)[0](True, 50)])
    deciles = np.quantile(pilot, np.arange(1, 10) / 10, method="nearest")
    np.testing.assert_array_equal(result.thresholds, deciles)
    calls.clear()
    assert list(audit(scores, CLAIM, trials=200, thresholds=0.5).thresholds) == [0.5]
    assert sum(count for _, count in calls) == 400


def test_ctrl_c_ends_an_audit_with_the_trials_finished_so_far():
    def interrupt(report):
        if report.done == 60:
            os.kill(os.getpid(), signal.SIGINT)

    result = audit(normal(3.0)[0], CLAIM, trials=400, thresholds=1.5, progress=interrupt)
    assert result.trials == 60
    assert result.alarm is False or result.lower_bound < 3


def test_infinite_scores_raise_the_alarm():
    """Likelihood ratios of a training without noise."""
    result = audit(
        lambda canary, count: np.full(count, math.inf if canary else -math.inf), CLAIM, trials=2000
    )
    assert result.alarm
    assert result.lower_bound > 4
    assert np.isfinite(result.roc).all()
