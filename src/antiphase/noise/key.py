"""`Key`: the secret that all noise of a run is a function of.

Whoever has the key can subtract the noise. So it comes from the operating system, is kept in a file of its own that
only its owner can read, and never appears in a repr, a log, a pickle or a checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any, NoReturn

from antiphase import _checks as check
from antiphase.errors import KeyFileError

SIZE = 32  # bytes
PERSON = b"antiphase-noise1"  # of BLAKE2b: nothing else derives the same subkeys from the same key
NOISE = 2  # the version of the noise: one more whenever the same key gives other bits


class Key:
    """256 secret bits, and the runs that have been made with them.

    Guarantee: never shown, and never part of anything that is stored but its own file.   [G11]

    >>> Key.generate()
    <Key, secret>
    """

    __slots__ = ("__secret", "_insecure", "_path", "memory")

    def __init__(self, secret: bytes, *, insecure: bool = False, path: Path | None = None) -> None:
        if not isinstance(secret, bytes | bytearray):
            raise TypeError(f"a key is made of bytes, not of {type(secret).__name__}")
        if len(secret) != SIZE:
            raise ValueError(f"a key has {SIZE} bytes; these are {len(secret)}. Key.generate() makes one")
        if not any(secret):
            raise ValueError("a key of zeros is no secret; Key.generate() makes one")
        self.__secret = bytes(secret)
        self._insecure = insecure
        self._path = path
        self.memory: dict[str, Any] = {}  # what is kept beside the key's file, for a key that has none

    @classmethod
    def generate(cls) -> Key:
        """A new key from the operating system's generator."""
        # PRIVACY: from the system's entropy, never from a seed.   [G11]
        return cls(secrets.token_bytes(SIZE))

    @classmethod
    def insecure(cls, seed: int) -> Key:
        """A key that anyone can guess, for tests and studies; statements say so."""
        seed = check.whole_number("seed", seed, least=0)
        secret = hashlib.blake2b(str(seed).encode(), digest_size=SIZE, person=b"antiphase-seed").digest()
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
        path = Path(path)
        # PRIVACY: created with mode 0600, not created and then restricted; an existing file is left alone.   [G11]
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps({"antiphase": "key", "version": 1, "key": self.__secret.hex()}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._path = path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Key:
        """The key in a file that `save` wrote; refused if others can read it."""
        path = Path(path)
        mode = path.stat().st_mode
        if os.name == "posix" and mode & 0o077:
            # PRIVACY: a key that others can read is not a secret any more.   [G11]
            raise KeyFileError(f"{path}: mode {mode & 0o777:o} lets others read the key; chmod 600 it, or make another")
        try:
            first = json.loads(path.read_text(encoding="ascii").split("\n", 1)[0])
            if first["antiphase"] != "key" or first["version"] != 1:
                raise ValueError("not version 1 of a key")
            return cls(bytes.fromhex(first["key"]), path=path)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise KeyFileError(f"{path}: not a key file of ours ({type(error).__name__})") from None

    # ---- runs ----------------------------------------------------------------------------------------------

    def start_run(self, mechanism: str, after: str | None = None) -> str:
        """The id of a new run, 128 random bits, recorded in the key's file (or with the key, if it has none).

        ``after`` names a run that this one takes the place of, on the same data: see `family`.

        Two runs under one key share no noise: their difference would reveal the gradients.   [G12]
        """
        # PRIVACY: fresh for every run, also of an insecure key with the same seed unless the id is given.   [G12]
        run = secrets.token_hex(16)
        record = {"run": run, "mechanism": mechanism, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if after is not None:
            record["after"] = after
        if self._path is None:
            self.memory.setdefault("runs", []).append(record)
        else:
            with open(self._path, "ab") as file:
                file.write(b"\n" + json.dumps(record).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        return run

    def runs(self) -> list[dict[str, Any]]:
        """The runs recorded in the key's file (or with the key), oldest first."""
        if self._path is None:
            return list(self.memory.get("runs", []))
        found = []
        for line in self._path.read_text(encoding="ascii", errors="replace").split("\n")[1:]:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # blank, or cut off by a crash before the run began
            if isinstance(record, dict) and "run" in record:
                found.append(record)
        return found

    def family(self, run: str) -> set[str]:
        """The runs that took the place of one another, with ``run`` among them: all released something of the same
        data."""
        found, pairs = {run}, [{record["run"], record["after"]} for record in self.runs() if "after" in record]
        while True:
            joined = found.union(*(pair for pair in pairs if pair & found))
            if joined == found:
                return found
            found = joined

    def check_run(self, run: str) -> str:
        """``run`` if it is an id, and one that the key's file knows; raises otherwise."""
        if not isinstance(run, str) or len(run) != 32 or set(run) - set("0123456789abcdef"):
            raise ValueError(f"run = {run!r} must be 32 hexadecimal digits")
        if self._path is not None and run not in [record["run"] for record in self.runs()]:
            raise KeyFileError(f"{self._path}: knows no run {run}; it was started with another key")
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
