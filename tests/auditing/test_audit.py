"""Audits raise the alarm where a claim is false, and not where it is true."""

import dataclasses
import json
import math
import os
import signal

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom, binomtest

import antiphase as ap
from antiphase.auditing import audit as module
from antiphase.auditing.audit import (
    ApproximateClaim,
    GaussianClaim,
    MechanismTrials,
    audit,
    audit_one_run,
    upper_rate,
)
from antiphase.reporting import charts, figures

CLAIM = GaussianClaim(1.0)


def normal(mu, seed=0):
    """Scores of a mechanism whose μ is known, and the function for one run."""
    rng = np.random.default_rng(seed)
    return (
        lambda canary, count: rng.normal(size=count) + mu * canary,
        lambda there: rng.normal(size=len(there)) + mu * there,
    )


@pytest.fixture(scope="module")
def mechanism():
    return ap.calibrate(
        ap.design("dp-mf", steps=12, epochs=3), noise_multiplier=1.0, clip_norm=0.3, delta=1e-5
    )


# ---- many trials ---------------------------------------------------------------------------------------------


def test_rates_are_those_of_clopper_and_pearson():
    for count, trials in [(0, 7), (3, 50), (50, 50), (812, 8000)]:
        exact = (
            binomtest(count, trials).proportion_ci(confidence_level=1 - 2e-3, method="exact").high
        )
        assert float(upper_rate(count, trials, 1e-3)) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(
    "claim", [CLAIM, GaussianClaim(3.0), ApproximateClaim(1.0, 1e-3), ApproximateClaim(4.0, 1e-6)]
)
def test_a_claims_curve_its_inverse_and_its_bound_agree(claim):
    alarms = np.linspace(0.001, 0.999, 50)
    misses = claim.least_misses(alarms)
    assert (np.diff(misses) <= 0).all()
    kept = misses > 1e-9
    np.testing.assert_allclose(claim.bound(alarms[kept], misses[kept]), claim.value, rtol=1e-6)
    np.testing.assert_allclose(
        [claim.least_false_alarms(1 - m) for m in misses[kept]], alarms[kept], rtol=1e-6
    )
    assert claim.bound(alarms, misses).shape == alarms.shape, "one bound for each pair of rates"
    assert claim.at(0.5).value == 0.5


@pytest.mark.parametrize("claim", [CLAIM, ApproximateClaim(1.0, 1e-3)])
def test_rates_that_tell_nothing_bound_nothing(claim):
    """A guesser who is wrong as often as right, or always, refutes no claim; rates stay within 0 and 1."""
    assert float(claim.bound(np.array(0.9), np.array(0.9))) < 0
    if isinstance(claim, ApproximateClaim):
        assert np.isfinite(claim.bound(np.ones(2), np.ones(2))).all()
    assert claim.least_misses(np.array([0.0, 1.0])).tolist() == pytest.approx(
        [1 - getattr(claim, "delta", 0.0), 0.0]
    )
    assert claim.least_false_alarms(0.0) == 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        claim.name = "x"
    blind = audit(lambda canary, count: np.zeros(count), claim, trials=100)
    assert blind.lower_bound == 0.0
    assert not blind.alarm


