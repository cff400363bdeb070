"""The command `python -m experiments`: figures and tables from results, and results that stay."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import NAMES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def start(folder, *words):
    """The command in an empty folder, on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return subprocess.Popen(
        [sys.executable, "-m", "experiments", *words],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(folder, *words):
    """Its exit code, standard output and standard error."""
    process = start(folder, *words)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def test_matrices(tmp_path):
    """The values, the record and the figures; the figures from the record are the same bytes."""
    code, out, err = finish(tmp_path, "matrices")
    assert code == 0, err
    record = json.loads((tmp_path / "results" / "matrices.json").read_text())
    weight, mf, plus = (cell["result"]["matrix"] for cell in record["cells"])
    assert weight[2][2] == 1.0
    assert weight[5][2] == -1.0
    # The squared error of DP-MF at T = 50, as in the design's own tests.
    assert "205.1123" in out
    # What was released before a restart stays as it is.
    assert plus[49][:10] == pytest.approx(plus[39][:10])
    assert mf[49][:10] != pytest.approx(mf[39][:10])
    written = {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    assert {"matrices-weight.svg", "matrices-decoders.png", "matrices.jsonl"} <= written.keys()
    _, out, _ = finish(tmp_path, "matrices", "--figures-only", "--json")
    (printed,) = json.loads(out)
    assert printed["study"] == "matrices"
    assert "cells" not in printed
    assert {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()} == written


def test_help_names_every_study(tmp_path):
    code, out, _ = finish(tmp_path, "--help")
    assert code == 0
    assert all(name in out for name in (*NAMES, "--json", "--figures-only"))


def test_bad_arguments_are_refused(tmp_path):
    code, _, err = finish(tmp_path, "cubic")
    assert (code, "quadratic" in err) == (2, True)
    code, _, err = finish(tmp_path, "matrices", "--jobs", "0")
    assert (code, "--jobs = 0 must be at least 1" in err) == (2, True)
    code, out, err = finish(tmp_path, "matrices", "--figures-only")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "run python -m experiments matrices first" in err
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_names_how_to_continue(tmp_path):
    """The command does not wait for cells that take minutes."""
    process = start(tmp_path, "quadratic", "--jobs", "2")
    began = time.monotonic()
    while not (tmp_path / "results" / "quadratic.jsonl").exists():
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert "stopped by Ctrl-C" in err
    assert "run the command again" in err
    assert "Traceback" not in err
