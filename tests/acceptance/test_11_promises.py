"""Issue 11, line by line: what it must show. Each test prints what was measured beside what was asked."""

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import antiphase as ap
from antiphase.auditing.audit import GaussianClaim, MechanismTrials, audit
from tests.adversarial import test_kills as kills
from tests.planted.bugs import BUGS
from tests.planted.lines import LINES
from tests.planted.test_planted import put_in_all

TESTS = Path(__file__).parents[1]

# ---- every mistake has a test ------------------------------------------------------------------------------------


def functions(file):
    """The tests of a file, and whether each is long."""
    tree = ast.parse((TESTS.parent / file).read_text())
    whole = any(
        isinstance(n, ast.Assign)
        and "pytestmark" in ast.unparse(n)
        and "mark.long" in ast.unparse(n)
        for n in tree.body
    )
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    return {
        n.name: whole or any("mark.long" in ast.unparse(d) for d in n.decorator_list) for n in found
    }


@pytest.mark.slow
def test_every_hazard_has_a_test_that_runs_when_it_should(shown):
    """Rows 1 to 27 of docs/guarantees.md; those marked F have one that `make test` runs."""
    text = (TESTS.parent / "docs" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .* \| ([FN]) \| (.*) \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 28))
    tests = 0
    for number, when, named in rows:
        found = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", named)
        long = [functions(file)[function] for file, function in found]
        assert long, f"row {number} names no test"
        assert when == "N" or not all(long), f"row {number} is tested in make test-long alone"
        tests += len(found)
    fast = sum(when == "F" for _, when, _ in rows)
    shown(
        "hazards",
        f"{len(rows)} rows, {tests} tests, {fast} rows in make test",
        "rows 1–27, each by a test",
    )


# ---- planted bugs, and kills -------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.alone
def test_planted_bugs_are_noticed(tmp_path, shown):
    table, missed, red, seconds, worked = put_in_all(tmp_path, "bugs")
    shown(
        f"planted bugs\n{table}\n  noticed",
        f"{red} of {len(BUGS)} in {seconds:.0f} s, {worked / 2:.0f} s if both cores had nothing else to do",
        "25 of 25, in 180 s",
    )
    assert not missed
    assert seconds < 180


@pytest.mark.long
@pytest.mark.alone
def test_each_line_that_privacy_rests_on_has_a_test_that_goes_red(tmp_path, shown):
    table, missed, red, seconds, _ = put_in_all(tmp_path, "lines")
    claim = f"lines marked PRIVACY, each undone (others: planted bugs)\n{table}\n  noticed"
    shown(claim, f"{red} of {len(LINES)} in {seconds:.0f} s", "every one")
    assert not missed


@pytest.mark.long
def test_50_kills(tmp_path, shown):
    """A run on digits that is killed at a random moment and goes on to its end, fifty times from the start."""
    alone, again = tmp_path / "alone", tmp_path / "again"
    alone.mkdir()
    ap.Key.generate().save(alone / "key")
    took = kills.finish(alone)
    expected = json.loads((alone / "result").read_text())
    rng, done, same, early = random.Random(50), 0, 0, 0
    while done < 50:
        shutil.rmtree(again, ignore_errors=True)
        again.mkdir()
        shutil.copy(alone / "key", again / "key")
        shutil.copy(alone / "start", again / "checkpoint")
        process = kills.start(again)
        if rng.random() < 0.9:
            kills.wait_until_ready(process)
        time.sleep(rng.random() * took * 0.8)
        if process.poll() is not None:
            early, took = early + 1, 0.9 * took  # the machine is less busy than it was at first
            assert early < 200
            continue
        process.kill()
        process.wait(timeout=60)
        done += 1
        kills.finish(again)
        ledgers = [next(folder.glob("key.*.ledger")).read_bytes() for folder in (alone, again)]
        kills.check([expected, json.loads((again / "result").read_text())], ledgers)
        same += 1
    shown(
        "SIGKILLs at random moments",
        f"{done}, {same} endings bit for bit, each step once, the same ε",
        "50, 50",
    )


