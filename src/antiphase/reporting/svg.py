"""Charts laid out for the page: where each line, mark and word of an inline SVG goes. The template only writes it down.

A chart of curves is laid out twice, for a screen and for a phone, so that its words are never scaled to be unreadable.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase.reporting.axes import Axis, axes_of, marked, spread, tick_label, x_ticks
from antiphase.reporting.charts import HeatMaps, Lines, Region, Series, matrix_in_words
from antiphase.reporting.palette import COLOURS, NEGATIVE, POSITIVE

MOST_POINTS = 600  # of a curve, drawn or hovered over
MOST_CELLS = 128  # of a heat map, each way
CLASSES = {
    name: f"c{i}" for i, name in enumerate(COLOURS)
}  # the CSS class that gives a mechanism its colour


@dataclass(frozen=True)
class Frame:
    """The size of a drawing, in the units of its viewBox, and what fits into it."""

    kind: str
    width: int
    height: int
    font: float
    labelled: bool  # curves have their labels at their ends
    most_ticks: int


FRAMES = (Frame("wide", 960, 420, 15, True, 8), Frame("narrow", 400, 300, 13, False, 5))


def colour_class(name: str) -> str:
    return CLASSES.get(name, "c-other")


# ---- curves ----------------------------------------------------------------------------------------------------


def lines(chart: Lines, frame: Frame) -> dict[str, Any]:
    """All positions of one drawing of a chart."""
    x_axis, y_axis = axes_of(chart)
    xs, ys = x_ticks(chart, x_axis, frame.most_ticks), y_axis.ticks(7)
    letter = 0.58 * frame.font  # the width of a letter, about
    left = 12 + letter * max((len(tick_label(t)) for t in ys), default=1)
    right = 18 + (
        letter * max((len(s.label) for s in chart.series), default=0) + 30 if frame.labelled else 0
    )
    right = min(right, 0.4 * frame.width)
    top, bottom = frame.font * 0.8, frame.font * 3.4
    plot = (left, top, frame.width - left - right, frame.height - top - bottom)
    ends = [_last_height(s, y_axis) if s.line else None for s in chart.series]
    shown = [end for end in ends if end is not None]
    places = iter(spread(shown, 1.45 * frame.font / plot[3]))
    return {
        "frame": frame,
        "plot": [round(v, 1) for v in plot],
        "x_ticks": [(_x(plot, x_axis.place(t)), tick_label(t)) for t in xs],
        "y_ticks": [(_y(plot, y_axis.place(t)), tick_label(t)) for t in ys],
        "regions": [_region(r, plot, x_axis) for r in chart.regions],
        "curves": [
            {"index": i}
            | _curve(s, plot, x_axis, y_axis)
            | _label(plot, end, next(places) if end is not None else None)
            for i, (s, end) in enumerate(zip(chart.series, ends, strict=True))
        ],
    }


def hover(chart: Lines) -> dict[str, Any]:
    """What the page says at each x: exact values, at no more than `MOST_POINTS` places, with every curve's extremes."""
    x_axis, y_axis = axes_of(chart)
    grid = _hover_grid(chart, x_axis)
    series = []
    for s in chart.series:
        where = np.searchsorted(s.x, grid).clip(0, max(len(s.x) - 1, 0))
        here = (s.x[where] == grid) if len(s.x) else np.zeros(len(grid), bool)
        series.append(
            {
                "label": s.label,
                "colour": colour_class(s.name),
                "y": _plain(
                    np.where(here, s.y[where], np.nan) if len(s.x) else np.full(len(grid), np.nan)
                ),
                "error": None
                if s.error is None
                else _plain(np.where(here, s.error[where], np.nan)),
            }
        )
    return {
        "kind": "lines",
        "x": _plain(grid),
        "xLabel": chart.x_label,
        "xAxis": {"low": x_axis.low, "high": x_axis.high, "log": x_axis.log},
        "yAxis": {"low": y_axis.low, "high": y_axis.high, "log": y_axis.log},
        "series": series,
    }


def thinned(place: Array, values: Array, most: int = MOST_POINTS) -> Indices:
    """Indices of at most ``most`` points that look like all of them: of each of many narrow strips, the first and the
    last point, the lowest and the highest. ``place`` is where the points are along the axis, from 0 to 1, rising."""
    if len(values) <= most:
        return np.arange(len(values))
    strips = most // 4
    strip = np.clip((place * strips).astype(np.int64), 0, strips - 1)
    starts = np.flatnonzero(np.r_[True, strip[1:] != strip[:-1]])
    kept: set[int] = set()
    for start, stop in zip(starts, np.r_[starts[1:], len(values)], strict=True):
        part = values[start:stop]
        kept.update((int(start), int(stop) - 1))
        if np.isfinite(part).any():
            kept.update((int(start + np.nanargmin(part)), int(start + np.nanargmax(part))))
    return np.array(sorted(kept))


def _hover_grid(chart: Lines, x_axis: Axis) -> Array:
    every = (
        np.unique(np.concatenate([s.x[np.isfinite(s.x)] for s in chart.series]))
        if chart.series
        else np.array([])
    )
    if len(every) <= MOST_POINTS:
        return every
    extremes = [
        s.x[pick(s.y)]
        for s in chart.series
        if np.isfinite(s.y).any()
        for pick in (np.nanargmin, np.nanargmax)
    ]
    place = x_axis.place(every)
    wanted = np.linspace(0, 1, MOST_POINTS - len(extremes) - 1)
    nearest = np.searchsorted(place, wanted).clip(0, len(every) - 1)
    return np.unique(np.concatenate([every[nearest], every[-1:], extremes]))


