"""Every claim of the benchmarks, measured beside the peers.

`make bench` is the same in one command; here each question is a test of its own.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import QUESTIONS

pytestmark = [pytest.mark.issue(12), pytest.mark.long, pytest.mark.study]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", QUESTIONS)
def test_claims_hold(shown, tmp_path, name):
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        name,
        "--json",
        "--output",
        str(tmp_path / "record.json"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr[-3000:]
    module = importlib.import_module(f"benchmarks.{name}")
    claims = module.claims(json.loads(done.stdout)[name])
    for claim in claims:
        shown(f"{module.TITLE}: {claim.what}", claim.measured, claim.asked)
    assert claims
    assert all(claim.holds for claim in claims)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_page_lists_every_loss_with_a_reason(shown):
    """The page lists every comparison in which a peer is ahead, with a reason."""
    measured, page = ROOT / "results" / "benchmarks.json", ROOT / "docs" / "benchmarks.md"
    if not (measured.exists() and page.exists()):
        pytest.skip("there is no whole run yet: python -m benchmarks --page makes it, and its page")
    record, page = json.loads(measured.read_text()), page.read_text()
    asked = {name: importlib.import_module(f"benchmarks.{name}") for name in record["questions"]}
    lost = [
        loss for name, found in record["questions"].items() for loss in asked[name].losses(found)
    ]
    shown(
        "comparisons in which a peer is ahead",
        f"{len(lost)}, all on the page",
        "shown, with the reason",
    )
    for loss in lost:
        assert loss.what in page
        assert loss.why in page
