"""kill -9 at any moment: the resumed run ends with the same result."""

import json
import random
import shutil
import time
from pathlib import Path

import pytest

import antiphase as ap
from antiphase.ledger.write_ahead import RECORD_SIZE
from tests.forked_script import Script

WORKER = Path(__file__).with_name("digits_worker.py")


def start(folder, often=3):
    return Script(WORKER, folder, often)


def wait_until_ready(process):
    while not process.out.endswith("\n") and process.poll() is None:  # a line may come in two parts
        time.sleep(0.002)
    assert process.out == "ready\n", process.err


def finish(folder):
    process = start(folder)
    wait_until_ready(process)
    began = time.perf_counter()
    assert process.wait(timeout=300) == 0
    return time.perf_counter() - began


def kill_and_resume(tmp_path, kills, seed):
    """The same run twice under one key: uninterrupted, and killed several times."""
    left_alone, killed = tmp_path / "a", tmp_path / "b"
    left_alone.mkdir()
    killed.mkdir()
    ap.Key.generate().save(left_alone / "key")
    took = finish(left_alone)
    shutil.copy(left_alone / "key", killed / "key")
    shutil.copy(left_alone / "start", killed / "checkpoint")
    # The folder as before the first step: the key's file names the ledger, which is empty.
    ledger = next(left_alone.glob("key.*.ledger")).name
    (killed / ledger).touch(mode=0o600)
    rng, early, done = random.Random(seed), 0, 0
    while done < kills:
        process = start(killed)
        if rng.random() < 0.8:
            wait_until_ready(process)  # during training; otherwise during start-up
        time.sleep(rng.random() * took * 0.9)
        if process.poll() is None:
            process.kill()
            done += 1
        else:
            early += 1
            (killed / "result").unlink(missing_ok=True)
            shutil.copy(
                left_alone / "start", killed / "checkpoint"
            )  # finished: run it again on the same ledger
            assert early < kills
        process.wait(timeout=60)
    finish(killed)
    results = [json.loads((folder / "result").read_text()) for folder in (left_alone, killed)]
    ledgers = [next(folder.glob("key.*.ledger")).read_bytes() for folder in (left_alone, killed)]
    return results, ledgers


def check(results, ledgers):
    assert results[0] == results[1], "weights bit for bit, and the same ε"
    assert len(ledgers[0]) == 72 * RECORD_SIZE
    assert ledgers[0] == ledgers[1], "each step once, and the same step"
    assert results[0]["epsilon"] <= 8.0
    assert results[0]["spent"] == results[0]["epsilon"]


@pytest.mark.slow
def test_two_kills(tmp_path):
    results, ledgers = kill_and_resume(tmp_path, 2, seed=2)
    check(results, ledgers)