def test_results_cannot_be_changed_and_are_compared_by_identity():
    """They hold arrays, which have no one truth value; the curve is left out of the words."""
    for found in (
        audit(normal(1.0)[0], CLAIM, trials=100),
        audit_one_run(normal(1.0)[1], CLAIM, canaries=50),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            found.alarm = False
        assert found != dataclasses.replace(found)
        assert "roc" not in repr(found)
        assert "array" not in repr(found).split("lower_bound")[1]


def test_the_measured_curve_is_that_of_the_scores():
    """Hits at so many false alarms are Φ(Φ⁻¹(α) + μ) for normal scores, and the curve goes from 0 to 1."""
    found = audit(normal(1.0)[0], CLAIM, trials=20000)
    alarms, hits = found.roc.T
    assert (np.diff(found.roc, axis=0) >= 0).all()
    assert found.roc[0].tolist() == [0.0, 0.0]
    assert found.roc[-1].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(hits, 1 - CLAIM.least_misses(alarms), atol=0.02)
    assert ((alarms > 0.2) & (alarms < 0.8)).sum() > 100


def test_more_than_is_claimed_is_noticed_and_no_less():
    """At μ = 1: 1.25 is; 1 is not, nor what is close to it. The bound is below the truth, and near it."""
    for mu, alarm in ((0.5, False), (1.0, False), (1.02, False), (1.25, True), (3.0, True)):
        found = audit(normal(mu)[0], CLAIM)
        assert found.alarm is alarm, mu
        assert mu - 0.25 < found.lower_bound < mu
    assert audit(normal(1.0)[0], ApproximateClaim(4.3, 1e-5)).alarm is False
    assert audit(normal(3.0)[0], ApproximateClaim(1.0, 1e-5)).alarm is True
    assert (
        audit(lambda canary, count: np.full(count, float(canary)), CLAIM, trials=1000).lower_bound
        > 4
    )


def test_false_alarms_are_as_rare_as_promised():
    """Of 200 audits of a claim that just holds, each with a confidence of 0.8 in one threshold: fewer than 40."""
    scores = normal(1.0, seed=5)[0]
    alarms = sum(
        audit(scores, CLAIM, trials=200, thresholds=[0.5], confidence=0.8).alarm for _ in range(200)
    )
    assert 0 < alarms < 40


def test_the_confidence_is_split_over_all_rates_and_thresholds():
    """Each of the 2k rates may be wrong with a chance of (1 − confidence)/2k, so that all hold at once."""
    grid = np.linspace(-4, 4, 9)
    scores = {there: np.repeat(grid + 4 * there, 20) for there in (False, True)}
    made = {False: 0, True: 0}

    def in_turn(there, count):
        made[there] += count
        return scores[there][made[there] - count : made[there]]

    for thresholds in ([2.25], [2.0], [-0.75, 2.25, 5.25]):
        made.update({False: 0, True: 0})
        found = audit(in_turn, CLAIM, trials=180, thresholds=thresholds, confidence=0.9)
        chance = 0.1 / (2 * len(thresholds))
        false_alarms = [int((scores[False] > t).sum()) for t in thresholds]
        misses = [int((scores[True] <= t).sum()) for t in thresholds]
        bounds = CLAIM.bound(upper_rate(false_alarms, 180, chance), upper_rate(misses, 180, chance))
        assert found.lower_bound == pytest.approx(max(bounds), rel=1e-12)
        np.testing.assert_allclose(found.false_alarms, np.divide(false_alarms, 180))
        np.testing.assert_allclose(found.misses, np.divide(misses, 180))


@pytest.mark.issue(21)
@pytest.mark.parametrize("count", [2, 20])
def test_several_thresholds_share_the_confidence(count):
    """The best of 20 bounds holds with the confidence of all: each is one with a 20th of the chance of failure."""
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

    found = audit(scores, CLAIM, trials=200)
    assert calls[:2] == [(False, 50), (True, 50)], "these are not counted"
    assert sum(count for canary, count in calls[2:] if canary) == found.trials == 200
    pilot = np.concatenate([normal(1.0, seed=1)[0](False, 50), normal(1.0, seed=2)[0](True, 50)])
    deciles = np.quantile(pilot, np.arange(1, 10) / 10, method="nearest")
    np.testing.assert_array_equal(found.thresholds, deciles)
    calls.clear()
    assert list(audit(scores, CLAIM, trials=200, thresholds=0.5).thresholds) == [0.5]
    assert sum(count for _, count in calls) == 400


def test_ctrl_c_ends_an_audit_with_what_it_has():
    def interrupt(report):
        if report.done == 60:
            os.kill(os.getpid(), signal.SIGINT)

    found = audit(normal(3.0)[0], CLAIM, trials=400, thresholds=1.5, progress=interrupt)
    assert found.trials == 60
    assert found.alarm is False or found.lower_bound < 3


# ---- one run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize(("guesses", "share"), [(200, 0.6), (200, 0.9), (1000, 0.75), (1000, 0.97)])
def test_one_runs_bound_is_above_the_truth_of_randomised_response(epsilon, guesses, share):
    """There every guess is right with chance e^ε/(1 + e^ε), independently: no other ε-private run guesses better."""
    right = int(guesses * share)
    claim = ApproximateClaim(epsilon, 1e-300)
    exact = binom.sf(right - 1, guesses, 1 / (1 + math.exp(-epsilon)))
    bound = module._chance(claim, guesses, guesses, right)
    assert bound >= exact
    assert bound <= max(20 * exact, 2e-12), "and near it"


def test_one_run_of_gaussian_scores_is_below_the_truth():
    for mu, alarm in ((1.0, False), (3.0, True)):
        found = audit_one_run(normal(mu)[1], CLAIM, coins=np.random.default_rng(3))
        assert found.alarm is alarm
        assert found.lower_bound < mu
        assert (found.canaries, found.guesses) == (4000, 1200)
        assert (found.chance <= 1e-3) is alarm


def reference_total(claim, m, r, right, chance):
    """The least sum of the chances of `right`, `right` − 1, …, 0 right guesses, each sum written out."""
    p = {right: chance}
    for i in range(right, 0, -1):
        hits = sum(k * p[k] for k in p) / m
        needed = m * claim.least_false_alarms(min(hits, 1.0))
        p[i - 1] = max((needed - sum((r - k) * p[k] for k in p)) / (r - (i - 1)), 0.0)
    return sum(p.values())


@pytest.mark.parametrize("claim", [GaussianClaim(0.5), ApproximateClaim(0.8, 1e-4)])
@pytest.mark.parametrize(
    ("m", "r", "right"),
    [(40, 40, 33), (60, 20, 18), (100, 30, 21), (20, 20, 5), (2, 2, 1), (4, 4, 2)],
)
def test_one_runs_chance_is_that_of_the_recursion_written_out(claim, m, r, right):
    """A chance is refuted just where the least chances of fewer right guesses add up to more than 1."""
    low, high = 1e-12, 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle) if reference_total(claim, m, r, right, middle) > 1 else (middle, high)
        )
    assert not module._refuted(claim, m, r, right, low * (1 - 1e-6))
    assert module._refuted(claim, m, r, right, low * (1 + 1e-6))
    assert low <= module._chance(claim, m, r, right) <= 1.1 * low
    value = module._least_value(claim, m, r, right, 0.05)
    if value:
        assert module._refuted(claim.at(value), m, r, right, 0.05)
    assert not module._refuted(claim.at(value + 1e-3), m, r, right, 0.05)


