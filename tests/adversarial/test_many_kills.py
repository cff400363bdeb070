"""Training killed at random moments, many times."""

import json
import random
import shutil
import time

import pytest

import antiphase as ap
from antiphase.ledger.write_ahead import RECORD_SIZE
from tests.adversarial import test_kills as kills


@pytest.mark.issue(6)
@pytest.mark.slow
@pytest.mark.long
def test_twenty_kills(shown, tmp_path):
    results, ledgers = kills.kill_and_resume(tmp_path, 20, seed=20)
    same = "bit-identical" if results[0]["weights"] == results[1]["weights"] else "DIFFERENT"
    steps = [len(ledger) // RECORD_SIZE for ledger in ledgers]
    shown(
        "20 SIGKILLs at random moments of a run on digits",
        f"weights {same}, ε {results[0]['epsilon']:.6f} and {results[1]['epsilon']:.6f}, "
        f"{steps[1]} steps recorded",
        "bit-identical, the same ε, each of 72 steps once",
    )
    kills.check(results, ledgers)


@pytest.mark.issue(11)
@pytest.mark.long
def test_50_kills(tmp_path, shown):
    """Fifty runs on digits, each killed at a random moment and continued to its end."""
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
            early, took = early + 1, 0.9 * took  # the machine is less busy than before
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
