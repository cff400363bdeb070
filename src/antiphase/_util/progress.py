"""Progress reports of long operations and the callback that receives them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

BAR_WIDTH = 20  # characters
QUIET_SECONDS = 2.0  # before a bar is shown
SECONDS_BETWEEN_UPDATES = 0.2


@dataclass(frozen=True)
class ProgressReport:
    """State of a long operation at one moment.

    Attributes:
        done: units finished so far: iterations, trials, bytes or steps.
        total: units in all, or None if this is not known.
        gap: relative gap (or decrease) of a search so far, or None where there is no search.
        task: what the operation works on at the moment.
        metrics: newest measurements of a training run, such as ``accuracy`` and ``loss``.

    Example:
        >>> ProgressReport(3, total=10, task="blt").done
        3
    """

    done: int
    total: int | None = None
    gap: float | None = None
    task: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


Progress = Callable[[ProgressReport], object]
"""Callback for progress reports; a search that can be stopped early stops if this returns True."""


class TextBar:
    """A progress bar for scripts and notebooks: one line on standard error, removed at the end.

    Nothing is written in the first two seconds, nor where nobody looks: standard error must be a
    terminal or belong to a notebook.

    Args:
        task: what is done, such as ``"designing dp-mf"``.
        shown: whether to show anything.

    Example:
        >>> with TextBar("designing", shown=False) as progress:
        ...     progress(ProgressReport(3, gap=0.1))
    """

    def __init__(self, task: str, shown: bool = True) -> None:
        self._task, self._shown = task, shown and _is_watched(sys.stderr)
        self._width = 0  # of the line that is shown

    def __enter__(self) -> Self:
        self._began = self._updated = time.monotonic()
        return self

    def __call__(self, report: ProgressReport) -> None:
        """Show a report, unless the last one was shown just now."""
        now = time.monotonic()
        recent = now - self._updated < SECONDS_BETWEEN_UPDATES
        if not self._shown or now - self._began < QUIET_SECONDS or (self._width and recent):
            return
        self._updated = now
        self._write(self._line(report, now - self._began))

    def _line(self, report: ProgressReport, seconds: float) -> str:
        parts = [f"{report.done} iterations"]
        if report.total:
            filled = BAR_WIDTH * report.done // report.total
            bar = "#" * filled + "." * (BAR_WIDTH - filled)
            parts = [f"[{bar}] {report.done} of {report.total}"]
        if report.gap is not None:
            parts.append(f"gap {report.gap:.0e}")
        return f"{' '.join([self._task, report.task]).strip()}: {', '.join(parts)}, {seconds:.0f} s"

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r{line.ljust(self._width)}")
        sys.stderr.flush()
        self._width = len(line)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._width:
            self._write("")
            sys.stderr.write("\r")


def _is_watched(stream: Any) -> bool:
    """Whether a stream is a terminal or belongs to a notebook."""
    return bool(stream) and (stream.isatty() or type(stream).__module__.startswith("ipykernel"))
