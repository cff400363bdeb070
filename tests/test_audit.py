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
from antiphase import audit as module
from antiphase.audit import ApproximateClaim, GaussianClaim, MechanismTrials, audit, audit_one_run, upper_rate
from antiphase.report import charts, figures

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
    return ap.calibrate(ap.design("dp-mf", steps=12, epochs=3), noise_multiplier=1.0, clip_norm=0.3, delta=1e-5)


# ---- many trials ---------------------------------------------------------------------------------------------


def test_rates_are_those_of_clopper_and_pearson():
    for count, trials in [(0, 7), (3, 50), (50, 50), (812, 8000)]:
        exact = binomtest(count, trials).proportion_ci(confidence_level=1 - 2e-3, method="exact").high
        assert float(upper_rate(count, trials, 1e-3)) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("claim", [CLAIM, GaussianClaim(3.0), ApproximateClaim(1.0, 1e-3), ApproximateClaim(4.0, 1e-6)])
def test_a_claims_curve_its_inverse_and_its_bound_agree(claim):
    alarms = np.linspace(0.001, 0.999, 50)
    misses = claim.least_misses(alarms)
    assert (np.diff(misses) <= 0).all()
    kept = misses > 1e-9
    np.testing.assert_allclose(claim.bound(alarms[kept], misses[kept]), claim.value, rtol=1e-6)
    np.testing.assert_allclose([claim.least_false_alarms(1 - m) for m in misses[kept]], alarms[kept], rtol=1e-6)
    assert claim.at(0.5).value == 0.5


def test_more_than_is_claimed_is_noticed_and_no_less():
    """At μ = 1: 1.25 is; 1 is not, nor what is close to it. The bound is below the truth, and near it."""
    for mu, alarm in ((0.5, False), (1.0, False), (1.02, False), (1.25, True), (3.0, True)):
        found = audit(normal(mu)[0], CLAIM)
        assert found.alarm is alarm, mu
        assert mu - 0.25 < found.lower_bound < mu
    assert audit(normal(1.0)[0], ApproximateClaim(4.3, 1e-5)).alarm is False
    assert audit(normal(3.0)[0], ApproximateClaim(1.0, 1e-5)).alarm is True
    assert audit(lambda canary, count: np.full(count, float(canary)), CLAIM, trials=1000).lower_bound > 4


def test_false_alarms_are_as_rare_as_promised():
    """Of 200 audits of a claim that just holds, each with a confidence of 0.8 in one threshold: fewer than 40."""
    scores = normal(1.0, seed=5)[0]
    alarms = sum(audit(scores, CLAIM, trials=200, thresholds=[0.5], confidence=0.8).alarm for _ in range(200))
    assert 0 < alarms < 40


def test_thresholds_are_fixed_before_the_trials_that_count():
    calls = []

    def scores(canary, count):
        calls.append((canary, count))
        return normal(1.0, seed=len(calls))[0](canary, count)

    found = audit(scores, CLAIM, trials=200)
    assert calls[:2] == [(False, 50), (True, 50)], "these are not counted"
    assert sum(count for canary, count in calls[2:] if canary) == found.trials == 200
    calls.clear()
    assert list(audit(scores, CLAIM, trials=200, thresholds=0.5).thresholds) == [0.5]
    assert sum(count for _, count in calls) == 400


def test_ctrl_c_ends_an_audit_with_what_it_has():
    def interrupt(done, total):
        if done == 60:
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
    m = ap.calibrate(mechanism.factorization, noise_multiplier=2.0, adjacency="replace-one", delta=1e-5)
    assert module.claim_of(m).mu == pytest.approx(1.0)
    found = audit(MechanismTrials(m), module.claim_of(m))
    assert 0.7 < found.lower_bound < 1  # fresh noise every time: 0.80 to 0.85; half or twice of it would be wrong


@pytest.mark.slow
def test_claims_come_from_mechanisms_and_statements(mechanism):
    said = json.loads(mechanism.statement().to_json())
    assert module.claim_of(said) == module.claim_of(mechanism) == GaussianClaim(mechanism.mu())
    f = ap.design("dp-sgd", steps=8)
    sampled = ap.calibrate(f, noise_multiplier=1.0, delta=1e-5, sampler="poisson", sampling_rate=0.1)
    assert module.claim_of(json.loads(sampled.statement().to_json())) == ApproximateClaim(sampled.epsilon(), 1e-5)
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
        np.testing.assert_allclose(allowed.y[100], ndtr(1.0), atol=1e-12)  # at half the false alarms
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
        (lambda: audit(normal(1.0)[0], CLAIM, thresholds=[math.nan]), r"thresholds\[0\] = nan"),
        (lambda: audit(lambda canary, count: np.zeros(3), CLAIM), "scores has shape"),
        (lambda: audit(lambda canary, count: np.full(count, math.nan), CLAIM), "no numbers"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=10, guesses=11), "guesses = 11"),
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
    found = audit(lambda canary, count: np.full(count, math.inf if canary else -math.inf), CLAIM, trials=2000)
    assert found.alarm
    assert found.lower_bound > 4
    assert np.isfinite(found.roc).all()


@pytest.mark.parametrize("epsilon", [1.0, 700.0, 800.0, 1e6])
def test_claims_that_promise_nothing_are_audited_too(epsilon):
    claim = ApproximateClaim(epsilon, 1e-5)
    assert audit_one_run(lambda included: included * 1.0, claim, canaries=200).alarm == (epsilon == 1.0)
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
