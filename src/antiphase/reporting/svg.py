"""Layout of charts as inline SVG: positions of curves, marks and text for the page's template.

Matplotlib's own SVG does not serve the page. It writes a ``style`` attribute on every element,
which the page's Content-Security-Policy forbids; it has no groups for a curve with its label, which
the page hides and shows; and its text is laid out for one size, while each chart is laid out twice
here, for a screen and for a phone, so that text is never scaled below a readable size.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.extras import optional
from antiphase.reporting.axes import Axis, axes_of, marked, tick_label, x_ticks
from antiphase.reporting.charts import HeatMaps, Lines, Region, Series, describe_matrix
from antiphase.reporting.labels import beside, last_height, points_along, spread
from antiphase.reporting.palette import COLOURS, NEGATIVE, POSITIVE

with optional("plot", "antiphase.reporting.svg", "Pillow"):
    from PIL import Image

MAX_POINTS = 600  # of a curve, drawn or shown on hovering
MAX_CELLS = 128  # of a heat map, in each direction
CLASSES = {name: f"c{i}" for i, name in enumerate(COLOURS)}  # CSS class of each mechanism's colour


@dataclass(frozen=True)
class Frame:
    """Size of a drawing, in units of its viewBox.

    Attributes:
        kind: CSS class, ``wide`` or ``narrow``.
        width: width.
        height: height.
        font: font size.
        labelled: whether curves are labelled at their ends.
        max_ticks: number of ticks that fit on the x axis.
    """

    kind: str
    width: int
    height: int
    font: float
    labelled: bool
    max_ticks: int


FRAMES = (Frame("wide", 960, 420, 15, True, 8), Frame("narrow", 400, 300, 13, False, 5))


def colour_class(name: str) -> str:
    """CSS class of the colour of a mechanism."""
    return CLASSES.get(name, "c-other")


@dataclass(frozen=True)
class Plot:
    """The part of a drawing that has the curves."""

    left: float
    top: float
    width: float
    height: float
    x_axis: Axis
    y_axis: Axis

    def x(self, values: Any) -> Any:
        """Horizontal positions of values; NaN where they have none."""
        return np.round(self.left + self.width * self.x_axis.place(values), 2)

    def y(self, values: Any) -> Any:
        """Vertical positions of values; NaN where they have none."""
        return self.at_height(self.y_axis.place(values))

    def at_height(self, share: Any) -> Any:
        """Vertical positions of heights, from 0 at the bottom to 1 at the top."""
        return np.round(self.top + self.height * (1 - share), 2)


def lines(chart: Lines, frame: Frame) -> dict[str, Any]:
    """Lay out a chart of curves."""
    x_axis, y_axis = axes_of(chart)
    xs, ys = x_ticks(chart, x_axis, frame.max_ticks), y_axis.ticks(7)
    letter = 0.58 * frame.font  # approximate width
    left = 12 + letter * max((len(tick_label(t)) for t in ys), default=1)
    right = 18.0
    if frame.labelled:
        longest = max((len(s.label) for s in chart.series if not s.is_single), default=0)
        right = max(min(48 + letter * longest, 0.4 * frame.width) * (longest > 0), right)
    top, bottom = frame.font * 0.8, frame.font * 3.4
    width, height = frame.width - left - right, frame.height - top - bottom
    plot = Plot(left, top, width, height, x_axis, y_axis)
    curves = [{"index": i} | _curve(s, plot) for i, s in enumerate(chart.series)]
    if frame.labelled:
        _label_ends(curves, chart, plot, 1.45 * frame.font / height)
        _label_points(curves, chart, plot, frame.font)
    return {
        "frame": frame,
        "plot": [round(v, 1) for v in (left, top, width, height)],
        "x_ticks": [(plot.x(t), tick_label(t)) for t in xs],
        "y_ticks": [(plot.y(t), tick_label(t)) for t in ys],
        "regions": [_region(region, plot) for region in chart.regions],
        "curves": curves,
    }


def _label_ends(curves: list[dict[str, Any]], chart: Lines, plot: Plot, apart: float) -> None:
    """Label curves beside their ends, with leaders, so that labels do not overlap."""
    heights = {
        i: height
        for i, s in enumerate(chart.series)
        if s.line and not s.is_single and (height := last_height(s, plot.y_axis)) is not None
    }
    right = plot.left + plot.width
    for (i, height), place in zip(
        heights.items(), spread(list(heights.values()), apart), strict=True
    ):
        end, y = (round(float(plot.at_height(share)), 1) for share in (height, place))
        leader = f"M{right + 5:.1f} {end}L{right + 22:.1f} {y}"
        curves[i]["text"] = {"x": round(right + 28, 1), "y": y, "leader": leader}


def _label_points(curves: list[dict[str, Any]], chart: Lines, plot: Plot, font: float) -> None:
    """Label single points where they are."""
    singles = {i: s for i, s in enumerate(chart.series) if s.is_single and curves[i]["points"]}
    if not singles:
        return
    corner, size = np.array([plot.left, plot.top]), (plot.width, plot.height)
    points = np.array([curves[i]["points"][0] for i in singles]) - corner
    widths = [0.56 * font * len(s.label) for s in singles.values()]
    avoid = [points_along(s, plot.x_axis, plot.y_axis) for s in chart.series if not s.is_single]
    along = np.vstack([np.empty((0, 2)), *avoid])
    along = np.column_stack([along[:, 0], 1 - along[:, 1]]) * size
    places = beside(points, widths, 1.2 * font, size, along)
    for i, (x, y) in zip(singles, places, strict=True):
        curves[i]["text"] = {
            "x": round(plot.left + x, 1),
            "y": round(plot.top + y, 1),
            "leader": "",
        }


def hover(chart: Lines) -> dict[str, Any]:
    """Exact values that the page shows on hovering, at no more than `MAX_POINTS` positions."""
    x_axis, y_axis = axes_of(chart)
    positions = _hover_positions(chart, x_axis)
    return {
        "kind": "lines",
        "x": _jsonable(positions),
        "xLabel": chart.x_label,
        "xAxis": asdict(x_axis),
        "yAxis": asdict(y_axis),
        "series": [
            {
                "label": s.label,
                "colour": colour_class(s.name),
                "marker": s.marker,
                "y": _jsonable(_values_at(positions, s.x, s.y)),
                "error": None
                if s.error is None
                else _jsonable(_values_at(positions, s.x, s.error)),
            }
            for s in chart.series
        ],
    }


def _values_at(positions: Array, x: Array, y: Array) -> Array:
    """Values of a curve at the given positions; NaN where it has no point."""
    if not len(x):
        return np.full(len(positions), np.nan)
    index = np.searchsorted(x, positions).clip(0, len(x) - 1)
    return np.where(x[index] == positions, y[index], np.nan)


def thinned(place: Array, values: Array, max_points: int = MAX_POINTS) -> Indices:
    """Indices of points that look like all of them: first, last, lowest and highest of each strip.

    Args:
        place: positions along the axis, from 0 to 1, ascending.
        values: values at these positions.
        max_points: how many points are kept at most.
    """
    if len(values) <= max_points:
        return np.arange(len(values))
    strips = max_points // 4
    strip = np.clip((place * strips).astype(np.int64), 0, strips - 1)
    starts = np.flatnonzero(np.r_[True, strip[1:] != strip[:-1]])
    kept: set[int] = set()
    for start, stop in zip(starts, np.r_[starts[1:], len(values)], strict=True):
        part = values[start:stop]
        kept.update((int(start), int(stop) - 1))
        if np.isfinite(part).any():
            kept.update((int(start + np.nanargmin(part)), int(start + np.nanargmax(part))))
    return np.array(sorted(kept))


def _hover_positions(chart: Lines, x_axis: Axis) -> Array:
    """All positions of points, or if they are too many, evenly spaced ones and the extremes."""
    xs = [s.x[np.isfinite(s.x)] for s in chart.series]
    positions = np.unique(np.concatenate(xs)) if xs else np.array([])
    if len(positions) <= MAX_POINTS:
        return positions
    extremes = [
        s.x[pick(s.y)]
        for s in chart.series
        if np.isfinite(s.y).any()
        for pick in (np.nanargmin, np.nanargmax)
    ]
    wanted = np.linspace(0, 1, MAX_POINTS - len(extremes) - 1)
    nearest = np.searchsorted(x_axis.place(positions), wanted).clip(0, len(positions) - 1)
    return np.unique(np.concatenate([positions[nearest], positions[-1:], extremes]))


def _curve(s: Series, plot: Plot) -> dict[str, Any]:
    keep = thinned(np.nan_to_num(plot.x_axis.place(s.x)), s.y)
    x, y = plot.x(s.x[keep]), plot.y(s.y[keep])
    curve: dict[str, Any] = {
        "label": s.label,
        "colour": colour_class(s.name),
        "dashed": s.dashed or s.sampled,
        "marker": s.marker if marked(s) else "",
        "single": s.is_single,
        "text": None,
        "path": _path(x, y) if s.line else "",
        "band": "",
        "bars": [],
        "points": _finite_rows(x, y) if marked(s) and s.marker else [],
    }
    if s.error is not None:
        error = s.error[keep]
        low, high = (np.clip(plot.y(s.y[keep] + e), 0, None) for e in (-error, error))
        if marked(s):
            curve["bars"] = _finite_rows(x, low, high)
        elif finite := _finite_rows(x, low, high, digits=2):
            x, low, high = np.array(finite).T
            curve["band"] = _path(np.r_[x, x[::-1]], np.r_[high, low[::-1]]) + "Z"
    return curve


def _region(region: Region, plot: Plot) -> dict[str, Any]:
    ends = np.clip([region.low, region.high], plot.x_axis.low, plot.x_axis.high)
    low, high = plot.x(ends)
    width = round(float(high - low), 2)
    return {"x": float(low), "width": width, "label": region.label.split("\n")}


def _finite_rows(*columns: Array, digits: int = 1) -> list[tuple[float, ...]]:
    """Rows of the columns whose entries are all finite, rounded."""
    rows = zip(*columns, strict=True)
    return [tuple(round(float(v), digits) for v in row) for row in rows if np.isfinite(row).all()]


def _path(x: Array, y: Array) -> str:
    """SVG path through points, with a gap where one is not finite."""
    commands, pen = [], "M"
    for a, b in zip(x, y, strict=True):
        finite = math.isfinite(a) and math.isfinite(b)
        if finite:
            commands.append(f"{pen}{a:g} {b:g}")
        pen = "L" if finite else "M"
    return "".join(commands)


def _jsonable(values: Array) -> list[float | None]:
    """Values with seven digits, None where they are not finite."""
    return [float(f"{v:.7g}") if math.isfinite(v) else None for v in values]


def maps(chart: HeatMaps) -> Mapping[str, dict[str, Any]]:
    """Lay out each matrix of a chart, by label."""
    return {
        label: heat_map(matrix) | {"alt": describe_matrix(label, matrix)}
        for label, matrix in chart.matrices.items()
    }


def heat_map(matrix: Array) -> dict[str, Any]:
    """Picture of a matrix and the values of its cells.

    A cell is a block of entries if there are too many entries to show.
    """
    rows, columns = matrix.shape
    block = math.ceil(max(rows, columns) / MAX_CELLS)
    cells = largest_of_blocks(matrix, block)
    limit = float(np.abs(matrix).max()) or 1.0
    values = [[float(f"{v:.3g}") for v in row] for row in cells]
    return {
        "picture": f"data:image/png;base64,{base64.b64encode(png(cells / limit)).decode()}",
        "rows": rows,
        "columns": columns,
        "limit": tick_label(float(f"{limit:.2g}")),
        "hover": {"block": block, "rows": rows, "columns": columns, "cells": values},
    }


def largest_of_blocks(matrix: Array, block: int) -> Array:
    """Entry of largest magnitude of each ``block`` × ``block`` entries.

    A thin diagonal stays visible, as it would not in a mean.
    """
    if block == 1:
        return matrix
    rows, columns = (math.ceil(n / block) for n in matrix.shape)
    padded = np.zeros((rows * block, columns * block))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    grid = padded.reshape(rows, block, columns, block).transpose(0, 2, 1, 3)
    blocks = grid.reshape(rows, columns, block * block)
    largest = np.abs(blocks).argmax(axis=2)
    return np.asarray(np.take_along_axis(blocks, largest[..., None], axis=2)[..., 0])


def png(relative: Array) -> bytes:
    """PNG of values in −1 … 1.

    The sign determines the colour, the square root of the magnitude the opacity: at zero the
    background of the page shows, light or dark.
    """
    positive, negative = (tuple(bytes.fromhex(c[1:])) for c in (POSITIVE, NEGATIVE))
    pixels = np.empty((*relative.shape, 4), np.uint8)
    pixels[..., :3] = np.where((relative > 0)[..., None], positive, negative)
    pixels[..., 3] = np.round(255 * np.sqrt(np.abs(relative)))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()
