"""Labels of curves and points: where they are placed, in both drawings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from antiphase._util.checks import Array
from antiphase.reporting.axes import Axis
from antiphase.reporting.charts import Series


def last_height(series: Series, axis: Axis) -> float | None:
    """Height of the last point of a curve, from 0 to 1; None if no point has one."""
    heights = axis.place(series.y)
    heights = heights[np.isfinite(heights)]
    return float(heights[-1]) if len(heights) else None


def points_along(series: Series, x_axis: Axis, y_axis: Axis) -> Array:
    """Positions (0 … 1) close together along a curve; the point itself if there is only one."""
    x, y = x_axis.place(series.x), y_axis.place(series.y)
    if len(x) < 2:
        return np.column_stack([x, y])
    fine = np.linspace(0, len(x) - 1, 24 * (len(x) - 1) + 1)
    along = np.column_stack([np.interp(fine, np.arange(len(x)), part) for part in (x, y)])
    return along[np.isfinite(along).all(axis=1)]


def spread(heights: list[float], apart: float) -> list[float]:
    """Return places for labels near the given heights (0 … 1), in the same order, ``apart``.

    >>> spread([0.5, 0.5, 0.9], 0.1)
    [0.45, 0.55, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    # Labels that touch move together: (mean of height − rank·apart, number of labels).
    blocks: list[tuple[float, int]] = []
    for rank, i in enumerate(order):
        blocks.append((heights[i] - rank * apart, 1))
        while len(blocks) > 1 and blocks[-1][0] < blocks[-2][0]:
            (a, n), (b, m) = blocks.pop(), blocks.pop()
            blocks.append(((a * n + b * m) / (n + m), n + m))
    offsets = [offset for offset, count in blocks for _ in range(count)]
    top = max(1 - (len(heights) - 1) * apart, 0.0)
    places = [0.0] * len(heights)
    for rank, (i, offset) in enumerate(zip(order, offsets, strict=True)):
        places[i] = round(min(max(offset, 0.0), top) + rank * apart, 6)
    return places


def beside(
    points: Array, widths: Sequence[float], height: float, size: tuple[float, float], avoid: Array
) -> list[tuple[float, float]]:
    """Return the left end and the middle of a label beside each point.

    Labels stay inside, and off each other, off all points and, if there is room, off curves.

    Args:
        points: positions of the points, in units of length.
        widths: widths of their labels.
        height: height of a label.
        size: width and height of the plot, whose corner is at the origin.
        avoid: further positions that labels should not cover.

    Example:
        >>> points = np.array([[10.0, 50.0], [90.0, 50.0]])
        >>> beside(points, [20.0, 20.0], 10.0, (100.0, 99.0), np.empty((0, 2)))
        [(18.0, 50.0), (62.0, 50.0)]
    """
    gap = 0.8 * height
    labels: list[tuple[float, ...]] = []
    marks = [(x - gap / 2, y - gap / 2, x + gap / 2, y + gap / 2) for x, y in points]
    for (x, y), width in zip(points, widths, strict=True):
        choices = []
        for rank, halves in enumerate(sorted(range(-10, 11), key=abs)):  # of a line up or down
            shifts = (gap, -gap - width) if abs(halves) < 3 else (gap, -gap - width, -width / 2)
            for shift in shifts:
                left, middle = x + shift, y + 0.5 * halves * height
                box = (left, middle - height / 2, left + width, middle + height / 2)
                outside = min(left, box[1]) < 0 or box[2] > size[0] or box[3] > size[1]
                inside = (avoid > box[:2]) & (avoid < box[2:])
                cost = 1000 * outside + 5 * bool(inside.all(axis=1).any()) + rank
                cost += 100 * sum(_overlap(box, other) for other in labels)
                cost += 20 * sum(_overlap(box, other) for other in marks)
                choices.append((cost, box))
        labels.append(min(choices)[1])
    return [(float(left), float(low + height / 2)) for left, low, _, _ in labels]


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two boxes (left, top, right, bottom) overlap."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
