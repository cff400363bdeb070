"""Charts have the values that were computed, and describe them in words."""

import math
import subprocess
import sys

import numpy as np
import pytest

import antiphase as ap
from antiphase.reporting import charts
from benchmarks.time_chart import seconds_against_steps
from tests.reporting import sample


def test_importing_charts_imports_no_drawing_library():
    heavy = ("matplotlib", "jinja2", "torch")
    code = (
        f"import sys, antiphase.reporting.charts; print([m for m in {heavy} if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.slow
def test_the_noise_of_an_iterate_is_that_of_the_design():
    chart = charts.noise_per_iterate(sample.designs())
    f = sample.designs()["DP-MF"][1]
    drawn = next(s for s in chart.series if s.name == "dp-mf")
    np.testing.assert_allclose(drawn.y**2, f.sensitivity**2 * (f.decoder() ** 2).sum(axis=1))
    assert drawn.x[0] == 1
    assert drawn.x[-1] == 256
    known = charts.noise_per_iterate({"DP-MF": ("dp-mf", drawn.y.tolist())})
    assert (known.series[0].y == drawn.y).all()


def test_the_spectrum_is_the_periodogram_of_the_noise():
    """It agrees with many samples, and its mean over all frequencies is the mean variance."""
    f = ap.design("dp-mf", steps=32, epochs=2)
    frequencies, power = charts.spectrum(f)
    assert frequencies[-1] == 0.5
    noise = f.sensitivity * f.noising() @ np.random.default_rng(0).standard_normal((32, 40_000))
    sampled = (np.abs(np.fft.rfft(noise, axis=0)) ** 2).mean(axis=1) / 32
    np.testing.assert_allclose(power, sampled, rtol=0.04)
    twice = np.r_[power, power[1:-1]]  # the negative frequencies
    assert twice.mean() == pytest.approx(f.sensitivity**2 * (f.noising() ** 2).sum(axis=1).mean())
    flat = charts.spectrum(ap.design("dp-sgd", steps=33, epochs=3))
    np.testing.assert_allclose(flat[1], 3.0)


def test_too_many_steps_for_a_matrix_are_an_error():
    f = ap.design("dp-sgd", steps=5000)
    for build in (charts.spectrum, charts.encoder_and_decoder):
        with pytest.raises(ap.TooLargeError, match=r"steps = 5000.*4096"):
            build(f)


@pytest.mark.slow
def test_the_matrices_multiply_to_the_workload():
    f = sample.designs()["damped"][1]
    encoder, noising, decoder = charts.encoder_and_decoder(f).matrices.values()
    np.testing.assert_allclose(decoder @ encoder, f.workload.dense(), atol=1e-9)
    np.testing.assert_allclose(noising @ encoder, np.eye(256), atol=1e-9)


def test_runs_are_averaged_with_their_standard_error():
    runs = [{"name": "dp-mf", "label": "a", "epsilon": 2, "accuracy": v} for v in (0.5, 0.6, 0.7)]
    runs += [{"name": "dp-mf", "label": "a", "epsilon": 1, "accuracy": 0.4}]
    runs += [{"name": "non-private", "label": "none", "epsilon": math.inf, "accuracy": 0.9}]
    private, level = charts.accuracy_against_epsilon(runs).series
    assert private.x.tolist() == [1, 2]
    np.testing.assert_allclose(private.y, [40, 60])
    np.testing.assert_allclose(private.error, [0, 10 / math.sqrt(3)])
    assert level.dashed
    assert level.y.tolist() == [90, 90]
    assert charts.accuracy_against_epsilon([]).series == ()
    curve = charts.training_curves(
        [{"name": "dp-mf", "label": "a", "steps": [1, 2], "accuracies": [0.1, 0.2]}]
    ).series[0]
    assert curve.error is None


@pytest.mark.issue(23)
def test_the_sampler_is_a_marker_and_the_mechanism_a_colour():
    """DP-SGD has one colour: diamonds on random batches, circles in a fixed order."""
    run = {"name": "dp-sgd", "epsilon": 1, "accuracy": 0.5, "steps": [1], "accuracies": [0.5]}
    runs = [run | {"label": "Poisson", "sampled": True}, run | {"label": "fixed"}]
    for chart in (charts.accuracy_against_epsilon(runs), charts.training_curves(runs)):
        poisson, fixed = chart.series
        assert poisson.name == fixed.name == "dp-sgd"
        assert (poisson.sampled, poisson.marker) == (True, "diamond")
        assert (fixed.sampled, fixed.marker) == (False, "circle")


def test_seconds_have_a_line_in_proportion():
    measured, straight = seconds_against_steps(sample.made_up_times(), "Times").series
    assert straight.dashed
    np.testing.assert_allclose(straight.y / straight.x, measured.y[0] / measured.x[0])


def test_a_frontier_is_a_staircase_below_all_marks():
    points = {
        "a": ("dp-sgd", 1.0, 9.0),
        "b": ("tree", 4.0, 3.0),
        "c": ("dp-mf", 64.0, 2.0),
        "d": ("blt", 8.0, 5.0),
    }
    points["e"] = ("toeplitz", math.nan, 1.0)
    *marks, line = charts.frontier(points, ["a", "b", "c"], "t", "x").series
    assert [(s.label, s.x.tolist(), s.y.tolist()) for s in marks] == [
        (k, [p[1]], [p[2]]) for k, p in points.items() if k != "e"
    ]
    assert line.dashed
    assert list(zip(line.x, line.y, strict=True)) == [
        (1, 9),
        (4, 9),
        (4, 3),
        (64, 3),
        (64, 2),
        (64, 2),
    ]
    for s in marks:
        assert s.y[0] >= line.y[line.x <= s.x[0]].min()
    assert charts.frontier({"e": points["e"]}, [], "t", "x").series == ()


@pytest.mark.slow
def test_every_chart_has_a_description():
    for chart in sample.all_charts().values():
        assert chart.title
        assert chart.x_label
        assert chart.y_label
        assert len(chart.alt) > 60
    assert (
        "DP-SGD: between 2 and 32, at 256 it is 32."
        in charts.noise_per_iterate(sample.designs()).alt
    )
    assert charts.Lines("t", "x", "y", [], alt="my own").alt == "my own"


def test_invalid_data_are_an_error():
    with pytest.raises(ValueError, match="y of 'a' has shape"):
        charts.Series("dp-mf", "a", [1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="x of 'a' must be ascending"):
        charts.Series("dp-mf", "a", [2, 1], [1, 2])
    with pytest.raises(ValueError, match="a heat map needs a finite matrix"):
        charts.HeatMaps("t", {"a": [[1.0, math.nan]]}, "x", "y")
