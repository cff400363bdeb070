"""Both ledgers, against oracles that know nothing of how they are kept."""

import hashlib
import itertools
import os
import time

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import ParticipationError, ReplayError
from antiphase.ledger.participation import ParticipationLedger
from antiphase.ledger.write_ahead import RECORD, WriteAheadLedger


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
        ledger, histories = (
            ParticipationLedger(participation, examples),
            [[] for _ in range(examples)],
        )
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
                assert all((after[name] == before[name]).all() for name in before), (
                    "a refusal leaves no trace"
                )
                break
    assert 1_000 < refused < 9_000, "both outcomes were tried"


def test_eight_bytes_an_example():
    ledger = ParticipationLedger(ap.epochs(3, 7), 1000)
    assert ledger.when.nbytes + ledger.count.nbytes == 8000
    with pytest.raises(ParticipationError, match="does not have"):
        ledger.check(0, np.array([1000]))
    with pytest.raises(ParticipationError, match="1000 examples"):
        ParticipationLedger(ap.epochs(3, 7), 999).restore(ledger.state())


def test_examples_that_are_not_there_are_refused_and_none_at_all_are_fine():
    ledger = ParticipationLedger(ap.once(), 3)
    ledger.check(0, np.array([], dtype=np.int64))
    ledger.check(0, np.array([0, 2]))
    for outside in ([-1], [3], [1, -1], [-3, 2], [0, 3]):
        with pytest.raises(ParticipationError, match="dataset of 3 does not have"):
            ledger.check(0, np.array(outside))


def test_a_ledger_that_was_restored_goes_on_alike():
    ledger = ParticipationLedger(ap.min_separation(2, 3), 4)
    ledger.record(5, np.array([1, 2]))
    state = ledger.state()
    ledger.record(8, np.array([1]))
    again = ParticipationLedger(ap.min_separation(2, 3), 4)
    again.restore(state)
    assert again.count.tolist() == [0, 1, 1, 0], "what came after the state is not in it"
    assert again.when.nbytes + again.count.nbytes == 8 * 4
    again.check(8, np.array([0, 1, 2, 3]))
    with pytest.raises(ParticipationError, match="less than 3 steps after"):
        again.check(7, np.array([2]))
    again.record(8, np.array([0, 1]))
    assert state["count"].tolist() == [0, 1, 1, 0], "nor does it change the state"
    for part in ("when", "count"):
        with pytest.raises(ParticipationError, match="has 5 examples, and the dataset has 4"):
            again.restore({**state, part: np.zeros(5, np.int32)})
        assert again.count.tolist() == [1, 2, 1, 0], "nothing was changed"


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
    for part in (
        b"cut off",
        bytes(RECORD - 1),
    ):  # a crash in the middle of a record: its row was not drawn yet
        with open(path, "ab") as file:
            file.write(part)
        after_the_crash = WriteAheadLedger(key, run)
        assert len(after_the_crash) == 3
    after_the_crash.record(3, views)
    assert path.stat().st_size == 4 * RECORD, "nothing of the record that was cut off is left"
    WriteAheadLedger(key, run).record(3, views)


def test_two_processes_that_go_on_release_a_row_once(tmp_path):
    """Both have the key and stand at the same step: whoever comes second must have the same sum."""
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    run = key.start_run("m")
    one, other = WriteAheadLedger(key, run), WriteAheadLedger(ap.Key.load(tmp_path / "key"), run)
    one.record(0, bytes_of([1.0]))
    with pytest.raises(ReplayError, match="another sum"):
        other.record(0, bytes_of([2.0]))
    other.record(0, bytes_of([1.0]))
    other.record(1, bytes_of([3.0]))
    assert len(one) == 1
    with pytest.raises(ReplayError, match="another sum"):
        one.record(1, bytes_of([4.0]))
    one.record(2, bytes_of([5.0]))
    assert (tmp_path / f"key.{run}.0.ledger").stat().st_size == 3 * RECORD
    for size in (3 * RECORD - 1, RECORD):
        os.truncate(tmp_path / f"key.{run}.0.ledger", size)
        with pytest.raises(ReplayError, match="became shorter"):
            one.record(3, bytes_of([5.0]))


def test_eight_processes_at_once_agree_on_every_row(tmp_path):
    """Each tries to release steps with sums of its own: of every step one gets through, and the file is whole.

    They take their time between reading and writing, so that without a lock they would meet.
    """
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    run, steps = key.start_run("m"), 25
    readers = []
    for process in range(8):
        reader, writer = os.pipe()
        readers.append(reader)
        if not os.fork():
            ledger, won = WriteAheadLedger(ap.Key.load(tmp_path / "key"), run), bytearray(steps)
            write = ledger._write
            ledger._write = lambda mark, write=write: time.sleep(0.001) or write(mark)
            for step in range(steps):
                try:
                    ledger.record(step, bytes_of([float(process)]))
                    won[step] = 1
                except ReplayError:
                    pass
            os.write(writer, bytes(won))
            os._exit(0)
        os.close(writer)
    won = np.array([list(os.read(reader, steps)) for reader in readers])
    assert all(os.wait()[1] == 0 for _ in range(8))
    assert (won.sum(axis=0) == 1).all()
    assert len(WriteAheadLedger(key, run)) == steps


