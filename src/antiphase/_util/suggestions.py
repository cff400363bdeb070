"""Suggestions for mistyped words."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def suggestion(value: str, allowed: Collection[str]) -> str:
    """The end of an error message: the nearest of the ``allowed`` words, or nothing.

    Example:
        >>> suggestion("dpmf", ["dp-sgd", "dp-mf", "blt"])
        "; did you mean 'dp-mf'?"
        >>> suggestion("DP-MF", ["dp-sgd", "dp-mf"]), suggestion("--noise", ["--noise-multiplier"])
        ("; did you mean 'dp-mf'?", "; did you mean '--noise-multiplier'?")
    """
    longer = [word for word in allowed if word.startswith(value)]
    nearest = longer or difflib.get_close_matches(value.lower(), allowed, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
