"""HTML pages: one file with an answer, tables, charts, privacy statements and the command.

Guarantee: the file fetches nothing and runs no script but its own (its Content-Security-Policy
names the hashes of its script and its style); all text is escaped; without JavaScript it shows the
same, except for sorting and hovering.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jinja2
from markupsafe import Markup, escape

from antiphase import __version__
from antiphase._util import files
from antiphase.reporting import palette, svg
from antiphase.reporting.axes import tick_label, typeset
from antiphase.reporting.charts import Chart, HeatMaps, Lines
from antiphase.statement import PrivacyStatement, rounded_up

Cell = float | int | str | None


@dataclass(frozen=True)
class Column:
    """A column of a `Grid`.

    Attributes:
        key: key of the values in the rows.
        title: heading.
        unit: unit, below the heading.
        help: explanation, shown below the table.
        better: whether low or high values are better.
        digits: number of significant digits, or a format like ``".1f"`` or ``".0%"``.
    """

    key: str
    title: str
    unit: str = ""
    help: str = ""
    better: Literal["low", "high"] | None = None
    digits: int | str = 3

    def show(self, value: Cell) -> str:
        """Return a value as it is printed.

        >>> [Column("a", "a").show(value) for value in (1234.567, 0.0512, None, "text")]
        ['1,235', '0.0512', '–', 'text']
        """
        if value is None:
            return "–"
        if isinstance(value, str):
            return value
        if isinstance(self.digits, str):
            return typeset(format(value, self.digits))
        if not math.isfinite(value):
            return "∞" if value == math.inf else str(value)
        if isinstance(value, int):
            return typeset(f"{value:,}")
        if value and not 1e-4 <= abs(value) < 1e9:
            return typeset(f"{value:.{max(self.digits - 1, 0)}e}")
        size = math.floor(math.log10(abs(value))) if value else 0
        return typeset(f"{value:,.{max(self.digits - 1 - size, 0)}f}")


@dataclass(frozen=True)
class Grid:
    """A table that can be sorted.

    Attributes:
        caption: caption.
        columns: columns; the first one has the headings of the rows.
        rows: values by key of the column; ``"name"`` is the mechanism, for its colour.
        mark_best: whether the best value of a column is marked, where one is better.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    mark_best: bool = True

    def best(self, column: Column) -> float | None:
        """Return the best value of a column; None if none is marked."""
        numbers = [
            v
            for row in self.rows
            if isinstance(v := row.get(column.key), int | float) and math.isfinite(v)
        ]
        if not self.mark_best or column.better is None or len(numbers) < 2:
            return None
        return min(numbers) if column.better == "low" else max(numbers)


@dataclass(frozen=True)
class Block:
    """Text with a title, in place of a `PrivacyStatement`."""

    title: str
    text: str


@dataclass(frozen=True)
class Page:
    """Content of a page.

    Attributes:
        title: title.
        question: the question that the page answers.
        answer: the answer, in one sentence.
        points: further findings.
        grids: tables.
        charts: charts.
        statements: privacy statements, or blocks of text.
        reproduce: commands that reproduce the page.
        notes: notes on the figures.
        made: version and date.
    """

    title: str
    question: str
    answer: str
    points: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    charts: Sequence[Chart] = ()
    statements: Sequence[PrivacyStatement | Block] = ()
    reproduce: Sequence[str] = ()
    notes: Sequence[str] = ()
    made: str = ""


