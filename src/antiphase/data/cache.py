"""Cache of downloaded data sets, with one process at a time.

The cache of a data set is the folder ``data/NAME/`` in the user's cache folder, or in
``ANTIPHASE_CACHE``. A file is either complete (its hash is checked at every load) or ends in
``.part``: an interrupted download, which the next call resumes. ``ANTIPHASE_CACHE=off`` disables
the cache.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from antiphase._util import cache as design_cache
from antiphase._util import locks

PART = ".part"


def directory(name: str) -> Path | None:
    """Cache folder of the data set with this name, or None if the cache is disabled."""
    designs = design_cache.directory()
    if designs is None:
        return None
    root = designs if os.environ.get("ANTIPHASE_CACHE") else designs.parent
    return root / "data" / name


@contextmanager
def opened(name: str) -> Iterator[Path]:
    """Context with the cache folder of a data set, for one process at a time; others wait.

    Without a cache it is a temporary folder.
    """
    folder = directory(name)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="antiphase-") as temporary:
            yield Path(temporary)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder) as locked:
        if locked:  # temporary files of a killed process
            _remove(path for path in folder.iterdir() if path.name.startswith("."))
        yield folder


def parts(folder: Path) -> list[Path]:
    """The partial files in a cache folder."""
    return sorted(folder.glob(f"*{PART}"))


def clear(folder: Path, keep: Collection[str] = ()) -> None:
    """Remove everything but the files named in ``keep``."""
    _remove(path for path in folder.iterdir() if path.name not in keep)


def _remove(paths: Iterable[Path]) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _exclusive(folder: Path) -> Iterator[bool]:
    """Lock a folder itself, so that no lock file can be left behind.

    False where folders cannot be locked (Windows, some network disks). Then two processes do the
    same work, and a file that both wrote is detected by its hash.
    """
    if sys.platform == "win32":
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield locks.acquire_flock(handle)
    finally:
        os.close(handle)
