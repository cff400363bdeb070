"""Both ledgers, against oracles that know nothing of how they are kept."""

import itertools

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import ParticipationError, ReplayError
from antiphase.ledger import RECORD, ParticipationLedger, WriteAheadLedger


def allowed(participation, history):
    """Whether one example may take part in these steps: from the definition, pattern by pattern."""
    if participation.describe() == "once":
        return len(history) <= 1
    if len(history) > participation.count:
        return False
    if hasattr(participation, "every"):
        return len({t % participation.every for t in history}) <= 1
    return all(b - a >= participation.apart for a, b in itertools.pairwise(history))


def schedule(rng, participation, examples, steps):
    """Mostly as planned, sometimes not."""
    every = getattr(participation, "every", getattr(participation, "apart", steps))
    order = rng.permutation(examples)
    size = -(-examples // max(every, 1))
    for t in range(steps):
        batch = list(order[(t % every) * size : (t % every + 1) * size])
        if rng.random() < 0.05:
            batch.append(int(rng.integers(examples)))
        yield t, np.array(batch, dtype=np.int64)


@pytest.mark.slow
def test_10000_schedules_against_an_oracle():
    rng = np.random.default_rng(8)
    refused = 0
    for _ in range(10_000):
        k, b = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        participation = [ap.once(), ap.epochs(k, b), ap.min_separation(k, b)][rng.integers(3)]
        examples = int(rng.integers(1, 9))
        ledger, histories = ParticipationLedger(participation, examples), [[] for _ in range(examples)]
        for t, batch in schedule(rng, participation, examples, int(rng.integers(1, 10))):
            before = ledger.state()
            fine = len(set(batch.tolist())) == len(batch) and all(
                allowed(participation, [*histories[i], t]) for i in batch
            )
            if fine:
                ledger.check(t, batch)
                ledger.record(t, batch)
                for i in batch:
                    histories[i].append(t)
            else:
                refused += 1
                with pytest.raises(ParticipationError):
                    ledger.check(t, batch)
                after = ledger.state()
                assert all((after[name] == before[name]).all() for name in before), "a refusal leaves no trace"
                break
    assert 1_000 < refused < 9_000, "both outcomes were tried"


def test_eight_bytes_an_example():
    ledger = ParticipationLedger(ap.epochs(3, 7), 1000)
    assert ledger.when.nbytes + ledger.count.nbytes == 8000
    with pytest.raises(ParticipationError, match="does not have"):
        ledger.check(0, np.array([1000]))
    with pytest.raises(ParticipationError, match="1000 examples"):
        ParticipationLedger(ap.epochs(3, 7), 999).restore(ledger.state())


def test_a_row_goes_out_with_one_sum_only(tmp_path):
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    run = key.start_run("m")
    sums = [np.arange(5.0).astype(np.float32), np.ones(3, np.float32)]
    views = [memoryview(s).cast("B") for s in sums]
    ledger = WriteAheadLedger(key, run)
    for step in range(3):
        ledger.record(step, views)
    ledger.record(1, views)  # the same again is the same release
    sums[0][2] = np.nextafter(sums[0][2], np.float32(9))
    with pytest.raises(ReplayError, match="another sum"):
        ledger.record(1, views)
    with pytest.raises(ReplayError, match="only 3 steps"):
        ledger.record(7, views)
    path = tmp_path / f"key.{run}.0.ledger"
    assert path.stat().st_size == 3 * RECORD
    assert path.stat().st_mode & 0o077 == 0
    again = WriteAheadLedger(ap.Key.load(tmp_path / "key"), run)
    assert len(again) == 3
    with pytest.raises(ReplayError):
        again.record(2, views)
    with open(path, "ab") as file:
        file.write(b"cut off")  # a crash in the middle of a record: its row was not drawn yet
    assert len(WriteAheadLedger(key, run)) == 3


def test_records_tell_nothing_without_the_key():
    """Keyed: the same sums under two keys, runs, ranks or steps have nothing in common."""
    views = [memoryview(np.zeros(4, np.float32)).cast("B")]
    records = set()
    for key in (ap.Key.insecure(1), ap.Key.insecure(2)):
        for run in ("0" * 32, "1" * 32):
            for rank in (0, 1):
                ledger = WriteAheadLedger(key, run, rank)
                for step in range(3):
                    ledger.record(step, views)
                records |= set(ledger._records)
    assert len(records) == 2 * 2 * 2 * 3
