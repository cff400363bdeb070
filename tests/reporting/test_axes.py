"""Axes have round ticks within their range."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from antiphase.reporting.axes import Axis, axes_of, tick_label
from antiphase.reporting.charts import Lines, Series

ENDS = st.floats(-1e9, 1e9).filter(lambda v: v == 0 or abs(v) > 1e-9)


@given(ENDS, st.floats(1e-6, 1e9), st.integers(4, 9))
def test_linear_ticks(low, width, most):
    axis = Axis(low, low + max(width, 1e-6 * abs(low)))
    ticks = axis.ticks(most)
    assert 1 <= len(ticks) <= most
    assert all(-1e-6 <= p <= 1 + 1e-6 for p in axis.place(ticks))
    assert len({tick_label(t) for t in ticks}) == len(ticks)


@given(st.floats(-12, 12), st.floats(0.01, 20), st.integers(4, 9))
def test_logarithmic_ticks(start, decades, most):
    axis = Axis(10**start, 10 ** (start + decades), log=True)
    ticks = axis.ticks(most)
    assert 1 <= len(ticks) <= most
    assert all(-1e-6 <= p <= 1 + 1e-6 for p in axis.place(ticks))


def test_axes_show_every_value_and_error_bar():
    chart = Lines("t", "x", "y", [Series("a", "a", [1, 2, 3], [10, np.nan, 30], [5, 1, 5])])
    x, y = axes_of(chart)
    assert x.low < 1
    assert x.high > 3
    assert y.low <= 5
    assert y.high >= 35


def test_axes_of_nothing_and_of_one_value():
    for series in (
        [],
        [Series("a", "a", [], [])],
        [Series("a", "a", [5], [5])],
        [Series("a", "a", [0], [-1])],
    ):
        for log in (False, True):
            x, y = axes_of(Lines("t", "x", "y", series, log_x=log, log_y=log))
            assert x.low < x.high
            assert y.ticks()
            assert x.ticks()
