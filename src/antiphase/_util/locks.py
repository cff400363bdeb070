"""Exclusive access to a file: by flock, or by a lock file without it."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from antiphase.errors import ReplayError

if sys.platform != "win32":
    import fcntl

LOCK_TIMEOUT = 10.0  # seconds to wait for a lock file that another process holds
POLL_INTERVAL = 0.005  # seconds
NO_FLOCK = {  # error numbers of file systems without flock
    errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOLCK
}  # fmt: skip


@contextmanager
def exclusive(handle: int, path: Path) -> Iterator[bool]:
    """Context in which no other process holds the open file ``handle`` of ``path``.

    Yields:
        Whether the file is locked by flock. False: the file system has none, and a lock file is
        held.

    Raises:
        ReplayError: another process holds the lock file, or the lock file was deleted while held.
    """
    lock = lock_path(path)
    if acquire_flock(handle):
        try:
            # PRIVACY: a process for which the disk has no locks would not notice ours.   [G15]
            if not _wait_for(lambda: not lock.exists(), LOCK_TIMEOUT):
                raise _lock_timeout(lock)
            yield True
        finally:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
        return
    # PRIVACY: without any lock two processes could both take a row that neither has recorded yet.
    # [G15]
    if not acquire_lock_file(lock, LOCK_TIMEOUT):
        raise _lock_timeout(lock)
    try:
        yield False
    finally:
        release_lock_file(lock)


def acquire_flock(handle: int, *, wait: bool = True) -> bool:
    """Lock an open file by flock.

    Args:
        handle: the file descriptor; closing it releases the lock.
        wait: whether to wait for another process that has the lock.

    Returns:
        Whether the file is locked; False where flock does not exist (Windows, some network disks).

    Raises:
        BlockingIOError: another process has the lock, and ``wait`` is False.
        OSError: the file system has flock, and it failed.
    """
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # PRIVACY: only a disk that has no locks may do without; any other failure stops the run.
        # [G15]
        if error.errno not in NO_FLOCK:
            raise
        return False
    return True


def lock_path(path: Path) -> Path:
    """Path of the lock file of ``path``."""
    return path.with_name(f"{path.name}.lock")


def acquire_lock_file(lock: Path, timeout: float) -> bool:
    """Create ``lock`` exclusively within ``timeout`` seconds; returns whether this succeeded."""
    return _wait_for(lambda: _create(lock), timeout)


def release_lock_file(lock: Path) -> None:
    """Delete the lock file that this process holds; raises `ReplayError` if it is gone already."""
    try:
        os.unlink(lock)
    except FileNotFoundError:
        raise ReplayError(
            f"{lock}: the lock file was deleted while this process held it, so another process may "
            "have taken the same row. Nothing was released. Stop the other process and resume"
        ) from None


def _create(lock: Path) -> bool:
    try:
        handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    finally:
        os.close(handle)
    return True


def _wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Whether a condition becomes true within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def _lock_timeout(lock: Path) -> ReplayError:
    return ReplayError(
        f"{lock}: another process has held this lock file for {LOCK_TIMEOUT:g} s; lock files are "
        "used where the disk has no file locks. Nothing was released. If no other process uses "
        "this run (one may have been killed), delete the lock file"
    )
