"""Attacks on keys and ledgers that would release a row of noise twice.

Two processes, or two names of one key: refused, or both use one ledger, before any release.
"""

import errno
import fcntl
import multiprocessing
import os
import secrets
import stat
import subprocess
import sys

import numpy as np
import pytest

import antiphase as ap
from antiphase._util import locks
from antiphase.errors import KeyFileError, ReplayError, StateError
from antiphase.ledger import write_ahead as ledgers
from antiphase.ledger.write_ahead import RECORD_SIZE, WriteAheadLedger
from tests.federated.setting import mechanism as federated_mechanism
from tests.federated.setting import server, train

pytestmark = pytest.mark.issue(21)

MECHANISM = ap.calibrate(ap.design("dp-mf", steps=6), noise_multiplier=1.0, delta=1e-6)


def sums(*values):
    return [memoryview(np.array(values, np.float32)).cast("B")]


def in_a_fork(attempt):
    """The result of ``attempt`` in a forked process, or the name and text of its error."""
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def child():
        try:
            writer.send(("done", attempt()))
        except Exception as error:
            writer.send((type(error).__name__, str(error)))

    process = context.Process(target=child)
    process.start()
    process.join(60)
    assert reader.poll(), "the child ended without an answer"
    return reader.recv()


@pytest.fixture
def key(tmp_path):
    ap.Key.generate().save(tmp_path / "key")
    return ap.Key.load(tmp_path / "key")


# Forks


def test_a_fork_with_a_key_in_memory_releases_no_row_of_its_parent(shown):
    """Row 40: ledger, stream and run of a forked process are copies; their use is refused."""
    key = ap.Key.generate()
    stream = MECHANISM.noise(4, key=key)
    ledger = WriteAheadLedger(key, stream.run)
    attempts = {
        "record in the ledger": lambda: ledger.record(0, sums(2.0)),
        "draw a row": lambda: stream.next().tolist(),
        "skip a row": lambda: stream.skip(1),
        "begin a row ahead": lambda: stream.prepare(),
        "open the run's ledger": lambda: WriteAheadLedger(key, stream.run),
        "resume the stream": lambda: MECHANISM.resume(stream.state(), key=key).next().tolist(),
    }
    answers = {name: in_a_fork(attempt) for name, attempt in attempts.items()}
    refused = [name for name, (kind, _) in answers.items() if kind == "ReplayError"]
    shown("uses of a parent's run in a fork that are refused", len(refused), len(attempts))
    assert refused == list(attempts), answers
    assert all("Nothing was" in text for _, text in answers.values())
    ledger.record(0, sums(1.0))
    assert len(stream.next()) == 4, "the parent goes on"


def test_a_run_named_before_the_fork_belongs_to_the_process_that_made_the_key():
    """Row 40: the run was not in use at the fork, and both processes would have begun it."""
    key, run = ap.Key.generate(), "ab" * 16
    kind, text = in_a_fork(lambda: MECHANISM.noise(4, key=key, run=run).next().tolist())
    assert kind == "ReplayError"
    assert "Key.load_or_create" in text
    kind, text = in_a_fork(lambda: WriteAheadLedger(key, run).record(0, sums(2.0)))
    assert kind == "ReplayError"
    WriteAheadLedger(key, run).record(0, sums(1.0))
    assert len(MECHANISM.noise(4, key=key, run=run).next()) == 4


def test_a_new_run_in_a_fork_has_noise_of_its_own():
    """Row 40: a fork may begin a run of its own, with a random id."""
    key = ap.Key.generate()

    def begin():
        stream = MECHANISM.noise(4, key=key)
        WriteAheadLedger(key, stream.run).record(0, sums(1.0))
        return stream.run, stream.next().tolist()

    def begin_in_a_fork():
        secrets.token_hex = lambda size: os.urandom(
            size
        ).hex()  # not the generator of the tests, which is copied
        return begin()

    kind, (run, row) = in_a_fork(begin_in_a_fork)
    own = begin()
    assert kind == "done"
    assert run != own[0]
    assert row != own[1]


def test_a_fork_with_a_key_in_a_file_shares_the_ledger(key, tmp_path):
    """Row 40: the open ledger is refused in a fork; opened again, it has the parent's releases."""
    run = key.start_run("m")
    ledger = WriteAheadLedger(key, run)
    ledger.record(0, sums(1.0))
    kind, text = in_a_fork(lambda: ledger.record(1, sums(2.0)))
    assert kind == "ReplayError"
    assert "forked process" in text
    again = lambda value: WriteAheadLedger(key, run).record(0, sums(value))  # noqa: E731
    assert in_a_fork(lambda: again(2.0))[0] == "ReplayError"
    assert in_a_fork(lambda: again(1.0)) == ("done", None), "the same sum is the same release"