# ---- an audit of a trainer, right and broken -------------------------------------------------------------------

STEPS, WHEN = 16, 5
PLAN = ap.calibrate(
    ap.design("dp-mf", steps=STEPS), noise_multiplier=1.0, clip_norm=0.5
)  # 1-Gaussian privacy
THRESHOLDS = (0.5, 0.75, 1.0, 1.5)  # fixed here, before any trial
FAULTS = {
    "none": {},
    "noise × 0.8": {"noise": 0.8},
    "an extra participation": {"when": (WHEN, WHEN + 8)},
    "sensitivity × 2": {"copies": 2},
    "no clipping": {"clip": lambda g: g},
}


def clipped(g):
    return np.clip(g, -PLAN.clip_norm, PLAN.clip_norm)


def trainer(noise=1.0, when=(WHEN,), copies=1, clip=clipped):
    """Trainings of models of one number, all at once: each trial has a coordinate of the stream to itself.

    Three examples pull each model to their own values; the canary, in steps ``when``, has a gradient of three clip
    norms. Who audits knows all but whether it was there: the released sums, and so all models and gradients.
    """
    rng = np.random.default_rng(11)
    targets = rng.normal(size=(STEPS, 3))
    taking_part = np.isin(np.arange(STEPS), when).astype(float)
    trials_of = MechanismTrials(PLAN)

    def scores(canary, trials):
        model, seen = np.zeros(trials), []
        stream = PLAN.noise(trials, key=ap.Key.generate())
        for step in range(STEPS):
            known = clip(model[None] - targets[step][:, None]).sum(axis=0)
            own = canary * taking_part[step] * copies * clip(np.float64(3 * PLAN.clip_norm))
            released = known + own + noise * stream.next()
            seen.append(released - known)
            model = model - 0.1 * released
        return trials_of.score(np.array(seen), taking_part)

    return scores


@pytest.mark.long
def test_audits_of_a_right_trainer_and_of_four_broken_ones(shown):
    claim, began, alarms, bounds = GaussianClaim(1.0), time.perf_counter(), {}, {}
    for fault, options in FAULTS.items():
        found = [
            audit(trainer(**options), claim, trials=8000, thresholds=THRESHOLDS) for _ in range(40)
        ]
        alarms[fault] = sum(f.alarm for f in found)
        bounds[fault] = [f.lower_bound for f in found]
        assert all(f.confidence == 1 - 1e-6 for f in found)
    seconds = time.perf_counter() - began
    for fault, count in alarms.items():
        asked = "no alarm in 40" if fault == "none" else "40 of 40"
        low, high = min(bounds[fault]), max(bounds[fault])
        shown(
            f"claimed μ = 1, fault: {fault}",
            f"{count} alarms of 40, μ ≥ {low:.3f} to {high:.3f}",
            asked,
        )
    shown("all audits", f"{seconds:.0f} s", "under 300 s")
    assert alarms == {fault: 0 if fault == "none" else 40 for fault in FAULTS}
    assert seconds < 300


# ---- hostile calls and files -----------------------------------------------------------------------------------


def plain_and_optimised(module, *arguments):
    """The worker as it is and under ``python -O``, side by side."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "ANTIPHASE_CACHE": "off",
        "PYTHONWARNINGS": "ignore",
    }
    workers = [
        subprocess.Popen([sys.executable, *flags, "-m", module, *map(str, each)], cwd=TESTS.parent, env=environment,
                         stdout=subprocess.PIPE, text=True)
        for flags, each in zip(((), ("-O",)), arguments, strict=True)
    ]  # fmt: skip
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
        f"{total['calls']}, of which {total['made']} fitted and {total['refused']} were refused by name; "
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
        f"{count}, of which {refused} were refused, the others hold what they say; {len(failures)} other endings, "
        f"{len(strays)} files elsewhere, at most {slowest:.1f} s, {most:.0f} MB",
        "10,000, only our errors, no hang, nothing outside, under 1 GB",
    )
    assert not failures, "\n".join(failures)
    assert not strays
    assert count == 10_000
    assert most < 1000
