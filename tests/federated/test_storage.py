"""A server that is killed at any moment can resume, and no row is released with two sums."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import FileFormatError, ReplayError, StateError
from antiphase.federated import Server
from antiphase.federated.storage import TrainingFolder
from antiphase.ledger.write_ahead import RECORD_SIZE, WriteAheadLedger
from tests.federated.setting import MODEL, USERS, answer_all, mechanism, server, train


class CrashError(Exception):
    pass


def crash(*_):
    raise CrashError


def ledger(folder):
    return next(folder.glob("key.*.ledger")).read_bytes()


def test_a_training_resumes_where_it_was(tmp_path):
    """Interrupted twice or not at all, with the same key: the same model bit for bit."""
    m = mechanism(
        rounds=6, workload=ap.Workload.sgd(6, momentum=0.9, learning_rates=np.linspace(1, 0.1, 6))
    )
    first, second = tmp_path / "a", tmp_path / "b"
    server(m, folder=first).close()
    shutil.copytree(first, second)
    with server(m, folder=first) as s:
        whole = train(s).model
    for until in (2, 5, 6):
        with server(m, folder=second) as s:
            assert s.remaining > 0
            train(s, until=until)
            counts = s.counts
    assert all((s.model[name] == whole[name]).all() for name in whole)
    assert ledger(first) == ledger(second)
    assert len(ledger(first)) == 6 * RECORD_SIZE
    with server(m, folder=second) as s:
        assert s.remaining == 0
        assert s.counts == counts
        assert s.model["scale"].shape == ()
        assert s.epsilon(spent=True) == m.epsilon()


@pytest.mark.parametrize("stops", [(1, 6), (2, 3, 6), (5, 6)])
def test_a_training_with_an_insecure_key_resumes_too(tmp_path, stops):
    """Its ledger is not beside a key file; the model is the same as without interruption."""
    m = mechanism(rounds=6)
    whole = train(server(m, seed=3)).model
    for until in stops:
        with server(m, folder=tmp_path, key=ap.Key.insecure(3)) as s:
            train(s, until=until)
            assert s.position == until
    assert all((s.model[name] == whole[name]).all() for name in whole)


def test_an_incomplete_checkpoint_is_refused_as_a_file_error(tmp_path):
    """A valid file, with an entry missing or of another type: always the same error."""
    with server(folder=tmp_path) as s:
        train(s, until=2)
        whole = s._state(2, s._model, b"")
    for name, value in (
        ("roster", None),
        ("position", "two"),
        ("counts", {"NOBODY": 1}),
        ("mark", "xy"),
    ):
        folder = TrainingFolder(tmp_path)
        folder.key()
        folder.write(
            {k: v for k, v in whole.items() if k != name} | ({} if value is None else {name: value})
        )
        folder.close()
        with pytest.raises(FileFormatError, match="not a valid checkpoint of a federated training"):
            server(folder=tmp_path)


def test_a_round_is_on_the_disk_before_the_next_begins(tmp_path, monkeypatch):
    """Content, then name, then directory: a power failure leaves the old round or the new one."""
    with server(folder=tmp_path) as s:
        done, sync, replace = [], os.fsync, os.replace

        def synced(handle):
            done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
            sync(handle)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", lambda *names: done.append("name") or replace(*names))
        train(s, until=1)
    assert done == ["file", "name", "folder", "file"], "the checkpoint, then the ledger"


def test_participations_are_restored(tmp_path):
    m = mechanism(count=2, apart=3)
    with server(m, folder=tmp_path) as s:
        asked = s.begin_round(USERS)
        s.finish_round()
    with server(m, folder=tmp_path) as s:
        assert not set(s.begin_round(USERS)) & set(asked)


def test_a_server_killed_before_the_commit_has_released_nothing(tmp_path, monkeypatch):
    """The row was drawn but not released: after the restart it is released with another sum."""
    m = mechanism()
    with server(m, folder=tmp_path) as s:
        train(s, until=2)
        before = s.model
        answer_all(s, s.begin_round(USERS), seed=1)
        with monkeypatch.context() as patch:
            patch.setattr(TrainingFolder, "write", crash)
            with pytest.raises(CrashError):
                s.finish_round()
        assert all((s.model[name] == before[name]).all() for name in before), "nothing was released"
        with pytest.raises(RuntimeError, match="interrupted"):
            s.finish_round()
        with pytest.raises(RuntimeError, match="interrupted"):
            s.begin_round(USERS)
    assert len(ledger(tmp_path)) == 2 * RECORD_SIZE
    with server(m, folder=tmp_path) as s:
        assert s.position == 2
        answer_all(s, s.begin_round(USERS), seed=2)
        s.finish_round()
        assert len(ledger(tmp_path)) == 3 * RECORD_SIZE


def test_a_server_killed_after_the_commit_resumes_after_it(tmp_path, monkeypatch):
    m = mechanism()
    with server(m, folder=tmp_path) as s:
        train(s, until=2)
        answer_all(s, s.begin_round(USERS))
        with monkeypatch.context() as patch:
            patch.setattr(WriteAheadLedger, "enter", crash)
            with pytest.raises(CrashError):
                s.finish_round()
    assert len(ledger(tmp_path)) == 2 * RECORD_SIZE
    with server(m, folder=tmp_path) as s:
        assert s.position == 3
        assert len(ledger(tmp_path)) == 3 * RECORD_SIZE, "entered when the checkpoint was read"
        train(s)


def test_an_older_checkpoint_is_refused(tmp_path):
    m = mechanism()
    with server(m, folder=tmp_path) as s:
        train(s, until=2)
        shutil.copy(tmp_path / "checkpoint", tmp_path / "backup")
        train(s, until=3)
    shutil.copy(tmp_path / "backup", tmp_path / "checkpoint")
    with pytest.raises(ReplayError, match=r"not the newest.*3 rounds were released, and it has 2"):
        server(m, folder=tmp_path)


def test_another_checkpoint_of_the_same_round_is_refused(tmp_path):
    """Two copies of a folder resumed separately; their checkpoints and ledgers do not match."""
    m, other = mechanism(), tmp_path / "copy"
    folder = tmp_path / "folder"
    with server(m, folder=folder) as s:
        train(s, until=2)
    shutil.copytree(folder, other)
    for place, seed in ((folder, 1), (other, 2)):
        with server(m, folder=place) as s:
            answer_all(s, s.begin_round(USERS), seed=seed)
            s.finish_round()
    shutil.copy(other / "checkpoint", folder / "checkpoint")
    with pytest.raises(ReplayError, match="another sum"):
        server(m, folder=folder)


def test_a_lost_checkpoint_is_not_a_new_training(tmp_path):
    m = mechanism()
    with server(m, folder=tmp_path) as s:
        pass
    (tmp_path / "checkpoint").unlink()
    with server(m, folder=tmp_path) as s:  # nothing was released yet
        train(s, until=1)
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(ReplayError, match=r"1 round\(s\) were released.*missing"):
        server(m, folder=tmp_path)


def test_two_servers_do_not_share_a_folder(tmp_path):
    m = mechanism()
    s = server(m, folder=tmp_path)
    with pytest.raises(StateError, match="another server uses this folder"):
        server(m, folder=tmp_path)
    s.close()
    with pytest.raises(RuntimeError, match="closed"):
        s.begin_round(USERS)
    train(server(m, folder=tmp_path))


def test_another_training_is_refused(tmp_path):
    m = mechanism()
    server(m, folder=tmp_path).close()
    with pytest.raises(StateError, match="another mechanism"):
        server(mechanism(noise_multiplier=2.0), folder=tmp_path)
    with pytest.raises(StateError, match="number of clients"):
        server(m, folder=tmp_path, clients=5)
    with pytest.raises(StateError, match="workload"):
        server(m, folder=tmp_path, workload=ap.Workload.sgd(6, momentum=0.5))
    with pytest.raises(StateError, match="model"):
        Server(m, MODEL | {"more": np.zeros(2)}, clients_per_round=4, folder=tmp_path)
    with pytest.raises(StateError, match="another key"):
        server(m, folder=tmp_path, key=ap.Key.insecure(0))
    with pytest.raises(ValueError, match="its own key"):
        server(m, folder=tmp_path, key=ap.Key.generate())
    (tmp_path / "key").unlink()
    with pytest.raises(StateError, match="another key"):
        server(m, folder=tmp_path)


def test_damaged_checkpoints_are_refused(tmp_path):
    m = mechanism()
    with server(m, folder=tmp_path) as s:
        train(s, until=1)
    data = bytearray((tmp_path / "checkpoint").read_bytes())
    for place in range(0, len(data), 97):
        data[place] ^= 16
        (tmp_path / "checkpoint").write_bytes(data)
        with pytest.raises(FileFormatError):
            server(m, folder=tmp_path)
        data[place] ^= 16
    m.save(tmp_path / "checkpoint")
    with pytest.raises(FileFormatError, match="not a federated training"):
        server(m, folder=tmp_path)


def test_neither_key_nor_noise_is_in_a_checkpoint(tmp_path):
    with server(folder=tmp_path) as s:
        train(s, until=2)
    secret = bytes.fromhex((tmp_path / "key").read_text().split('"key": "')[1][:64])
    data = (tmp_path / "checkpoint").read_bytes()
    assert secret not in data
    assert secret.hex().encode() not in data
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0


WORKER = """
import sys
from tests.federated.setting import USERS, answer_all, mechanism, server
import time
s = server(mechanism(rounds=200, apart=2, count=100, name="dp-sgd"), folder=sys.argv[1])
print("ready", s.position, flush=True)
while s.remaining:
    answer_all(s, s.begin_round(USERS), seed=int(time.time() * 1e6) % 2**31)  # never the same
    model = s.finish_round()
    print(s.position, model["weight"].tobytes().hex(), flush=True)
"""


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path):
    """SIGKILL between rounds, twice. Every round that anyone saw had one outcome."""
    rng, seen, kills, resumed = np.random.default_rng(1), {}, 0, set()
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2], env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        ready, position = process.stdout.readline().split()
        assert ready == "ready"
        resumed.add(int(position))
        for lines in range(1, 201):
            line = process.stdout.readline().split()
            if not line:
                break
            assert seen.setdefault(int(line[0]), line[1]) == line[1]
            if kills < 2 and lines > rng.integers(20, 100):
                process.send_signal(signal.SIGKILL)
                kills += 1
        rest = process.stdout.read()
        assert process.wait(timeout=60) in (0, -signal.SIGKILL), rest
        if process.returncode == 0:
            break
    assert kills == 2
    # A round may be committed and its process killed before it prints the line.
    assert set(range(1, 201)) - set(seen) <= resumed
    assert len(ledger(tmp_path)) == 200 * RECORD_SIZE
    assert (
        len(
            set(
                ledger(tmp_path)[i : i + RECORD_SIZE]
                for i in range(0, 200 * RECORD_SIZE, RECORD_SIZE)
            )
        )
        == 200
    )