# Names of the key file


def test_links_and_relative_paths_lead_to_one_ledger(key, tmp_path, monkeypatch, shown):
    """Row 40: under any name of the key and from any folder, a row has one sum."""
    run = key.start_run("m")
    WriteAheadLedger(key, run).record(0, sums(1.0))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "key")
    (tmp_path / "folder").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = ["key", "./elsewhere/../key", "elsewhere/link", "folder/key", str(tmp_path / "key")]
    loaded = [ap.Key.load(name) for name in names] + [ap.Key.load_or_create("elsewhere/link")]
    monkeypatch.chdir(tmp_path / "elsewhere")
    refused = 0
    for other in loaded:
        with pytest.raises(ReplayError, match="another sum"):
            WriteAheadLedger(other, run).record(0, sums(2.0))
        refused += 1
    shown("second sums for one row refused, by name of the key", refused, len(loaded))
    assert len(list(tmp_path.rglob("*.ledger"))) == 1


def test_a_key_saved_by_a_relative_path_stays_where_it_is(tmp_path, monkeypatch):
    """Row 40: `save` and then `chdir`: ledgers stay beside the key."""
    monkeypatch.chdir(tmp_path)
    key = ap.Key.generate()
    key.save("key")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = key.start_run("m")
    WriteAheadLedger(key, run).record(0, sums(1.0))
    assert [path.parent for path in tmp_path.rglob("*.ledger")] == [tmp_path]
    assert [record["run"] for record in ap.Key.load(tmp_path / "key").runs()] == [run]


def test_a_second_hard_link_is_refused(key, tmp_path):
    """Row 40: hard links cannot be resolved to one name; each would have its own ledgers."""
    os.link(tmp_path / "key", tmp_path / "other")
    for name in ("key", "other"):
        with pytest.raises(KeyFileError, match=r"2 hard links.*Nothing was released"):
            ap.Key.load(tmp_path / name)
    (tmp_path / "other").unlink()
    ap.Key.load(tmp_path / "key")


def test_dangling_links_are_refused_by_name(tmp_path):
    """Row 40: a dangling link must not become a second key."""
    (tmp_path / "lost").symlink_to(tmp_path / "absent")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(KeyFileError, match="symbolic link to"):
        ap.Key.load_or_create(tmp_path / "lost")
    with pytest.raises((KeyFileError, OSError), match=r"link to itself|symbolic links"):
        ap.Key.load(tmp_path / "circle")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("path", [1.3e197, [13], b"key", True, object()])
def test_arguments_that_are_not_paths_are_refused_by_name(path):
    """Row 40: pathlib's own error does not mention keys."""
    for load in (ap.Key.load, ap.Key.load_or_create, ap.Key.generate().save):
        with pytest.raises(TypeError, match=r"path = .* must be the path of a key file"):
            load(path)


def test_a_path_with_a_null_character_is_refused_by_name():
    """Row 40: so is a string that is no file name."""
    with pytest.raises(ValueError, match="null character"):
        ap.Key.load_or_create("a\0b")


# Missing ledgers


def test_a_ledger_that_was_deleted_is_not_made_anew(key, tmp_path):
    """Row 40: an empty ledger in its place would release the rows with other sums."""
    run = key.start_run("m")
    WriteAheadLedger(key, run).record(0, sums(1.0))
    path = tmp_path / f"key.{run}.0.ledger"
    kept = path.read_bytes()
    path.unlink()
    assert WriteAheadLedger.has_missing_file(key, run)
    for loaded in (key, ap.Key.load(tmp_path / "key")):
        with pytest.raises(
            ReplayError, match=r"ledger of this run is missing.*Nothing was released"
        ):
            WriteAheadLedger(loaded, run)
    assert not path.exists()
    path.write_bytes(kept)
    with pytest.raises(ReplayError, match="another sum"):
        WriteAheadLedger(key, run).record(0, sums(2.0))


def test_a_key_copied_without_its_ledgers_is_refused(key, tmp_path):
    """Row 40: the key file records that there is a ledger."""
    run = key.start_run("m")
    WriteAheadLedger(key, run).record(0, sums(1.0))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "key").write_bytes((tmp_path / "key").read_bytes())
    (tmp_path / "copy" / "key").chmod(0o600)
    with pytest.raises(ReplayError, match="copy them together"):
        WriteAheadLedger(ap.Key.load(tmp_path / "copy" / "key"), run)