def version_and_time() -> str:
    """Version of antiphase and the current time, for `Page.made`."""
    return f"antiphase {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def write(path: str | os.PathLike[str], page: Page) -> Path:
    """Write a page atomically, and return its path."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(
            f"{path} is a folder; give the name of a file, such as {path / 'report.html'}"
        )
    text = render(page)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, text.encode())
    return path


def render(page: Page) -> str:
    """Return a page as HTML; the same page gives the same text."""
    environment = _environment()
    style = environment.get_template("page.css.j2").render(palette=palette, classes=svg.CLASSES)
    script = environment.get_template("page.js.j2").render()
    return environment.get_template("page.html.j2").render(
        page=page,
        grids=[_grid(grid) for grid in page.grids],
        charts=[_chart(chart) for chart in page.charts],
        statements=[_statement(statement) for statement in page.statements],
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("antiphase", "reporting/templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = unbroken
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "separators": (",", ":"),
        "allow_nan": False,
    }
    return environment


def unbroken(text: str) -> Markup:
    """Escape text so that short hyphenated words, equations and percentages are not broken.

    >>> unbroken("a <b> DP-SGD")
    Markup('a &lt;b&gt; <span class="nobr">DP-SGD</span>')
    """
    text = text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")
    words = [
        Markup('<span class="nobr">{}</span>').format(word)
        if "-" in word and len(word) <= 14
        else escape(word)
        for word in text.split(" ")
    ]
    return Markup(" ").join(words)


def _hash(text: str) -> str:
    """Hash as in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _grid(grid: Grid) -> dict[str, Any]:
    best = [grid.best(column) for column in grid.columns]
    rows = [
        {
            "cells": [
                _cell(column, row.get(column.key), value)
                for column, value in zip(grid.columns, best, strict=True)
            ],
            "colour": svg.colour_class(str(row["name"])) if row.get("name") else "",
        }
        for row in grid.rows
    ]
    numeric = [
        any(isinstance(row.get(column.key), int | float) for row in grid.rows)
        for column in grid.columns
    ]
    return {
        "caption": grid.caption,
        "columns": list(zip(grid.columns, numeric, strict=True)),
        "rows": rows,
        "marks": any(value is not None for value in best),
    }


def _cell(column: Column, value: Cell, best: float | None) -> dict[str, Any]:
    number = value if isinstance(value, int | float) else None
    return {
        "text": column.show(value),
        "number": number is not None,
        "missing": value is None,
        "sort": repr(float(number)) if number is not None and math.isfinite(number) else "",
        "best": number is not None and number == best,
    }


def _chart(chart: Chart) -> dict[str, Any]:
    if isinstance(chart, Lines):
        return {
            "chart": chart,
            "kind": "lines",
            "views": [svg.lines(chart, f) for f in svg.FRAMES],
            "data": svg.hover(chart),
        }
    assert isinstance(chart, HeatMaps)
    maps = svg.maps(chart)
    data = {
        "kind": "maps",
        "yLabel": chart.y_label,
        "xLabel": chart.x_label,
        "maps": [m["hover"] for m in maps.values()],
    }
    return {"chart": chart, "kind": "maps", "maps": maps, "data": data}


def _statement(statement: PrivacyStatement | Block) -> dict[str, Any]:
    if isinstance(statement, Block):
        return {"title": statement.title, "paragraphs": statement.text.split("\n\n"), "json": None}
    text = statement.to_json()
    link = "data:application/json;base64," + base64.b64encode(text.encode()).decode()
    promise = f"({rounded_up(statement.epsilon)}, {tick_label(statement.delta)})"
    return {
        "title": f"{statement.mechanism}: {promise}-differential privacy",
        "paragraphs": unwrapped(str(statement), 100),
        "json": json.dumps(json.loads(text), indent=2, ensure_ascii=False),
        "link": link,
    }


def unwrapped(text: str, width: int) -> list[str]:
    r"""Return the paragraphs of a text that was wrapped at ``width``.

    A line ends a paragraph if the first word of the next line would have fitted into it.

    >>> unwrapped("one two\nthree\na b", 8)
    ['one two three', 'a b']
    """
    paragraphs: list[str] = []
    previous = ""
    for line in text.splitlines():
        broken = bool(previous) and textwrap.wrap(f"{previous} {line}", width)[0] == previous
        if broken:
            paragraphs[-1] += line if previous[-1] == "-" else f" {line}"
        else:
            paragraphs.append(line)
        previous = line
    return paragraphs
