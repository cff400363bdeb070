"""Generated calls and damaged files, 10,000 of each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.issue(11)

ROOT = Path(__file__).parents[2]


def plain_and_optimised(module, *arguments):
    """Run the module twice in parallel, once under ``python -O``."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "ANTIPHASE_CACHE": "off",
        "PYTHONWARNINGS": "ignore",
    }
    workers = [
        subprocess.Popen(
            [sys.executable, *flags, "-m", module, *map(str, each)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for flags, each in zip(((), ("-O",)), arguments, strict=True)
    ]
    found = [json.loads(worker.communicate(timeout=1800)[0]) for worker in workers]
    assert [one["optimised"] for one in found] == [False, True]
    return found


@pytest.mark.long
def test_10000_generated_calls(shown):
    found = plain_and_optimised("tests.adversarial.calls", (5000, 110), (5000, 111))
    total = {what: sum(one[what] for one in found) for what in ("calls", "made", "refused")}
    failures = [failure for one in found for failure in one["failures"]]
    most = max(one["megabytes"] for one in found)
    shown(
        "generated calls, half of them under python -O",
        f"{total['calls']}, of which {total['made']} fitted and {total['refused']} were refused "
        "by name; "
        f"{len(failures)} other endings; {most:.0f} MB",
        "10,000, only our errors, under 1 GB",
    )
    assert not failures, "\n".join(failures)
    assert total["calls"] == 10_000
    assert most < 1000


@pytest.mark.long
def test_10000_damaged_files(shown, tmp_path):
    folders = [tmp_path / "plain", tmp_path / "optimised"]
    for folder in folders:
        folder.mkdir()
    found = plain_and_optimised(
        "tests.adversarial.damage", (folders[0], 5000, 110), (folders[1], 5000, 111)
    )
    failures = [failure for one in found for failure in one["failures"]]
    strays = [stray for one in found for stray in one["strays"]]
    count, refused = (sum(one[what] for one in found) for what in ("files", "refused"))
    most, slowest = (max(one[what] for one in found) for what in ("megabytes", "slowest"))
    shown(
        "damaged files, half of them under python -O",
        f"{count}, of which {refused} were refused, the others hold what they say; "
        f"{len(failures)} other endings, "
        f"{len(strays)} files elsewhere, at most {slowest:.1f} s, {most:.0f} MB",
        "10,000, only our errors, no hang, nothing outside, under 1 GB",
    )
    assert not failures, "\n".join(failures)
    assert not strays
    assert count == 10_000
    assert most < 1000
