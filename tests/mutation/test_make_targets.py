"""Coverage of the core, and mutants, as `make` runs them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.issue(11)

ROOT = Path(__file__).parents[2]


def made(target):
    """What ``make target`` prints, with this interpreter, and how it ended."""
    command = [
        "make",
        "--silent",
        "--old-file=.venv/.ready",
        f"BIN={Path(sys.executable).parent}",
        target,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=7200, check=False
    )
    return done.stdout, f"{done.stdout[-5000:]}\n{done.stderr[-5000:]}", done.returncode


@pytest.mark.long
@pytest.mark.study
def test_coverage_of_the_core(shown):
    printed, log, code = made("coverage")
    share = re.search(r"^TOTAL .*?([\d.]+)%$", printed, re.MULTILINE)
    assert share is not None, log
    shown("lines of the core that tests execute", f"{share[1]} %", "95 % or more")
    assert float(share[1]) >= 95
    assert code == 0, log


@pytest.mark.long
@pytest.mark.study
def test_mutants_are_noticed(shown):
    printed, log, code = made("mutants")
    table = re.search(r"^  file .*", printed, re.MULTILINE | re.DOTALL)
    assert table is not None, log
    share = re.search(r"^  together .* ([\d.]+)%$", printed, re.MULTILINE)
    shown(
        f"mutants\n{table[0]}\n  killed",
        f"{share[1]} %",
        "90 % or more; survivors listed with a reason",
    )
    seconds = re.search(r"^  (\d+) s with (\d+) process", printed, re.MULTILINE)
    shown(f"mutants, seconds with {seconds[2]} process(es)", seconds[1], "3,600 or less with two")
    assert float(share[1]) >= 90
    assert code == 0, log
    assert int(seconds[1]) * int(seconds[2]) <= 7200, "60 minutes on two cores"
