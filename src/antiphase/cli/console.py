"""What all commands share: where output goes, how failures end, progress, and options that several commands have."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import sysconfig
import textwrap
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import click
import typer
from rich import progress as rich_progress
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antiphase.design import names
from antiphase.errors import AntiphaseError
from antiphase.sampling import ADJACENCIES, AMPLIFIED
from antiphase.workload import SCHEDULES

PACKAGE = Path(__file__).parents[1]
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
if not out.is_terminal:
    out = Console(highlight=False, soft_wrap=True, width=400)  # a file has no edge

# ---- options that several commands have --------------------------------------------------------------------


def one_of(*words: str) -> Any:
    """An option's type: one of these words, which the shell completes."""
    return click.Choice(words)


MECHANISMS = tuple(names())
Steps = Annotated[
    int, typer.Option(help="How many steps training takes.", min=1, show_default=False)
]
Epochs = Annotated[
    int, typer.Option(help="How often each record takes part, in a fixed order.", min=1)
]
Separation = Annotated[
    int | None,
    typer.Option(
        help="Instead of a fixed order: at least so many steps between two participations.", min=1
    ),
]
Momentum = Annotated[float, typer.Option(help="Momentum of SGD, below 1.", min=0.0)]
Nesterov = Annotated[bool, typer.Option("--nesterov", help="Nesterov's form of it.")]
Decay = Annotated[float, typer.Option(help="Weight decay of SGD.", min=0.0)]
Rate = Annotated[
    float, typer.Option("--lr", "--learning-rate", help="Learning rate, the first of a schedule.")
]
Schedule = Annotated[str, typer.Option(help="Of the learning rate.", click_type=one_of(*SCHEDULES))]
Epsilon = Annotated[
    float | None, typer.Option(help="Privacy budget ε of the whole training.", show_default=False)
]
Delta = Annotated[
    float | None,
    typer.Option(help="δ: well below one over the number of records.", show_default=False),
]
Multiplier = Annotated[
    float | None,
    typer.Option(help="Noise over sensitivity, instead of --epsilon.", show_default=False),
]
Clip = Annotated[
    float,
    typer.Option("--clip", "--clip-norm", help="Norm to which each record's gradient is clipped."),
]
Adjacency = Annotated[
    str, typer.Option(help="What differs in the other data set; add-remove is for Poisson batches.",
                      click_type=one_of(*ADJACENCIES))
]  # fmt: skip
Sampler = Annotated[
    str | None, typer.Option(help="How batches are drawn at random, where they are: what this is known to amplify is.",
                             click_type=one_of(*AMPLIFIED), show_default=False)
]  # fmt: skip
SamplingRate = Annotated[
    float | None, typer.Option(help="Of poisson and cyclic-poisson: a record's chance to be in a batch.",
                               show_default=False)
]  # fmt: skip
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON to standard output, and nothing else there.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no hints.")]


def optimizer(
    steps: int, rate: float, schedule: str, momentum: float, nesterov: bool, decay: float
) -> dict[str, Any]:
    """The arguments of `Workload.sgd` that these options mean."""
    if nesterov and not momentum:
        raise misused("--nesterov needs --momentum above 0")
    shape = SCHEDULES[schedule]
    return {
        "learning_rates": rate
        if schedule == "constant"
        else [rate * shape(t / steps) for t in range(steps)],
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": decay,
    }


