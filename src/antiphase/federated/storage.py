"""Folder of a federated training: key, ledger and checkpoint, with a lock."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from antiphase._util import files, locks
from antiphase.errors import FileFormatError, ReplayError, StateError
from antiphase.ledger.write_ahead import WriteAheadLedger
from antiphase.noise.key import Key


class TrainingFolder:
    """A folder that one server at a time uses.

    Guarantee: two servers never use the same folder, and so the same rows of noise, at once. Where
    folders cannot be locked (Windows, some network disks) a lock file is held, which a killed
    server leaves behind.   [G20]

    Args:
        path: the folder, which is created if it does not exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._unlock = weakref.finalize(self, _lock(self.path))

    @property
    def checkpoint(self) -> Path:
        """Path of the checkpoint."""
        return self.path / "checkpoint"

    def key(self) -> Key:
        """The key in the folder, which is created if there is none."""
        path = self.path / "key"
        if path.exists():
            return Key.load(path)
        key = Key.generate()
        key.save(path)
        return key

    def read(self, key: Key) -> dict[str, Any] | None:
        """Content of the checkpoint, or None for a training that has released nothing yet.

        Raises:
            ReplayError: rounds were released from here, and the checkpoint is missing.
        """
        if self.checkpoint.exists():
            content = files.read(self.checkpoint)
            if content.get("what") != "federated":
                raise FileFormatError(
                    f"{self.checkpoint}: holds a {content.get('what')!r}, not a federated training"
                )
            return content
        runs = [record["run"] for record in key.runs()]
        drawn = [WriteAheadLedger.released_steps(key, run) for run in runs]
        # PRIVACY: rows that were released must not be released again, and their ε counts.   [G20]
        if any(drawn):
            raise ReplayError(
                f"{self.path}: {max(filter(None, drawn))} round(s) were released from here, and "
                "the checkpoint is missing. Put it back; or start again in another folder, which "
                "is a second release on the same users"
            )
        # PRIVACY: without checkpoint and ledger nothing says how many rounds were released.   [G20]
        if any(WriteAheadLedger.has_missing_file(key, run) for run in runs):
            raise ReplayError(
                f"{self.path}: a training was started here, and its checkpoint and ledger are "
                "missing. Nothing was released. Put them back; or start again in another folder, "
                "which is a second release on the same users"
            )
        return None

    def write(self, content: dict[str, Any]) -> None:
        """Replace the checkpoint; it is on the disk when this returns."""
        files.write(self.checkpoint, {"what": "federated"} | content)
        if sys.platform != "win32":
            handle = os.open(self.path, os.O_RDONLY)
            os.fsync(handle)  # the directory entry, too
            os.close(handle)

    def close(self) -> None:
        """Unlock the folder for other servers."""
        self._unlock()


def _lock(path: Path) -> Callable[[], None]:
    """Lock a folder; returns the function that unlocks it."""
    if sys.platform != "win32":
        handle = os.open(path, os.O_RDONLY)
        try:
            # PRIVACY: two servers that resume from one checkpoint would use a row twice.   [G20]
            if locks.acquire_flock(handle, wait=False):
                return partial(os.close, handle)
        except BlockingIOError as error:
            os.close(handle)
            raise StateError(
                f"{path}: another server uses this folder. Nothing was changed"
            ) from error
        os.close(handle)
    lock = path / "lock"
    # PRIVACY: the same on a disk without locks.   [G20]
    if not locks.acquire_lock_file(lock, 0.0):
        raise StateError(
            f"{lock}: another server uses this folder, or was killed, and the disk has no file "
            "locks. Nothing was changed. If no server is running, delete the lock file"
        )
    return partial(_delete, lock, os.getpid())


def _delete(lock: Path, process: int) -> None:
    """Delete the lock file, unless this process is a fork of the one that created it."""
    if process == os.getpid():
        lock.unlink(missing_ok=True)
