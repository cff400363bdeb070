"""`Key`: the secret that all noise is derived from, and its runs.

Whoever has the key can subtract the noise. So it comes from the operating system, is stored in a
file of its own that only its owner can read, and never appears in a repr, a log, a pickle or a
checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from antiphase._util import checks as check
from antiphase.errors import KeyFileError, ReplayError

KEY_BYTES = 32
MAX_FILE_BYTES = 1 << 26  # of a key file, with a line for each run; larger files are not read
MAX_KEY_LINE_BYTES = 1024  # of the first line of a key file
MAX_NOTE_BYTES = 4096  # of what is noted about a run
WRITE_TIMEOUT = 5.0  # seconds to wait for another process that is writing the key
BLAKE2_PERSON = b"antiphase-noise1"  # separates our subkeys from other uses of the same key
NOISE_VERSION = 2  # incremented whenever the same key gives different bits


class Key:
    """256 secret bits, and the runs that were made with them.

    Create one with `Key.load_or_create` or `Key.generate`.

    Guarantee: never shown, and never stored anywhere but in its own file.   [G11]

    Example:
        >>> Key.generate()
        <Key, secret>
    """

    __slots__ = ("__secret", "_insecure", "_owners", "_path", "_process", "unsaved")

    def __init__(self, secret: bytes, *, insecure: bool = False, path: Path | None = None) -> None:
        if not isinstance(secret, bytes | bytearray):
            raise TypeError(f"a key consists of bytes, not of {type(secret).__name__}")
        if len(secret) != KEY_BYTES:
            raise ValueError(
                f"a key has {KEY_BYTES} bytes; these are {len(secret)}. Use Key.generate()"
            )
        if not any(secret):
            raise ValueError("a key of zeros is not secret; use Key.generate()")
        self.__secret = bytes(secret)
        self._insecure = insecure
        self._path = path
        self._process = os.getpid()
        self._owners: dict[str, int] = {}  # the process that started each run
        self.unsaved: dict[str, Any] = {}  # runs and ledgers of a key without a file

    @classmethod
    def generate(cls) -> Key:
        """Return a new key from the operating system's generator."""
        # PRIVACY: from the system's entropy, never from a seed.   [G11]
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def insecure(cls, seed: int) -> Key:
        """Return a key that anyone can guess, for tests and studies; statements report it.

        Example:
            >>> Key.insecure(0)
            <Key, INSECURE>
        """
        seed = check.whole_number("seed", seed, minimum=0)
        secret = hashlib.blake2b(
            str(seed).encode(), digest_size=KEY_BYTES, person=b"antiphase-seed"
        ).digest()
        return cls(secret, insecure=True)

    @property
    def is_insecure(self) -> bool:
        """Whether the key was made from a seed."""
        return self._insecure

    @property
    def path(self) -> Path | None:
        """The key's file, if it has one."""
        return self._path

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner can read; later runs are recorded there.

        Raises:
            KeyFileError: the key is insecure.
            FileExistsError: there is a file at ``path``.
        """
        if self._insecure:
            raise KeyFileError("an insecure key is determined by its seed; keep the seed instead")
        path = _checked_path(path)
        first = {"antiphase": "key", "version": 1, "key": self.__secret.hex()}
        # The ledgers of earlier runs are in memory only, so these runs cannot be resumed.
        before = [record | {"before the file": True} for record in self.runs()]
        lines = "\n".join(json.dumps(line) for line in (first, *before)) + "\n"
        # PRIVACY: created with mode 0600, not restricted later; never overwrites a file.   [G11]
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb", buffering=0) as file:
            file.write(lines.encode())
            os.fsync(file.fileno())
        self._path = path.resolve(strict=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Key:
        """Return the key in a file that `save` wrote.

        Symbolic links are followed; ledgers are stored beside the file itself.

        Raises:
            KeyFileError: this is not a key file, others can read it, or it has several hard links.
            FileNotFoundError: there is no file.
        """
        # PRIVACY: links and relative paths to one key lead to the same ledgers.   [G15]
        path = _resolved(path)
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise KeyFileError(
                f"{path}: not a key file of ours ({status.st_size} bytes, mode {status.st_mode:o})"
            )
        if os.name == "posix" and status.st_mode & 0o077:
            # PRIVACY: a key that others can read is not a secret any more.   [G11]
            mode = status.st_mode & 0o777
            raise KeyFileError(
                f"{path}: mode {mode:o} lets others read the key; chmod 600 it, or make another"
            )
        if status.st_nlink > 1:
            # PRIVACY: names with ledgers of their own could release rows twice.   [G15]
            raise KeyFileError(
                f"{path}: this file has {status.st_nlink} hard links, and each name would have "
                "ledgers of its own. Nothing was released. Delete the other names, or use symbolic "
                "links, which are followed"
            )
        try:
            with open(path, "rb") as file:
                first = json.loads(file.readline(MAX_KEY_LINE_BYTES).decode("ascii"))
            if first["antiphase"] != "key" or first["version"] != 1:
                raise ValueError("not version 1 of a key")
            return cls(bytes.fromhex(first["key"]), path=path)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise KeyFileError(f"{path}: not a key file of ours ({type(error).__name__})") from None

    @classmethod
    def load_or_create(cls, path: str | os.PathLike[str]) -> Key:
        """Return the key in the file at ``path``; create it if there is no file.

        If several processes do so at once, one creates the key and the others load it.

        Raises:
            KeyFileError: as in `load`.
        """
        try:
            return cls.load(path)
        except FileNotFoundError:
            if os.path.islink(path):
                raise KeyFileError(
                    f"path = {os.fspath(path)!r} is a symbolic link to {os.readlink(path)!r}, and "
                    "there is no key file. Restore the file, or give the path of the file itself"
                ) from None
            key = cls.generate()
        except KeyFileError:
            return cls._load_when_written(path)
        try:
            key.save(path)
        except FileExistsError:
            return cls._load_when_written(path)
        return key

    @classmethod
    def _load_when_written(cls, path: str | os.PathLike[str]) -> Key:
        """`load` for a file that another process created and may not have written yet."""
        until = time.monotonic() + WRITE_TIMEOUT
        while Path(path).stat().st_size == 0 and time.monotonic() < until:
            time.sleep(0.01)
        return cls.load(path)

    def start_run(
        self,
        mechanism: str,
        after: str | None = None,
        data: str | None = None,
        about: dict[str, Any] | None = None,
    ) -> str:
        """Record a new run in the key's file, or with the key if it has none.

        Two runs under one key share no noise: their difference would reveal the gradients.   [G12]

        Args:
            mechanism: the digest of the mechanism.
            after: the run that this one replaces, on the same data: see `family`.
            data: the `data_fingerprint` of the data set, by which `runs_on` finds the run.
            about: what to note with the run: a small dictionary that JSON can represent.

        Returns:
            The id of the run, 128 random bits in hexadecimal.
        """
        # PRIVACY: fresh for every run, also with an insecure key, unless the id is given.   [G12]
        run = secrets.token_hex(16)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record: dict[str, Any] = {"run": run, "mechanism": mechanism, "started": started}
        record |= {
            name: value for name, value in (("after", after), ("data", data)) if value is not None
        }
        if about is not None:
            record["about"] = _noted(about)
        if self._path is None:
            self.unsaved.setdefault("runs", []).append(record)
        else:
            self._append(record)
        self._owners[run] = os.getpid()
        return run

    def runs(self) -> list[dict[str, Any]]:
        """Return the recorded runs, oldest first."""
        if self._path is None:
            return list(self.unsaved.get("runs", []))
        return [record for record in self._records() if isinstance(record.get("run"), str)]

    def runs_on(self, data: str) -> list[dict[str, Any]]:
        """Return the runs on the data set with this `data_fingerprint`, oldest first."""
        check.instance("data", data, str)
        return [record for record in self.runs() if record.get("data") == data]

    def data_fingerprint(self, parts: Iterable[bytes]) -> str:
        """Return a keyed hash of a data set, given in parts.

        It identifies the data set under this key. Without the key it reveals nothing.
        """
        content = hashlib.blake2b()
        for part in parts:
            content.update(len(part).to_bytes(8, "little"))
            content.update(part)
        # PRIVACY: keyed, or whoever has the file could test which data set it was.   [G11]
        return f"{self.subkey('data', content.hexdigest()):032x}"

    def ledgers(self) -> set[str]:
        """Return the names, "run.rank", of the write-ahead ledgers opened with this key."""
        if self._path is None:
            return {
                ".".join(name.split()[1:]) for name in self.unsaved if name.startswith("ledger ")
            }
        return {
            record["ledger"] for record in self._records() if isinstance(record.get("ledger"), str)
        }

    def record_ledger(self, name: str) -> None:
        """Record that a ledger of this name exists, so that it is never created again."""
        if self._path is not None:
            self._append({"ledger": name})

    def require_owner(self, run: str) -> None:
        """Refuse a run that another process started with a key without a file.

        A forked process has a copy of the key and its records.

        Raises:
            ReplayError: another process started the run.
        """
        if self._path is not None or self._insecure:
            return
        # PRIVACY: parent and child, each with its own records, would release a row twice.   [G15]
        owner = self._owners.get(run, self._process)
        if owner != os.getpid():
            raise ReplayError(
                f"process {os.getpid()}: run {run} was started by process {owner} with a key that "
                "has no file, and a forked process would release the same rows with other sums. "
                "Nothing was released. Store the key in a file, Key.load_or_create(path), or "
                "create it in the process that trains"
            )

    def _append(self, record: dict[str, Any]) -> None:
        assert self._path is not None
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise KeyFileError(
                f"{self._path}: the key's file is gone. Nothing was released. Restore it"
            ) from None
        with os.fdopen(handle, "ab", buffering=0) as file:
            file.write(b"\n" + json.dumps(record).encode() + b"\n")
            os.fsync(file.fileno())

    def _records(self) -> list[dict[str, Any]]:
        """All lines of the key's file after the first, without those that a crash cut off."""
        assert self._path is not None
        if (size := self._path.stat().st_size) > MAX_FILE_BYTES:
            raise KeyFileError(f"{self._path}: {size} bytes are more than a key file has")
        records = []
        for line in self._path.read_text(encoding="ascii", errors="replace").split("\n")[1:]:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # blank, or cut off by a crash before the run started
            if isinstance(record, dict):
                records.append(record)
        return records

    def family(self, run: str) -> set[str]:
        """Return the runs that replaced one another, ``run`` among them.

        All of them released something about the same data.
        """
        family = {run}
        pairs = [{record["run"], record["after"]} for record in self.runs() if "after" in record]
        while True:
            joined = family.union(*(pair for pair in pairs if pair & family))
            if joined == family:
                return family
            family = joined

    def check_run(self, run: str) -> str:
        """Return ``run`` if it is the id of a run that can be resumed with this key.

        Raises:
            ValueError: this is not an id.
            KeyFileError: the key's file has no such run.
            ReplayError: as in `require_owner`.
        """
        if not isinstance(run, str) or len(run) != 32 or set(run) - set("0123456789abcdef"):
            raise ValueError(f"run = {run!r} must be 32 hexadecimal digits")
        kept = [record["run"] for record in self.runs() if "before the file" not in record]
        if self._path is not None and run not in kept:
            raise KeyFileError(
                f"{self._path}: has no run {run}; it was started with another key, or before "
                "Key.save"
            )
        self.require_owner(run)
        return run

    def fingerprint(self) -> str:
        """Return a hash that identifies this key and version of the noise, and reveals no more."""
        # PRIVACY: another noise version is another key: its rows do not cancel these.   [G12]
        return f"{self.subkey('fingerprint', str(NOISE_VERSION)):032x}"

    def subkey(self, *parts: str) -> int:
        """Return 128 bits for one purpose: keyed BLAKE2b of the parts with their lengths.

        Guarantee: other parts give independent bits.   [G12]
        """
        state = hashlib.blake2b(key=self.__secret, digest_size=16, person=BLAKE2_PERSON)
        for part in parts:
            data = part.encode()
            state.update(len(data).to_bytes(8, "little") + data)
        return int.from_bytes(state.digest(), "little")

    def __repr__(self) -> str:
        return "<Key, INSECURE>" if self._insecure else "<Key, secret>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a Key cannot be pickled or copied: save it to a file of its own")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and secrets.compare_digest(self.__secret, other.__secret)

    def __hash__(self) -> int:
        return hash(self.subkey("hash"))


