"""Tables, JSON and messages: results to standard output, all else to standard error."""

from __future__ import annotations

import io
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from antiphase.statement import PrivacyStatement

HYPHEN = "\u2011"  # at which lines are not broken
GLOSSARY = (
    "zero-out: neighbouring data sets differ in one record, whose gradients become 0 while its "
    "place in the batches is kept. encoder: the matrix C whose inverse correlates the noise of the "
    "steps; its sensitivity scales the noise."
)
FILE_WIDTH = 400  # columns of a table that is not printed to a terminal: never cut off
TEXT_WIDTH = 100

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
if not out.is_terminal:
    out = Console(highlight=False, soft_wrap=True, width=FILE_WIDTH)


def unbroken(text: str) -> str:
    """Return a text of help in which no line will be broken at a hyphen, as in ``dp-mf``."""
    return text.replace("-", HYPHEN)


def text_width(console: Console) -> int:
    """Return the width of text: that of the terminal, if it is narrow."""
    return min(console.width, TEXT_WIDTH)


def _wrapped(text: str, width: int, indent: str = "", bullet: str = "") -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=bullet,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_text(text: str = "") -> None:
    """Print text to standard output, as it is."""
    out.print(escape(text))


def print_paragraph(text: str, bullet: str = "") -> None:
    """Print text to standard output, wrapped."""
    print_text(_wrapped(text, text_width(out), " " * len(bullet), bullet))


def print_marked(mark: str, style: str, text: str) -> None:
    """Print a coloured mark with a text beside it, which is wrapped in a terminal."""
    indent = " " * len(f"{mark}  ")
    if out.is_terminal:
        text = _wrapped(text, out.width, indent, indent)[len(indent) :]
    out.print(f"[{style}]{mark}[/]  {escape(text)}")


def print_glossary(quiet: bool) -> None:
    """Explain words of a result below it, in a terminal."""
    if err.is_terminal:
        print_hint(_wrapped(GLOSSARY, text_width(err)), quiet)


def print_note(text: str) -> None:
    """Print a dimmed paragraph below a table."""
    out.print(escape(_wrapped(text, text_width(out))), style="dim")


def print_statement(statement: PrivacyStatement, short: bool) -> None:
    """Print a privacy statement, wrapped."""
    for paragraph in statement.paragraphs(short=short):
        print_paragraph(paragraph)


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """Drop what is written after a reader such as ``head`` has closed the pipe.

    So that the exit code is that of the command.
    """
    streams = sys.stdout, sys.stderr
    if None not in streams and streams == (sys.__stdout__, sys.__stderr__):
        sys.stdout, sys.stderr = map(_forgiving, streams)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout, sys.stderr = streams


def _forgiving(stream: Any) -> Any:
    return io.TextIOWrapper(
        io.BufferedWriter(_ForgivingFile(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )


class _ForgivingFile(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(data)


def print_files(paths: Iterable[Path]) -> None:
    """Print the files that were written."""
    for path in paths:
        print_text(f"Written to {path}")


def print_json(value: Any) -> None:
    """Print a value as JSON; numbers that JSON cannot hold become null."""
    print(json.dumps(_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False))


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return _jsonable(value.tolist()) if hasattr(value, "tolist") else value


def print_table(table: Table) -> None:
    """Print a table to standard output, without blanks at the ends of lines."""
    with out.capture() as text:
        out.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.get().splitlines()))


def print_facts(rows: Mapping[str, str]) -> None:
    """Print names with their values."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(escape(name), escape(value))
    print_table(table)


def number_table(*headings: str, title: str | None = None, rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first column has words and whose other columns have numbers."""
    table = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=i > 0, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def fits_terminal(table: Table) -> bool:
    """Whether a table is no wider than the terminal."""
    return out.measure(table, options=out.options.update(width=10_000)).maximum <= out.width


def print_error(kind: str, message: str) -> None:
    """Print ``kind: message`` to standard error."""
    err.print(f"[bold red]{kind}:[/] {escape(_message(message, kind))}")


def print_warning(message: str) -> None:
    """Print a warning to standard error."""
    err.print(f"[yellow]warning:[/] {escape(_message(message, 'warning'))}")


def _message(message: str, kind: str) -> str:
    """Return a message in lines that a terminal does not break within words."""
    start = " " * len(f"{kind}: ")
    return _wrapped(message, err.width, bullet=start)[len(start) :] if err.is_terminal else message


def print_hint(message: str, quiet: bool) -> None:
    """Print what to do next to standard error, unless ``quiet``."""
    if not quiet:
        err.print(escape(message), style="dim")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "step"), plural(2048, "step")
    ('1 step', '2,048 steps')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_seconds(value: float) -> str:
    """Return a duration with its unit.

    >>> [format_seconds(v) for v in (0.00042, 0.0031, 0.031, 7.36, 75.0, math.nan)]
    ['0.42 ms', '3.1 ms', '31 ms', '7.4 s', '75 s', '–']
    """
    if not math.isfinite(value):
        return "–"
    if value < 1:
        digits = 2 if value < 0.001 else int(value < 0.01)
        return f"{1e3 * value:.{digits}f} ms"
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def format_bytes(count: float) -> str:
    """Return a size with its unit.

    >>> [format_bytes(count) for count in (0, 2202280, 4000000, 510590976)]
    ['0', '2.2 MB', '4.0 MB', '511 MB']
    """
    if not count:
        return "0"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.1f} {unit}" if count < 10 and unit != "B" else f"{count:.0f} {unit}"
