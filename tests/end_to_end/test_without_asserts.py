"""Bad input is refused under `python -O`, which removes assertions, as well."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_design import BAD

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


def run_optimised(shown, selection, files, asked):
    """Run the selected tests of some files under ``python -O``; all must pass."""
    command = [sys.executable, "-O", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-k", selection, *(str(TESTS / file) for file in files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shown("bad input, also under python -O", done.stdout.strip().splitlines()[-1], asked)
    assert done.returncode == 0, done.stdout


@pytest.mark.issue(2)
def test_bad_designs(shown):
    """The cases of test_design and its neighbours end the same under python -O."""
    for call, words in BAD:
        with pytest.raises((ValueError, TypeError), match=words):
            call()
    names = ("design", "workload", "objective", "participation", "sensitivity")
    files = [f"test_{name}.py" for name in names]
    run_optimised(shown, "bad_input", files, "named ValueError or TypeError")


@pytest.mark.issue(3)
@pytest.mark.long  # make test has these tests without -O
def test_bad_mechanisms_keys_and_states(shown):
    files = ["accounting", "test_mechanism.py", "noise"]
    run_optimised(shown, "bad_input or damaged or others_read", files, "named errors")
