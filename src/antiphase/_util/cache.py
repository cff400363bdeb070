"""The design cache: where designs are kept, and which entries are trusted.

Designs are stored under the digest of their inputs in the user's cache folder, or in
``ANTIPHASE_CACHE``; ``ANTIPHASE_CACHE=off`` disables the cache. Only the owner can read the folder
and its entries. An entry that is damaged, has another owner, can be written by others, or answers
another question is ignored. Sensitivity is recomputed on every load.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import platformdirs


def directory() -> Path | None:
    """Directory of the designs, or None if the cache is disabled."""
    setting = os.environ.get("ANTIPHASE_CACHE", "")
    if setting.lower() in ("off", "0", "no"):
        return None
    if setting:
        return Path(setting)
    return Path(platformdirs.user_cache_dir("antiphase")) / "designs"


def entry_path(key: str) -> Path | None:
    """Path of the entry with this digest; None if the cache is disabled or cannot be created.

    The directory is created with mode 0700, and one at the default location is set to that mode. A
    directory named by ``ANTIPHASE_CACHE`` keeps its mode, because it may hold other files.
    """
    folder = directory()
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    if not os.environ.get("ANTIPHASE_CACHE"):
        with suppress(OSError):  # has another owner: `is_trusted` refuses its entries
            os.chmod(folder, 0o700)
    return folder / f"{key}.antiphase"


def is_trusted(path: Path) -> bool:
    """Whether the entry is a regular file of this user that nobody else can read or write."""
    try:
        status = path.lstat()
    except OSError:
        return False
    if not stat.S_ISREG(status.st_mode):
        return False
    if os.name != "posix":
        return True
    # PRIVACY: whoever can write a design can choose the noise.   [G6]
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077
