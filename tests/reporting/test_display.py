"""Results in notebooks: HTML that needs no extra, and figures."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

import antiphase as ap
from antiphase.reporting.figures import ChartFigure

pytestmark = pytest.mark.issue(23)
SETTING = ap.Setting.of(steps=16, epochs=2, epsilon=8.0, delta=1e-5)


@pytest.fixture(scope="module")
def comparison():
    return ap.compare(SETTING, ["dp-sgd", "dp-mf", "dp-mf+"], measure=False)


@pytest.fixture(scope="module")
def f():
    return ap.design("dp-mf", steps=16, epochs=2)


@pytest.fixture(scope="module")
def results(comparison, f):
    mechanism = ap.calibrate(f, epsilon=8.0, delta=1e-5)
    return [f, mechanism, mechanism.statement(), comparison, ap.recommend(SETTING)]


class Cells(HTMLParser):
    """The texts of the cells of all tables, and the tags that were not closed."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data


def test_html_is_well_formed_and_suits_every_theme(results):
    """No script, no style sheet, no colour."""
    for result in results:
        text = result._repr_html_()
        assert Cells(text).open == []
        assert not re.search(r"<(script|style)|colou?r|background", text)


def test_html_shows_the_figures(results, comparison):
    cells = [Cells(result._repr_html_()).cells for result in results]
    f, mechanism = results[0], results[1]
    assert f"{f.sensitivity:.6g}" in cells[0]
    assert f"{mechanism.noise_multiplier:.6g}" in cells[1]
    assert "".join(str(results[2]).split()) == "".join(
        re.sub(r"<[^>]*>", " ", results[2]._repr_html_()).replace("&#x27;", "'").split()
    )
    for entry in comparison.entries:
        assert entry.label in cells[3]
        assert f"{entry.final:.4g}" in cells[3]
    best = min(comparison.entries, key=lambda entry: entry.final)
    assert f"<b>{best.final:.4g}</b>" in comparison.to_html()
    assert "noise per step (ms)" not in cells[3]  # which was not measured
    assert results[4].best.label in results[4]._repr_html_()
    for reason in results[4].reasons:
        assert reason.replace("'", "&#x27;") in results[4]._repr_html_()


def test_text_from_files_is_escaped(f):
    """The name of a factorization is whatever a file says."""
    hostile = f.labelled("<img src=x onerror=alert(1)>", {"<b>": "<script>"})
    mechanism = ap.calibrate(hostile, epsilon=8.0, delta=1e-5)
    for result in (hostile, mechanism, mechanism.statement()):
        assert "<img" not in result._repr_html_()
        assert "<script" not in result._repr_html_()


def test_html_needs_no_extra_and_plot_names_it():
    code = """
import sys
for name in ("matplotlib", "jinja2", "markupsafe", "PIL", "pandas"):
    sys.modules[name] = None
import antiphase as ap
comparison = ap.compare(ap.Setting.of(steps=4, epochs=2), ["dp-sgd"], measure=False)
assert "<table" in comparison._repr_html_()
for call in (comparison.plot, comparison.to_frame):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [
        "plot() needs Matplotlib: pip install 'antiphase[plot]'",
        "to_frame() needs pandas: pip install pandas",
    ]


def test_every_chart_is_a_figure(f, comparison):
    for result, names in (
        (f, ("noise", "spectrum", "matrices")),
        (comparison, ("noise", "spectrum", "memory")),
        (ap.recommend(SETTING), ("noise", "spectrum", "memory")),
    ):
        for name in names:
            assert isinstance(result.plot(name), ChartFigure)


def test_a_factorization_is_drawn_beside_dp_sgd(f):
    """Once, if it is DP-SGD itself; its curve is its own noise."""
    lines = f.plot().axes[0].get_lines()
    np.testing.assert_allclose(lines[1].get_ydata(), np.sqrt(f.noise_per_iterate))
    labels = [text.get_text() for text in f.plot().axes[0].texts]
    assert labels == ["DP-SGD, fixed order", "DP-MF"]
    labels = [text.get_text() for text in ap.design("dp-sgd", steps=4).plot().axes[0].texts]
    assert labels == ["DP-SGD, fixed order"]


def test_an_unknown_chart_is_named_with_those_that_exist(f, comparison):
    with pytest.raises(ValueError, match="chart = 'time' must be one of noise, spectrum, memory"):
        comparison.plot("time")  # not measured
    with pytest.raises(ValueError, match="chart = 'noises' must be one of noise, spectrum, matr"):
        f.plot("noises")
    with pytest.raises(ValueError, match="chart = 'matrices' must be one of noise"):
        ap.design("dp-sgd", steps=4097).plot("matrices")


def test_a_frame_has_a_row_for_each_mechanism(comparison):
    import pandas

    frame = comparison.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == [entry.label for entry in comparison.entries]
    assert list(frame["final"]) == [entry.final for entry in comparison.entries]
