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
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from antiphase._util import files
from antiphase._util.extras import optional
from antiphase.reporting import palette, svg
from antiphase.reporting.axes import tick_label
from antiphase.reporting.charts import Chart, HeatMaps, Lines
from antiphase.reporting.content import Cell, Column, Grid, Page, version_and_time
from antiphase.statement import PrivacyStatement, rounded_up

with optional("plot", "antiphase.reporting.page", "Jinja2"):
    import jinja2
    from markupsafe import Markup, escape

__all__ = [
    "Cell", "Column", "Grid", "Page", "render", "unbroken", "version_and_time", "write",
]  # fmt: skip


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
    for sign in (" = ", " ± ", " %"):
        text = text.replace(sign, sign.replace(" ", "\u00a0"))
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
                _cell(column, row, value) for column, value in zip(grid.columns, best, strict=True)
            ],
            "colour": svg.colour_class(str(row["name"])) if row.get("name") else "",
            "sampled": bool(row.get("sampled")),
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


def _cell(column: Column, row: Mapping[str, Cell], best: float | None) -> dict[str, Any]:
    value = row.get(column.key)
    number = value if isinstance(value, int | float) else None
    return {
        "text": column.show_with_error(row),
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


def _statement(statement: PrivacyStatement) -> dict[str, Any]:
    text = statement.to_json()
    link = "data:application/json;base64," + base64.b64encode(text.encode()).decode()
    promise = f"({rounded_up(statement.epsilon)}, {tick_label(statement.delta)})"
    return {
        "title": f"{statement.mechanism}: {promise}-differential privacy",
        "paragraphs": statement.paragraphs(),
        "json": json.dumps(json.loads(text), indent=2, ensure_ascii=False),
        "link": link,
    }
