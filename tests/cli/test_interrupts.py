"""Ctrl-C keeps what there is: exit code 1, results so far, and a run that goes on as if nothing had happened."""

import json
import os
import signal
import subprocess
import time

import pytest

import antiphase as ap
from tests.cli.conftest import ANTIPHASE

pytestmark = pytest.mark.slow


def start(folder, *words, **environment):
    return subprocess.Popen(
        [*ANTIPHASE, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "ANTIPHASE_CACHE": "off"} | environment,
    )  # fmt: skip


def interrupted(process, when):
    """Its exit code, standard output and standard error, after Ctrl-C at the moment ``when()`` holds."""
    began = time.monotonic()
    while not when():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 120
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)
    return process.returncode, *said


def test_compare_prints_what_it_has(tmp_path):
    """Stopped while it searches for an optimum that takes minutes: the others are there, the optimum is not known."""
    process = start(
        tmp_path, "compare", "--steps", "2048", "--epochs", "64", "--tolerance", "1e-12", "--json",
        "-m", "dp-sgd", "-m", "chess", "-m", "dp-mf",
    )  # fmt: skip
    began = time.monotonic()
    code, out, err = interrupted(process, lambda: time.monotonic() - began > 6)
    assert code == 130
    found = json.loads(out)
    assert found["stopped"] is True
    assert [row["name"] for row in found["mechanisms"]] == ["dp-sgd", "chess"]
    assert found["refused"] == {"DP-MF": "stopped"}
    assert found["optimum"] is None
    assert found["mechanisms"][0]["over_optimum"] is None
    assert found["mechanisms"][0]["average"] > 0
    assert "Traceback" not in err
    assert "interrupted: by Ctrl-C" in err


def test_a_design_that_is_stopped_is_kept_with_the_gap_it_has(tmp_path):
    process = start(
        tmp_path, "design", "dp-mf", "--steps", "1024", "--epochs", "64", "--tolerance", "1e-12", "-o", "d.antiphase",
        ANTIPHASE_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    began = time.monotonic()
    code, out, err = interrupted(process, lambda: time.monotonic() - began > 6)
    assert code == 130
    assert "interrupted: by Ctrl-C" in err
    f = ap.load(tmp_path / "d.antiphase")
    assert 0 < f.gap < 1
    assert f.sensitivity <= 1 + 1e-9
    assert f"{f.gap:.1e}" in out or f"{f.gap:.3g}   error over bound, less 1" in out
    assert not list(tmp_path.glob("cache/**/*.antiphase")), (
        "what was asked for is not what there is"
    )


def test_training_goes_on_and_ends_with_the_same_weights(tmp_path, run):
    words = [
        "train", "--data", "digits", "--epochs", "12", "--batch-size", "32", "--mechanism", "tree", "--epsilon", "8",
        "--delta", "1e-4", "--insecure-noise", "5", "--seed", "3",
    ]  # fmt: skip
    promised = json.loads(run(*words, "-o", "whole.safetensors", "--json").out)["trials"][0][
        "statement"
    ]
    assert promised["insecure"] is True
    state = tmp_path / "run" / "checkpoint"
    part = start(tmp_path, *words, "--checkpoint", "run", "-o", "part.safetensors")
    code, out, err = interrupted(part, lambda: state.exists() and _steps_done(tmp_path / "run") > 0)
    assert code == 130, (out, err)
    assert out == ""
    assert "0 of 1 trial done. Resume with: antiphase train" in err
    assert "--resume" in err
    assert not (tmp_path / "part.safetensors").exists()
    assert not (tmp_path / "run" / "model.safetensors").exists()
    rest = run(*words, "--checkpoint", "run", "--resume", "-o", "part.safetensors", "--json")
    assert (tmp_path / "part.safetensors").read_bytes() == (
        tmp_path / "whole.safetensors"
    ).read_bytes()
    again = json.loads(rest.out)["trials"][0]
    assert again["steps"] == promised["steps"] == 12 * 45
    assert again["statement"]["epsilon"] == promised["epsilon"]


def _steps_done(folder):
    """How many times the test set was looked at, at the last checkpoint."""
    try:
        return len(json.loads((folder / "curve.json").read_text())["curve"])
    except (OSError, ValueError):
        return 0


def test_trials_that_are_done_are_printed(tmp_path):
    process = start(
        tmp_path, "train", "--data", "digits", "--epochs", "4", "--batch-size", "32", "--mechanism", "tree",
        "--epsilon", "8", "--delta", "1e-4", "--trials", "1000", "--checkpoint", "runs",
    )  # fmt: skip
    code, out, err = interrupted(
        process, lambda: (tmp_path / "runs" / "seed-1" / "checkpoint").exists()
    )
    assert code == 130
    assert "tree, full Honaker on digits" in out
    assert "differentially private" in out
    assert "1 of 1000 trials done" in err
