"""One process at a time: by the system's file locks, or by a lock file on disks and systems that have none."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from antiphase.errors import ReplayError

if sys.platform != "win32":
    import fcntl

PATIENCE = 10.0  # seconds to wait for a lock file that another process holds
PAUSE = 0.005  # seconds between two looks at it
UNSUPPORTED = {
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EINVAL,
    errno.ENOLCK,
}  # no locks on this disk


@contextmanager
def alone(handle: int, path: Path) -> Iterator[bool]:
    """Hold the open file ``handle`` of ``path`` for one process at a time.

    Yields:
        Whether the system locked the file. False: the disk has no file locks, and a lock file is held.

    Raises:
        ReplayError: another process holds the lock file, or the lock file was deleted meanwhile.
    """
    lock = lock_file_of(path)
    if locked(handle):
        try:
            # PRIVACY: a process for which the disk has no locks would not notice ours.   [G15]
            if lock.exists() and not _gone(lock, PATIENCE):
                raise _held(lock)
            yield True
        finally:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
        return
    # PRIVACY: without any lock two processes could both take a row that neither has recorded yet.   [G15]
    if not take_lock_file(lock, PATIENCE):
        raise _held(lock)
    try:
        yield False
    finally:
        release_lock_file(lock)


def locked(handle: int, *, wait: bool = True) -> bool:
    """Whether the system locked the file; False where it cannot (Windows, some network disks).

    Raises:
        BlockingIOError: another process has the lock, and ``wait`` is False.
        OSError: the disk has locks, and taking one failed.
    """
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # PRIVACY: only a disk that has no locks may do without; any other failure stops the run.   [G15]
        if error.errno not in UNSUPPORTED:
            raise
        return False
    return True


def lock_file_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def take_lock_file(lock: Path, patience: float) -> bool:
    """Whether this process created ``lock``, which no other process then can, within ``patience`` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            handle = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if time.monotonic() >= until:
                return False
            time.sleep(PAUSE)
            continue
        try:
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        finally:
            os.close(handle)
        return True


def release_lock_file(lock: Path) -> None:
    try:
        os.unlink(lock)
    except FileNotFoundError:
        raise ReplayError(
            f"{lock}: the lock file was deleted while this process held it, so another process may "
            "have taken the same row. Nothing was released. Stop the other process and resume"
        ) from None


def _gone(lock: Path, patience: float) -> bool:
    """Whether ``lock`` disappears within ``patience`` seconds."""
    until = time.monotonic() + patience
    while lock.exists():
        if time.monotonic() >= until:
            return False
        time.sleep(PAUSE)
    return True


def _held(lock: Path) -> ReplayError:
    return ReplayError(
        f"{lock}: another process has held this lock file for {PATIENCE:g} s, which it does where the disk has no "
        "file locks. Nothing was released. If no process is at work here (one may have been killed), delete the lock "
        "file"
    )
