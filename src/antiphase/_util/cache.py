"""The design cache: the same design is never paid for twice.

Designs are kept by the digest of what they were made from, under the user's cache folder, or where
``ANTIPHASE_CACHE`` points; ``ANTIPHASE_CACHE=off`` switches it off. Folder and entries are the owner's
alone. An entry that is damaged, belongs to somebody else, can be written by others, or answers another
question is ignored, and sensitivity is computed anew on every load.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import platformdirs


def folder() -> Path | None:
    """Where designs are kept, or None if they are not."""
    setting = os.environ.get("ANTIPHASE_CACHE", "")
    if setting.lower() in ("off", "0", "no"):
        return None
    if setting:
        return Path(setting)
    return Path(platformdirs.user_cache_dir("antiphase")) / "designs"


def entry(key: str) -> Path | None:
    """The file for the content with this digest; None without a cache that can be written.

    The folder is created with mode 0700. An older one at the default place is restricted to that; a
    folder that ``ANTIPHASE_CACHE`` names keeps its mode, since other things may be in it.
    """
    place = folder()
    if place is None:
        return None
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    if not os.environ.get("ANTIPHASE_CACHE"):
        with suppress(OSError):  # somebody else's: then `is_trusted` refuses their entries
            os.chmod(place, 0o700)
    return place / f"{key}.antiphase"


def is_trusted(path: Path) -> bool:
    """Whether the entry is a file of this user that nobody else can read or change."""
    try:
        found = path.lstat()
    except OSError:
        return False
    if not stat.S_ISREG(found.st_mode):
        return False
    if os.name != "posix":
        return True
    # PRIVACY: a design that others can write is a design that others chose.   [G6]
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077
