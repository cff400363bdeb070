"""What all commands share: where output goes, how failures end, progress, and options that several commands have."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from antiphase.errors import AntiphaseError

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
WIDE = 108  # columns that the widest table takes
if not out.is_terminal:
    out = Console(highlight=False, soft_wrap=True, width=WIDE)  # a file has no edge

# ---- options that several commands have --------------------------------------------------------------------

Steps = Annotated[int, typer.Option(help="How many steps training takes.", min=1, show_default=False)]
Epochs = Annotated[int, typer.Option(help="How often each record takes part, in a fixed order.", min=1)]
Separation = Annotated[
    int | None, typer.Option(help="Instead of a fixed order: at least so many steps between two participations.", min=1)
]
Momentum = Annotated[float, typer.Option(help="Momentum of SGD.", min=0.0, max=1.0)]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of it.")]
Decay = Annotated[float, typer.Option(help="Weight decay of SGD.", min=0.0)]
Rate = Annotated[float, typer.Option("--lr", "--learning-rate", help="Learning rate, the first of a schedule.")]
Schedule = Annotated[str, typer.Option(help="constant, linear or cosine.")]
Epsilon = Annotated[float | None, typer.Option(help="Privacy budget ε of the whole training.", show_default=False)]
Delta = Annotated[float | None, typer.Option(help="δ: well below one over the number of records.", show_default=False)]
Multiplier = Annotated[
    float | None, typer.Option(help="Noise over sensitivity, instead of --epsilon.", show_default=False)
]
Clip = Annotated[float, typer.Option("--clip", "--clip-norm", help="Norm to which each record's gradient is clipped.")]
Adjacency = Annotated[str, typer.Option(help="zero-out, replace-one, or (with Poisson batches) add-remove.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to standard output, and nothing else there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def optimizer(steps: int, rate: float, schedule: str, momentum: float, nesterov: bool, decay: float) -> dict[str, Any]:
    """The arguments of `Workload.sgd` that these options mean."""
    return {
        "learning_rates": learning_rates(steps, rate, schedule),
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": decay,
    }


def learning_rates(steps: int, rate: float, schedule: str) -> Any:
    """One rate, or one a step."""
    from antiphase import _checks as check
    from antiphase.workload import SCHEDULES

    shape = SCHEDULES[check.choice("schedule", schedule, tuple(SCHEDULES))]
    return rate if schedule == "constant" else [rate * shape(t / steps) for t in range(steps)]


def options_of(pairs: list[str] | None) -> dict[str, Any]:
    """``["tau=128", "include_final=true"]`` as keyword arguments; values are JSON, or else words.

    >>> options_of(["tau=128", "anchor=end", "include_final=true"])
    {'tau': 128, 'anchor': 'end', 'include_final': True}
    """
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[a-z_]+", name.strip().replace("-", "_")):
            raise typer.BadParameter(f"{pair!r} must be name=value, as in tau=128")
        try:
            found[name.strip().replace("-", "_")] = json.loads(value)
        except ValueError:
            found[name.strip().replace("-", "_")] = value.strip()
    return found


# ---- output ------------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """To standard output, in one piece; numbers that JSON does not have become null."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value


def facts(rows: dict[str, str]) -> Table:
    """A few names with their values."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def columns(*headings: str, title: str | None = None) -> Table:
    """A table whose first column has words and whose others have numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    return table


def seconds(value: float) -> str:
    """
    >>> seconds(0.00042), seconds(0.031), seconds(7.36), seconds(75.0)
    ('0.42 ms', '31 ms', '7.4 s', '75 s')
    """
    if not math.isfinite(value):
        return ""
    if value < 1:
        return f"{1e3 * value:.2g} ms" if value < 0.01 else f"{1e3 * value:.0f} ms"
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def size(count: float) -> str:
    """
    >>> size(0), size(2202280), size(510590976)
    ('0', '2.2 MB', '511 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return "0" if not count else f"{count:.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.2g} {unit}"
        count /= 1000
    raise AssertionError


@contextmanager
def bar(quiet: bool, *extra: str) -> Iterator[Progress]:
    """A progress bar on standard error, with an estimate; nothing if ``quiet`` or where nobody looks."""
    shown = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), *(TextColumn(e) for e in extra)]
    with Progress(
        *shown, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=err, transient=True, disable=quiet or not err.is_terminal,
    ) as progress:  # fmt: skip
        yield progress


class Closing:
    """How much of a search is done, from its gap: it shrinks by about the same factor all the time."""

    def __init__(self, target: float) -> None:
        self._target, self._first = target, 0.0

    def share(self, gap: float) -> float:
        if not math.isfinite(gap) or gap <= 0:
            return 0.0
        self._first = max(self._first, gap)
        whole = math.log(self._first / self._target)
        return min(max(math.log(self._first / gap) / whole, 0.0), 1.0) if whole > 0 else 1.0


# ---- how it ends -------------------------------------------------------------------------------------------


@contextmanager
def failures() -> Iterator[None]:
    """Refusals and failures in one message on standard error, and exit code 1; a bug keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        fail("stopped by Ctrl-C")
    except (AntiphaseError, ValueError, TypeError, OSError, MemoryError, ImportError) as error:
        if type(error) in (TypeError, ValueError) and not _is_ours(error):
            raise
        fail(str(error) or type(error).__name__)


def _is_ours(error: BaseException) -> bool:
    """Whether the message was written for a reader: raised in this package, not somewhere below it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("antiphase")


def fail(message: str) -> None:
    err.print(f"[bold red]refused:[/] {_escaped(message)}")
    sys.exit(1)


def warn(message: str) -> None:
    err.print(f"[yellow]note:[/] {_escaped(message)}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