def _curve(s: Series, plot: tuple[float, ...], x_axis: Axis, y_axis: Axis) -> dict[str, Any]:
    place = x_axis.place(s.x)
    keep = thinned(np.nan_to_num(place), s.y)
    x, y = _x(plot, place[keep]), _y(plot, y_axis.place(s.y[keep]))
    view: dict[str, Any] = {
        "label": s.label,
        "colour": colour_class(s.name),
        "dashed": s.dashed,
        "path": _path(x, y) if s.line else "",
        "band": "",
        "bars": [],
        "points": [],
    }
    if s.error is not None:
        low, high = (
            np.clip(_y(plot, y_axis.place(s.y[keep] + sign * s.error[keep])), 0, None)
            for sign in (-1, 1)
        )
        if marked(s):
            view["bars"] = [
                (round(a, 1), round(b, 1), round(c, 1))
                for a, b, c in zip(x, low, high, strict=True)
                if _all(a, b, c)
            ]
        else:
            fine = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
            around = np.r_[x[fine], x[fine][::-1]], np.r_[high[fine], low[fine][::-1]]
            view["band"] = _path(*around) + "Z" if fine.any() else ""
    if marked(s) and not (s.dashed and s.line):
        view["points"] = [
            (round(a, 1), round(b, 1)) for a, b in zip(x, y, strict=True) if _all(a, b)
        ]
    return view


def _region(region: Region, plot: tuple[float, ...], x_axis: Axis) -> dict[str, Any]:
    low, high = _x(plot, np.clip(x_axis.place([region.low, region.high]), 0, 1))
    return {
        "x": float(low),
        "width": round(float(high - low), 2),
        "label": region.label.split("\n"),
    }


def _label(plot: tuple[float, ...], end: float | None, place: float | None) -> dict[str, Any]:
    if end is None or place is None:
        return {"label_y": None, "end_y": None}
    return {"label_y": round(float(_y(plot, place)), 1), "end_y": round(float(_y(plot, end)), 1)}


def _last_height(s: Series, y_axis: Axis) -> float | None:
    heights = y_axis.place(s.y)
    heights = heights[np.isfinite(heights)]
    return float(heights[-1]) if len(heights) else None


def _x(plot: tuple[float, ...], place: Any) -> Any:
    return np.round(plot[0] + plot[2] * place, 2)


def _y(plot: tuple[float, ...], place: Any) -> Any:
    return np.round(plot[1] + plot[3] * (1 - place), 2)


def _path(x: Array, y: Array) -> str:
    """A path through the points, with a gap where one is not finite."""
    words, pen = [], "M"
    for a, b in zip(x, y, strict=True):
        if _all(a, b):
            words.append(f"{pen}{a:g} {b:g}")
            pen = "L"
        else:
            pen = "M"
    return "".join(words)


def _all(*values: float) -> bool:
    return all(math.isfinite(v) for v in values)


def _plain(values: Array) -> list[float | None]:
    """For JSON: seven digits, and None for what is not finite."""
    return [float(f"{v:.7g}") if math.isfinite(v) else None for v in values]


# ---- heat maps -------------------------------------------------------------------------------------------------


def heat_map(matrix: Array) -> dict[str, Any]:
    """A picture of the matrix, and the values of its cells: blocks of entries where there are too many to show."""
    block = math.ceil(max(matrix.shape) / MOST_CELLS)
    cells = largest_of_blocks(matrix, block)
    limit = float(np.abs(matrix).max()) or 1.0
    return {
        "picture": "data:image/png;base64,"
        + base64.b64encode(png(_painted(cells / limit))).decode(),
        "rows": matrix.shape[0],
        "columns": matrix.shape[1],
        "limit": tick_label(float(f"{limit:.2g}")),
        "hover": {
            "block": block,
            "rows": matrix.shape[0],
            "columns": matrix.shape[1],
            "cells": [[float(f"{v:.3g}") for v in row] for row in cells],
        },
    }


def largest_of_blocks(matrix: Array, block: int) -> Array:
    """Of each ``block`` × ``block`` of entries the one farthest from zero: a thin diagonal does not fade away."""
    if block == 1:
        return matrix
    rows, columns = (math.ceil(n / block) for n in matrix.shape)
    padded = np.zeros((rows * block, columns * block))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    parts = (
        padded.reshape(rows, block, columns, block)
        .transpose(0, 2, 1, 3)
        .reshape(rows, columns, block * block)
    )
    chosen = np.abs(parts).argmax(axis=2)
    return np.asarray(np.take_along_axis(parts, chosen[..., None], axis=2)[..., 0])


def _painted(relative: Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """RGBA: the sign gives the colour, the square root of the size how opaque it is; zero is the page's own ground."""
    positive, negative = ([int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in (POSITIVE, NEGATIVE))
    pixels = np.empty((*relative.shape, 4), np.uint8)
    pixels[..., :3] = np.where((relative > 0)[..., None], positive, negative)
    pixels[..., 3] = np.round(255 * np.sqrt(np.abs(relative)))
    return pixels


def png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """An RGBA picture as a PNG file (ISO/IEC 15948), in one piece and without filters."""
    height, width = pixels.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = np.concatenate(
        [np.zeros((height, 1), np.uint8), pixels.reshape(height, width * 4)], axis=1
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def maps(chart: HeatMaps) -> Mapping[str, dict[str, Any]]:
    """Each matrix of the chart, by label."""
    return {
        label: heat_map(matrix) | {"alt": matrix_in_words(label, matrix)}
        for label, matrix in chart.matrices.items()
    }