def _checked_path(path: Any) -> Path:
    """``path`` as a `Path`; raises if it is not the path of a file."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(
            f"path = {path!r} must be the path of a key file (str or os.PathLike), not "
            f"{type(path).__name__}. The argument key of an engine is such a path, or a Key"
        )
    if "\0" in os.fspath(path):
        raise ValueError(f"path = {path!r} has a null character; give the path of a key file")
    return Path(path)


def _resolved(path: Any) -> Path:
    """The absolute path of the key file, with symbolic links followed."""
    try:
        return _checked_path(path).resolve(strict=True)
    except RuntimeError:  # pathlib's error for a cycle of links, before Python 3.13
        raise KeyFileError(f"path = {str(path)!r} is a symbolic link to itself") from None


def _noted(about: dict[str, Any]) -> dict[str, Any]:
    """``about`` as it is read back from JSON; raises if JSON cannot represent it."""
    check.instance("about", about, dict)
    try:
        text = json.dumps(about, allow_nan=False)
    except RecursionError:
        raise ValueError("about is nested too deeply for JSON") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"about = {about!r} cannot be written as JSON ({error})") from None
    if len(text) > MAX_NOTE_BYTES:
        raise ValueError(
            f"about has {len(text)} bytes as JSON; at most {MAX_NOTE_BYTES} are allowed"
        )
    noted: dict[str, Any] = json.loads(text)
    return noted