def participation(steps: int, epochs: int, separation: int | None) -> Any:
    """Who takes part when, as --epochs and --separation say."""
    from antiphase.participation import from_epochs, min_separation

    if separation is not None:
        return min_separation(epochs, separation)
    every = -(-steps // epochs)
    if (epochs - 1) * every >= steps:
        raise misused(
            f"--epochs {epochs} does not fit --steps {steps}: with {every} step{'s' * (every > 1)} an epoch there are "
            f"only {-(-steps // every)}"
        )
    return from_epochs(steps, epochs)


def check_promise(
    epsilon: float | None, delta: float | None, noise_multiplier: float | None = None
) -> None:
    """Refuse what is no promise: ε and a noise multiplier at once, ε without δ, δ alone."""
    if epsilon is not None and noise_multiplier is not None:
        raise misused("give one of --epsilon and --noise-multiplier; the other follows")
    if epsilon is not None and delta is None:
        raise misused(
            "--epsilon needs --delta, which is yours to choose: well below one over the number of records"
        )
    if delta is not None and epsilon is None and noise_multiplier is None:
        raise misused("--delta needs --epsilon")


def check_adjacency(adjacency: str, *, sampled: bool = False) -> None:
    """Refuse what a fixed order does not have."""
    if adjacency == "add-remove" and not sampled:
        raise misused(
            "--adjacency add-remove is for Poisson batches: in a fixed order one record more would shift every later "
            "batch. Take zero-out or replace-one"
        )


def check_sampler(sampler: str | None, rate: float | None, *, needs_rate: bool = True) -> None:
    """Refuse a sampling rate without what samples at it, and the other way round."""
    sampled = sampler in ("poisson", "cyclic-poisson")
    if rate is not None and not sampled:
        raise misused("--sampling-rate is for --sampler poisson and cyclic-poisson")
    if needs_rate and rate is None and sampled:
        raise misused(f"--sampler {sampler} needs --sampling-rate")


def options_of(pairs: list[str] | None) -> dict[str, Any]:
    """``["tau=128", "include_final=true"]`` as keyword arguments; values are JSON, or else words.

    >>> options_of(["tau=128", "anchor=end", "include_final=true"])
    {'tau': 128, 'anchor': 'end', 'include_final': True}
    """
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not re.fullmatch(r"[a-z_]+", name):
            raise misused(f"{pair!r} must be name=value, as in tau=128")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value.strip()
    return found


def check_output(*paths: Path | None) -> None:
    """Refuse files that cannot be written, before any work is done for them."""
    for path in filter(None, paths):
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it first")


def command() -> str:
    """What was typed, for others to type."""
    return shlex.join(["antiphase", *sys.argv[1:]])


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


def show(table: Table) -> None:
    """To standard output, without blanks at the ends of lines."""
    with out.capture() as text:
        out.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.get().splitlines()))


def facts(rows: dict[str, str]) -> Table:
    """A few names with their values."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(escape(name), escape(value))
    return table


def columns(*headings: str, title: str | None = None, rows: list[list[str]]) -> Table:
    """A table whose first column has words and whose others have numbers, none of them cut off."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def fits(table: Table) -> bool:
    """Whether it is as narrow as the terminal."""
    return out.measure(table, options=out.options.update(width=10_000)).maximum <= out.width


def explain(text: str) -> None:
    """Small print below a table."""
    out.print(escape(textwrap.fill(text, min(out.width, 100))), style="dim")


def seconds(value: float) -> str:
    """
    >>> seconds(0.00042), seconds(0.0031), seconds(0.031), seconds(7.36), seconds(75.0), seconds(math.nan)
    ('0.42 ms', '3.1 ms', '31 ms', '7.4 s', '75 s', '–')
    """
    if not math.isfinite(value):
        return "–"
    if value < 1:
        return (
            f"{1e3 * value:.2f} ms" if value < 0.001 else f"{1e3 * value:.{int(value < 0.01)}f} ms"
        )
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def size(count: float) -> str:
    """
    >>> size(0), size(2202280), size(4000000), size(510590976)
    ('0', '2.2 MB', '4.0 MB', '511 MB')
    """
    if not count:
        return "0"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.1f} {unit}" if count < 10 and unit != "B" else f"{count:.0f} {unit}"


