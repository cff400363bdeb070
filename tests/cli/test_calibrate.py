"""``antiphase calibrate``: from ε to the noise multiplier, and back."""

import antiphase as ap
from antiphase import accounting
from tests.cli.conftest import strict_json


def test_calibration_goes_both_ways(run, plan, tmp_path):
    words = "calibrate --epsilon 2 --delta 1e-6"
    multiplier = strict_json(run(words, "--json").out)["noise_multiplier"]
    assert multiplier == accounting.gaussian_noise_multiplier(2.0, 1e-6)
    back = run(f"calibrate --noise-multiplier {multiplier!r} --delta 1e-6 --json")
    assert 2 * (1 - 1e-6) < strict_json(back.out)["epsilon"] <= 2
    run("calibrate design.antiphase --epsilon 2 --delta 1e-6 -o new.antiphase")
    assert ap.load(tmp_path / "new.antiphase").noise_multiplier == multiplier
    twice = strict_json(run(words, "--adjacency replace-one --json").out)
    assert twice["noise_multiplier"] == 2 * multiplier