@pytest.mark.parametrize("how", ["deleted", "replaced by a copy", "replaced by a link"])
def test_a_ledger_that_is_taken_away_in_use_stops_the_run(key, tmp_path, how):
    """Row 40: the next process cannot read a file that has no name any more."""
    run = key.start_run("m")
    ledger, path = WriteAheadLedger(key, run), tmp_path / f"key.{run}.0.ledger"
    ledger.record(0, sums(1.0))
    kept = path.read_bytes()
    path.unlink()
    if how == "replaced by a copy":
        path.write_bytes(kept)
    elif how == "replaced by a link":
        (tmp_path / "other").write_bytes(kept)
        path.symlink_to(tmp_path / "other")
    for step in (0, 1):
        with pytest.raises(ReplayError, match="deleted or replaced"):
            ledger.record(step, sums(1.0))
    assert len(ledger) == 1


def test_a_ledger_behind_a_link_is_not_opened(key, tmp_path):
    """Row 40: the target of a link could be replaced without notice."""
    run = key.start_run("m")
    (tmp_path / "other").touch()
    (tmp_path / f"key.{run}.0.ledger").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        WriteAheadLedger(key, run)


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o601, 0o600])
def test_a_ledger_is_its_owners_alone(key, tmp_path, mode):
    """Row 40: who can write the ledger can cause rows to be released again."""
    run = key.start_run("m")
    path = tmp_path / f"key.{run}.0.ledger"
    path.touch()
    path.chmod(mode)
    WriteAheadLedger(key, run)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_no_ledger_is_refused_unread(key, tmp_path, monkeypatch):
    """Row 40: more records than any run has steps."""
    monkeypatch.setattr(ledgers, "MAX_STEPS", 4)
    run = key.start_run("m")
    path = tmp_path / f"key.{run}.0.ledger"
    path.write_bytes(bytes(4 * RECORD_SIZE))
    path.chmod(0o600)
    ledger = WriteAheadLedger(key, run)
    assert len(ledger) == 4
    path.write_bytes(bytes(4 * RECORD_SIZE + 1))
    for attempt in (lambda: WriteAheadLedger(key, run), lambda: ledger.record(0, sums(1.0))):
        with pytest.raises(ReplayError, match="more than a ledger of 4 steps has"):
            attempt()


def test_runs_from_before_the_file_do_not_go_on_from_it(tmp_path):
    """Row 40: their ledgers are only in memory."""
    key = ap.Key.generate()
    run = key.start_run("m")
    key.save(tmp_path / "key")
    with pytest.raises(KeyFileError, match=r"before Key\.save"):
        ap.Key.load(tmp_path / "key").check_run(run)


def test_a_fingerprint_of_data_reveals_nothing_without_the_key():
    """G11: it is keyed; the same data under another key have another fingerprint."""
    parts = [b"some", b"data"]
    one, other = ap.Key.generate(), ap.Key.generate()
    assert one.data_fingerprint(parts) == one.data_fingerprint(list(parts))
    assert one.data_fingerprint(parts) != other.data_fingerprint(parts)
    assert one.data_fingerprint(parts) != one.data_fingerprint([b"somed", b"ata"])


def test_a_federated_folder_without_checkpoint_and_ledger_is_refused(tmp_path):
    """Row 40: past releases are not forgotten with their records."""
    m = federated_mechanism()
    s = train(server(m, folder=tmp_path), until=2)
    s.close()
    (tmp_path / "checkpoint").unlink()
    for path in tmp_path.glob("key.*.ledger"):
        path.unlink()
    with pytest.raises(
        ReplayError, match=r"checkpoint and ledger are missing.*Nothing was released"
    ):
        server(m, folder=tmp_path)


# Disks without locks


def no_locks(code=errno.ENOTSUP):
    def flock(handle, operation):
        raise OSError(code, os.strerror(code))

    return flock


