"""Atomic files of numbers and arrays without code; limits on what loading one may cost.

A file is a JSON header followed by raw little-endian arrays. The header's metadata hold a format
name, a version, the content as JSON, and a SHA-256 digest of content and arrays. The digest is
checked before anything is built.
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
MAX_FILE_SIZE = 1 << 36  # bytes
# What loading a file may cost: a constant, and an amount for each byte of the file.
MAX_MEMORY, MEMORY_PER_BYTE = 1 << 29, 16  # bytes
MAX_OPERATIONS, OPERATIONS_PER_BYTE = 10**9, 1000  # 10⁹ take a few seconds


@dataclass
class Allowance:
    """What building the content of an untrusted file may still cost."""

    file_size: int
    operations: int

    @property
    def memory(self) -> int:
        """Bytes that may be held at once."""
        return MAX_MEMORY + MEMORY_PER_BYTE * self.file_size


_allowance: ContextVar[Allowance | None] = ContextVar("antiphase_allowance", default=None)


@contextmanager
def bounded(path: str | os.PathLike[str]) -> Iterator[None]:
    """Context in which `spend` refuses costs out of proportion to the size of this file."""
    size = os.stat(path).st_size
    token = _allowance.set(Allowance(size, MAX_OPERATIONS + OPERATIONS_PER_BYTE * size))
    try:
        yield
    finally:
        _allowance.reset(token)


def spend(what: str, *, memory: float = 0, operations: float = 0) -> None:
    """Announce a cost before it arises. Does nothing unless a file is being loaded in `bounded`.

    Args:
        what: the subject of the error message.
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
                f"{what} takes {needed:.2g} {unit}; a file of {allowance.file_size} bytes may take "
                f"{allowed:.2g}. Nothing was allocated. If you made the file yourself, "
                "antiphase.load(path, trusted=True) has no such limit"
            )


def write(path: str | os.PathLike[str], content: dict[str, Any], *, secret: bool = False) -> str:
    """Store nested dictionaries of numbers, strings, values and arrays.

    Guarantee: the file is written completely or not at all; an older file of that name is replaced
    atomically.   [G6]

    Args:
        path: the file to create or replace.
        content: what to store; its keys are strings.
        secret: only the owner may read the file; otherwise the umask decides.

    Returns:
        The digest of the content.
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
    content_digest = digest({"content": text, "arrays": arrays})
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "content": text,
        "digest": content_digest,
    }
    write_bytes(Path(path), serialise(arrays, metadata), secret=secret)
    return content_digest


def checked_path(path: Any) -> Path:
    """``path`` as a `Path`; raises `TypeError` or `ValueError` if it cannot be one."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path = {path!r} must be a path, not {type(path).__name__}")
    if "\0" in str(os.fspath(path)):
        raise ValueError(f"path = {path!r} must not contain a null character")
    return Path(path)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Content of a file that `write` stored, with its ``digest``.

    Guarantee: nothing in the file is executed.   [G6]

    Raises:
        FileFormatError: the file has another format or a newer version, is damaged, or was altered.
    """
    path = checked_path(path)
    size = path.stat().st_size
    if size > MAX_FILE_SIZE:
        raise FileFormatError(
            f"{path}: {size} bytes; an antiphase file has at most {MAX_FILE_SIZE}"
        )
    data = path.read_bytes()
    metadata = _metadata(path, data)
    try:
        arrays = parse(data)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError(
            f"{path}: damaged ({error}). Use an intact copy, or make it anew"
        ) from error
    if metadata.get("digest") != digest({"content": metadata.get("content"), "arrays": arrays}):
        raise FileFormatError(
            f"{path}: the content does not match its digest: the file is damaged or was altered. "
            "Use an intact copy, or make it anew"
        )

    def with_arrays(item: Any) -> Any:
        if isinstance(item, dict):
            if item.keys() == {"$array"}:
                # `write` names every array once; a second use could make many copies of one array.
                return arrays.pop(item["$array"])
            return {key: with_arrays(value) for key, value in item.items()}
        return item

    try:
        content = json.loads(metadata["content"])
        arrays_in_place = {key: with_arrays(value) for key, value in content.items()}
        return arrays_in_place | {"digest": metadata["digest"]}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path}: damaged ({type(error).__name__}: {error})") from error


def _metadata(path: Path, data: bytes) -> dict[str, Any]:
    """Metadata of the header, if format and version are ours."""
    length = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + length]) if 2 <= length <= len(data) - 8 else None
    except (ValueError, RecursionError):
        header = None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise FileFormatError(
            f"{path}: not an antiphase file. Give one that antiphase design or save() wrote"
        )
    version = str(metadata.get("version"))
    if version not in [str(v) for v in range(1, VERSION + 1)]:
        raise FileFormatError(
            f"{path}: format version {version}; this antiphase reads versions up to {VERSION}: "
            "update antiphase"
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
