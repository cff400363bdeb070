"""Files that hold values and arrays, and nothing that runs.

A file is in the safetensors format: a JSON header and raw little-endian arrays. Ours adds, in the header's metadata,
a format name, a version, the content as JSON, and a SHA-256 digest of content and arrays, which is checked before
anything is built.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as parse
from safetensors.numpy import save as serialise

from antiphase._util.values import Value, digest
from antiphase.errors import FileFormatError, TooLargeError

FORMAT = "antiphase"
VERSION = 1
LARGEST = 1 << 36  # bytes; above this a file is refused unread
MAX_MEMORY, MEMORY_PER_BYTE = (
    1 << 29,
    16,
)  # bytes that loading may hold: so many, and so many a byte
MAX_OPERATIONS, OPERATIONS_PER_BYTE = 10**9, 1000  # on numbers; 10⁹ take a few seconds


@dataclass
class Allowance:
    """What building the content of an untrusted file may still cost."""

    size: int  # bytes of the file
    operations: int

    @property
    def memory(self) -> int:
        return MAX_MEMORY + MEMORY_PER_BYTE * self.size


_allowance: ContextVar[Allowance | None] = ContextVar("antiphase_allowance", default=None)


@contextmanager
def bounded(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within this context, `spend` refuses what a file of this size may not cost."""
    size = os.stat(path).st_size
    mark = _allowance.set(Allowance(size, MAX_OPERATIONS + OPERATIONS_PER_BYTE * size))
    try:
        yield
    finally:
        _allowance.reset(mark)


def spend(what: str, *, memory: float = 0, operations: float = 0) -> None:
    """Announce a cost before it arises. Does nothing unless a file is being loaded in `bounded`.

    Args:
        what: what costs so much, for the error.
        memory: bytes that are held at once.
        operations: operations on numbers; those of one load add up.

    Raises:
        TooLargeError: a file of this size may not cost that much. Nothing was allocated.
    """
    allowance = _allowance.get()
    if allowance is None:
        return
    allowance.operations -= int(min(operations, 1e18))
    for needed, allowed, unit in (
        (memory, allowance.memory, "bytes of memory"),
        (operations, allowance.operations + operations, "operations"),
    ):
        if needed > allowed:
            raise TooLargeError(
                f"{what} takes {needed:.2g} {unit}, and a file of {allowance.size} bytes may take "
                f"{allowed:.2g}. Nothing was allocated. If you made the file yourself, "
                "antiphase.load(path, trusted=True) has no such bound"
            )


def write(path: str | os.PathLike[str], content: dict[str, Any], *, secret: bool = False) -> str:
    """Store ``content`` (nested dictionaries, numbers, strings, values, arrays) and return its digest.

    Guarantee: the file appears whole or not at all; an older file of that name is replaced only by a whole one.   [G6]
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def plain(item: Any, name: str) -> Any:
        if isinstance(item, Value):
            return plain(item.spec(), name)
        if isinstance(item, dict):
            return {
                key: plain(value, f"{name}.{key}" if name else key) for key, value in item.items()
            }
        if isinstance(item, np.ndarray):
            arrays[name] = np.ascontiguousarray(item)
            return {"$array": name}
        return item

    text = json.dumps(plain(content, ""), allow_nan=False)
    mark = digest({"content": text, "arrays": arrays})
    metadata = {"format": FORMAT, "version": str(VERSION), "content": text, "digest": mark}
    write_bytes(Path(path), serialise(arrays, metadata), secret=secret)
    return mark


def checked_path(path: Any) -> Path:
    """``path`` as a `Path`; raises for what cannot be one."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path = {path!r} must be a path, not {type(path).__name__}")
    if "\0" in str(os.fspath(path)):
        raise ValueError(f"path = {path!r} is the path of no file")
    return Path(path)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `write` stored. Raises `FileFormatError` for anything else; executes nothing that is in the file.   [G6]"""
    path = checked_path(path)
    size = path.stat().st_size
    if size > LARGEST:
        raise FileFormatError(f"{path}: {size} bytes is more than any file of ours has")
    data = path.read_bytes()
    metadata = _metadata(path, data)
    try:
        arrays = parse(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(f"{path}: damaged ({error})") from error
    if metadata.get("digest") != digest({"content": metadata.get("content"), "arrays": arrays}):
        raise FileFormatError(
            f"{path}: the content does not match its digest; the file is damaged or was altered"
        )

    def full(item: Any) -> Any:
        if isinstance(item, dict):
            if item.keys() == {"$array"}:
                # `write` names every array once; a second use could make many copies of one array.
                return arrays.pop(item["$array"])
            return {key: full(value) for key, value in item.items()}
        return item

    try:
        content = json.loads(metadata["content"])
        return {key: full(value) for key, value in content.items()} | {"digest": metadata["digest"]}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path}: damaged ({type(error).__name__}: {error})") from error


def _metadata(path: Path, data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length]) if 2 <= length <= len(data) - 8 else None
    except (ValueError, RecursionError):
        header = None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise FileFormatError(f"{path}: not an antiphase file")
    version = str(metadata.get("version"))
    if version not in [str(v) for v in range(1, VERSION + 1)]:
        raise FileFormatError(
            f"{path}: format version {version}; this is a reader of versions up to {VERSION}: update antiphase"
        )
    return metadata


def write_bytes(path: Path, data: bytes, *, secret: bool = False) -> None:
    """Write a file atomically: the old content stays until all of the new one is on the disk.

    Args:
        path: the file to create or replace.
        data: its new content.
        secret: only the owner may read the file; otherwise the umask decides.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    mode = 0o600 if secret else 0o666  # the kernel applies the umask to a new file's mode
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
