"""Content of pages and tables: columns, grids, blocks of text. Nothing is rendered here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from antiphase import __version__
from antiphase.reporting.axes import typeset
from antiphase.reporting.charts import Chart
from antiphase.statement import PrivacyStatement

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
        error: key of the standard errors, which are shown beside the values.
    """

    key: str
    title: str
    unit: str = ""
    help: str = ""
    better: Literal["low", "high"] | None = None
    digits: int | str = 3
    error: str = ""

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

    def show_with_error(self, row: Mapping[str, Cell]) -> str:
        """Return the value of a row as it is printed, with its standard error if it has one.

        >>> Column("a", "a", error="e").show_with_error({"a": 88.52, "e": 0.44})
        '88.5 ± 0.4'
        """
        text, error = self.show(row.get(self.key)), row.get(self.error)
        if not isinstance(error, int | float):
            return text
        return f"{text} ± {error:.{len(text.partition('.')[2])}f}"


@dataclass(frozen=True)
class Grid:
    """A table that can be sorted.

    Attributes:
        caption: caption.
        columns: columns; the first one has the headings of the rows.
        rows: values by key of the column; ``"name"`` is the mechanism, for its colour;
            ``"sampled"`` is true if its batches are drawn at random, for its marker.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]

    def best(self, column: Column) -> float | None:
        """Return the best value of a column; None if none is marked."""
        numbers = [
            v
            for row in self.rows
            if isinstance(v := row.get(column.key), int | float) and math.isfinite(v)
        ]
        if column.better is None or len(numbers) < 2:
            return None
        return min(numbers) if column.better == "low" else max(numbers)


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
    statements: Sequence[PrivacyStatement] = ()
    reproduce: Sequence[str] = ()
    notes: Sequence[str] = ()
    made: str = ""


def version_and_time() -> str:
    """Version of antiphase and the current time, for `Page.made`."""
    return f"antiphase {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
