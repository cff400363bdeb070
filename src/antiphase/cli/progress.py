"""Progress bars on standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from rich import progress as rich_progress

from antiphase._util.progress import ProgressReport
from antiphase.cli import output

Update = Callable[..., None]  # of the bar's task, with Rich's keyword arguments
MIN_BAR, MAX_BAR = 4, 40  # columns
TEXT_WIDTH = 60  # columns beside the bar


@contextmanager
def progress_bars(
    silent: bool, *columns: str, left: rich_progress.ProgressColumn | None = None
) -> Iterator[rich_progress.Progress]:
    """Progress bars with the time elapsed and left; none if ``silent`` or not in a terminal.

    Args:
        silent: whether to show nothing.
        columns: templates of additional columns, such as ``"{task.fields[gap]}"``.
        left: the column of the time left; by default estimated from the share that is done.
    """
    progress = rich_progress.Progress(
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(max(MIN_BAR, min(MAX_BAR, output.err.width - TEXT_WIDTH))),
        *map(rich_progress.TextColumn, columns),
        rich_progress.TextColumn("elapsed"),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("left"),
        left or rich_progress.TimeRemainingColumn(),
        console=output.err,
        transient=True,
        disable=silent or not output.err.is_terminal,
    )
    with nullcontext() if progress.disable else progress:  # Rich before 14.3 ends with a blank line
        yield progress


@contextmanager
def progress_bar(
    silent: bool, description: str, *columns: str, total: float | None = None, **fields: Any
) -> Iterator[Update]:
    """One progress bar; yields the function that updates it."""
    with progress_bars(silent, *columns) as progress:
        task = progress.add_task(description, total=total, **fields)

        def update(**values: Any) -> None:
            progress.update(task, **values)

        yield update


class SearchProgress:
    """Share of a search that is done, estimated from its gap.

    The gap shrinks by about the same factor in every iteration, so the share is measured on a
    logarithmic scale from the first gap to the target.
    """

    def __init__(self, target: float) -> None:
        self._target, self._first = target, 0.0

    def share(self, gap: float | None) -> float:
        """Return the share that is done, from 0 to 0.99: Rich stops the clock of a finished bar."""
        if gap is None or not math.isfinite(gap) or gap <= 0:
            return 0.0
        self._first = max(self._first, gap)
        distance = math.log(self._first / self._target)
        share = math.log(self._first / gap) / distance if distance > 0 else 1.0
        return min(max(share, 0.0), 0.99)


class PhaseClock:
    """Estimates the time left of each phase of an operation, from the share that is done."""

    def __init__(self) -> None:
        self._phase, self._start, self._first = "", 0.0, 0.0

    def left(self, phase: str, share: float) -> str:
        """Return the time left of ``phase``, of which ``share`` is done."""
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._start, self._first = phase, now, share
        if share <= self._first:
            return "-:--:--"
        seconds = (now - self._start) * (1 - share) / (share - self._first)
        return str(timedelta(seconds=round(seconds)))


@contextmanager
def training_bar(
    silent: bool, phase: str, mechanism: str, trials: int, tolerance: float
) -> Iterator[Callable[..., None]]:
    """One bar for the designs and trainings of several trials; yields the callback for it.

    The time elapsed includes the design. The time left is that of the design and, from the first
    step on, that of the training.

    Args:
        silent: whether to show nothing.
        phase: the first phase.
        mechanism: name of the mechanism.
        trials: number of trials.
        tolerance: the gap at which the design stops.
    """
    search, clock = SearchProgress(tolerance), PhaseClock()
    column = rich_progress.TextColumn("{task.fields[left]}")
    with progress_bars(silent, "{task.fields[detail]}", left=column) as progress:
        task = progress.add_task(f"{phase} {mechanism}", total=1.0, detail="", left="-:--:--")

        def report(now: ProgressReport, trial: int) -> None:
            if now.task == "designing":
                share, more = search.share(now.gap), " + training"
                detail = "" if now.gap is None else f"gap {now.gap:.0e}"
            else:
                share, more = (trial + now.done / (now.total or 1)) / trials, ""
                detail = f"accuracy {now.metrics['accuracy']:.1%}" if now.metrics else ""
            progress.update(
                task,
                description=f"{now.task} {mechanism}",
                completed=share,
                detail=detail,
                left=clock.left(now.task, share) + more,
            )

        yield report


@contextmanager
def candidates_bar(silent: bool, tolerance: float) -> Iterator[Callable[[ProgressReport], None]]:
    """A progress bar for the designs of several candidates; yields the callback for it."""
    searches: dict[str, SearchProgress] = {}
    with progress_bar(silent, "designing", "{task.fields[gap]}", total=1.0, gap="") as update:

        def report(now: ProgressReport) -> None:
            search = searches.setdefault(now.task, SearchProgress(tolerance))
            update(
                description=f"designing {now.task}" if now.task else "measuring",
                completed=(now.done + search.share(now.gap)) / (now.total or 1),
                gap="" if now.gap is None else f"gap {now.gap:.0e}",
            )

        yield report
