"""Where values lie on an axis, and which of them are marked. Both drawings use it, and so agree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase.reporting.charts import Lines, Series

FEW = 24  # points of a curve that can be told apart


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high``, with ``low < high``, and both positive where logarithmic."""

    low: float
    high: float
    log: bool = False

    def place(self, values: Any) -> Array:
        """Where values are, from 0 at ``low`` to 1 at ``high``; NaN for what has no place."""
        values = np.asarray(values, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.where(np.isfinite(values) & ((values > 0) | (not self.log)), values, np.nan)
            low, high = self._scaled(self.low), self._scaled(self.high)
            return np.asarray((self._scaled(inside) - low) / (high - low))

    def _scaled(self, values: Any) -> Any:
        return np.log10(values) if self.log else values

    def ticks(self, most: int = 7) -> list[float]:
        """Round values within the axis, at most ``most`` of them where that leaves two.

        >>> Axis(0, 256).ticks(), Axis(1, 40, log=True).ticks()
        ([0.0, 50.0, 100.0, 150.0, 200.0, 250.0], [1.0, 2.0, 5.0, 10.0, 20.0])
        """
        for candidate in (_log_ticks if self.log else _linear_ticks)(self.low, self.high):
            inside = [
                t
                for t, place in zip(candidate, self.place(candidate), strict=True)
                if -1e-9 <= place <= 1 + 1e-9
            ]
            if len(inside) <= most:
                return inside
        return []


def _linear_ticks(low: float, high: float) -> Iterator[list[float]]:
    """Ever coarser sets of multiples of 1, 2 and 5."""
    power = math.floor(math.log10(high - low)) - 1
    while True:
        for step in (1, 2, 5):
            unit = 10.0 ** abs(power)  # multiplied or divided by, whichever is exact: 0.3 is 3 / 10
            multiples = range(
                math.floor(low / (step * 10.0**power)), math.ceil(high / (step * 10.0**power)) + 1
            )
            yield [k * step * unit if power >= 0 else k * step / unit for k in multiples]
        power += 1


def _log_ticks(low: float, high: float) -> Iterator[list[float]]:
    """Ever coarser sets of decades, with 2 and 5 between them where there is room; multiples where there is none."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    sets = [
        [m * 10.0**k for k in range(first, last + 1) for m in marks]
        for marks in ((1, 2, 5), (1, 3), (1,))
    ]
    inside = [t for t in sets[0] if low <= t <= high]
    if len(inside) < 3:
        yield from _linear_ticks(low, high)
        return
    yield from sets
    for every in range(2, 400):
        yield [10.0**k for k in range(first, last + 1) if k % every == 0]


def tick_label(value: float) -> str:
    """Short, and exact.

    >>> [tick_label(v) for v in (0, 0.25, 1500, 32768, 1e6, 2e-7)]
    ['0', '0.25', '1,500', '32,768', '10⁶', '2×10⁻⁷']
    """
    if value and not 1e-4 <= abs(value) < 1e6:
        digits, power = f"{value:.9e}".split("e")
        return typeset(f"{float(digits):.10g}e{power}")
    return typeset(f"{value:,.10g}")


def typeset(number: str) -> str:
    """A number as a page prints it: with a true minus, and powers of ten.

    >>> typeset("-1.5"), typeset("2e-10"), typeset("1e+06")
    ('−1.5', '2×10⁻¹⁰', '10⁶')
    """
    mantissa, _, power = number.partition("e")
    mantissa = mantissa.replace("-", "−")
    if not power:
        return mantissa
    raised = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if mantissa == "1" else f"{mantissa}×10{raised}"


def axes_of(chart: Lines) -> tuple[Axis, Axis]:
    """The x and the y axis that show all of a chart's values, with error bars."""
    few = all(len(s.x) <= FEW for s in chart.series)
    xs = [s.x for s in chart.series]
    ys = [part for s in chart.series for part in _extent(s)]
    return _fitted(xs, chart.log_x, 0.03 if few else 0.0), _fitted(ys, chart.log_y, 0.05)


def x_ticks(chart: Lines, axis: Axis, most: int = 7) -> list[float]:
    """The x of the points themselves, where they are few and have room; round values otherwise."""
    xs = np.unique(np.concatenate([s.x for s in chart.series])) if chart.series else np.array([])
    if 2 <= len(xs) <= most and np.diff(axis.place(xs)).min() > 0.6 / most:
        return [float(x) for x in xs]
    return axis.ticks(most)


def marked(series: Series) -> bool:
    """Whether its points are few enough to be marked, each with its own error bar."""
    return series.points and len(series.x) <= FEW


def _extent(series: Series) -> list[Array]:
    if series.error is None:
        return [series.y]
    return [series.y - series.error, series.y + series.error]


def _fitted(parts: list[Array], log: bool, margin: float) -> Axis:
    values = np.concatenate([np.asarray(p) for p in parts]) if parts else np.array([])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values):
        return Axis(1.0, 10.0, log)
    low, high = float(values.min()), float(values.max())
    if log:
        wide = margin * math.log10(high / low)
        low, high = (
            (low * 10**-wide, high * 10**wide) if high / low > 1.0001 else (low / 2, high * 2)
        )
    else:
        wide = margin * (high - low)
        below = low - wide
        low, high = (
            (0.0 if below < 0 <= low else below, high + wide)
            if high > low
            else (low - 0.5, high + 0.5)
        )
    return Axis(low, high, log)


def spread(heights: list[float], apart: float) -> list[float]:
    """Places for labels as near their ``heights`` (0 … 1) as can be, in the same order, ``apart`` from one another.

    >>> spread([0.5, 0.5, 0.9], 0.1)
    [0.45, 0.55, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    blocks: list[
        tuple[float, int]
    ] = []  # (mean of height − rank·apart, members): labels that touch move together
    for rank, i in enumerate(order):
        blocks.append((heights[i] - rank * apart, 1))
        while len(blocks) > 1 and blocks[-1][0] < blocks[-2][0]:
            (a, n), (b, m) = blocks.pop(), blocks.pop()
            blocks.append(((a * n + b * m) / (n + m), n + m))
    bases = [base for base, members in blocks for _ in range(members)]
    room = max(1 - (len(heights) - 1) * apart, 0.0)
    places = {
        i: min(max(base, 0.0), room) + rank * apart
        for rank, (i, base) in enumerate(zip(order, bases, strict=True))
    }
    return [round(places[i], 6) for i in range(len(heights))]
