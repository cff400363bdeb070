"""``antiphase design``: what is printed is what is written."""

import pytest

import antiphase as ap
from tests.cli.conftest import strict_json


def test_a_file_in_json_is_the_file_on_disk(run, tmp_path):
    words = "design dp-mf --steps 8 --epsilon 8 --delta 1e-5 -o m.antiphase --json"
    found = strict_json(run(words).out)
    m = ap.load(tmp_path / "m.antiphase")
    assert found["digest"] == m.digest
    assert found["epsilon"] == m.epsilon() <= 8
    assert found["error"] == m.factorization.error
    assert found["lower_bound"] == m.factorization.lower_bound
    assert found["noise_multiplier"] == m.noise_multiplier


def test_a_design_that_is_not_calibrated_comes_with_a_hint(run):
    words = "design dp-mf --steps 8 -o d.antiphase"
    assert "antiphase calibrate d.antiphase" in run(words).err
    assert run(words, "--quiet").err == ""
    error = run("statement d.antiphase")
    assert error.code == 2
    assert "antiphase calibrate d.antiphase" in error.err


def test_the_gap_is_the_same_number_everywhere(run):
    """Error over bound, less 1: large or small, in words or in JSON."""
    for name, unit in (("dp-sgd", "   error over bound, less 1"), ("dp-mf", "")):
        words = f"design {name} --steps 16 --epochs 2"
        found = strict_json(run(words, "--json").out)
        assert found["gap"] == pytest.approx(found["error"] / found["lower_bound"] - 1, abs=1e-12)
        (line,) = [line for line in run(words).out.splitlines() if line.startswith("gap ")]
        gap = f"{found['gap']:.3g}{unit}" if unit else f"{found['gap']:.1e}"
        assert line.split(maxsplit=1)[1] == gap


@pytest.mark.slow
def test_a_design_for_cyclic_sampling_has_the_best_number_of_bands(run, tmp_path):
    words = "design toeplitz --steps 32 --sampler cyclic-poisson --sampling-rate 0.02 -o m --json"
    found = strict_json(run(words, "--bands auto --epsilon 1 --delta 1e-6").out)
    made = ap.load(tmp_path / "m")
    assert found["options"] == {"bands": made.factorization.bands}
    sampling = (found["sampler"], found["sampling_rate"])
    assert sampling == (made.sampling.name, made.sampling.rate) == ("cyclic-poisson", 0.02)
    best = min(found["tried"], key=lambda t: t["noise_multiplier"] ** 2 * t["error"])
    assert best["bands"] == made.factorization.bands
    assert best["noise_multiplier"] == made.noise_multiplier
    assert found["error"] == pytest.approx(best["error"])
    given = strict_json(run(words, "--bands 5 --noise-multiplier 2 --delta 1e-6").out)
    assert (given["options"], given["tried"], given["gap"]) == ({"bands": 5}, [], None)
    again = "calibrate m --noise-multiplier 2 --delta 1e-6 --sampler cyclic-poisson"
    calibrated = strict_json(run(again, "--sampling-rate 0.02 --json").out)
    assert (calibrated["sampler"], calibrated["epsilon"]) == ("cyclic-poisson", given["epsilon"])
