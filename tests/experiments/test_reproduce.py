"""``antiphase reproduce``: figures and tables from results, and results that are there to stay."""

import json
import signal
import time

import pytest

from tests.cli.conftest import process
from tests.cli.test_interrupts import start

pytestmark = pytest.mark.slow


def test_matrices(tmp_path):
    """The numbers, the record and the figures; and the figures once more from the record, to the byte."""
    done = process("reproduce", "matrices", cwd=tmp_path)
    record = json.loads((tmp_path / "results" / "matrices.json").read_text())
    weight, mf, plus = (cell["result"]["matrix"] for cell in record["cells"])
    assert weight[2][2] == 1.0
    assert weight[5][2] == -1.0
    assert (
        "205.1123" in done.stdout
    )  # the squared error of DP-MF at T = 50, as in the design's own tests
    assert plus[49][:10] == pytest.approx(
        plus[39][:10]
    )  # what went out before a restart stays as it is
    assert mf[49][:10] != pytest.approx(mf[39][:10])
    written = {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    assert {"matrices-weight.svg", "matrices-decoders.png", "matrices.jsonl"} <= written.keys()
    again = process("reproduce", "matrices", "--figures-only", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)[0]["study"] == "matrices"
    assert {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()} == written


def test_what_cannot_be_is_refused(tmp_path):
    unknown = process("reproduce", "cubic", cwd=tmp_path, check=False)
    assert (unknown.returncode, "quadratic" in unknown.stderr) == (2, True)
    nothing = process("reproduce", "matrices", "--figures-only", cwd=tmp_path, check=False)
    assert nothing.returncode == 2
    assert "run antiphase reproduce matrices first" in nothing.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_says_how_to_go_on(tmp_path):
    """While cells of minutes are at work: nobody waits for them."""
    running = start(tmp_path, "reproduce", "quadratic", "--jobs", "2")
    began = time.monotonic()
    while not (tmp_path / "results" / "quadratic.jsonl").exists():
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert out == ""
    assert "stopped: by Ctrl-C" in err
    assert "the same command goes on" in err
    assert "Traceback" not in err
