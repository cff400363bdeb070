"""Layout of charts: long curves keep their shape, heat maps their values."""

import io
import json

import numpy as np
import pytest

from antiphase.reporting import svg
from antiphase.reporting.charts import Lines, Series, frontier
from tests.reporting import sample


@pytest.mark.parametrize("size", [601, 5000, 1_000_000])
def test_long_curves_are_thinned_and_keep_their_extremes(size):
    y = np.random.default_rng(1).normal(size=size)
    y[size // 3], y[size // 2] = 50.0, -50.0  # a spike each way, one point wide
    kept = svg.thinned(np.linspace(0, 1, size), y)
    assert len(kept) <= 600
    assert {0, size // 3, size // 2, size - 1} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()


def test_short_curves_are_not_thinned():
    assert svg.thinned(np.linspace(0, 1, 600), np.ones(600)).tolist() == list(range(600))


@pytest.mark.parametrize("log", [False, True])
def test_values_on_hovering_are_exact(log):
    x = np.arange(1.0, 1_000_001)
    chart = Lines(
        "t",
        "x",
        "y",
        [Series("a", "a", x, np.sqrt(x)), Series("b", "b", x[10:], 1 / x[10:])],
        log_x=log,
    )
    data = svg.hover(chart)
    assert 300 < len(data["x"]) <= 600
    assert data["x"][0] == 1
    assert data["x"][-1] == 1_000_000
    for here, a, b in zip(data["x"], data["series"][0]["y"], data["series"][1]["y"], strict=True):
        assert a == pytest.approx(np.sqrt(here), rel=1e-6)
        assert b is None if here <= 10 else b == pytest.approx(1 / here, rel=1e-6)


def test_nothing_that_is_not_finite_reaches_the_page():
    chart = Lines(
        "t", "x", "y", [Series("a", "a", [1, 2, 3, 4], [1, np.nan, np.inf, 2], [np.nan, 1, 1, 0.5])]
    )
    json.dumps(svg.hover(chart), allow_nan=False)
    view = svg.lines(chart, svg.FRAMES[0])
    assert view["curves"][0]["path"].count("M") == 2  # a gap
    assert "nan" not in str(view)
    assert "inf" not in str(view).replace("Infinity", "")


def test_a_heat_map_is_a_png_whose_opacity_is_the_size():
    from PIL import Image

    matrix = np.tril(np.ones((3, 3))) - 2 * np.eye(3)
    pixels = np.asarray(Image.open(io.BytesIO(svg.png(matrix))))
    assert pixels.shape == (3, 3, 4)
    assert pixels[0, 1, 3] == 0  # zero: the ground shows
    assert tuple(pixels[1, 0]) == (0xD5, 0x5E, 0x00, 255)
    assert tuple(pixels[0, 0]) == (0x2B, 0x86, 0xDE, 255)


def test_large_matrices_become_blocks_that_keep_thin_diagonals():
    cells = svg.largest_of_blocks(-3 * np.eye(1000) + 0.1, 8)
    assert cells.shape == (125, 125)
    assert (np.diag(cells) == -2.9).all()
    assert cells[0, 1] == 0.1
    found = svg.heat_map(np.eye(1000))["hover"]
    assert found["block"] == 8
    assert len(found["cells"]) == 125


@pytest.mark.issue(23)
def test_single_points_are_labelled_where_they_are_and_curves_at_their_ends():
    points = {"DP-SGD": ("dp-sgd", 1.0, 9.0), "tree": ("tree", 4.0, 3.0), "DP-MF": ("a", 64.0, 2.0)}
    chart = frontier(points, list(points), "t", "x")
    view = svg.lines(chart, svg.FRAMES[0])
    left, _, width, _ = view["plot"]
    *singles, line = view["curves"]
    for curve in singles:
        (x, y), text = curve["points"][0], curve["text"]
        end = text["x"] + 0.56 * view["frame"].font * len(curve["label"])
        assert min(abs(text["x"] - x), abs(end - x)) < 30
        assert abs(text["y"] - y) < 40
        assert left <= text["x"]
        assert end <= left + width
        assert text["leader"] == ""
    assert line["text"]["x"] > left + width
    narrow = svg.lines(chart, svg.FRAMES[1])  # which has a legend instead
    assert all(curve["text"] is None for curve in narrow["curves"])


def test_points_and_bands_belong_to_a_line_and_have_no_label_of_their_own():
    """A region is as wide as its part of the axis, and no wider than the drawing."""
    view = svg.lines(sample.made_up_rates(), svg.FRAMES[0])
    line, points, other, band = view["curves"]
    assert line["path"]
    assert not line["points"]
    assert points["path"] == ""
    assert len(points["points"]) == len(points["bars"]) == 4
    assert other["text"]["leader"]
    assert band["band"]
    assert band["path"] == ""
    assert points["text"] is band["text"] is None
    (region,) = view["regions"]
    left, _, width, _ = view["plot"]
    assert left < region["x"] < region["x"] + region["width"] <= left + width + 0.1
    assert region["label"] == ["too large:", "diverges"]
