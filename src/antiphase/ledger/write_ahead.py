"""Two ledgers: who took part when, and what was released under which row of noise."""

from __future__ import annotations

import glob
import hashlib
import hmac
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphase._util import locks
from antiphase.errors import ReplayError
from antiphase.noise.key import Key

RECORD = 16  # bytes of a step in the write-ahead ledger
MOST = 1 << 24  # steps; a larger file is not a ledger, and is refused unread


class WriteAheadLedger:
    """``MAC_key(step ‖ clipped sum)`` of every step, written down before its row of noise is drawn.

    Two sums under one row of noise differ by a difference of gradients, without noise. So a step that is made again
    (after a crash) must be the same step.

    Guarantee: a row that was drawn before is released again with the same sum or not at all, by whichever process.
    [G15]
    """

    def __init__(self, key: Key, run: str, rank: int = 0, first: int = 0) -> None:
        """``first`` is the step that a new run begins with; earlier ones are not its to release.

        Kept beside the key's file, and so by every process that has it; for a key without one, as long as the key is.
        """
        self._secret = key.subkey("ledger", run, str(rank)).to_bytes(16, "little")
        self._process = os.getpid()
        self._file: Any = None
        self._records: list[bytes] = []
        key.require_owner(run)
        if key.path is None:
            self._records = key.unsaved.setdefault(f"ledger {run} {rank}", [])
        else:
            self._path = Path(f"{key.path}.{run}.{rank}.ledger")
            self._file = _opened(self._path, key, f"{run}.{rank}")
        with self._alone():
            if first and not self._records:
                self._write(bytes(RECORD) * first)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the file, with what other processes have written there read first."""
        # PRIVACY: a fork has this ledger and the rows too, and each would release them with sums of its own.   [G15]
        if os.getpid() != self._process:
            raise ReplayError(
                f"process {os.getpid()}: this ledger was opened by process {self._process}, and a forked process would "
                "release the same rows with other sums. Nothing was released. Train in the process that called "
                "make_private, or keep the key in a file and resume from a checkpoint"
            )
        if self._file is None:
            yield
            return
        with locks.exclusive(self._file.fileno(), self._path) as by_the_system:
            # PRIVACY: another process may have gone on from the same checkpoint, with another sum.   [G15]
            more = self._size() - RECORD * len(self._records)
            if more < 0:
                raise ReplayError(
                    "the ledger became shorter while it was in use. Nothing was released"
                )
            if more:
                self._file.seek(-more, os.SEEK_END)
                self._records += _records_of(self._file.read(more))
                # A record that was cut off by a crash came before its row was drawn.
                self._file.truncate(RECORD * len(self._records))
            yield
            if not by_the_system:
                self.sync()  # disks without locks may show others a file only once it was written out

    def _size(self) -> int:
        """Bytes of the file now, which must still be the one at its path."""
        # Opened once more: a network disk then asks the server for the size that other machines left.
        try:
            with open(self._path, "rb") as there:
                found = os.fstat(there.fileno())
        except OSError:
            found = None
        held = os.fstat(self._file.fileno())
        # PRIVACY: the next process would find another file here, or none, and release rows of this one again.   [G15]
        if found is None or (found.st_dev, found.st_ino) != (held.st_dev, held.st_ino):
            raise ReplayError(
                f"{self._path}: the ledger was deleted or replaced while it was in use. Nothing was released. Put the "
                "ledger back, or go on with fresh noise: load_checkpoint(…, fresh_noise=True)"
            )
        return _bounded(self._path, max(found.st_size, held.st_size))

    def _write(self, records: bytes) -> None:
        if self._file is not None and self._file.write(records) != len(records):
            # PRIVACY: what is not on file is not known to the next process.   [G15]
            self._file.truncate(RECORD * len(self._records))
            raise OSError(
                "the disk is full: the ledger could not be written, and nothing was released"
            )
        self._records += _records_of(records)

    @staticmethod
    def drawn_in(key: Key, run: str) -> int | None:
        """How many steps any process of ``run`` has released, or was about to; None if there is no record of it."""
        if key.path is None:
            kept = [len(v) for name, v in key.unsaved.items() if name.startswith(f"ledger {run} ")]
        else:
            pattern = f"{glob.escape(key.path.name)}.{run}.*.ledger"
            kept = [p.stat().st_size // RECORD for p in key.path.parent.glob(pattern)]
        return max(kept, default=None)

    @staticmethod
    def lost_in(key: Key, run: str) -> bool:
        """Whether a process of ``run`` opened a ledger beside the key's file that is not there any more."""
        known = [name for name in key.ledgers() if name.startswith(f"{run}.")]
        return any(not Path(f"{key.path}.{name}.ledger").exists() for name in known)

    def __len__(self) -> int:
        """How many steps have been released, or were about to be."""
        return len(self._records)

    def record(self, step: int, arrays: Sequence[Any]) -> None:
        """Write down what goes out under row ``step``; raise `ReplayError` if something else did before."""
        self.enter(step, self.mark(step, arrays))

    def mark(self, step: int, arrays: Sequence[Any]) -> bytes:
        """What is written down of these sums; tells nothing of them to those who do not have the key."""
        # Keyed BLAKE2b: half the time of HMAC-SHA256 where the processor has no instructions for that.
        mark = hashlib.blake2b(step.to_bytes(8, "little"), key=self._secret, digest_size=RECORD)
        for array in arrays:
            mark.update(array)
        return mark.digest()

    def enter(self, step: int, mark: bytes) -> None:
        """`record`, for sums of which only the mark is at hand."""
        with self._alone():
            if step > len(self._records):
                raise ReplayError(
                    f"step {step} is to be released, but the ledger has only {len(self._records)} steps"
                )
            if step == len(self._records):
                self._write(mark)
            # PRIVACY: g + z and g′ + z together give away g − g′.   [G15]
            elif not hmac.compare_digest(self._records[step], mark):
                raise ReplayError(
                    f"step {step} was released before with another sum of gradients: the data, the order or a "
                    "hyper-parameter changed, or the arithmetic is not deterministic. Nothing was released. Go on from "
                    "a checkpoint after it; or make the run repeatable (torch.use_deterministic_algorithms, the same "
                    "number of threads) or save a checkpoint at every step; or go on with fresh noise, accounted as a "
                    "second release: load_checkpoint(…, fresh_noise=True)"
                )

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())


