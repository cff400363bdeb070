"""Trainings under one key on the same data are found, and their ε is combined."""

import math

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import antiphase as ap
from antiphase import accounting
from antiphase.torch import earlier_runs
from antiphase.torch.earlier_runs import (
    EarlierRun,
    combined_epsilon,
    composition_record,
    fingerprint,
    on_same_data,
)

pytestmark = pytest.mark.issue(21)
DELTA = 1e-5


def gaussian(name="dp-mf", noise_multiplier=1.0):
    return ap.calibrate(ap.design(name, steps=6), noise_multiplier=noise_multiplier, delta=DELTA)


def poisson():
    f = ap.design("dp-sgd", steps=6, participation=ap.min_separation(6, 1))
    return ap.calibrate(f, noise_multiplier=1.0, delta=DELTA, sampling=ap.sampling.Poisson(0.1))


def earlier(mechanism, drawn=None):
    return EarlierRun("ab" * 16, mechanism.digest, composition_record(mechanism), drawn)


def test_runs_of_one_mechanism_are_composed_by_their_rows():
    m = gaussian()
    assert combined_epsilon(m, [6], [earlier(m, 2)], DELTA) == m.epsilon_of_runs([6, 2], DELTA)
    assert combined_epsilon(m, [6], [earlier(m)], DELTA) == m.epsilon_of_runs([6, 6], DELTA)


def test_gaussian_runs_compose_as_one_gaussian():
    m, other = gaussian(), gaussian("tree", 0.5)
    found = combined_epsilon(m, [6], [earlier(other)], DELTA)
    assert found == pytest.approx(
        accounting.gaussian_epsilon(1 / math.sqrt(1 + 4), DELTA), rel=1e-6
    )
    assert found >= accounting.gaussian_epsilon(1 / math.sqrt(1 + 4), DELTA)


def test_an_amplified_run_and_another_share_delta():
    """δ adds up as ε does."""
    m, other = gaussian(noise_multiplier=0.7), poisson()
    expected = m.epsilon(DELTA / 2) + other.epsilon(DELTA / 2)
    assert combined_epsilon(m, [6], [earlier(other)], DELTA) == pytest.approx(expected, rel=1e-6)


def test_without_a_known_composition_no_epsilon_is_stated():
    m = gaussian()
    unknown = EarlierRun("ab" * 16, "another", {}, 3)
    assert combined_epsilon(m, [6], [unknown], DELTA) is None
    assert "cannot be stated" in earlier_runs.describe_combined(None, DELTA)


def test_a_run_without_a_record_counts_and_one_that_released_nothing_does_not():
    key, m = ap.Key.generate(), gaussian()
    first = key.start_run(m.digest, None, "data", composition_record(m))
    mine = key.start_run(m.digest, None, "data", composition_record(m))
    assert [(r.run, r.drawn) for r in on_same_data(key, "data", mine)] == [(first, None)]
    key.unsaved[f"ledger {first} 0"] = []
    assert on_same_data(key, "data", mine) == []
    assert on_same_data(key, None, mine) == []


def test_fingerprints_see_examples_at_both_ends_and_between():
    key = ap.Key.generate()
    X = torch.arange(2000.0).reshape(1000, 2)
    before = fingerprint(key, TensorDataset(X))
    for index in (0, 999, int(np.linspace(0, 999, 64).round()[20])):
        Y = X.clone()
        Y[index, 1] += 1e-3
        assert fingerprint(key, TensorDataset(Y)) != before
    assert fingerprint(key, TensorDataset(X[:-1])) != before
    assert fingerprint(key, TensorDataset(X.clone())) == before


def test_examples_of_every_supported_type_are_hashed():
    key = ap.Key.generate()
    example = {
        "text": "a",
        "n": 3,
        "x": np.ones(2, np.float32),
        "b": b"z",
        "t": (torch.tensor(1.0), None),
    }
    before = fingerprint(key, [example])
    for name, value in {
        "text": "b",
        "n": 4,
        "x": np.zeros(2, np.float32),
        "b": b"y",
        "t": (torch.tensor(2.0),),
    }.items():
        assert fingerprint(key, [example | {name: value}]) != before
    assert fingerprint(key, iter([example])) is None
    assert fingerprint(key, [torch.ones(2, dtype=torch.bfloat16)]) != fingerprint(
        key, [torch.zeros(2).bfloat16()]
    )


def test_other_data_are_identified_by_type_and_length():
    key = ap.Key.generate()
    assert fingerprint(key, [object()]) == fingerprint(key, [object()])
    assert fingerprint(key, [object()]) != fingerprint(key, [object()] * 2)
