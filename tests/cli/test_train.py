"""``antiphase train``: results of several trials, and what they cost together."""

import pytest

import antiphase as ap
from antiphase.cli import train
from antiphase.sampling import Poisson
from antiphase.statement import rounded_up
from tests.cli.conftest import strict_json

WORDS = "train --data digits --batch-size 256"


@pytest.mark.slow
def test_json_has_all_trials(run):
    found = strict_json(run(WORDS, "--delta 1e-4 --epsilon 8 --trials 2 --json").out)
    assert [trial["seed"] for trial in found["trials"]] == [0, 1]
    assert found["trials"][0]["epsilon"] <= 8
    assert 0 < found["accuracy"] < 1
    assert found["stopped"] is False


@pytest.mark.slow
def test_a_training_that_diverges_is_reported(run):
    words = f"{WORDS} --epochs 3 --mechanism none --lr 1e38"
    found = strict_json(run(words, "--json").out)
    assert found["trials"][0]["finite"] is False
    assert "(diverged)" in run(words).out


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [("dp-mf", {}), ("dp-sgd", {"sampling": Poisson(0.1)})],
    ids=["dp-mf", "dp-sgd"],
)
def test_all_trials_together_cost_more_than_one(mechanism, options):
    m = ap.calibrate(ap.design(mechanism, steps=8), noise_multiplier=4.0, delta=1e-2, **options)
    together = train._epsilon_of_all(m.statement(), 3)
    assert together == rounded_up(m.epsilon_of_runs([8, 8, 8]))
    assert float(together) > m.epsilon()
