"""The tests that Opacus ships pass with our engine in the place of theirs."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_tests_of_opacus_with_our_engine(shown):
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-m", "tests.opacus.run"], capture_output=True, text=True, cwd=root)
    last = done.stdout.strip().rpartition("\n")[2]
    shown("the tests of Opacus with our engine, under DP-SGD", last, "0 failed, at least 50 passed")
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-10_000:]
