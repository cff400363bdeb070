"""The design cache: the same design is never paid for twice.

Designs are kept by the digest of what they were made from, under the user's cache folder, or where
``ANTIPHASE_CACHE`` points; ``ANTIPHASE_CACHE=off`` switches it off. A damaged entry is as good as none, and
sensitivity is computed anew on every load.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def folder() -> Path | None:
    """Where designs are kept, or None if they are not."""
    setting = os.environ.get("ANTIPHASE_CACHE", "")
    if setting.lower() in ("off", "0", "no"):
        return None
    return Path(setting) if setting else Path(platformdirs.user_cache_dir("antiphase")) / "designs"


def entry(key: str) -> Path | None:
    """The file for the content with this digest; its folder exists. None without a cache that can be written."""
    place = folder()
    if place is None:
        return None
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return place / f"{key}.antiphase"