def _opened(path: Path, key: Key, name: str) -> Any:
    """The file of the ledger called ``name`` in the key's file: new if that knows of none, else the one there is."""
    known = name in key.ledgers()
    # PRIVACY: rows may have gone out that an empty ledger in its place would release again.   [G15]
    flags = os.O_RDWR | os.O_APPEND | (0 if known else os.O_CREAT)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags, 0o600)
    except FileNotFoundError:
        raise ReplayError(
            f"{path}: the ledger of this run is missing, so that nothing says which rows went out with which sums. "
            "Nothing was released. Put the ledger back beside the key (copy them together), or go on with fresh noise, "
            "accounted as a second release: load_checkpoint(…, fresh_noise=True)"
        ) from None
    file = os.fdopen(handle, "a+b", buffering=0)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise ReplayError(f"{path}: not a file, and so no ledger. Nothing was released")
        _bounded(path, found.st_size)
        if os.name == "posix" and found.st_mode & 0o077:
            os.fchmod(handle, 0o600)
        if not known:
            key.record_ledger(name)
    except BaseException:
        file.close()
        raise
    return file


def _bounded(path: Path, size: int) -> int:
    if size > RECORD * MOST:
        raise ReplayError(
            f"{path}: {size} bytes are more than a ledger of {MOST} steps has. Nothing was released"
        )
    return size


def _records_of(data: bytes) -> list[bytes]:
    """All that are whole."""
    return [data[i : i + RECORD] for i in range(0, len(data) - RECORD + 1, RECORD)]
