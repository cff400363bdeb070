"""Progress reports of long operations and the callback that receives them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from antiphase._util import checks as check

BAR_WIDTH = 20  # characters
QUIET_SECONDS = 2.0  # before a bar is shown
SECONDS_BETWEEN_UPDATES = 0.2
SECONDS_BETWEEN_TICKS = 0.5  # if there is no report


@dataclass(frozen=True)
class ProgressReport:
    """State of a long operation at one moment.

    Attributes:
        done: units finished so far: iterations, trials, bytes or steps.
        total: units in all, or None if this is not known.
        gap: relative gap of a search between error and lower bound (of a descent: its last relative
            decrease), or None where there is no search.
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
    """A progress bar for scripts and notebooks: one line, removed at the end.

    Nothing is written in the first two seconds, nor where nobody looks: standard error must be a
    terminal, or standard output belong to a notebook. The seconds go on between reports.

    Args:
        task: what is done, such as ``"designing dp-mf"``.
        shown: whether to show anything.

    Example:
        >>> with TextBar("designing", shown=False) as progress:
        ...     progress(ProgressReport(3, gap=0.1))
    """

    def __init__(self, task: str, shown: bool = True) -> None:
        self._task, self._stream = task, _watched_stream() if shown else None
        self._width = 0  # of the line that is shown
        self._report = ProgressReport(0)
        self._lock, self._ended = threading.Lock(), threading.Event()

    def __enter__(self) -> Self:
        self._began = self._updated = time.monotonic()
        if self._stream is not None:
            threading.Thread(target=self._count_seconds, daemon=True).start()
        return self

    def __call__(self, report: ProgressReport) -> None:
        """Show a report, unless the last one was shown just now."""
        self._report = report
        self._update()

    def _count_seconds(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_TICKS):
            self._update()

    def _update(self) -> None:
        now = time.monotonic()
        with self._lock:
            recent = self._width and now - self._updated < SECONDS_BETWEEN_UPDATES
            quiet = self._stream is None or now - self._began < QUIET_SECONDS
            if not (quiet or recent or self._ended.is_set()):
                self._updated = now
                self._write(self._line(self._report, now - self._began))

    def _line(self, report: ProgressReport, seconds: float) -> str:
        parts = [f"{report.done} iterations"] if report.done else []
        if report.total:
            filled = BAR_WIDTH * report.done // report.total
            bar = "#" * filled + "." * (BAR_WIDTH - filled)
            parts = [f"[{bar}] {report.done} of {report.total}"]
        if report.gap is not None:
            parts.append(f"gap {report.gap:.0e}")
        parts.append(f"{seconds:.0f} s")
        return f"{' '.join([self._task, report.task]).strip()}: {', '.join(parts)}"

    def _write(self, line: str, end: str = "") -> None:
        assert self._stream is not None
        self._stream.write(f"\r{line.ljust(self._width)}{end}")
        self._stream.flush()
        self._width = len(line)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._ended.set()
            if self._width:
                self._write("", end="\r")


@contextmanager
def shown(progress: Progress | bool, task: str) -> Iterator[Progress]:
    """The callback that ``progress`` is; for True a `TextBar`, for False nothing is shown."""
    if callable(progress):
        yield progress
    else:
        with TextBar(task, check.flag("progress", progress)) as bar:
            yield bar


def _watched_stream() -> Any:
    """Standard error if it is a terminal, standard output of a notebook, or None."""
    if sys.stderr is not None and sys.stderr.isatty():
        return sys.stderr
    return sys.stdout if type(sys.stdout).__module__.startswith("ipykernel") else None