def test_half_the_guesses_are_for_the_largest_scores_and_half_for_the_smallest():
    """With scores that tell everything all guesses are right, and with their opposite none."""
    seen = []

    def telling(sign):
        def scores(included):
            seen.append(included.copy())
            return sign * included

        return scores

    for guesses in (2, 7, 50, 100):
        coins = np.random.default_rng(1)
        right = audit_one_run(telling(1.0), CLAIM, canaries=100, guesses=guesses, coins=coins)
        there = int(seen[-1].sum())
        high, low = guesses - guesses // 2, guesses // 2
        assert right.right == min(high, there) + min(low, 100 - there)
        coins = np.random.default_rng(1)
        wrong = audit_one_run(telling(-1.0), CLAIM, canaries=100, guesses=guesses, coins=coins)
        assert wrong.right == max(high - (100 - there), 0) + max(low - there, 0)
        assert (right.canaries, right.guesses) == (100, guesses)
    assert right.roc[0].tolist() == [0.0, 0.0]
    assert right.roc[-1].tolist() == [1.0, 1.0]
    assert [0.0, 1.0] in right.roc.tolist(), "all hits before the first false alarm"
    assert [1.0, 0.0] in wrong.roc.tolist()
    assert len(right.roc) == 101, "a point for every canary"
    assert (np.diff(right.roc, axis=0) >= 0).all()


class Coins:
    """Those that are asked for."""

    def __init__(self, included):
        self.included = np.array(included)

    def random(self, count):
        assert count == len(self.included)
        return np.where(self.included, 0.25, 0.75)


def test_one_run_needs_two_canaries_and_takes_any_coins():
    """Two are the fewest, and two the fewest guesses; also if all canaries are in, or none is."""
    for included in ([True, False], [True, True], [False, False]):
        found = audit_one_run(lambda there: there * 1.0, CLAIM, canaries=2, coins=Coins(included))
        assert (found.canaries, found.guesses) == (2, 2)
        assert found.right == (2 if included == [True, False] else 1)
        assert found.roc[-1].tolist() == [float(not all(included)), float(any(included))]
    everything = audit_one_run(normal(1.0)[1], CLAIM, canaries=10, guesses=10)
    assert everything.guesses == 10


def test_the_bound_of_one_run_is_at_its_confidence():
    """More confidence, a lower bound; no evidence, a bound of 0."""
    found = [
        audit_one_run(normal(3.0)[1], CLAIM, confidence=c, coins=np.random.default_rng(3))
        for c in (0.9, 0.999, 1 - 1e-9)
    ]
    bounds = [one.lower_bound for one in found]
    assert bounds == sorted(bounds, reverse=True)
    assert 0.5 < bounds[2] < bounds[1] < bounds[0] < 3.0
    for one in found:
        chance = 1 - one.confidence
        assert module._refuted(CLAIM.at(one.lower_bound), 4000, 1200, one.right, chance)
        assert not module._refuted(CLAIM.at(one.lower_bound + 1e-3), 4000, 1200, one.right, chance)
    blind = audit_one_run(
        lambda there: np.zeros(len(there)),
        CLAIM,
        canaries=100,
        coins=Coins([True] * 50 + [False] * 50),
    )
    assert blind.lower_bound == 0.0
    assert not blind.alarm


