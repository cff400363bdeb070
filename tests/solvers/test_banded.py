"""General banded encoders: columns, variances within the band, gradients, and the best of them."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.banded import Banded, outside
from antiphase.objective import Average
from antiphase.problem import Problem
from antiphase.sensitivity import DenseColumns, sensitivity
from antiphase.solvers.banded import BandedSearch

T, P = 11, 4


def random_columns(seed=0, bands=P):
    columns = np.random.default_rng(seed).normal(size=(T, bands))
    columns[:, 0] = np.abs(columns[:, 0]) + 0.5
    columns[outside(columns)] = 0.0
    return columns


@pytest.mark.parametrize("rows", [None, 1, 3, 7])
@pytest.mark.parametrize("bands", [1, 4, T])
def test_columns_are_those_of_the_matrix(rows, bands):
    f = Banded("b", ap.Workload.sgd(T), Average(), ap.once(), random_columns(bands=bands))
    dense, ours = DenseColumns(f.encoder()[:rows, :rows]), f.encoder_columns(rows)
    every = np.arange(dense.steps)
    np.testing.assert_allclose(ours.squared_norms(), dense.squared_norms(), atol=1e-13)
    np.testing.assert_allclose(ours.gram(every), dense.gram(every), atol=1e-13)
    np.testing.assert_allclose(ours.gram(every[::3]), dense.gram(every[::3]), atol=1e-13)
    np.testing.assert_allclose(
        f.band_rows(2, 9), super(Banded, f).band_rows(2, 9)[:, :bands], atol=1e-15
    )


@pytest.mark.parametrize(
    "participation", [ap.once(), ap.epochs(4, 3), ap.epochs(3, 4), ap.min_separation(3, 4)], ids=str
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_loss_is_the_error_and_its_gradient_is_right(participation, momentum):
    """With participations nearer than the bands reach, products of columns count too."""
    rng = np.random.default_rng(1)
    workload = ap.Workload.sgd(T, momentum=momentum)
    A, N = workload.recurrence
    squares = rng.random(T) + 0.5
    period = Problem(workload, Average(), participation).period
    search = BandedSearch(A / N, squares, period, P)
    x = search.start() + 0.2 * rng.normal(size=T * P)
    value, slope = search.loss(x)
    numeric = [
        (search.loss(x + 1e-6 * e)[0] - search.loss(x - 1e-6 * e)[0]) / 2e-6 for e in np.eye(T * P)
    ]
    np.testing.assert_allclose(slope, numeric, atol=1e-7)
    f = Banded("b", workload, Average(np.sqrt(squares)), participation, search.scaled(x))
    assert f.error / f.sensitivity**2 == pytest.approx(np.exp(value), rel=1e-10)
    rows = np.square(workload.dense() @ np.linalg.inv(f.encoder())).sum(axis=1)
    assert f.error == pytest.approx(f.sensitivity**2 * (squares @ rows), rel=1e-10)
    if not isinstance(participation, ap.participation.MinSeparation):
        assert f.sensitivity == pytest.approx(1.0, rel=1e-12)
    assert f.sensitivity >= sensitivity(f.encoder(), participation) * (1 - 1e-12)


def test_better_than_every_other_encoder_with_as_many_bands():
    for participation in (ap.once(), ap.epochs(4, 8), ap.min_separation(3, 8)):
        common = {"steps": 32, "participation": participation, "bands": 8}
        best = ap.design("banded", **common)
        assert best.sensitivity_is_exact
        for name, options in (
            ("toeplitz", {}),
            ("sqrt-toeplitz", {}),
            ("sqrt-toeplitz", {"normalized": False}),
        ):
            assert best.error < ap.design(name, **common, **options).error


def test_with_all_bands_it_is_the_optimum():
    f = ap.design("banded", steps=16, bands=16)
    assert f.gap < 1e-4


def test_momentum_and_schedules_are_designed_for():
    rates = np.linspace(1, 0.1, 40)
    for nesterov in (False, True):
        workload = ap.Workload.sgd(40, momentum=0.9, nesterov=nesterov, learning_rates=rates)
        made = ap.design("banded", workload=workload, epochs=2, bands=6)
        plain = ap.design("banded", steps=40, epochs=2, bands=6)
        assert (
            made.error
            < 0.9 * Banded("b", workload, Average(), plain.participation, plain.columns).error
        )


def test_columns_say_what_is_wrong_with_them():
    common = "b", ap.Workload.sgd(T), Average(), ap.once()
    for columns, words in (
        (random_columns()[:-1], "columns has shape"),
        (np.ones((T, P)), "past the last row"),
        (-random_columns(), "not positive"),
        (np.zeros((T, 0)), "columns has shape"),
    ):
        with pytest.raises(ValueError, match=words):
            Banded(*common, columns)
