"""Texts of many users: Shakespeare's roles by name, or JSON lines of your own."""

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
from antiphase.data import shakespeare
from antiphase.data.archives import GZIP_MAGIC
from antiphase.data.dataset import user_split
from antiphase.data.fetch import fetch_files
from antiphase.data.own_files import max_unpacked
from antiphase.data.registry import SHAKESPEARE
from antiphase.errors import DataError

SPLITS = ("train", "val", "test")
ByUser = dict[str, list[str]]


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts by user. No user is in two splits.

    Attributes:
        name: name of the data set, or of the file.
        train: the texts of each user for training, in order.
        val: those for validation.
        test: those for testing.
        digest: SHA-256 of the JSON lines.
    """

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
    """Load the texts of many users.

    A line of a file is ``{"user": …, "text": …, "split": "train" | "val" | "test"}``. Other keys
    are ignored. Without ``split``, a hash of the user decides, 80 : 10 : 10. The file may be
    compressed by gzip.

    Args:
        source: ``"shakespeare"``, where each role is a user, or the path of a file of JSON lines.
        folder: look for the files of Shakespeare here and nowhere else; see `load`.
        progress: receives a `ProgressReport` after each block of a download.

    Returns:
        The texts of each user, by split.

    Raises:
        DataError: the file cannot be found or read, or a line is not of this form.
    """
    source = check.name_or_path("data", source)
    if source == SHAKESPEARE.name:
        contents = fetch_files(SHAKESPEARE, None if folder is None else Path(folder), progress)
        return parse(SHAKESPEARE.name, contents[shakespeare.FILE])
    if folder is not None:
        raise DataError(
            f"folder = {str(folder)!r} is for {SHAKESPEARE.name}; leave it out for data = "
            f"{source!r}"
        )
    path = Path(source)
    if not path.is_file():
        raise DataError(
            f"data = {str(path)!r} is neither {SHAKESPEARE.name} nor a file of JSON lines that "
            "exists"
        )
    try:
        return parse(path.name, _uncompressed(path))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error})") from error


def parse(name: str, content: bytes) -> Texts:
    """Texts from JSON lines; raises `DataError` with the line."""
    splits: dict[str, ByUser] = {split: {} for split in SPLITS}
    split_of: dict[str, str] = {}
    for number, line in enumerate(io.BytesIO(content), start=1):
        if not line.strip():
            continue
        user, text, split = _fields(f"{name}, line {number}", line)
        if split_of.setdefault(user, split) != split:
            raise DataError(
                f"{name}, line {number}: user {user!r} is in {split_of[user]} and in {split}; put "
                "each user in one split"
            )
        splits[split].setdefault(user, []).append(text)
    for split, users in splits.items():
        if not users:
            raise DataError(
                f"{name} has no users in {split}; give some in each of {', '.join(SPLITS)}"
            )
    return Texts(name, **splits, digest=hashlib.sha256(content).hexdigest())


def _fields(place: str, line: bytes) -> tuple[str, str, str]:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is not JSON ({error})") from error
    if not isinstance(record, dict) or not all(
        isinstance(record.get(key), str) for key in ("user", "text")
    ):
        raise DataError(f'{place}: must be {{"user": "…", "text": "…"}}, both strings')
    split = record.get("split", user_split(record["user"]))
    if split not in SPLITS:
        raise DataError(f"{place}: split = {split!r} must be one of {', '.join(SPLITS)}")
    return record["user"], record["text"], split


def _uncompressed(path: Path) -> bytes:
    content = path.read_bytes()
    if content[:2] != GZIP_MAGIC:
        return content
    limit = max_unpacked(len(content))
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
        plain = stream.read(limit + 1)
    if len(plain) > limit:
        raise DataError(
            f"{path} of {len(content)} bytes would unpack to more than {limit}; unpack it first"
        )
    return plain
