"""Ctrl-C keeps results so far, exits with 130, and leaves a run that can be resumed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import antiphase as ap
from tests.cli.conftest import ANTIPHASE

pytestmark = pytest.mark.slow


def start(folder, command, **environment):
    return subprocess.Popen(
        [*ANTIPHASE, *command.split()],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "ANTIPHASE_CACHE": "off"} | environment,
    )


def interrupted(process, when):
    """Send Ctrl-C when ``when()`` holds; return exit code, standard output and standard error."""
    began = time.monotonic()
    while not when():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 120
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)
    return process.returncode, *said


def test_compare_prints_the_results_so_far(tmp_path):
    """Interrupted in a search that takes minutes: results of the others, no optimum."""
    setting = "--steps 2048 --epochs 64 --tolerance 1e-12"
    process = start(tmp_path, f"compare {setting} --json -m dp-sgd -m chess -m dp-mf")
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


def test_a_design_that_is_interrupted_is_kept_with_its_gap(tmp_path):
    command = "design dp-mf --steps 1024 --epochs 64 --tolerance 1e-12 -o d.antiphase"
    process = start(tmp_path, command, ANTIPHASE_CACHE=str(tmp_path / "cache"))
    began = time.monotonic()
    code, out, err = interrupted(process, lambda: time.monotonic() - began > 6)
    assert code == 130
    assert "interrupted: by Ctrl-C" in err
    f = ap.load(tmp_path / "d.antiphase")
    assert 0 < f.gap < 1
    assert f.sensitivity <= 1 + 1e-9
    assert f"{f.gap:.1e}" in out or f"{f.gap:.3g}   error over bound, less 1" in out
    cached = list(tmp_path.glob("cache/**/*.antiphase"))
    assert not cached, "the design does not have the tolerance that was asked for"


def test_a_resumed_training_ends_with_the_same_weights(tmp_path, run):
    command = (
        "train --data digits --epochs 12 --batch-size 32 --mechanism tree --epsilon 8 "
        "--delta 1e-4 --insecure-noise 5 --seed 3"
    )
    uninterrupted = json.loads(run(command, "-o whole.safetensors --json").out)
    promised = uninterrupted["trials"][0]["statement"]
    assert promised["insecure"] is True
    state = tmp_path / "run" / "checkpoint"
    part = start(tmp_path, f"{command} --checkpoint run -o part.safetensors")
    code, out, err = interrupted(part, lambda: state.exists() and _steps_done(tmp_path / "run") > 0)
    assert code == 130, (out, err)
    assert out == ""
    assert "0 of 1 trial done. Resume with:\nantiphase train --data digits" in err
    assert err.endswith("--resume\n")
    assert not (tmp_path / "part.safetensors").exists()
    assert not (tmp_path / "run" / "model.safetensors").exists()
    rest = run(command, "--checkpoint run --resume -o part.safetensors --json")
    assert (tmp_path / "part.safetensors").read_bytes() == (
        tmp_path / "whole.safetensors"
    ).read_bytes()
    again = json.loads(rest.out)["trials"][0]
    assert again["steps"] == promised["steps"] == 12 * 45
    assert again["statement"]["epsilon"] == promised["epsilon"]


def _steps_done(folder):
    """Number of evaluations at the last checkpoint."""
    try:
        return len(json.loads((folder / "curve.json").read_text())["curve"])
    except (OSError, ValueError):
        return 0


@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--checkpoint run", "There is nothing to resume: no training had begun"),
        ("", "--checkpoint FOLDER would keep a run to resume"),
    ],
)
def test_resume_is_offered_only_if_there_is_something_to_resume(run, monkeypatch, words, remedy):
    """Interrupted during the design: no folder was made."""

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("antiphase.torch.training_run.design", interrupt)
    done = run("train --data digits --mechanism dp-mf --epsilon 8 --delta 1e-4", words)
    assert done.code == 130
    assert done.err == f"interrupted: by Ctrl-C; 0 of 1 trial done. {remedy}\n"
    assert not Path("run").exists()


def test_finished_trials_are_printed(tmp_path):
    command = (
        "train --data digits --epochs 4 --batch-size 32 --mechanism tree --epsilon 8 --delta 1e-4 "
        "--trials 1000 --checkpoint runs"
    )
    process = start(tmp_path, command)
    code, out, err = interrupted(
        process, lambda: (tmp_path / "runs" / "seed-1" / "checkpoint").exists()
    )
    assert code == 130
    assert "tree, full Honaker on digits" in out
    assert "differentially private" in out
    assert "1 of 1,000 trials done" in err
