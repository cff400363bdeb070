"""Tables, JSON and messages: results to standard output, all else to standard error."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

FILE_WIDTH = 400  # columns of a table that is not printed to a terminal: never cut off
TEXT_WIDTH = 100

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
if not out.is_terminal:
    out = Console(highlight=False, soft_wrap=True, width=FILE_WIDTH)


def print_text(text: str = "") -> None:
    """Print text to standard output, as it is."""
    out.print(escape(text))


def print_paragraph(text: str, bullet: str = "") -> None:
    """Print text to standard output, wrapped."""
    indent = " " * len(bullet)
    print_text(textwrap.fill(text, TEXT_WIDTH, initial_indent=bullet, subsequent_indent=indent))


def print_note(text: str) -> None:
    """Print a dimmed paragraph below a table."""
    out.print(escape(textwrap.fill(text, min(out.width, TEXT_WIDTH))), style="dim")


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
    err.print(f"[bold red]{kind}:[/] {escape(message)}")


def print_warning(message: str) -> None:
    """Print a warning to standard error."""
    err.print(f"[yellow]warning:[/] {escape(message)}")


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
