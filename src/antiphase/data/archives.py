"""Verified files from archives: tar, gzip and Debian packages, within bounds.

Nothing is extracted to a path that an archive names. Members are looked up by known names, read
into memory with a size limit, and accepted by their hash.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

SLACK = 1 << 24  # bytes of headers, a readme and the like
GZIP_MAGIC, DEBIAN_MAGIC = b"\x1f\x8b", b"!<arch>\n"

Contents = dict[str, bytes]


class UnavailableError(Exception):
    """A source did not deliver, and why. Never leaves this package: the next source is tried."""


@dataclass(frozen=True)
class SourceFile:
    """A file of a data set: its name, and size and SHA-256 of its uncompressed content."""

    name: str
    size: int
    sha256: str

    def read(self, path: Path) -> Contents:
        """The verified content of the file at ``path``, which may be compressed by gzip."""
        return {self.name: self.verified(path.read_bytes())}

    def verified(self, content: bytes) -> bytes:
        """``content``, uncompressed; raises `UnavailableError` unless size and hash match."""
        if content[:2] == GZIP_MAGIC:
            content = self._decompressed(content)
        if len(content) != self.size:
            raise UnavailableError(f"{self.name} has {len(content)} bytes, not {self.size}")
        sha256 = hashlib.sha256(content).hexdigest()
        if sha256 != self.sha256:
            raise UnavailableError(
                f"{self.name} has SHA-256 {sha256[:12]}…, not {self.sha256[:12]}…"
            )
        return content

    def _decompressed(self, content: bytes) -> bytes:
        stream = zlib.decompressobj(wbits=31)
        try:
            plain = stream.decompress(content, self.size + 1)  # never more, whatever is in there
            if len(plain) == self.size:
                plain += stream.decompress(stream.unconsumed_tail, 1)
        except zlib.error as error:
            raise UnavailableError(f"{self.name}.gz is damaged ({error})") from error
        if not stream.eof and len(plain) <= self.size:
            raise UnavailableError(f"{self.name}.gz is truncated")
        return plain


def read_members(path: Path, names: Iterable[str], max_size: int) -> Contents:
    """Members of an archive that unpacks to at most ``max_size`` bytes.

    Args:
        path: a tar archive, plain or compressed by gzip, or a Debian package.
        names: paths of the members; all must be there.
        max_size: limit on the unpacked archive, in bytes.
    """
    wanted, contents = set(names), {}
    with path.open("rb") as file:
        try:
            stream: Any = _Bounded(_tar(file), max_size)
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if name in wanted and member.isreg():  # links are not followed
                        content: Any = archive.extractfile(member)
                        contents[name] = content.read()
        except (
            EOFError, ValueError, lzma.LZMAError, tarfile.TarError, zlib.error, gzip.BadGzipFile
        ) as error:  # fmt: skip
            raise UnavailableError(f"the archive is truncated or damaged ({error})") from error
    if missing := wanted - contents.keys():
        raise UnavailableError(f"{', '.join(sorted(missing))} is not in the archive")
    return contents


def _tar(file: IO[bytes]) -> Any:
    """The tar stream in an archive."""
    magic = file.read(len(DEBIAN_MAGIC))
    if magic == DEBIAN_MAGIC:
        return _debian_data(file)
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if magic.startswith(GZIP_MAGIC) else file


def _debian_data(file: IO[bytes]) -> lzma.LZMAFile:
    """The tar stream with the files of a Debian package, an ar archive of which it is a member."""
    while len(header := file.read(60)) == 60:
        if header.startswith(b"data.tar.xz"):
            return lzma.LZMAFile(file)
        size = int(header[48:58])
        file.seek(size + size % 2, 1)
    raise EOFError("data.tar.xz is missing")


class _Bounded:
    """A stream that raises after ``limit`` bytes: a small archive may unpack to any size."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream, self._left = stream, limit

    def read(self, size: int) -> bytes:
        block: bytes = self._stream.read(size)
        self._left -= len(block)
        if self._left < 0:
            raise tarfile.ReadError("it unpacks to more than this data set has")
        return block
