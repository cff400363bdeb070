"""The callback that long searches report to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[int, float], Any]
"""Called with (iteration, gap so far); a search stops where it is if this returns True."""
