"""Axes: scales, ticks and number formats, shared by both drawings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase.reporting.charts import Lines, Series

MAX_MARKED_POINTS = 24  # of a curve; more could not be told apart


@dataclass(frozen=True)
class Axis:
    """Range of an axis.

    Attributes:
        low: lower end.
        high: upper end, above ``low``.
        log: whether the axis is logarithmic; its ends are then positive.
    """

    low: float
    high: float
    log: bool = False

    def place(self, values: Any) -> Array:
        """Return positions of values, from 0 at ``low`` to 1 at ``high``; NaN if undefined."""
        values = np.asarray(values, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.where(np.isfinite(values) & ((values > 0) | (not self.log)), values, np.nan)
            low, high = self._scaled(self.low), self._scaled(self.high)
            return np.asarray((self._scaled(inside) - low) / (high - low))

    def _scaled(self, values: Any) -> Any:
        return np.log10(values) if self.log else values

    def ticks(self, max_ticks: int = 7) -> list[float]:
        """Return round values within the axis, at most ``max_ticks``.

        >>> Axis(0, 256).ticks(), Axis(1, 40, log=True).ticks()
        ([0.0, 50.0, 100.0, 150.0, 200.0, 250.0], [1.0, 2.0, 5.0, 10.0, 20.0])
        """
        for candidate in (_log_ticks if self.log else _linear_ticks)(self.low, self.high):
            inside = [
                t
                for t, place in zip(candidate, self.place(candidate), strict=True)
                if -1e-9 <= place <= 1 + 1e-9
            ]
            if len(inside) <= max_ticks:
                return inside
        return []


def _linear_ticks(low: float, high: float) -> Iterator[list[float]]:
    """Yield coarser and coarser multiples of 1, 2 and 5 times a power of ten."""
    power = math.floor(math.log10(high - low)) - 1
    while True:
        for step in (1, 2, 5):
            unit = 10.0 ** abs(power)  # 0.3 is 3 / 10, not 3 · 0.1
            multiples = range(
                math.floor(low / (step * 10.0**power)), math.ceil(high / (step * 10.0**power)) + 1
            )
            yield [k * step * unit if power >= 0 else k * step / unit for k in multiples]
        power += 1


def _log_ticks(low: float, high: float) -> Iterator[list[float]]:
    """Yield coarser and coarser decades, with 2 and 5 or 3 between them; linear if too few."""
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
    """Format a value of a tick, without rounding.

    >>> [tick_label(v) for v in (0, 0.25, 1500, 32768, 1e6, 2e-7)]
    ['0', '0.25', '1,500', '32,768', '10⁶', '2×10⁻⁷']
    """
    if value and not 1e-4 <= abs(value) < 1e6:
        digits, power = f"{value:.9e}".split("e")
        return typeset(f"{float(digits):.10g}e{power}")
    return typeset(f"{value:,.10g}")


def typeset(number: str) -> str:
    """Typeset a formatted number, with a minus sign and powers of ten.

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
    """Return the x and the y axis that show all values and error bars of a chart."""
    few = all(len(s.x) <= MAX_MARKED_POINTS for s in chart.series)
    xs = [s.x for s in chart.series]
    ys = [part for s in chart.series for part in _extent(s)]
    return _fitted(xs, chart.log_x, 0.03 if few else 0.0), _fitted(ys, chart.log_y, 0.05)


def x_ticks(chart: Lines, axis: Axis, max_ticks: int = 7) -> list[float]:
    """Return the positions of the points if they are few and far apart; else round values."""
    xs = np.unique(np.concatenate([s.x for s in chart.series])) if chart.series else np.array([])
    if 2 <= len(xs) <= max_ticks and np.diff(axis.place(xs)).min() > 0.6 / max_ticks:
        return [float(x) for x in xs]
    return axis.ticks(max_ticks)


def marked(series: Series) -> bool:
    """Whether the points of a curve are few enough to be marked, each with its error bar."""
    return series.points and len(series.x) <= MAX_MARKED_POINTS


def _extent(series: Series) -> list[Array]:
    if series.error is None:
        return [series.y]
    return [series.y - series.error, series.y + series.error]


def _fitted(parts: list[Array], log: bool, margin: float) -> Axis:
    values = np.concatenate(parts) if parts else np.array([])
    values = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not len(values):
        return Axis(1.0, 10.0, log)
    low, high = float(values.min()), float(values.max())
    if log:
        if high / low <= 1.0001:
            return Axis(low / 2, high * 2, log)
        ratio = 10 ** (margin * math.log10(high / low))
        return Axis(low / ratio, high * ratio, log)
    if high <= low:
        return Axis(low - 0.5, high + 0.5)
    space = margin * (high - low)
    return Axis(0.0 if low - space < 0 <= low else low - space, high + space)
