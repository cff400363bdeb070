"""`Key`: the secret that all noise of a run is a function of.

Whoever has the key can subtract the noise. So it comes from the operating system, is kept in a file of its own that
only its owner can read, and never appears in a repr, a log, a pickle or a checkpoint.
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

SIZE = 32  # bytes
LARGEST = 1 << 26  # bytes of a key file, with a line for each run; above this it is refused unread
FIRST_LINE = 1024  # bytes that the key itself takes at most
ABOUT = 4096  # bytes of what is noted about a run
PATIENCE = 5.0  # seconds to wait for another process that is writing the key
PERSON = b"antiphase-noise1"  # of BLAKE2b: nothing else derives the same subkeys from the same key
NOISE = 2  # the version of the noise: one more whenever the same key gives other bits


class Key:
    """256 secret bits, and the runs that have been made with them.

    Guarantee: never shown, and never part of anything that is stored but its own file.   [G11]

    >>> Key.generate()
    <Key, secret>
    """

    __slots__ = ("__secret", "_holders", "_insecure", "_path", "_process", "memory")

    def __init__(self, secret: bytes, *, insecure: bool = False, path: Path | None = None) -> None:
        if not isinstance(secret, bytes | bytearray):
            raise TypeError(f"a key is made of bytes, not of {type(secret).__name__}")
        if len(secret) != SIZE:
            raise ValueError(
                f"a key has {SIZE} bytes; these are {len(secret)}. Key.generate() makes one"
            )
        if not any(secret):
            raise ValueError("a key of zeros is no secret; Key.generate() makes one")
        self.__secret = bytes(secret)
        self._insecure = insecure
        self._path = path
        self._process = os.getpid()
        self._holders: dict[str, int] = {}  # the process that began a run, for a key without a file
        self.memory: dict[
            str, Any
        ] = {}  # what is kept beside the key's file, for a key that has none

    @classmethod
    def generate(cls) -> Key:
        """A new key from the operating system's generator."""
        # PRIVACY: from the system's entropy, never from a seed.   [G11]
        return cls(secrets.token_bytes(SIZE))

    @classmethod
    def insecure(cls, seed: int) -> Key:
        """A key that anyone can guess, for tests and studies; statements say so."""
        seed = check.whole_number("seed", seed, minimum=0)
        secret = hashlib.blake2b(
            str(seed).encode(), digest_size=SIZE, person=b"antiphase-seed"
        ).digest()
        return cls(secret, insecure=True)

    @property
    def is_insecure(self) -> bool:
        """Whether the key came from a seed."""
        return self._insecure

    @property
    def path(self) -> Path | None:
        """The key's file, if it has one."""
        return self._path

    # ---- its file ------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner can read; runs are recorded there from now on."""
        if self._insecure:
            raise KeyFileError("an insecure key is its seed; keep that instead")
        path = _checked_path(path)
        first = {"antiphase": "key", "version": 1, "key": self.__secret.hex()}
        # The ledgers of earlier runs are in memory alone, so these runs are known but cannot go on from the file.
        before = [record | {"before the file": True} for record in self.runs()]
        lines = "\n".join(json.dumps(line) for line in (first, *before)) + "\n"
        # PRIVACY: created with mode 0600, not created and then restricted; an existing file is left alone.   [G11]
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb", buffering=0) as file:
            file.write(lines.encode())
            os.fsync(file.fileno())
        self._path = path.resolve(strict=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Key:
        """The key in a file that `save` wrote; refused if others can read it.

        Ledgers are kept beside the file that a symbolic link leads to; a file with several hard links is refused.
        """
        # PRIVACY: links and relative paths to one key lead to the same ledgers, whatever the folder is later.   [G15]
        path = _resolved(path)
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
            raise KeyFileError(
                f"{path}: not a key file of ours ({found.st_size} bytes, mode {found.st_mode:o})"
            )
        if os.name == "posix" and found.st_mode & 0o077:
            # PRIVACY: a key that others can read is not a secret any more.   [G11]
            mode = found.st_mode & 0o777
            raise KeyFileError(
                f"{path}: mode {mode:o} lets others read the key; chmod 600 it, or make another"
            )
        if found.st_nlink > 1:
            # PRIVACY: each name of the file would have ledgers of its own, and rows could go out twice.   [G15]
            raise KeyFileError(
                f"{path}: this file has {found.st_nlink} hard links, and each name would have ledgers of its own. "
                "Nothing was released. Delete the other names, or use symbolic links, which are followed"
            )
        try:
            with open(path, "rb") as file:
                first = json.loads(file.readline(FIRST_LINE).decode("ascii"))
            if first["antiphase"] != "key" or first["version"] != 1:
                raise ValueError("not version 1 of a key")
            return cls(bytes.fromhex(first["key"]), path=path)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise KeyFileError(f"{path}: not a key file of ours ({type(error).__name__})") from None

    @classmethod
    def load_or_create(cls, path: str | os.PathLike[str]) -> Key:
        """The key in the file at ``path``; a new one, saved there, if there is no file. Of several processes that do
        so at once, one creates the key and the others load that."""
        try:
            return cls.load(path)
        except FileNotFoundError:
            if os.path.islink(path):
                raise KeyFileError(
                    f"path = {os.fspath(path)!r} is a symbolic link to {os.readlink(path)!r}, and there is no key "
                    "file. Put the file back, or give the path of the file itself"
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
        """`load`, of a file that another process has created and may not have written yet."""
        until = time.monotonic() + PATIENCE
        while Path(path).stat().st_size == 0 and time.monotonic() < until:
            time.sleep(0.01)
        return cls.load(path)

    # ---- runs ----------------------------------------------------------------------------------------------

    def start_run(
        self,
        mechanism: str,
        after: str | None = None,
        data: str | None = None,
        about: dict[str, Any] | None = None,
    ) -> str:
        """The id of a new run, 128 random bits, recorded in the key's file (or with the key, if it has none).

        ``after`` names a run that this one takes the place of, on the same data: see `family`. ``data`` is the
        `data_fingerprint` of the data set, by which `runs_on` finds the run; ``about`` is what to note with it, small
        and fit for JSON.

        Two runs under one key share no noise: their difference would reveal the gradients.   [G12]
        """
        # PRIVACY: fresh for every run, also of an insecure key with the same seed unless the id is given.   [G12]
        run = secrets.token_hex(16)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record: dict[str, Any] = {"run": run, "mechanism": mechanism, "started": started}
        record |= {
            name: value for name, value in (("after", after), ("data", data)) if value is not None
        }
        if about is not None:
            record["about"] = _noted(about)
        if self._path is None:
            self.memory.setdefault("runs", []).append(record)
        else:
            self._append(record)
        self._holders[run] = os.getpid()
        return run

    def runs(self) -> list[dict[str, Any]]:
        """The runs recorded in the key's file (or with the key), oldest first."""
        if self._path is None:
            return list(self.memory.get("runs", []))
        return [record for record in self._records() if isinstance(record.get("run"), str)]

    def runs_on(self, data: str) -> list[dict[str, Any]]:
        """The runs on the data set with this `data_fingerprint`, oldest first."""
        check.instance("data", data, str)
        return [record for record in self.runs() if record.get("data") == data]

    def data_fingerprint(self, parts: Iterable[bytes]) -> str:
        """Tells a data set, given in parts, from others under this key; without the key it tells nothing of it."""
        content = hashlib.blake2b()
        for part in parts:
            content.update(len(part).to_bytes(8, "little"))
            content.update(part)
        # PRIVACY: keyed, or whoever has the file could try which data set it was.   [G11]
        return f"{self.subkey('data', content.hexdigest()):032x}"

    def ledgers(self) -> set[str]:
        """The names of the write-ahead ledgers that were opened with this key: "run.rank"."""
        if self._path is None:
            return {
                ".".join(name.split()[1:]) for name in self.memory if name.startswith("ledger ")
            }
        return {
            record["ledger"] for record in self._records() if isinstance(record.get("ledger"), str)
        }

    def note_ledger(self, name: str) -> None:
        """Write down that there is a ledger of this name; from then on it is not made anew."""
        if self._path is not None:
            self._append({"ledger": name})

    def hold(self, run: str) -> None:
        """Refuse a run of a key without a file that another process began: a fork has a copy of its own."""
        if self._path is not None or self._insecure:
            return
        # PRIVACY: parent and child would each record in their own memory, and release a row with two sums.   [G15]
        holder = self._holders.get(run, self._process)
        if holder != os.getpid():
            raise ReplayError(
                f"process {os.getpid()}: run {run} was begun by process {holder} with a key that has no file, and a "
                "forked process would release the same rows with other sums. Nothing was released. Keep the key in a "
                "file, Key.load_or_create(path), or make it in the process that trains"
            )

    def _append(self, record: dict[str, Any]) -> None:
        assert self._path is not None
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
        except FileNotFoundError:
            raise KeyFileError(
                f"{self._path}: the key's file is gone. Nothing was released. Put it back"
            ) from None
        with os.fdopen(handle, "ab", buffering=0) as file:
            file.write(b"\n" + json.dumps(record).encode() + b"\n")
            os.fsync(file.fileno())

    def _records(self) -> list[dict[str, Any]]:
        """All lines of the key's file after the first; those that a crash cut off are passed over."""
        assert self._path is not None
        if (size := self._path.stat().st_size) > LARGEST:
            raise KeyFileError(f"{self._path}: {size} bytes are more than a key file has")
        found = []
        for line in self._path.read_text(encoding="ascii", errors="replace").split("\n")[1:]:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # blank, or cut off by a crash before the run began
            if isinstance(record, dict):
                found.append(record)
        return found

    def family(self, run: str) -> set[str]:
        """The runs that took the place of one another, with ``run`` among them: all released something of the same
        data."""
        found, pairs = (
            {run},
            [{record["run"], record["after"]} for record in self.runs() if "after" in record],
        )
        while True:
            joined = found.union(*(pair for pair in pairs if pair & found))
            if joined == found:
                return found
            found = joined

    def check_run(self, run: str) -> str:
        """``run`` if it is an id, and one that the key's file knows; raises otherwise."""
        if not isinstance(run, str) or len(run) != 32 or set(run) - set("0123456789abcdef"):
            raise ValueError(f"run = {run!r} must be 32 hexadecimal digits")
        kept = [record["run"] for record in self.runs() if "before the file" not in record]
        if self._path is not None and run not in kept:
            raise KeyFileError(
                f"{self._path}: knows no run {run}; it was started with another key, or before Key.save"
            )
        self.hold(run)
        return run

    def fingerprint(self) -> str:
        """Tells this key, and the noise that is made of it, from others; nothing else about it."""
        # PRIVACY: rows of another version of the noise do not cancel these, as those of another key do not.   [G12]
        return f"{self.subkey('fingerprint', str(NOISE)):032x}"

    def subkey(self, *parts: str) -> int:
        """128 bits for one purpose: keyed BLAKE2b of the parts, each with its length.   [G12]"""
        state = hashlib.blake2b(key=self.__secret, digest_size=16, person=PERSON)
        for part in parts:
            data = part.encode()
            state.update(len(data).to_bytes(8, "little") + data)
        return int.from_bytes(state.digest(), "little")

    # ---- never shown ---------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return "<Key, INSECURE>" if self._insecure else "<Key, secret>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a Key is not pickled or copied: save it to a file of its own")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and secrets.compare_digest(self.__secret, other.__secret)

    def __hash__(self) -> int:
        return hash(self.subkey("hash"))


def _checked_path(path: Any) -> Path:
    """``path`` as a `Path`; raises for what cannot be one."""
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
    except RuntimeError:  # pathlib's error for links in a circle, before Python 3.13
        raise KeyFileError(
            f"path = {str(path)!r} is a symbolic link that leads to itself"
        ) from None


def _noted(about: dict[str, Any]) -> dict[str, Any]:
    """``about`` as JSON will give it back; raises for what is not fit for that."""
    check.instance("about", about, dict)
    try:
        text = json.dumps(about, allow_nan=False)
    except RecursionError:
        raise ValueError("about is nested too deeply; it must be fit for JSON") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"about = {about!r} must be fit for JSON ({error})") from None
    if len(text) > ABOUT:
        raise ValueError(
            f"about has {len(text)} bytes as JSON; at most {ABOUT} are noted with a run"
        )
    noted: dict[str, Any] = json.loads(text)
    return noted