def test_what_is_not_on_the_disk_was_not_recorded(tmp_path, monkeypatch):
    """A full disk, at once or in the middle of a record: the step is refused, and refused again by the next process."""
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    run = key.start_run("m")
    path, ledger = tmp_path / f"key.{run}.0.ledger", WriteAheadLedger(key, run)
    ledger.record(0, bytes_of([1.0]))

    class Full:
        def __init__(self, file, room):
            self.file, self.room = file, room

        def write(self, data):
            if not self.room:
                raise OSError(28, "No space left on device")
            return self.file.write(data[: self.room])

        def __getattr__(self, name):
            return getattr(self.file, name)

    file = ledger._file
    for room in (0, 7):
        ledger._file = Full(file, room)
        with pytest.raises(OSError, match=r"[Nn]o space|disk is full"):
            ledger.record(1, bytes_of([2.0]))
        assert len(ledger) == 1
        assert path.stat().st_size == RECORD
    ledger._file = file
    ledger.record(1, bytes_of([3.0]))
    assert path.stat().st_size == 2 * RECORD


def bytes_of(*sums):
    return [memoryview(np.array(s, np.float32)).cast("B") for s in sums]


def test_records_are_what_later_versions_will_look_for(tmp_path):
    """BLAKE2b of the step and the sums, keyed by a subkey, 16 bytes of it: by the standard library alone."""
    key, run = ap.Key.generate(), "5" * 32
    key.save(tmp_path / "key")
    ledger = WriteAheadLedger(key, run, rank=3)
    for step in range(2):
        ledger.record(step, bytes_of([1.0, 2.0], [3.0]))
    secret = key.subkey("ledger", run, "3").to_bytes(16, "little")
    sums = np.array([1, 2, 3], "<f4").tobytes()
    marks = [
        hashlib.blake2b(step.to_bytes(8, "little") + sums, key=secret, digest_size=16).digest()
        for step in range(2)
    ]
    assert (tmp_path / f"key.{run}.3.ledger").read_bytes() == b"".join(marks)
    assert len(WriteAheadLedger(key, run)) == 0, "rank 0 has a file of its own"
    assert (tmp_path / f"key.{run}.0.ledger").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("saved", [True, False])
def test_steps_before_the_first_are_not_this_runs_to_release(tmp_path, saved):
    key, run = ap.Key.generate(), "7" * 32
    if saved:
        key.save(tmp_path / "key")
    assert WriteAheadLedger.drawn_in(key, run) is None
    for _ in range(2):  # the second time it is there already
        ledger = WriteAheadLedger(key, run, first=2)
        assert len(ledger) == WriteAheadLedger.drawn_in(key, run) == 2
    with pytest.raises(ReplayError, match="released before"):
        ledger.record(1, bytes_of([0.0]))
    with pytest.raises(ReplayError, match="only 2 steps"):
        ledger.record(3, bytes_of([0.0]))
    ledger.record(2, bytes_of([0.0]))
    WriteAheadLedger(key, run, rank=1).record(0, bytes_of([0.0]))
    WriteAheadLedger(key, "8" * 32)
    assert WriteAheadLedger.drawn_in(key, run) == 3, "the most of all its processes"
    assert WriteAheadLedger.drawn_in(key, "8" * 32) == 0
    assert WriteAheadLedger.drawn_in(key, "9" * 32) is None
    assert len(WriteAheadLedger(key, run, first=2)) == 3
    with pytest.raises(ReplayError, match="another sum"):
        WriteAheadLedger(key, run).record(2, bytes_of([1.0]))


def test_what_is_recorded_is_on_the_disk_when_it_says_so(tmp_path, monkeypatch):
    key, synced = ap.Key.generate(), []
    WriteAheadLedger(key, "1" * 32).sync()  # of a key without a file there is nothing to write
    key.save(tmp_path / "key")
    ledger = WriteAheadLedger(key, "1" * 32)
    ledger.record(0, bytes_of([1.0]))
    assert (tmp_path / f"key.{'1' * 32}.0.ledger").stat().st_size == RECORD, (
        "without a buffer of ours"
    )
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    ledger.sync()
    assert synced == [RECORD]


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


@pytest.mark.parametrize("how", ["deleted", "replaced by a copy"])
def test_a_ledger_that_was_taken_away_while_in_use_lets_nothing_out(tmp_path, how):
    """The next process would find another file, or none, and release rows of this one again."""
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    run = key.start_run("m")
    views = [memoryview(np.ones(3, np.float32)).cast("B")]
    ledger = WriteAheadLedger(key, run)
    ledger.record(0, views)
    path = tmp_path / f"key.{run}.0.ledger"
    content = path.read_bytes()
    if how == "deleted":
        path.unlink()
    else:
        (tmp_path / "copy").write_bytes(content)
        os.replace(tmp_path / "copy", path)
    with pytest.raises(ReplayError, match="deleted or replaced while it was in use"):
        ledger.record(1, views)