@contextmanager
def bar(quiet: bool, *extra: str) -> Iterator[rich_progress.Progress]:
    """A progress bar on standard error, with an estimate; nothing if ``quiet`` or where nobody looks."""
    shown = [
        rich_progress.SpinnerColumn(),
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        *(rich_progress.TextColumn(e) for e in extra),
    ]
    with rich_progress.Progress(
        *shown, rich_progress.TimeElapsedColumn(), rich_progress.TextColumn("left"), rich_progress.TimeRemainingColumn(),
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


def rests_on(mechanism: Any) -> dict[str, str]:
    """A row for an amplified promise: how batches must come about."""
    if not mechanism.amplified:
        return {}
    rate = "" if mechanism.sampling_rate is None else f" at rate {mechanism.sampling_rate:.6g}"
    return {"rests on": f"batches drawn by {mechanism.sampler}{rate}"}


# ---- how it ends -------------------------------------------------------------------------------------------


NO = 1  # the answer of verify and audit, and nothing else
INTERRUPTED = 130  # by Ctrl-C, as shells have it
UNDONE = 2  # there is no answer


class TheirError(Exception):
    """The user's own code raised what is the cause of this."""


def misused(message: str) -> click.UsageError:
    """To be raised where a command is not understood: exit code 2."""
    return click.UsageError(message, click.get_current_context(silent=True))


@contextmanager
def failures() -> Iterator[None]:
    """One message on standard error, and exit code 2: a script that reads 1 as "no" must not read it where nothing was
    found out. A bug keeps its traceback, and the user's own code that part of it which is the user's.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _note
            yield
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(UNDONE)
    except click.UsageError as error:
        _say(
            "not understood",
            f"{' '.join(error.format_message().split()).rstrip('.')}. See: {_path(error)} --help",
        )
        sys.exit(UNDONE)
    except (KeyboardInterrupt, click.Abort):
        stop("by Ctrl-C")
    except TheirError as error:
        err.out(_their_trace(error.__cause__ or error), highlight=False)
        fail(str(error))
    except OSError as error:
        told = error.strerror and error.filename is not None
        fail(f"{error.filename}: {error.strerror}" if told else str(error) or type(error).__name__)
    except Exception as error:
        if not _is_told(error):
            traceback.print_exc()
            sys.exit(UNDONE)
        fail(
            str(error)
            or (
                "there is not enough memory"
                if isinstance(error, MemoryError)
                else type(error).__name__
            )
        )


def _path(error: click.UsageError) -> str:
    return error.ctx.command_path if error.ctx is not None else "antiphase"


def _is_told(error: Exception) -> bool:
    """Whether the message was written for a reader: raised in this package, not somewhere below it."""
    if type(error) not in (TypeError, ValueError):
        return isinstance(
            error, AntiphaseError | ValueError | TypeError | MemoryError | ImportError
        )
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith(
        "antiphase"
    )


def _their_trace(error: BaseException) -> str:
    """The traceback, of the user's files alone."""
    told = [traceback.TracebackException.from_exception(error)]
    first = told[0]
    while told:
        one = told.pop()
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if _is_theirs(frame.filename)]
        )
        told += filter(None, (one.__cause__, one.__context__))
    return "".join(first.format()).rstrip()


def _is_theirs(file: str) -> bool:
    """Whether it is neither of this package, nor installed, nor a part of Python."""
    path = Path(file)
    if file.startswith("<") or {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(other) for other in (PACKAGE, sysconfig.get_path("stdlib")))


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Warnings of ours and of the user's own code are notes; those inside libraries are for their callers: for us."""
    if "site-packages" not in Path(filename).parts or "antiphase" in Path(filename).parts:
        warn(str(message))


def fail(message: str) -> NoReturn:
    """The end of what could not be done."""
    _say("refused", message)
    sys.exit(UNDONE)


def stop(message: str) -> NoReturn:
    """The end after Ctrl-C."""
    _say("stopped", message)
    sys.exit(INTERRUPTED)


def warn(message: str) -> None:
    err.print(f"[yellow]note:[/] {escape(message)}")


def hint(message: str, quiet: bool) -> None:
    """What to do next, where somebody may read it."""
    if not quiet:
        err.print(escape(message), style="dim")


def _say(how: str, message: str) -> None:
    err.print(f"[bold red]{how}:[/] {escape(message)}")