# ---- the library's own ---------------------------------------------------------------------------------------


def test_a_mechanism_is_what_it_claims_and_less_noise_is_noticed(mechanism):
    found = audit(MechanismTrials(mechanism), module.claim_of(mechanism))
    assert not found.alarm
    assert found.lower_bound > 0.8, "the canary is the worst there is"
    weak = ap.calibrate(mechanism.factorization, noise_multiplier=0.8, clip_norm=0.3)
    assert audit(MechanismTrials(weak), module.claim_of(mechanism)).alarm
    assert not audit_one_run(MechanismTrials(mechanism).one_run, module.claim_of(mechanism)).alarm
    weak = ap.calibrate(mechanism.factorization, noise_multiplier=0.2)
    assert audit_one_run(MechanismTrials(weak).one_run, module.claim_of(mechanism)).alarm


def test_replacing_a_record_is_claimed_and_audited_as_such(mechanism):
    m = ap.calibrate(
        mechanism.factorization, noise_multiplier=2.0, adjacency="replace-one", delta=1e-5
    )
    assert module.claim_of(m).mu == pytest.approx(1.0)
    found = audit(MechanismTrials(m), module.claim_of(m))
    assert (
        0.7 < found.lower_bound < 1
    )  # fresh noise every time: 0.80 to 0.85; half or twice of it would be wrong


@pytest.mark.slow
def test_claims_come_from_mechanisms_and_statements(mechanism):
    said = json.loads(mechanism.statement().to_json())
    assert module.claim_of(said) == module.claim_of(mechanism) == GaussianClaim(mechanism.mu())
    f = ap.design("dp-sgd", steps=8)
    sampled = ap.calibrate(
        f, noise_multiplier=1.0, delta=1e-5, sampler="poisson", sampling_rate=0.1
    )
    assert module.claim_of(json.loads(sampled.statement().to_json())) == ApproximateClaim(
        sampled.epsilon(), 1e-5
    )
    assert module.claim_of(sampled) == ApproximateClaim(sampled.epsilon(), 1e-5)
    with pytest.raises(ValueError, match="audit the training function"):
        MechanismTrials(sampled)


