"""Locks: one process at a time, with flock and without it."""

import errno
import fcntl
import os

import pytest

from antiphase._util import locks
from antiphase.errors import ReplayError


@pytest.fixture
def handle(tmp_path):
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield handle
    os.close(handle)


def without_flock(monkeypatch, number=errno.ENOTSUP):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_flock_needs_no_lock_file(handle, tmp_path):
    with locks.exclusive(handle, tmp_path / "file") as has_flock:
        assert has_flock
        assert not locks.lock_path(tmp_path / "file").exists()
        other = os.open(tmp_path / "file", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            locks.acquire_flock(other, wait=False)
        os.close(other)


def test_without_flock_a_lock_file_is_held_and_released(handle, tmp_path, monkeypatch):
    without_flock(monkeypatch)
    with locks.exclusive(handle, tmp_path / "file") as has_flock:
        assert not has_flock
        assert f"process {os.getpid()}" in locks.lock_path(tmp_path / "file").read_text()
    assert not locks.lock_path(tmp_path / "file").exists()


@pytest.mark.parametrize("has_flock", [True, False])
def test_a_lock_file_of_another_process_times_out(handle, tmp_path, monkeypatch, has_flock):
    monkeypatch.setattr(locks, "LOCK_TIMEOUT", 0.02)
    if not has_flock:
        without_flock(monkeypatch)
    locks.lock_path(tmp_path / "file").touch()
    with (
        pytest.raises(ReplayError, match="delete the lock file"),
        locks.exclusive(handle, tmp_path / "file"),
    ):
        pass
    assert locks.lock_path(tmp_path / "file").exists()


def test_a_lock_file_that_was_deleted_is_reported(handle, tmp_path, monkeypatch):
    without_flock(monkeypatch)
    with (
        pytest.raises(ReplayError, match="was deleted while this process held it"),
        locks.exclusive(handle, tmp_path / "file"),
    ):
        locks.lock_path(tmp_path / "file").unlink()


def test_another_failure_of_flock_is_raised(handle, tmp_path, monkeypatch):
    without_flock(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        locks.acquire_flock(handle)
