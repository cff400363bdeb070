"""Charts and page of a comparison show the compared mechanisms."""

import pytest

import antiphase as ap
from antiphase.comparison import Candidate, Setting, batches_needed, conclusion
from antiphase.reporting import comparison_report, page


@pytest.fixture(scope="module")
def comparison():
    candidates = [Candidate("dp-sgd"), Candidate("sqrt-toeplitz")]
    return ap.compare(Setting.of(16, 2), candidates)


def test_charts_have_every_mechanism(comparison):
    charts = comparison_report.charts(comparison)
    assert list(charts) == ["noise", "spectrum", "memory", "time"]
    noise = charts["noise"].series
    assert [s.label for s in noise] == [entry.label for entry in comparison.entries]
    assert noise[1].y.tolist() == comparison.entries[1].deviation.tolist()


@pytest.mark.issue(23)
@pytest.mark.slow
def test_random_batches_are_marked_in_every_chart_and_table():
    setting = Setting.of(16, 2, epsilon=2.0, delta=1e-3)
    compared = ap.compare(setting, ["dp-sgd", "dp-mf"])
    for name in ("noise", "memory", "time"):
        chart = comparison_report.charts(compared)[name]
        assert [s.sampled for s in chart.series][:3] == [True, False, False]
        assert "random batches, with amplified privacy" in chart.note
    made = comparison_report.page(compared, "antiphase compare")
    assert [row["sampled"] for row in made.grids[0].rows] == [True, False, False]
    assert "average / DP-SGD" in [column.title for column in made.grids[0].columns]
    text = page.render(made)
    assert text.count('<span class="dot c0 diamond" aria-hidden="true">') == 2  # in two tables
    assert 'class="diamond" d="M' in text


def test_a_single_mechanism_has_no_frontier():
    charts = comparison_report.charts(ap.compare(Setting.of(8), [Candidate("dp-sgd")]))
    assert list(charts) == ["noise", "spectrum"]


def test_the_page_names_the_best_mechanism(comparison):
    made = comparison_report.page(comparison, "antiphase compare")
    best = min(comparison.entries, key=lambda entry: entry.final)
    assert made.answer == conclusion(comparison)
    assert made.answer.startswith(f"{best.label} leaves least noise in the final model: ")
    assert "average / DP-SGD, fixed order" in [column.title for column in made.grids[0].columns]
    assert batches_needed(comparison) in made.notes
    assert made.reproduce == ["antiphase compare"]
    assert page.render(made).count(best.label) > 3
