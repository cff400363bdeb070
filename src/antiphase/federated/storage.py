"""Where a server keeps what it needs to go on: key, ledger and checkpoint, in one folder for one training."""

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


class Folder:
    """A folder that one server at a time works in.

    Guarantee: two servers never hold the same folder, and so the same rows of noise, at once. Where folders cannot be
    locked (Windows, some network disks) a lock file is held, which a killed server leaves behind.   [G20]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._unlock = weakref.finalize(self, _locked(self.path))

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    def key(self) -> Key:
        """The key in the folder; a new one if there is none."""
        path = self.path / "key"
        if path.exists():
            return Key.load(path)
        key = Key.generate()
        key.save(path)
        return key

    def read(self, key: Key) -> dict[str, Any] | None:
        """The content of the checkpoint, or None for a training that has released nothing yet."""
        if self.checkpoint.exists():
            content = files.read(self.checkpoint)
            if content.get("what") != "federated":
                raise FileFormatError(
                    f"{self.checkpoint}: holds a {content.get('what')!r}, not a federated training"
                )
            return content
        runs = [record["run"] for record in key.runs()]
        drawn = [WriteAheadLedger.drawn_in(key, run) for run in runs]
        # PRIVACY: rows that went out are not given out again, and what they cost is not forgotten.   [G20]
        if any(drawn):
            raise ReplayError(
                f"{self.path}: {max(filter(None, drawn))} round(s) were released from here, and the checkpoint is "
                "gone. Put it back; or begin anew in another folder, which is a second release on the same users"
            )
        # PRIVACY: without checkpoint and ledger nothing says how many rounds were released.   [G20]
        if any(WriteAheadLedger.lost_in(key, run) for run in runs):
            raise ReplayError(
                f"{self.path}: a training was begun here, and its checkpoint and ledger are gone. Nothing was "
                "released. Put them back; or begin anew in another folder, which is a second release on the same users"
            )
        return None

    def write(self, content: dict[str, Any]) -> None:
        """Replace the checkpoint, on the disk when this returns."""
        files.write(self.checkpoint, {"what": "federated"} | content)
        if sys.platform != "win32":
            handle = os.open(self.path, os.O_RDONLY)
            os.fsync(handle)  # the new name too, not only the bytes
            os.close(handle)

    def close(self) -> None:
        """Let others work in the folder."""
        self._unlock()


def _locked(path: Path) -> Callable[[], None]:
    """Lock the folder for this server; returns the function that unlocks it."""
    if sys.platform != "win32":
        handle = os.open(path, os.O_RDONLY)
        try:
            # PRIVACY: two servers that go on from one checkpoint would use a row for two sums.   [G20]
            if locks.acquire_flock(handle, wait=False):
                return partial(os.close, handle)
        except BlockingIOError as error:
            os.close(handle)
            raise StateError(
                f"{path}: another server is at work in this folder. Nothing was changed"
            ) from error
        os.close(handle)
    lock = path / "lock"
    # PRIVACY: the same on a disk without locks.   [G20]
    if not locks.acquire_lock_file(lock, 0.0):
        raise StateError(
            f"{lock}: another server is at work in this folder, or was killed, and the disk has no "
            "file locks. Nothing was changed. If no server is at work, delete the lock file"
        )
    return partial(_delete, lock, os.getpid())


def _delete(lock: Path, process: int) -> None:
    """Delete the lock file, unless this is a fork of the process that made it."""
    if process == os.getpid():
        lock.unlink(missing_ok=True)
