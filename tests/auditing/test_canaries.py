"""The worst-case canary and trials of the library's own mechanisms."""

import dataclasses

import numpy as np
import pytest

import antiphase as ap
from antiphase.auditing import MechanismTrials, audit, audit_one_run, claim_of


@pytest.fixture(scope="module")
def mechanism():
    return ap.calibrate(
        ap.design("dp-mf", steps=12, epochs=3), noise_multiplier=1.0, clip_norm=0.3, delta=1e-5
    )


def test_a_mechanism_keeps_its_claim_and_less_noise_raises_the_alarm(mechanism):
    result = audit(MechanismTrials(mechanism), claim_of(mechanism))
    assert not result.alarm
    assert result.lower_bound > 0.8, "the canary is the worst case"
    weak = ap.calibrate(mechanism.factorization, noise_multiplier=0.8, clip_norm=0.3)
    assert audit(MechanismTrials(weak), claim_of(mechanism)).alarm
    assert not audit_one_run(MechanismTrials(mechanism).one_run, claim_of(mechanism)).alarm
    weak = ap.calibrate(mechanism.factorization, noise_multiplier=0.2)
    assert audit_one_run(MechanismTrials(weak).one_run, claim_of(mechanism)).alarm


def test_replacing_a_record_is_claimed_and_audited_as_such(mechanism):
    m = ap.calibrate(
        mechanism.factorization, noise_multiplier=2.0, adjacency="replace-one", delta=1e-5
    )
    assert claim_of(m).mu == pytest.approx(1.0)
    result = audit(MechanismTrials(m), claim_of(m))
    # Noise is fresh every time: bounds are 0.80 to 0.85.
    assert 0.7 < result.lower_bound < 1


def test_the_canary_of_columns_with_negative_products_has_signs():
    """With a single sign its gradients would partly cancel, and the audit would be too weak."""
    f = ap.design("anti-pgd", steps=8, epochs=2)
    signs = np.repeat([1.0, -1.0], 4)
    away = dataclasses.replace(f, matrix=signs[:, None] * f.encoder() * signs)
    assert (away.encoder().T @ away.encoder())[4:, :4].max() < 0
    canary = MechanismTrials(ap.calibrate(away, noise_multiplier=1.0)).canary
    assert np.linalg.norm(away.encoder() @ canary) == pytest.approx(away.sensitivity, rel=1e-12)
    assert set(canary) == {-1.0, 0.0, 1.0}


def test_the_canary_finds_the_signs_of_three_short_columns():
    """Signs + − + of an encoder with inner products far below 1; one sign gives a smaller norm."""
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


def test_trials_of_a_mechanism_are_immutable(mechanism):
    """Mechanism and key are fixed; two objects are different audits."""
    key = ap.Key.insecure(1)
    trials = MechanismTrials(mechanism, key)
    with pytest.raises(dataclasses.FrozenInstanceError):
        trials.key = ap.Key.insecure(2)
    assert trials != MechanismTrials(mechanism, key)


def test_scores_are_in_standard_deviations(mechanism):
    """Standard normal without the canary, and shifted by μ with it."""
    trials = MechanismTrials(mechanism, ap.Key.insecure(5))
    for canary, mean in ((False, 0.0), (True, mechanism.mu())):
        scores = trials(canary, 20000)
        assert scores.shape == (20000,)
        assert scores.mean() == pytest.approx(mean, abs=0.04)
        assert scores.std() == pytest.approx(1.0, abs=0.03)
