"""General banded encoders: columns, variances within the band, gradients, and the best of them."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.banded import Banded
from antiphase.objective import Average
from antiphase.problem import Problem
from antiphase.sensitivity import sensitivity
from antiphase.solvers.banded import BandedSearch

T, P = 11, 4


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
