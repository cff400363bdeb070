"""The write-ahead ledger: no row of noise is released with two sums, by any process."""

import hashlib
import os
import time

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import ReplayError
from antiphase.ledger.write_ahead import RECORD_SIZE, WriteAheadLedger


def bytes_of(*sums):
    return [memoryview(np.array(s, np.float32)).cast("B") for s in sums]


def test_a_row_is_released_with_one_sum_only(tmp_path):
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
    assert path.stat().st_size == 3 * RECORD_SIZE
    assert path.stat().st_mode & 0o077 == 0
    again = WriteAheadLedger(ap.Key.load(tmp_path / "key"), run)
    assert len(again) == 3
    with pytest.raises(ReplayError):
        again.record(2, views)
    # A crash in the middle of a record: its row was not drawn yet.
    for part in (b"cut off", bytes(RECORD_SIZE - 1)):
        with open(path, "ab") as file:
            file.write(part)
        after_the_crash = WriteAheadLedger(key, run)
        assert len(after_the_crash) == 3
    after_the_crash.record(3, views)
    assert path.stat().st_size == 4 * RECORD_SIZE, "the record that was cut off is gone"
    WriteAheadLedger(key, run).record(3, views)


def test_two_processes_that_resume_release_a_row_once(tmp_path):
    """Both have the key and are at the same step: the second one must have the same sum."""
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
    assert (tmp_path / f"key.{run}.0.ledger").stat().st_size == 3 * RECORD_SIZE
    for size in (3 * RECORD_SIZE - 1, RECORD_SIZE):
        os.truncate(tmp_path / f"key.{run}.0.ledger", size)
        with pytest.raises(ReplayError, match="became shorter"):
            one.record(3, bytes_of([5.0]))


def test_eight_processes_at_once_agree_on_every_row(tmp_path):
    """Each tries to release every step with its own sums: one succeeds, and the file is complete.

    They pause between reading and writing, so that they would collide without a lock.
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
            write = ledger._append
            ledger._append = lambda mark, write=write: time.sleep(0.001) or write(mark)
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
    """A full disk, before or within a record: the step is refused, and not recorded."""
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
        assert path.stat().st_size == RECORD_SIZE
    ledger._file = file
    ledger.record(1, bytes_of([3.0]))
    assert path.stat().st_size == 2 * RECORD_SIZE


def test_the_format_of_records_is_fixed(tmp_path):
    """16 bytes of BLAKE2b of step and sums, keyed by a subkey, for the sake of later versions."""
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
def test_steps_before_the_first_cannot_be_released(tmp_path, saved):
    key, run = ap.Key.generate(), "7" * 32
    if saved:
        key.save(tmp_path / "key")
    assert WriteAheadLedger.released_steps(key, run) is None
    for _ in range(2):  # the second time it exists already
        ledger = WriteAheadLedger(key, run, first=2)
        assert len(ledger) == WriteAheadLedger.released_steps(key, run) == 2
    with pytest.raises(ReplayError, match="released before"):
        ledger.record(1, bytes_of([0.0]))
    with pytest.raises(ReplayError, match="only 2 steps"):
        ledger.record(3, bytes_of([0.0]))
    ledger.record(2, bytes_of([0.0]))
    WriteAheadLedger(key, run, rank=1).record(0, bytes_of([0.0]))
    WriteAheadLedger(key, "8" * 32)
    assert WriteAheadLedger.released_steps(key, run) == 3, "the maximum over its processes"
    assert WriteAheadLedger.released_steps(key, "8" * 32) == 0
    assert WriteAheadLedger.released_steps(key, "9" * 32) is None
    assert len(WriteAheadLedger(key, run, first=2)) == 3
    with pytest.raises(ReplayError, match="another sum"):
        WriteAheadLedger(key, run).record(2, bytes_of([1.0]))


def test_after_sync_records_are_on_the_disk(tmp_path, monkeypatch):
    key, synced = ap.Key.generate(), []
    WriteAheadLedger(key, "1" * 32).sync()  # a key without a file has nothing to flush
    key.save(tmp_path / "key")
    ledger = WriteAheadLedger(key, "1" * 32)
    ledger.record(0, bytes_of([1.0]))
    assert (tmp_path / f"key.{'1' * 32}.0.ledger").stat().st_size == RECORD_SIZE, "not buffered"
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    ledger.sync()
    assert synced == [RECORD_SIZE]


def test_records_reveal_nothing_without_the_key():
    """The same sums under two keys, runs, ranks or steps have different records."""
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
def test_a_ledger_that_disappears_while_in_use_stops_the_run(tmp_path, how):
    """The next process would find another file, or none, and release the same rows again."""
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
