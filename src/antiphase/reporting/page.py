"""The page: one HTML file with the answer, the table, the figures, the promise and how to reproduce them.

Guaranteed: the file fetches nothing and runs no script but its own (its Content-Security-Policy names the hashes of its
script and its style); every text given is shown as text, whatever is in it; without JavaScript it shows the same, less
sorting and hovering.
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
    """A column of a `Grid`. ``digits`` is a number of significant digits, or a format like ``".1f"`` or ``".0%"``."""

    key: str
    title: str
    unit: str = ""
    help: str = ""
    better: Literal["low", "high"] | None = None
    digits: int | str = 3

    def show(self, value: Cell) -> str:
        """
        >>> Column("a", "a").show(1234.567), Column("a", "a", digits=".1%").show(0.0512), Column("a", "a").show(None)
        ('1,235', '5.1%', '–')
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
    """A table that can be sorted. The first column heads its rows; a row's ``"name"`` gives it its mechanism's colour.

    The best value of a column that says what is ``better`` is marked, unless ``mark_best`` is False.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    mark_best: bool = True

    def best(self, column: Column) -> float | None:
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
    """A text with a title, where a `PrivacyStatement` would say too much or too little."""

    title: str
    text: str


@dataclass(frozen=True)
class Page:
    """All that the page says. ``made`` is a line about version and date, given by the caller."""

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
    """Write the page, whole or not at all; an older file of that name is replaced only by a whole one."""
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
    """The page as HTML: the same page gives the same text."""
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
    """The text, escaped; short words are not broken at their hyphens (DP-SGD), nor equations and percentages.

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
    """As a Content-Security-Policy wants it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _grid(grid: Grid) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for row in grid.rows:
        cells = []
        for column in grid.columns:
            value = row.get(column.key)
            number = isinstance(value, int | float)
            cells.append(
                {
                    "text": column.show(value),
                    "number": number,
                    "missing": value is None,
                    "sort": repr(float(value))
                    if isinstance(value, int | float) and math.isfinite(value)
                    else "",
                    "best": number and value == grid.best(column),
                }
            )
        name = row.get("name")
        rows.append(
            {"cells": cells, "colour": svg.colour_class(name) if isinstance(name, str) else ""}
        )
    numeric = [any(row["cells"][i]["number"] for row in rows) for i in range(len(grid.columns))]
    return {
        "caption": grid.caption,
        "columns": list(zip(grid.columns, numeric, strict=True)),
        "rows": rows,
        "marks": any(cell["best"] for row in rows for cell in row["cells"]),
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
        return {
            "title": statement.title,
            "paragraphs": statement.text.split("\n\n"),
            "json": None,
            "link": None,
        }
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
    """The paragraphs of a text that was filled to ``width``, for a page that has a width of its own.

    A line ends a paragraph if the next word would have fitted into it.

    >>> unwrapped("one two\\nthree\\na b", 8)
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
