"""Options for figures and pages, and how these are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from antiphase.cli import options
from antiphase.reporting import page
from antiphase.reporting.charts import Chart

FiguresFolder = Annotated[Path | None, Option(help="Folder for figures, SVG and PNG.")]


@dataclass(frozen=True)
class ReportOptions:
    """Files about the results."""

    html: Annotated[Path | None, Option(help="Write a page that opens in any browser.")] = None
    figures: FiguresFolder = None

    def write(
        self, charts: Callable[[], Mapping[str, Chart]], make_page: Callable[[str], page.Page]
    ) -> list[Path]:
        """Write the files that were asked for.

        Args:
            charts: makes the charts by name.
            make_page: makes the page, which shows the command line that it is given.

        Returns:
            The paths of the files.
        """
        written = [] if self.figures is None else draw_figures(self.figures, charts())
        if self.html is not None:
            written.append(page.write(self.html, make_page(options.typed_command())))
        return written


def draw_figures(folder: Path, charts: Mapping[str, Chart]) -> list[Path]:
    """Draw charts as SVG and PNG, and return the paths."""
    from antiphase.reporting import figures

    return [path for name, chart in charts.items() for path in figures.draw(folder / name, chart)]
