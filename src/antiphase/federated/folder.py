"""Where a server keeps what it needs to go on: key, ledger and checkpoint, in one folder for one training."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import Any

from antiphase import files
from antiphase.errors import FileFormatError, ReplayError, StateError
from antiphase.ledger import WriteAheadLedger
from antiphase.noise.key import Key

if sys.platform != "win32":
    import fcntl


class Folder:
    """A folder that one server at a time works in.

    Guarantee: two servers never hold the same folder, and so the same rows of noise, at once (where folders can be
    locked: not on Windows, nor on some network disks).   [G20]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._unlock = None if sys.platform == "win32" else weakref.finalize(self, os.close, _locked(self.path))

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
                raise FileFormatError(f"{self.checkpoint}: holds a {content.get('what')!r}, not a federated training")
            return content
        drawn = [WriteAheadLedger.drawn_in(key, record["run"]) for record in key.runs()]
        # PRIVACY: rows that went out are not given out again, and what they cost is not forgotten.   [G20]
        if any(drawn):
            raise ReplayError(
                f"{self.path}: {max(filter(None, drawn))} round(s) were released from here, and the checkpoint is "
                "gone. Put it back; or begin anew in another folder, which is a second release on the same users"
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
        if self._unlock is not None:
            self._unlock()


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY)
    try:
        # PRIVACY: two servers that go on from one checkpoint would use a row for two sums.   [G20]
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise StateError(f"{path}: another server is at work in this folder. Nothing was changed") from error
    except OSError:
        pass  # a disk without locks
    return handle
