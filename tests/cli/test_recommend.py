"""``antiphase recommend``: from a spectrum in a file to a command that can be typed."""

import shlex

import pytest

from tests.cli.conftest import strict_json


@pytest.mark.slow
def test_a_spectrum_gives_a_mechanism_its_gains_and_learning_rates(run, tmp_path):
    (tmp_path / "list.json").write_text("[0.01, 0.1, 1.0]")
    (tmp_path / "both.json").write_text('{"values": [0.01, 0.1, 1.0], "weights": [100, 10, 1]}')
    words = "recommend --steps 32 --lr 0.5 --epsilon 1 --delta 1e-5 --spectrum"
    for name in ("list.json", "both.json"):
        found = strict_json(run(words, name, "--batch-size 64 --initial-gap 2.3 --json").out)
        mechanisms = [gain["over"].split(",")[0] for gain in found["gains"]]
        assert mechanisms == ["DP-SGD", "DP-SGD", "DP-MF", "DP-MF⁺"]
        assert found["noise"]["DP-SGD, Poisson batches"] == 1
        assert 0 < found["learning_rates"]["low"] <= found["learning_rates"]["high"]
    done = run(words, "both.json")
    text = " ".join(done.out.split())
    assert "111 directions, curvatures up to 1" in text
    assert "no private data were used" in text
    typed = shlex.split(done.out.split("To use it: antiphase ")[1])
    assert run(*typed).code == 0


def test_an_unusable_spectrum_is_an_error(run, tmp_path):
    (tmp_path / "good.json").write_text("[0.01, 0.1, 1.0]")
    (tmp_path / "bad.json").write_text("{}")
    words = "recommend --steps 32 --lr 0.5 --epsilon 1 --delta 1e-5 --spectrum"
    for options, message in (("bad.json", "bad.json must have"), ("good.json --lr 9", "diverges")):
        done = run(words, options)
        assert (done.code, done.out) == (2, "")
        assert message in done.err


@pytest.mark.slow
@pytest.mark.issue(23)
def test_the_sampler_determines_what_is_recommended(run):
    """A command that can be typed, for batches in a fixed order and for those of a sampler."""
    words = "recommend --steps 64 --epochs 4 --delta 1e-5 --epsilon"
    ordinary = run(words, "0.5 --sampler fixed-order")
    assert "batches come in a fixed order" in " ".join(ordinary.out.split())
    assert "--sampler" not in ordinary.out.split("To use it: ")[1]
    poisson = run(words, "0.5 --sampler poisson")
    assert ", take DP-SGD, Poisson batches." in " ".join(poisson.out.split())
    assert "To use it: antiphase train --mechanism dp-sgd" in poisson.out
    cyclic = run(words, "2 --sampler cyclic-poisson --sampling-rate 0.0625")
    assert "cyclic Poisson." in " ".join(cyclic.out.split("\n\n")[0].split())
    typed = shlex.split(cyclic.out.split("To use it: antiphase ")[1])
    assert typed[-4:-2] == ["--sampling-rate", "0.0625"]
    for done in (ordinary, cyclic):
        typed = shlex.split(done.out.split("To use it: antiphase ")[1])
        assert run(*typed).code == 0


@pytest.mark.issue(23)
def test_an_adjacency_without_amplification_says_why_poisson_dp_sgd_is_missing(run):
    """The command to use has the adjacency; one that the batches exclude is an error."""
    words = "recommend --steps 16 --epochs 2 --epsilon 2 --delta 1e-5 --adjacency"
    done = run(words, "replace-one")
    text = " ".join(done.out.split())
    assert 'DP-SGD on Poisson batches is not compared: adjacency = "replace-one"' in text
    typed = shlex.split(done.out.split("To use it: antiphase ")[1])
    assert typed[-4:-2] == ["--adjacency", "replace-one"]
    assert run(*typed).code == 0
    refused = run(words, "add-remove")
    assert refused.code == 2
    assert refused.err.count("would shift every later batch") == 1
