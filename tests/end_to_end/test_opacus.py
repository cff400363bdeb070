"""Opacus' own tests, run with this library's engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.issue(6), pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.study
def test_opacus_own_tests(shown):
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.opacus_suite", "--json"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        timeout=1800,
    )
    assert done.stdout, done.stderr[-10_000:]
    found = json.loads(done.stdout)
    shown("Opacus' own tests, our engine", found["summary"], "all that apply pass, at least 50")
    assert found["failures"] == {}
    assert done.returncode == 0
