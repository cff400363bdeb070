"""``antiphase audit``: of a mechanism's noise, and of a function in a user's file."""

import json

import pytest

TRAINER = """
import numpy as np

NOISE = {noise}
rng = np.random.default_rng(0)


def scores(canary, count):
    return rng.normal(size=count) * NOISE + canary


def once(included):
    return scores(included, len(included))


number = 3
"""


@pytest.fixture
def trainers(tmp_path):
    for name, noise in {"right": 1.0, "broken": 0.3}.items():
        (tmp_path / f"{name}.py").write_text(TRAINER.format(noise=noise))


@pytest.mark.slow
def test_a_mechanisms_own_noise(run, plan, tmp_path):
    done = run("audit", plan, "--trials", "2000", "--figure", "roc.png")
    assert done.code == 0, done.err
    assert done.out.startswith("No alarm: μ is at least")
    assert "proves nothing" in " ".join(done.out.split())
    assert (tmp_path / "roc.svg").exists()
    assert (tmp_path / "roc.png").exists()
    said = json.loads(run("audit", plan, "--trials", "2000", "--json").out)
    assert said["alarm"] is False
    assert said["lower_bound"] > 0.8 * said["claim"]["mu"] - 0.3
    assert run("audit", plan, "--mu", "0.2", "--trials", "2000").code == 1, "claims less than it costs"


def test_a_function_of_the_users(run, trainers, plan):
    claim = ("--mu", "1")
    assert run("audit", "right.py:scores", *claim, "--quiet").code == 0
    broken = run("audit", "broken.py:scores", *claim)
    assert broken.code == 1
    assert broken.out.startswith("ALARM")
    assert broken.err == ""
    assert run("audit", "right.py:once", "--one-run", *claim).code == 0
    assert run("audit", "broken.py:once", "--one-run", *claim).code == 1
    assert run("audit", "broken.py:scores", "--epsilon", "1", "--delta", "1e-5").code == 1
    assert run("audit", "right.py:scores", "--statement", "statement.json").code == 0
    assert json.loads(run("audit", plan, "--one-run", "--json").out)["canaries"] == 4000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        ("right.py:scores", "say what is claimed", 2),
        ("right.py:scores --mu 1 --epsilon 2 --delta 1e-5", "give one of", 2),
        ("right.py:scores --epsilon 2", "belong together", 2),
        ("right.py:scores --mu 1 --trials 3", "--trials", 2),
        ("right.py:number --mu 1", "has no function 'number'", 1),
        ("right.py:absent --mu 1", "has no function 'absent'", 1),
        ("absent.py:scores --mu 1", "no such file", 1),
        ("right.py:scores --mu -1", "mu = -1.0", 1),
        ("right.py:scores --mu 1 --confidence 2", "confidence = 2", 1),
        ("right.py:once --mu 1", "once() takes 1 positional argument", 1),
        ("design.antiphase", "claims nothing", 1),
        ("absent.antiphase", "No such file", 1),
    ],
)
def test_refusals(refused, plan, trainers, words, said, code):
    assert said in refused("audit", *words.split(), code=code)
