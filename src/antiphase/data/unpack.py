"""Verified contents from packed files.

Nothing is ever extracted by a path that an archive names: members are looked up by the names we know, read into memory
with a bound, and accepted by their hash.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from antiphase.data.sources import Contents, Files, Source

SLACK = 1 << 24  # bytes that headers, a readme and the like may add
GZIP = b"\x1f\x8b"


class MissedError(Exception):
    """One source did not deliver, and why. It never leaves this package: the next source is tried."""


def checked(source: Source, content: bytes) -> bytes:
    """``content`` (packed by gzip or not), unpacked, if it is what the catalogue says; `MissedError` otherwise."""
    if content[:2] == GZIP:
        content = _gunzip(source, content)
    if len(content) != source.size:
        raise MissedError(f"{source.name} has {len(content)} bytes, not {source.size}")
    mark = hashlib.sha256(content).hexdigest()
    if mark != source.sha256:
        raise MissedError(f"{source.name} has SHA-256 {mark[:12]}…, not {source.sha256[:12]}…")
    return content


def archived(known: Files, path: Path) -> Contents:
    """The verified files of a data set, from its archive."""
    paths = {f"{known.archive_folder}{source.name}": source for source in known.files}
    found = members(path, paths, largest(known))
    return {source.name: checked(source, found[member]) for member, source in paths.items()}


def members(path: Path, wanted: Iterable[str], limit: int) -> Contents:
    """These members of a tar archive (packed by gzip or not) that unpacks to at most ``limit`` bytes."""
    names, found = set(wanted), {}
    with path.open("rb") as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        try:
            with (
                gzip.GzipFile(fileobj=raw) if packed else raw as plain,
                tarfile.open(fileobj=_Bounded(plain, limit), mode="r|") as archive,  # type: ignore[call-overload]
            ):
                for member in archive:
                    name = member.name.removeprefix("./")
                    if name in names and member.isreg():
                        found[name] = archive.extractfile(member).read()
        except (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile) as error:
            raise MissedError(f"the archive is truncated or damaged ({error})") from error
    if names - found.keys():
        raise MissedError(f"{', '.join(sorted(names - found.keys()))} is not in the archive")
    return found


def largest(known: Files) -> int:
    """More bytes than this, packed or not, are not this data set."""
    return sum(source.size for source in known.files) + SLACK


def _gunzip(source: Source, content: bytes) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    try:
        plain = stream.decompress(
            content, source.size + 1
        )  # never more than that, whatever the archive would hold
        plain += stream.decompress(stream.unconsumed_tail, 1) if len(plain) == source.size else b""
    except zlib.error as error:
        raise MissedError(f"{source.name}.gz is damaged ({error})") from error
    if not stream.eof and len(plain) <= source.size:
        raise MissedError(f"{source.name}.gz is truncated")
    return plain


class _Bounded:
    """A stream that ends in an error after ``limit`` bytes: an archive may be small and unpack to anything."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int) -> bytes:
        block = self._stream.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to more than this data set has")
        return block
