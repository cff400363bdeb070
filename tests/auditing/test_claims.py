"""Claims: their trade-off curves, and where they come from."""

import dataclasses
import json

import numpy as np
import pytest

import antiphase as ap
from antiphase.auditing import (
    ApproximateClaim,
    GaussianClaim,
    MechanismTrials,
    audit,
    audit_one_run,
    claim_of,
)
from tests.auditing.scores import CLAIM


@pytest.fixture(scope="module")
def mechanism():
    return ap.calibrate(
        ap.design("dp-mf", steps=12, epochs=3), noise_multiplier=1.0, clip_norm=0.3, delta=1e-5
    )


@pytest.mark.parametrize(
    "claim", [CLAIM, GaussianClaim(3.0), ApproximateClaim(1.0, 1e-3), ApproximateClaim(4.0, 1e-6)]
)
def test_curve_inverse_and_bound_of_a_claim_agree(claim):
    fpr = np.linspace(0.001, 0.999, 50)
    fnr = claim.min_false_negatives(fpr)
    assert (np.diff(fnr) <= 0).all()
    kept = fnr > 1e-9
    np.testing.assert_allclose(claim.lower_bound(fpr[kept], fnr[kept]), claim.value, rtol=1e-6)
    np.testing.assert_allclose(
        [claim.min_false_positives(1 - rate) for rate in fnr[kept]], fpr[kept], rtol=1e-6
    )
    assert claim.lower_bound(fpr, fnr).shape == fpr.shape, "one bound for each pair of rates"
    assert claim.with_value(0.5).value == 0.5


@pytest.mark.parametrize("claim", [CLAIM, ApproximateClaim(1.0, 1e-3)])
def test_rates_without_information_give_no_bound(claim):
    """Guesses no better than a coin refute no claim, and rates stay within 0 and 1."""
    assert float(claim.lower_bound(np.array(0.9), np.array(0.9))) < 0
    if isinstance(claim, ApproximateClaim):
        assert np.isfinite(claim.lower_bound(np.ones(2), np.ones(2))).all()
    assert claim.min_false_negatives(np.array([0.0, 1.0])).tolist() == pytest.approx(
        [1 - getattr(claim, "delta", 0.0), 0.0]
    )
    assert claim.min_false_positives(0.0) == 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        claim.name = "x"
    blind = audit(lambda canary, count: np.zeros(count), claim, trials=100)
    assert blind.lower_bound == 0.0
    assert not blind.alarm


@pytest.mark.parametrize("epsilon", [1.0, 700.0, 800.0, 1e6])
def test_claims_with_a_huge_epsilon_can_be_audited(epsilon):
    claim = ApproximateClaim(epsilon, 1e-5)
    assert audit_one_run(lambda included: included * 1.0, claim, canaries=200).alarm == (
        epsilon == 1.0
    )
    assert np.isfinite(claim.min_false_negatives(np.linspace(0, 1, 5))).all()


@pytest.mark.slow
def test_claims_come_from_mechanisms_and_statements(mechanism):
    statement = json.loads(mechanism.statement().to_json())
    assert claim_of(statement) == claim_of(mechanism) == GaussianClaim(mechanism.mu())
    f = ap.design("dp-sgd", steps=8)
    sampled = ap.calibrate(f, noise_multiplier=1.0, delta=1e-5, sampling=ap.sampling.Poisson(0.1))
    assert claim_of(json.loads(sampled.statement().to_json())) == ApproximateClaim(
        sampled.epsilon(), 1e-5
    )
    assert claim_of(sampled) == ApproximateClaim(sampled.epsilon(), 1e-5)
    with pytest.raises(ValueError, match="audit the training function"):
        MechanismTrials(sampled)
