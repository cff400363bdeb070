"""Where data sets are kept: ``data/NAME/`` under the user's cache folder, or under ``ANTIPHASE_CACHE``.

What lies there is a whole file whose hash is checked at every load, or ends in ``.part``: a transfer that was
interrupted, with which the next call goes on. With ``ANTIPHASE_CACHE=off`` nothing is kept.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphase._util import cache

if sys.platform != "win32":
    import fcntl

PART = ".part"


def folder(name: str) -> Path | None:
    """Where the data set of this name is kept, or None if it is not."""
    designs = cache.directory()
    if designs is None:
        return None
    root = designs if os.environ.get("ANTIPHASE_CACHE") else designs.parent
    return root / "data" / name


@contextmanager
def opened(name: str) -> Iterator[Path]:
    """The folder of a data set, for one process at a time: another that wants to write there waits."""
    place = folder(name)
    if place is None:
        with tempfile.TemporaryDirectory(prefix="antiphase-") as temporary:
            yield Path(temporary)
        return
    place.mkdir(parents=True, exist_ok=True)
    with _alone(place) as alone:
        if alone:  # what a killed process left half-written
            _remove(path for path in place.iterdir() if path.name.startswith("."))
        yield place


def parts(place: Path) -> list[Path]:
    return sorted(place.glob(f"*{PART}"))


def clear(place: Path, keep: Collection[str] = ()) -> None:
    """Remove all but the files named in ``keep``."""
    _remove(path for path in place.iterdir() if path.name not in keep)


def _remove(paths: Iterator[Path]) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """Hold the lock of a folder. The folder itself is locked, so no lock file can be left behind.

    False where folders cannot be locked (Windows, some network disks): two processes then do the work twice, and a
    file that both wrote is caught by its hash.
    """
    if sys.platform == "win32":
        yield False
        return
    handle = os.open(place, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            locked = True
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(handle)
