"""Write-ahead ledger: a keyed hash of each clipped sum, on disk before its noise is drawn."""

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

RECORD_SIZE = 16  # bytes of a step
MAX_STEPS = 1 << 24  # a larger file is refused unread


class WriteAheadLedger:
    """``MAC_key(step ‖ clipped sum)`` of every step, stored before its row of noise is drawn.

    The difference of two sums under one row of noise is a difference of gradients, without noise.
    So a step that is repeated (after a crash) must be the same step. The ledger is a file beside
    the key's file, which every process with that key shares. For a key without a file it exists as
    long as the key.

    Guarantee: a row that was drawn before is released again with the same sum or not at all, by
    whichever process.   [G15]

    Args:
        key: the key of the noise.
        run: id of the run.
        rank: rank of the process in distributed training; each has its own ledger.
        first: the first step of a new run; earlier ones must not be released.

    Raises:
        ReplayError: the ledger is missing, or is not a ledger.
    """

    def __init__(self, key: Key, run: str, rank: int = 0, first: int = 0) -> None:
        self._secret = key.subkey("ledger", run, str(rank)).to_bytes(16, "little")
        self._process = os.getpid()
        self._file: Any = None
        self._records: list[bytes] = []
        key.require_owner(run)
        if key.path is None:
            self._records = key.unsaved.setdefault(f"ledger {run} {rank}", [])
        else:
            self._path = Path(f"{key.path}.{run}.{rank}.ledger")
            self._file = _open(self._path, key, f"{run}.{rank}")
        with self._exclusive():
            if first and not self._records:
                self._append(bytes(RECORD_SIZE) * first)

    @staticmethod
    def released_steps(key: Key, run: str) -> int | None:
        """How many steps any process of ``run`` has released; None if there is no record of it.

        A step counts as released once it is recorded.
        """
        if key.path is None:
            prefix = f"ledger {run} "
            steps = [len(v) for name, v in key.unsaved.items() if name.startswith(prefix)]
        else:
            pattern = f"{glob.escape(key.path.name)}.{run}.*.ledger"
            steps = [p.stat().st_size // RECORD_SIZE for p in key.path.parent.glob(pattern)]
        return max(steps, default=None)

    @staticmethod
    def has_missing_file(key: Key, run: str) -> bool:
        """Whether a ledger that a process of ``run`` opened beside the key's file is missing."""
        names = [name for name in key.ledgers() if name.startswith(f"{run}.")]
        return any(not Path(f"{key.path}.{name}.ledger").exists() for name in names)

    def __len__(self) -> int:
        """Number of recorded steps."""
        return len(self._records)

    def record(self, step: int, arrays: Sequence[Any]) -> None:
        """Record the sums that are released under row ``step``.

        Args:
            step: number of the step, counted from 0.
            arrays: the sums, as buffers.

        Raises:
            ReplayError: the step was recorded before with other sums, or is not the next one.
        """
        self.enter(step, self.mark(step, arrays))

    def mark(self, step: int, arrays: Sequence[Any]) -> bytes:
        """The record of these sums, which reveals nothing about them without the key."""
        # Keyed BLAKE2b: half the time of HMAC-SHA256 where the processor has no instructions for
        # that.
        mark = hashlib.blake2b(
            step.to_bytes(8, "little"), key=self._secret, digest_size=RECORD_SIZE
        )
        for array in arrays:
            mark.update(array)
        return mark.digest()

    def enter(self, step: int, mark: bytes) -> None:
        """`record`, given the mark of the sums."""
        with self._exclusive():
            if step > len(self._records):
                raise ReplayError(
                    f"step {step} is to be released, but the ledger has only "
                    f"{len(self._records)} steps"
                )
            if step == len(self._records):
                self._append(mark)
            # PRIVACY: g + z and g′ + z together give away g − g′.   [G15]
            elif not hmac.compare_digest(self._records[step], mark):
                raise ReplayError(
                    f"step {step} was released before with another sum of gradients: the data, the "
                    "order or a hyperparameter changed, or the arithmetic is not deterministic. "
                    "Nothing was released. Resume from a checkpoint after it; or make the run "
                    "repeatable (torch.use_deterministic_algorithms, the same number of threads); "
                    "or save a checkpoint at every step; or resume with fresh noise, accounted as "
                    "a second release: load_checkpoint(…, fresh_noise=True)"
                )

    def sync(self) -> None:
        """Flush the ledger to the disk."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the file; records of other processes are read first."""
        # PRIVACY: a fork has the ledger and the rows too, and would release them with its own sums.
        # [G15]
        if os.getpid() != self._process:
            raise ReplayError(
                f"process {os.getpid()}: this ledger was opened by process {self._process}, and a "
                "forked process would release the same rows with other sums. Nothing was released. "
                "Train in the process that called make_private, or keep the key in a file and "
                "resume from a checkpoint"
            )
        if self._file is None:
            yield
            return
        with locks.exclusive(self._file.fileno(), self._path) as has_flock:
            # PRIVACY: another process may have resumed the same checkpoint, with another sum.
            # [G15]
            more = self._size() - RECORD_SIZE * len(self._records)
            if more < 0:
                raise ReplayError(
                    "the ledger became shorter while it was in use. Nothing was released"
                )
            if more:
                self._file.seek(-more, os.SEEK_END)
                self._records += _complete_records(self._file.read(more))
                # A record that a crash cut off was not followed by a release.
                self._file.truncate(RECORD_SIZE * len(self._records))
            yield
            if not has_flock:
                self.sync()  # disks without locks may show a file to others only once it is flushed

    def _size(self) -> int:
        """Size of the file in bytes; it must still be the one at its path."""
        # Opened again: a network disk then asks the server for the size that other machines left.
        try:
            with open(self._path, "rb") as file:
                current = os.fstat(file.fileno())
        except OSError:
            current = None
        held = os.fstat(self._file.fileno())
        # PRIVACY: the next process would find another file here, or none, and release rows of this
        # one again.   [G15]
        if current is None or (current.st_dev, current.st_ino) != (held.st_dev, held.st_ino):
            raise ReplayError(
                f"{self._path}: the ledger was deleted or replaced while it was in use. Nothing "
                "was released. Put the ledger back, or resume with fresh noise: "
                "load_checkpoint(…, fresh_noise=True)"
            )
        return _checked_size(self._path, max(current.st_size, held.st_size))

    def _append(self, records: bytes) -> None:
        if self._file is not None and self._file.write(records) != len(records):
            # PRIVACY: what is not on file is not known to the next process.   [G15]
            self._file.truncate(RECORD_SIZE * len(self._records))
            raise OSError(
                "the disk is full: the ledger could not be written, and nothing was released"
            )
        self._records += _complete_records(records)


def _open(path: Path, key: Key, name: str) -> Any:
    """Open the ledger called ``name`` in the key's file; create it only if it is new there."""
    known = name in key.ledgers()
    # PRIVACY: rows may have been released that an empty ledger would release again.   [G15]
    flags = os.O_RDWR | os.O_APPEND | (0 if known else os.O_CREAT)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags, 0o600)
    except FileNotFoundError:
        raise ReplayError(
            f"{path}: the ledger of this run is missing, so it is not known which rows were "
            "released with which sums. Nothing was released. Put the ledger back beside the key "
            "(copy them together), or resume with fresh noise, accounted as a second release: "
            "load_checkpoint(…, fresh_noise=True)"
        ) from None
    file = os.fdopen(handle, "a+b", buffering=0)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ReplayError(f"{path}: not a regular file. Nothing was released")
        _checked_size(path, status.st_size)
        if os.name == "posix" and status.st_mode & 0o077:
            os.fchmod(handle, 0o600)
        if not known:
            key.record_ledger(name)
    except BaseException:
        file.close()
        raise
    return file


def _checked_size(path: Path, size: int) -> int:
    if size > RECORD_SIZE * MAX_STEPS:
        raise ReplayError(
            f"{path}: {size} bytes is more than a ledger of {MAX_STEPS} steps has. Nothing was "
            "released"
        )
    return size


def _complete_records(data: bytes) -> list[bytes]:
    return [data[i : i + RECORD_SIZE] for i in range(0, len(data) - RECORD_SIZE + 1, RECORD_SIZE)]
