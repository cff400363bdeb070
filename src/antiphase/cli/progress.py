"""Progress bars on standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import progress as rich_progress

from antiphase._util.progress import ProgressReport
from antiphase.cli import output

Update = Callable[..., None]  # of the bar's task, with Rich's keyword arguments


@contextmanager
def progress_bars(silent: bool, *columns: str) -> Iterator[rich_progress.Progress]:
    """Progress bars with an estimate of the time left; none if ``silent`` or not in a terminal.

    Args:
        silent: whether to show nothing.
        columns: templates of additional columns, such as ``"{task.fields[gap]}"``.
    """
    with rich_progress.Progress(
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        *map(rich_progress.TextColumn, columns),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("left"),
        rich_progress.TimeRemainingColumn(),
        console=output.err,
        transient=True,
        disable=silent or not output.err.is_terminal,
    ) as progress:
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
        """Return the share that is done, from 0 to 1."""
        if gap is None or not math.isfinite(gap) or gap <= 0:
            return 0.0
        self._first = max(self._first, gap)
        distance = math.log(self._first / self._target)
        return min(max(math.log(self._first / gap) / distance, 0.0), 1.0) if distance > 0 else 1.0


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