@pytest.mark.slow
def test_what_was_found_says_what_it_can_and_cannot_show(tmp_path):
    quiet, loud = audit(normal(1.0)[0], CLAIM), audit(normal(2.0)[0], CLAIM)
    assert "No alarm proves nothing" in " ".join(str(quiet).split())
    assert "ALARM" in str(loud)
    assert "the claim is false" in " ".join(str(loud).split())
    said = json.loads(loud.to_json())
    assert said["alarm"] is True
    assert said["claim"] == {"name": "μ", "mu": 1.0}
    assert said["cannot_show"]
    once = audit_one_run(normal(3.0)[1], CLAIM)
    assert json.loads(once.to_json())["right"] == once.right
    for found in (quiet, once):
        chart = charts.roc(found.roc, CLAIM.least_misses, str(CLAIM))
        assert found.roc[0].tolist() == [0, 0]
        assert found.roc[-1].tolist() == [1, 1]
        allowed = chart.series[1]
        np.testing.assert_allclose(
            allowed.y[100], ndtr(1.0), atol=1e-12
        )  # at half the false alarms
        assert all(path.stat().st_size for path in figures.draw(tmp_path / "roc", chart))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: GaussianClaim(0.0), "mu = 0.0"),
        (lambda: ApproximateClaim(-1.0, 1e-5), "epsilon = -1.0"),
        (lambda: ApproximateClaim(1.0, 1.0), "delta = 1"),
        (lambda: module.claim_of({"epsilon": 1.0}), "delta = nan"),
        (lambda: module.claim_of("8"), "promise = '8'"),
        (lambda: audit(normal(1.0)[0], 1.0), "claim = 1.0"),
        (lambda: audit(normal(1.0)[0], CLAIM, trials=3), "trials = 3"),
        (lambda: audit(normal(1.0)[0], CLAIM, trials=10**9), "at most 10,000,000"),
        (lambda: audit(normal(1.0)[0], CLAIM, confidence=1.0), "confidence = 1"),
        (lambda: audit(normal(1.0)[0], CLAIM, confidence=0.49), "confidence = 0.49"),
        (lambda: audit(lambda canary, count: 1.0, CLAIM), r"scores has shape \(1,\)"),
        (lambda: audit(normal(1.0)[0], CLAIM, thresholds=[math.nan]), r"thresholds\[0\] = nan"),
        (lambda: audit(lambda canary, count: np.zeros(3), CLAIM), "scores has shape"),
        (lambda: audit(lambda canary, count: np.full(count, math.nan), CLAIM), "no numbers"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=10, guesses=11), "guesses = 11"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=10, guesses=1), "guesses = 1"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=1), "canaries = 1"),
        (lambda: audit_one_run(lambda there: [1.0], CLAIM, canaries=10), "scores has shape"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=10**400), "canaries = 1.* at most 10,000,000"),
        (lambda: MechanismTrials("plan"), "mechanism = 'plan'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_infinite_scores_raise_the_alarm():
    """The likelihood ratios of a trainer without noise."""
    found = audit(
        lambda canary, count: np.full(count, math.inf if canary else -math.inf), CLAIM, trials=2000
    )
    assert found.alarm
    assert found.lower_bound > 4
    assert np.isfinite(found.roc).all()


@pytest.mark.parametrize("epsilon", [1.0, 700.0, 800.0, 1e6])
def test_claims_that_promise_nothing_are_audited_too(epsilon):
    claim = ApproximateClaim(epsilon, 1e-5)
    assert audit_one_run(lambda included: included * 1.0, claim, canaries=200).alarm == (
        epsilon == 1.0
    )
    assert np.isfinite(claim.least_misses(np.linspace(0, 1, 5))).all()


def test_the_canary_of_columns_that_point_away_from_one_another_has_signs():
    """With one sign its two gradients would hide one another, and the audit be of less than was claimed."""
    f = ap.design("anti-pgd", steps=8, epochs=2)
    signs = np.repeat([1.0, -1.0], 4)
    away = dataclasses.replace(f, matrix=signs[:, None] * f.encoder() * signs)
    assert (away.encoder().T @ away.encoder())[4:, :4].max() < 0
    canary = MechanismTrials(ap.calibrate(away, noise_multiplier=1.0)).canary
    assert np.linalg.norm(away.encoder() @ canary) == pytest.approx(away.sensitivity, rel=1e-12)
    assert set(canary) == {-1.0, 0.0, 1.0}


def test_the_canary_finds_the_signs_of_three_short_columns():
    """Signs by column, + − +, of an encoder whose products are far below 1; a canary of one sign is shorter."""
    f = ap.design("anti-pgd", steps=9, epochs=3)
    signs = np.repeat([1.0, -1.0, 1.0], 3)
    away = dataclasses.replace(f, matrix=0.1 * signs[:, None] * f.encoder() * signs)
    gram = away.encoder().T @ away.encoder()
    assert -1 < gram.min() < 0
    trials = MechanismTrials(ap.calibrate(away, noise_multiplier=1.0))
    taken = trials.canary[trials.canary != 0]
    assert (taken * taken[0]).tolist() == [1.0, -1.0, 1.0]
    assert np.linalg.norm(away.encoder() @ trials.canary) == pytest.approx(
        away.sensitivity, rel=1e-12
    )


def test_trials_of_a_mechanism_cannot_be_changed(mechanism):
    """Neither the mechanism nor the key of trials that are under way; two of them are two audits."""
    key = ap.Key.insecure(1)
    trials = MechanismTrials(mechanism, key)
    with pytest.raises(dataclasses.FrozenInstanceError):
        trials.key = ap.Key.insecure(2)
    assert trials != MechanismTrials(mechanism, key)


def test_scores_are_in_standard_deviations(mechanism):
    """Standard normal without the canary, and moved by μ with it."""
    trials = MechanismTrials(mechanism, ap.Key.insecure(5))
    for there, mean in ((False, 0.0), (True, mechanism.mu())):
        scores = trials(there, 20000)
        assert scores.shape == (20000,)
        assert scores.mean() == pytest.approx(mean, abs=0.04)
        assert scores.std() == pytest.approx(1.0, abs=0.03)


def test_the_words_have_the_doubt_and_the_json_its_letters():
    """The chance that the bound fails is 1 − confidence."""
    found = audit(normal(3.0)[0], CLAIM, trials=100, confidence=0.75)
    assert "but for a chance of 0.25." in " ".join(str(found).split())
    assert found.to_json().startswith('{\n  "claim": {\n    "name": "μ",\n')
    assert max(map(len, str(found).splitlines())) <= 100
    assert audit(normal(3.0)[0], CLAIM, trials=100, confidence=0.5).confidence == 0.5