def test_without_flock_processes_take_turns_by_a_lock_file(key, tmp_path, monkeypatch, shown):
    """Row 40: four processes with different sums on a disk without locks: one sum per row."""
    run, steps, processes = key.start_run("m"), 12, 4
    code = (
        "import fcntl, os, sys, time\n"
        "def flock(*_): raise OSError(95, 'not supported')\n"
        "fcntl.flock = flock\n"
        "import antiphase as ap\n"
        "from antiphase.errors import ReplayError\n"
        "from antiphase.ledger import WriteAheadLedger\n"
        "path, run, me, steps = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])\n"
        "import numpy as np\n"
        "ledger, won = WriteAheadLedger(ap.Key.load(path), run), ''\n"
        "write = ledger._append\n"
        "ledger._append = lambda mark: time.sleep(0.01) or write(mark)\n"
        "for step in range(steps):\n"
        "    try:\n"
        "        ledger.record(step, [memoryview(np.array([me], np.float32)).cast('B')])\n"
        "        won += '1'\n"
        "    except ReplayError:\n"
        "        won += '0'\n"
        "print(won)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "key"), run]
    workers = [
        subprocess.Popen([*command, str(i), str(steps)], stdout=subprocess.PIPE, text=True)
        for i in range(processes)
    ]
    outcomes = [worker.communicate(timeout=120)[0].strip() for worker in workers]
    won = np.array([[int(c) for c in outcome] for outcome in outcomes])
    shown(
        "sums released for a row, at most and at least",
        f"{won.sum(0).max()}, {won.sum(0).min()}",
        "1, 1",
    )
    assert won.shape == (processes, steps)
    assert (won.sum(axis=0) == 1).all()
    assert (tmp_path / f"key.{run}.0.ledger").stat().st_size == steps * RECORD_SIZE
    assert not list(tmp_path.glob("*.lock"))


def test_without_flock_a_held_lock_file_stops_the_run(key, tmp_path, monkeypatch):
    """Row 40: a process without the lock file releases nothing and names the remedy."""
    run = key.start_run("m")
    ledger = WriteAheadLedger(key, run)
    monkeypatch.setattr(locks, "LOCK_TIMEOUT", 0.05)
    lock = locks.lock_path(tmp_path / f"key.{run}.0.ledger")
    lock.touch()
    with pytest.raises(ReplayError, match=r"Nothing was released.*delete the lock"):
        ledger.record(0, sums(1.0))  # this disk has locks, but another process used a lock file
    monkeypatch.setattr(fcntl, "flock", no_locks())
    with pytest.raises(ReplayError, match=r"Nothing was released.*delete the lock"):
        ledger.record(0, sums(1.0))
    assert len(ledger) == 0
    lock.unlink()
    ledger.record(0, sums(1.0))
    assert not lock.exists()


@pytest.mark.parametrize("has_locks", [True, False])
def test_without_flock_every_record_is_written_out(key, monkeypatch, has_locks):
    """Row 40: on such a disk other machines may see a record only after it is flushed."""
    ledger, synced = WriteAheadLedger(key, key.start_run("m")), []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    if not has_locks:
        monkeypatch.setattr(fcntl, "flock", no_locks())
    ledger.record(0, sums(1.0))
    assert synced == ([] if has_locks else [RECORD_SIZE])


def test_a_lock_file_that_disappears_stops_the_run(key, tmp_path, monkeypatch):
    """Row 40: another process may have taken the row too."""
    run = key.start_run("m")
    ledger = WriteAheadLedger(key, run)
    monkeypatch.setattr(fcntl, "flock", no_locks())
    lock = locks.lock_path(tmp_path / f"key.{run}.0.ledger")
    write = ledger._append
    ledger._append = lambda mark: (lock.unlink(), write(mark))
    with pytest.raises(ReplayError, match=r"lock file was deleted.*Nothing was released"):
        ledger.record(0, sums(1.0))


def test_a_lock_that_fails_for_another_reason_is_an_error(key, monkeypatch):
    """Row 40: an I/O error of a lock does not mean that the disk has no locks."""
    ledger = WriteAheadLedger(key, key.start_run("m"))
    monkeypatch.setattr(fcntl, "flock", no_locks(errno.EIO))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        ledger.record(0, sums(1.0))
    assert len(ledger) == 0


def test_without_flock_two_federated_servers_do_not_share_a_folder(tmp_path, monkeypatch):
    """Row 40: both resume from one checkpoint, and would release a row with two sums."""
    monkeypatch.setattr(fcntl, "flock", no_locks())
    m = federated_mechanism()
    s = server(m, folder=tmp_path)
    with pytest.raises(StateError, match=r"another server uses this folder.*Nothing was changed"):
        server(m, folder=tmp_path)
    s.close()
    train(server(m, folder=tmp_path)).close()
    assert not (tmp_path / "lock").exists()
