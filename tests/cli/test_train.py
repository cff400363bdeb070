"""``antiphase train``: results of several trials, and what they cost together."""

import dataclasses

import pytest

import antiphase as ap
from antiphase import data
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


@pytest.fixture
def short(monkeypatch):
    """Digits with 400 examples: ten batches of 40."""
    whole = data.load("digits")
    part = data.Split(whole.train.inputs[:400], whole.train.targets[:400])
    few = dataclasses.replace(whole, train=part)
    monkeypatch.setattr(data, "load", lambda *args, **options: few)


TRAIN = "train --data digits --batch-size 40 --epochs 2"


@pytest.mark.issue(23)
def test_a_mechanism_that_design_wrote_is_trained_with(run, short):
    run("design dp-mf --steps 20 --epochs 2 --epsilon 8 --delta 1e-5 -o plan.antiphase")
    found = strict_json(run(TRAIN, "--mechanism plan.antiphase --json").out)["trials"][0]
    assert found["statement"]["digest"] == ap.load("plan.antiphase").digest
    assert (found["epsilon"], found["steps"]) == (ap.load("plan.antiphase").epsilon(), 20)
    run("design dp-mf --steps 20 --epochs 2 -o design.antiphase")
    words = "--mechanism design.antiphase --epsilon 8 --delta 1e-5 --json"
    again = strict_json(run(TRAIN, words).out)["trials"][0]
    assert again["statement"]["noise_multiplier"] == found["statement"]["noise_multiplier"]
    run("design dp-mf --steps 20 --epochs 2 --noise-multiplier 1 -o no-delta.antiphase")
    assert run(TRAIN, "--mechanism no-delta.antiphase --delta 1e-5").code == 0


@pytest.mark.issue(23)
def test_the_statement_is_short_unless_asked_for(run, short):
    """The short one has ε, δ and the adjacency, and says if it protects nobody."""
    words = f"{TRAIN} --mechanism dp-mf --epsilon 8 --delta 1e-5"
    text = " ".join(run(words).out.split())
    assert "(8, 1e-05)-differentially private" in text
    assert "(zero-out)" in text
    assert "This assumes" not in text
    assert "INSECURE" in run(words, "--insecure-noise 1").out
    whole = " ".join(run(words, "--statement").out.split())
    for claim in ("This assumes", "Not private: losses", "AES-128"):
        assert claim in whole


@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("words", "sampler"), [("--mechanism dp-sgd", "poisson"), ("--mechanism dp-mf", "fixed-order")]
)
def test_json_records_the_sampler_that_ran(run, short, words, sampler):
    found = strict_json(run(TRAIN, words, "--epsilon 8 --delta 1e-5 --json").out)
    assert found["trials"][0]["sampler"] == sampler


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
