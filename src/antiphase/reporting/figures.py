"""Figures: charts drawn by Matplotlib, as SVG and PNG.

Curves are labelled at their ends and single points beside them, rather than in a legend. No text is
smaller than 13 points, so that a figure can be read when printed at half its size. pyplot is not
used: it would choose a backend for the whole process.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from antiphase._util.extras import optional
from antiphase.reporting.axes import Axis, axes_of, marked, tick_label, x_ticks
from antiphase.reporting.charts import Chart, HeatMaps, Lines, Series
from antiphase.reporting.labels import beside, last_height, points_along, spread
from antiphase.reporting.palette import COLOURS, LIGHT_PAGE, NEGATIVE, OTHER, POSITIVE
from antiphase.reporting.svg import thinned

with optional("plot", "antiphase.reporting.figures", "Matplotlib"):
    import matplotlib as mpl
    from matplotlib.colors import FuncNorm, LinearSegmentedColormap
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "ChartFigure", "draw", "figure"]

FONT_SIZE = 13.0  # points
NOTE_LETTERS_PER_INCH = 11
MAX_POINTS = 4000  # of a curve: more than a printed line has dots
DPI = 160
MARKERS = {"": "", "circle": "o", "diamond": "D"}
STYLE: Any = {
    "font.size": FONT_SIZE,
    "axes.titlesize": 15,
    "axes.labelsize": FONT_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LIGHT_PAGE["muted"],
    "axes.labelcolor": LIGHT_PAGE["muted"],
    "xtick.color": LIGHT_PAGE["muted"],
    "ytick.color": LIGHT_PAGE["muted"],
    "text.color": LIGHT_PAGE["ink"],
    "svg.hashsalt": "antiphase",
}
DIVERGING = LinearSegmentedColormap.from_list("antiphase", [NEGATIVE, "#FFFFFF", POSITIVE])


class ChartFigure(Figure):
    """A Matplotlib figure that notebooks show without pyplot; ``savefig`` writes it to a file.

    Attributes:
        alt: description for screen readers.
    """

    alt: str = ""

    def _repr_png_(self) -> tuple[bytes, dict[str, int | str]]:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=DPI)
        width, height = 72 * self.get_size_inches()  # two to three dots for each pixel of a screen
        return file.getvalue(), {"width": int(width), "height": int(height), "alt": self.alt}


def figure(chart: Chart) -> ChartFigure:
    """Draw a chart as a Matplotlib figure, which pyplot does not manage."""
    with mpl.rc_context(STYLE):
        drawing = _maps(chart) if isinstance(chart, HeatMaps) else _lines(chart)
    drawing.alt = chart.alt
    return drawing


def draw(path: str | os.PathLike[str], chart: Chart) -> tuple[Path, Path]:
    """Write a chart as SVG and as PNG.

    Guarantee: the same chart gives the same bytes, whenever it is drawn.

    Args:
        path: path of the figures; the suffix .svg or .png is optional.
        chart: the chart.

    Returns:
        The paths of the SVG and the PNG file.
    """
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (".svg", ".png") else path
    stem.parent.mkdir(parents=True, exist_ok=True)
    svg, png = stem.with_name(stem.name + ".svg"), stem.with_name(stem.name + ".png")
    metadata = {"Title": chart.title, "Description": chart.alt}
    drawing = figure(chart)
    with mpl.rc_context(STYLE):
        drawing.savefig(svg, metadata={**metadata, "Date": None})
        drawing.savefig(png, metadata={**metadata, "Software": None}, dpi=DPI)
    return svg, png


def _lines(chart: Lines) -> ChartFigure:
    figure = ChartFigure(figsize=(9, 5.4), layout="constrained")
    axes = figure.subplots()
    x_axis, y_axis = axes_of(chart)
    for region in chart.regions:
        axes.axvspan(region.low, region.high, color=LIGHT_PAGE["rule"], alpha=0.45, linewidth=0)
        middle = float(np.clip(x_axis.place([region.low, region.high]), 0, 1).mean())
        text = axes.text(middle, 0.98, region.label, transform=axes.transAxes, fontsize=FONT_SIZE)
        text.set(ha="center", va="top", color=LIGHT_PAGE["muted"])
    for series in chart.series:
        _curve(axes, series, x_axis)
    axes.set(xscale="log" if x_axis.log else "linear", yscale="log" if y_axis.log else "linear")
    for axis, ticks in ((axes.xaxis, x_ticks(chart, x_axis)), (axes.yaxis, y_axis.ticks())):
        axis.set_ticks(ticks, [tick_label(t) for t in ticks])
        axis.set_ticks([], minor=True)
    axes.set(xlim=(x_axis.low, x_axis.high), ylim=(y_axis.low, y_axis.high), xlabel=chart.x_label)
    axes.grid(axis="y", color=LIGHT_PAGE["rule"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _label_ends(axes, chart.series, y_axis)
    # The label of the y axis is above it, where it is horizontal.
    axes.set_title(chart.y_label, loc="left", fontsize=FONT_SIZE, color=LIGHT_PAGE["muted"])
    _heading(figure, chart.title)
    _note(figure, chart.note)
    _label_points(figure, axes, chart.series, (x_axis, y_axis))
    return figure


def _curve(axes: Any, series: Series, x_axis: Axis) -> None:
    colour = COLOURS.get(series.name, OTHER)
    dashes = (0, (5, 3)) if series.dashed or series.sampled else "-"
    style: dict[str, Any] = {"color": colour, "linewidth": 2.2, "linestyle": dashes}
    if not marked(series):
        keep = thinned(np.nan_to_num(x_axis.place(series.x)), series.y, MAX_POINTS)
        x, y = series.x[keep], series.y[keep]
        if series.line:
            axes.plot(x, y, **style)
        if series.error is not None:
            error = series.error[keep]
            axes.fill_between(x, y - error, y + error, color=colour, alpha=0.18, lw=0)
        return
    style |= {"marker": MARKERS[series.marker], "markersize": 7 if series.sampled else 6}
    if not series.line or series.sampled:
        style |= {"markerfacecolor": LIGHT_PAGE["ground"], "markeredgewidth": 1.6, "zorder": 3}
    if not series.line:
        style |= {"linestyle": ""}
    axes.errorbar(series.x, series.y, series.error, capsize=4, elinewidth=1.4, **style)


def _label_ends(axes: Any, series: Iterable[Series], y_axis: Axis) -> None:
    """Label curves at their ends, with leaders where labels are moved apart."""
    heights = [(last_height(s, y_axis), s) for s in series if s.line and not s.is_single]
    ends = [(height, s) for height, s in heights if height is not None]
    places = spread([height for height, _ in ends], 0.065)
    for (height, s), place in zip(ends, places, strict=True):
        style = {"color": COLOURS.get(s.name, OTHER), "linewidth": 1, "clip_on": False}
        axes.plot([1.005, 1.03], [height, place], transform=axes.transAxes, **style)
        axes.text(1.04, place, s.label, transform=axes.transAxes, va="center", fontsize=FONT_SIZE)


def _label_points(
    figure: ChartFigure, axes: Any, series: Iterable[Series], both: tuple[Axis, Axis]
) -> None:
    """Label single points where they are."""
    singles = [s for s in series if s.is_single and np.isfinite(both[1].place(s.y)).all()]
    if not singles:
        return
    texts = [axes.text(0, 0, s.label, va="center", fontsize=FONT_SIZE) for s in singles]
    figure.draw_without_rendering()  # lays the axes out
    area = axes.get_window_extent()
    size = np.array([area.width, area.height])
    extents = [text.get_window_extent() for text in texts]
    along = [points_along(s, *both) for s in series if not s.is_single]
    places = beside(
        np.vstack([points_along(s, *both) for s in singles]) * size,
        [extent.width for extent in extents],
        1.1 * extents[0].height,
        (area.width, area.height),
        np.vstack([np.empty((0, 2)), *along]) * size,
    )
    for text, place in zip(texts, places, strict=True):
        text.set(transform=axes.transAxes, position=tuple(np.array(place) / size))


def _maps(chart: HeatMaps) -> ChartFigure:
    count = len(chart.matrices)
    figure = ChartFigure(figsize=(max(4.6 * count, 6), 5.2), layout="constrained")
    all_axes = figure.subplots(1, count, squeeze=False)
    for axes, (label, matrix) in zip(all_axes[0], chart.matrices.items(), strict=True):
        limit = float(np.abs(matrix).max()) or 1.0
        shape = (0.5, matrix.shape[1] + 0.5, matrix.shape[0] + 0.5, 0.5)
        style = {"cmap": DIVERGING, "norm": _root_norm(limit), "interpolation": "nearest"}
        image = axes.imshow(matrix, extent=shape, aspect="auto", **style)
        axes.set_box_aspect(matrix.shape[0] / matrix.shape[1])
        axes.set_title(label, fontsize=FONT_SIZE)
        axes.set(xlabel=chart.x_label)
        for axis, size in ((axes.xaxis, matrix.shape[1]), (axes.yaxis, matrix.shape[0])):
            ticks = [1, *(t for t in Axis(1, size + 0.01).ticks(4) if t > 0.15 * size)]
            axis.set_ticks(ticks, [tick_label(t) for t in ticks])
        bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.9, aspect=24)
        marks = Axis(-limit, limit).ticks(3)
        bar.set_ticks(marks, labels=[tick_label(t) for t in marks])
        bar.outline.set_visible(False)
    all_axes[0][0].set_ylabel(chart.y_label)
    _heading(figure, chart.title)
    _note(figure, chart.note)
    return figure


def _root_norm(limit: float) -> FuncNorm:
    """Norm with the square root of the magnitude, so that small entries are visible."""

    def root(values: Any) -> Any:
        return np.sign(values) * np.sqrt(np.abs(values))

    def square(values: Any) -> Any:
        return np.sign(values) * np.square(values)

    return FuncNorm((root, square), -limit, limit)


def _heading(figure: Any, title: str) -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=15, fontweight="bold")


def _note(figure: Any, note: str) -> None:
    if note:
        width = int(NOTE_LETTERS_PER_INCH * figure.get_figwidth())
        text = textwrap.fill(note.replace(" = ", "\xa0=\xa0"), width)
        figure.supxlabel(text, x=0.01, ha="left", fontsize=FONT_SIZE, color=LIGHT_PAGE["muted"])
