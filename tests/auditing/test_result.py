"""Results of audits in words and JSON; bad arguments are named."""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy.special import ndtr

from antiphase.auditing import (
    ApproximateClaim,
    GaussianClaim,
    MechanismTrials,
    audit,
    audit_one_run,
    claim_of,
)
from antiphase.reporting import charts, figures
from tests.auditing.scores import CLAIM, normal


def test_results_are_immutable_and_compared_by_identity():
    """They hold arrays, whose comparison is not a bool. The curve is not in the repr."""
    for found in (
        audit(normal(1.0)[0], CLAIM, trials=100),
        audit_one_run(normal(1.0)[1], CLAIM, canaries=50),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            found.alarm = False
        assert found != dataclasses.replace(found)
        assert "roc" not in repr(found)


@pytest.mark.slow
def test_a_result_says_what_an_audit_can_and_cannot_show(tmp_path):
    quiet, loud = audit(normal(1.0)[0], CLAIM), audit(normal(2.0)[0], CLAIM)
    assert "No alarm proves nothing" in " ".join(str(quiet).split())
    assert "ALARM" in str(loud)
    assert "the claim is false" in " ".join(str(loud).split())
    content = json.loads(loud.to_json())
    assert content["alarm"] is True
    assert content["claim"] == {"name": "μ", "mu": 1.0}
    assert content["cannot_show"]
    once = audit_one_run(normal(3.0)[1], CLAIM)
    assert json.loads(once.to_json())["correct"] == once.correct
    for found in (quiet, once):
        chart = charts.roc(found.roc, CLAIM.min_false_negatives, str(CLAIM))
        assert found.roc[0].tolist() == [0, 0]
        assert found.roc[-1].tolist() == [1, 1]
        allowed = chart.series[1]
        half = 100  # index of a false positive rate of 1/2
        np.testing.assert_allclose(allowed.y[half], ndtr(1.0), atol=1e-12)
        assert all(path.stat().st_size for path in figures.draw(tmp_path / "roc", chart))


def test_the_text_has_the_probability_of_failure_and_json_is_not_escaped():
    """The bound fails with probability at most 1 − confidence."""
    found = audit(normal(3.0)[0], CLAIM, trials=100, confidence=0.75)
    assert "the bound fails with probability at most 0.25." in " ".join(str(found).split())
    assert found.to_json().startswith('{\n  "claim": {\n    "name": "μ",\n')
    assert max(map(len, str(found).splitlines())) <= 100
    assert audit(normal(3.0)[0], CLAIM, trials=100, confidence=0.5).confidence == 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: GaussianClaim(0.0), "mu = 0.0"),
        (lambda: ApproximateClaim(-1.0, 1e-5), "epsilon = -1.0"),
        (lambda: ApproximateClaim(1.0, 1.0), "delta = 1"),
        (lambda: claim_of({"epsilon": 1.0}), "delta = nan"),
        (lambda: claim_of("8"), "promise = '8'"),
        (lambda: audit(normal(1.0)[0], 1.0), "claim = 1.0"),
        (lambda: audit(normal(1.0)[0], CLAIM, trials=3), "trials = 3"),
        (lambda: audit(normal(1.0)[0], CLAIM, trials=10**9), "at most 10,000,000"),
        (lambda: audit(normal(1.0)[0], CLAIM, confidence=1.0), "confidence = 1"),
        (lambda: audit(normal(1.0)[0], CLAIM, confidence=0.49), "confidence = 0.49"),
        (lambda: audit(lambda canary, count: 1.0, CLAIM), r"scores has shape \(1,\)"),
        (lambda: audit(normal(1.0)[0], CLAIM, thresholds=[math.nan]), r"thresholds\[0\] = nan"),
        (lambda: audit(lambda canary, count: np.zeros(3), CLAIM), "scores has shape"),
        (lambda: audit(lambda canary, count: np.full(count, math.nan), CLAIM), "NaN entries"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=10, guesses=11), "guesses = 11"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=10, guesses=1), "guesses = 1"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=1), "canaries = 1"),
        (lambda: audit_one_run(lambda included: [1.0], CLAIM, canaries=10), "scores has shape"),
        (lambda: audit_one_run(normal(1.0)[1], CLAIM, canaries=10**400), "be at most 10,000,000"),
        (lambda: MechanismTrials("plan"), "mechanism = 'plan'"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
