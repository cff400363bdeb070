"""HTML and figures of results, for notebooks.

The HTML is a fragment without a script, a style sheet or a colour of its own, so that it suits
light and dark pages. It needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial, singledispatch
from html import escape
from typing import TYPE_CHECKING, Any

from antiphase._util import checks as check
from antiphase._util.extras import optional
from antiphase.comparison import Comparison, batches_needed, conclusion
from antiphase.comparison.candidates import LABELS
from antiphase.design import design
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.recommendation import Recommendation
from antiphase.reporting import comparison_report
from antiphase.reporting.charts import (
    MAX_STEPS,
    Chart,
    encoder_and_decoder,
    noise_per_iterate,
    noise_spectrum,
)
from antiphase.reporting.content import Cell, Column, Grid
from antiphase.statement import PrivacyStatement, rounded_up

if TYPE_CHECKING:
    from antiphase.reporting.figures import ChartFigure

LEFT, RIGHT = ' style="text-align: left; white-space: nowrap"', ' style="text-align: right"'
NO_BREAK_HYPHEN = "\u2011"


def figure(result: Any, chart: str) -> ChartFigure:
    """Draw one of the charts of a result.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: there is no such chart of this result.
    """
    builders = charts(result)
    build = builders[check.choice("chart", chart, tuple(builders))]
    with optional("plot", "plot()", "Matplotlib"):
        from antiphase.reporting import figures
    return figures.figure(build())


@singledispatch
def charts(result: Any) -> Mapping[str, Callable[[], Chart]]:
    """Functions that build the charts of a result, by name."""
    raise TypeError(f"there are no charts of a {type(result).__name__}")


@charts.register
def _charts_of_factorization(f: Factorization) -> Mapping[str, Callable[[], Chart]]:
    independent = design("dp-sgd", workload=f.workload, participation=f.participation)
    designs: dict[str, tuple[str, Factorization]] = {"DP-SGD, fixed order": ("dp-sgd", independent)}
    if not f.is_identity:
        designs[LABELS.get(f.name, f.name)] = f.name, f
    builders: dict[str, Callable[[], Chart]] = {"noise": partial(noise_per_iterate, designs)}
    if f.steps <= MAX_STEPS:
        builders["spectrum"] = partial(noise_spectrum, designs)
        builders["matrices"] = partial(encoder_and_decoder, f)
    return builders


@charts.register
def _charts_of_comparison(comparison: Comparison) -> Mapping[str, Callable[[], Chart]]:
    builders = comparison_report.builders(comparison)
    return {name: partial(build, comparison) for name, build in builders.items()}


@charts.register
def _charts_of_recommendation(result: Recommendation) -> Mapping[str, Callable[[], Chart]]:
    return charts(result.comparison)


@singledispatch
def html(result: Any) -> str:
    """A result as a fragment of HTML."""
    raise TypeError(f"there is no HTML of a {type(result).__name__}")


@html.register
def _html_of_factorization(f: Factorization) -> str:
    rows = {
        "design": f.name + "".join(f", {k} = {v}" for k, v in f.options.items() if _is_plain(v)),
        "steps": f"{f.steps:,}",
        "participation": f.participation.describe(),
        "optimizer": f.workload.describe(),
        "objective": f.objective.describe(),
        "sensitivity": f"{f.sensitivity:.6g}",
        "squared noise": f"{f.error:.6g}",
    }
    if f.is_certified:
        rows["certified minimum"] = f"{f.lower_bound:.6g} (gap {f.gap:.2g})"
    return _facts("Factorization", rows)


@html.register
def _html_of_mechanism(mechanism: Mechanism) -> str:
    f, delta, rate = mechanism.factorization, mechanism.target_delta, mechanism.sampling.rate
    if delta is not None:
        promise = f"({rounded_up(mechanism.epsilon())}, {delta:g})-DP"
    else:
        mu = mechanism.mu()
        promise = "depends on δ" if mu is None else f"{rounded_up(mu)}-GDP"
    rows = {
        "privacy": f"{promise} for each {mechanism.unit}, {mechanism.adjacency}",
        "factorization": f.name,
        "steps": f"{mechanism.steps:,}",
        "participation": f.participation.describe(),
        "sampling": mechanism.sampling.label + ("" if rate is None else f", rate {rate:g}"),
        "clip norm": f"{mechanism.clip_norm:g}",
        "noise multiplier": f"{mechanism.noise_multiplier:.6g}",
    }
    return _facts("Mechanism", rows)


@html.register
def _html_of_statement(statement: PrivacyStatement) -> str:
    first, *others = statement.paragraphs()
    return f"<p><b>{escape(first)}</b></p>{_paragraphs(others)}"


@html.register
def _html_of_comparison(comparison: Comparison) -> str:
    return f"<p><b>{escape(conclusion(comparison))}</b></p>{_tables(comparison)}"


@html.register
def _html_of_recommendation(result: Recommendation) -> str:
    return (
        f"<p><b>Recommended: {escape(result.best.label)}</b></p>{_paragraphs(result.reasons)}"
        f"<p>Assumed: {escape('; '.join(result.assumptions))}.</p>{_tables(result.comparison)}"
    )


def _tables(comparison: Comparison) -> str:
    tables = "".join(map(_grid, comparison_report.grids(comparison)))
    notes = [f"Without {label}: {reason}" for label, reason in comparison.refused.items()]
    notes = [f"For {comparison.setting.describe()}. {batches_needed(comparison)}", *notes]
    return tables + _paragraphs(notes)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts)


def _facts(title: str, facts: Mapping[str, str]) -> str:
    """A table with a name and a value in each row."""
    rows = [[f"<b>{escape(name)}</b>", escape(value)] for name, value in facts.items()]
    return _table(title, "".join(_row(row, "td", LEFT) for row in rows))


def _grid(grid: Grid) -> str:
    """A table with the best values in bold, without columns that have no value."""
    columns = [c for c in grid.columns if any(row.get(c.key) is not None for row in grid.rows)]
    rows = [[_cell(column, grid, row.get(column.key)) for column in columns] for row in grid.rows]
    head = _row([_heading(column) for column in columns], "th")
    return _table(grid.caption, "".join(_row(row, "td") for row in rows), head)


def _heading(column: Column) -> str:
    title = column.title + (f" ({column.unit})" if column.unit else "")
    title = escape(title.replace("-", NO_BREAK_HYPHEN))
    return f'<span title="{escape(column.help)}">{title}</span>'


def _cell(column: Column, grid: Grid, value: Cell) -> str:
    text = escape(column.show(value))
    return f"<b>{text}</b>" if value is not None and value == grid.best(column) else text


def _row(cells: Iterable[str], tag: str, style: str = RIGHT) -> str:
    """A row of a table, whose first cell is aligned to the left."""
    cells = (f"<{tag}{style if i else LEFT}>{cell}</{tag}>" for i, cell in enumerate(cells))
    return f"<tr>{''.join(cells)}</tr>"


def _table(caption: str, rows: str, head: str = "") -> str:
    caption = f"<caption{LEFT}><b>{escape(caption)}</b></caption>"
    return f"<table>{caption}<thead>{head}</thead><tbody>{rows}</tbody></table>"
