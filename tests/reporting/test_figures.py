"""Figures: SVG and PNG, the same bytes each time, readable at half their size."""

import io
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from antiphase.reporting import charts, figures
from tests.reporting import sample

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["noise", "accuracy", "matrices"])
def test_the_same_bytes_each_time(kind, tmp_path):
    chart = sample.all_charts()[kind]
    first, second = (figures.draw(tmp_path / name, chart) for name in ("a", "folder/b.png"))
    assert [p.name for p in first + second] == ["a.svg", "a.png", "b.svg", "b.png"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert first[1].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert chart.title in first[0].read_text()


def test_a_name_keeps_its_dots(tmp_path):
    chart = charts.Lines("t", "x", "y", [])
    assert figures.draw(tmp_path / "epsilon-0.5", chart)[1].name == "epsilon-0.5.png"


@pytest.mark.parametrize("kind", sample.KINDS)
def test_text_is_readable_at_half_size_and_stays_inside(kind):
    """At half its width no text is below 6.5 points, cut off, or overlapping another."""
    chart = sample.all_charts()[kind]
    figure = figures.figure(chart)
    FigureCanvasAgg(figure).draw()
    shown = [t for t in figure.findobj(Text) if t.get_text().strip() and t.get_visible()]
    assert len(shown) > 5
    width, height = figure.canvas.get_width_height()
    boxes = []
    for text in shown:
        assert text.get_fontsize() / 2 >= 6.5, text
        box = text.get_window_extent()
        if box.width:
            assert box.x0 >= -1, text
            assert box.y0 >= -1, text
            assert box.x1 <= width + 1, text
            assert box.y1 <= height + 1, text
            boxes.append((text.get_text(), box))
    for i, (one, a) in enumerate(boxes):
        for other, b in boxes[:i]:
            apart = min(a.x1, b.x1) - max(a.x0, b.x0) < 1 or min(a.y1, b.y1) - max(a.y0, b.y0) < 2
            assert apart, (one, other)


def test_curves_have_the_colour_of_their_mechanism(tmp_path):
    text = figures.draw(tmp_path / "a", sample.all_charts()["noise"])[0].read_text().lower()
    for name in sample.NAMES.values():
        colour = figures.COLOURS[name].lower()
        assert (
            re.search(rf"stroke: {colour}", text) or name == "dp-sgd"
        )  # black is the default, and left out


@pytest.mark.issue(23)
def test_drawing_changes_nothing_for_the_process():
    """No backend is chosen and no figure is registered: both belong to the user's notebook."""
    code = (
        "import sys; from antiphase.reporting import charts, figures; import matplotlib; "
        "figures.figure(charts.Lines('t', 'x', 'y', []))._repr_png_(); "
        "print('matplotlib.pyplot' in sys.modules, matplotlib.get_backend(auto_select=False))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False None\n"


@pytest.mark.issue(23)
@pytest.mark.parametrize("kind", ["noise", "matrices"])
def test_a_figure_is_shown_as_png(kind):
    """At the width that is stated, with two to three dots for each pixel, and a description."""
    chart = sample.all_charts()[kind]
    data, size = figures.figure(chart)._repr_png_()
    assert size["alt"] == chart.alt
    width, height = Image.open(io.BytesIO(data)).size
    assert 2 < width / size["width"] < 3
    assert width / size["width"] == pytest.approx(height / size["height"], rel=0.01)


def test_gaps_and_empty_charts_are_drawn(tmp_path):
    gap = charts.Series("dp-mf", "with a gap", [1, 2, 3], [1, np.nan, 2])
    nothing = charts.Series("other", "nothing", [1, 2], [np.nan, np.inf])
    for series in ([gap, nothing], [nothing], []):
        for path in figures.draw(tmp_path / "a", charts.Lines("t", "x", "y", series, log_y=True)):
            assert path.stat().st_size > 1000


@pytest.mark.issue(23)
def test_labels_of_single_points_are_beside_them_and_apart():
    """Of the frontier of nine mechanisms, in the figure and its markers."""
    spots = [(1, 14), (1, 6.4), (1, 4.1), (10, 4.5), (257, 3.9), (28, 3.5), (5, 3.4), (257, 3.1)]
    points = {f"mechanism {i}": ("dp-sgd", x, y) for i, (x, y) in enumerate(spots)}
    chart = charts.frontier(points, ["mechanism 2", "mechanism 6", "mechanism 7"], "t", "x")
    drawing = figures.figure(
        replace(chart, series=[replace(s, sampled=True) for s in chart.series])
    )
    drawing.draw_without_rendering()
    (axes,) = drawing.axes
    boxes = [t.get_window_extent() for t in axes.texts if t.get_text().startswith("mechanism")]
    assert len(boxes) == len(points)
    area = axes.get_window_extent()
    for (x, y), box in zip(spots, boxes, strict=True):
        place = axes.transData.transform((x, y))
        assert abs(place[1] - (box.y0 + box.y1) / 2) < 4.5 * box.height
        assert min(abs(place[0] - box.x0), abs(place[0] - box.x1)) < 2 * box.height
        assert area.x0 <= box.x0
        assert box.x1 <= area.x1
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[:i])
    assert {line.get_marker() for line in axes.lines if len(line.get_xdata()) == 1} == {"D"}
