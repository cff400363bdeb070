"""Toeplitz encoders: error without a matrix, gradients, and the best of them."""

import itertools

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.objective import Average, Damped, Maximum
from antiphase.problem import Problem
from antiphase.solvers.closed_form import square_root_coefficients
from antiphase.solvers.toeplitz import ToeplitzLoss
from tests import reference

T = 20
WORKLOADS = {
    "prefix sums": ap.Workload.sgd(T),
    "momentum": ap.Workload.sgd(T, momentum=0.9, weight_decay=0.1, learning_rates=0.5).with_ema(
        0.5
    ),
    "nesterov, delayed": ap.Workload.sgd(T, momentum=0.9, nesterov=True, delay=2),
    "schedule": ap.Workload.sgd(T, learning_rates=np.linspace(1, 0.1, T)),
    "dampened": ap.Workload.sgd(T, momentum=0.5, dampening=0.5),
    "mean of a tail": ap.Workload.sgd(T).with_tail_average(5),
    "matrix": ap.Workload.from_matrix(np.tril(np.ones((T, T)))),
}
OBJECTIVES = {"average": Average(final_weight=2.0), "damped": Damped(0.9), "maximum": Maximum()}


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("bands", [3, T])
@pytest.mark.parametrize("normalized", [True, False])
def test_the_error_is_that_of_the_matrices(workload, objective, bands, normalized):
    f = Toeplitz("t", workload, objective, ap.once(), square_root_coefficients(bands), normalized)
    rows = np.square(objective.root(workload) @ np.linalg.inv(f.encoder())).sum(axis=1)
    total = rows.max() if isinstance(objective, Maximum) else rows.sum()
    assert f.error == pytest.approx(f.sensitivity**2 * total, rel=1e-10)
    each = f.sensitivity**2 * np.square(f.decoder()).sum(axis=1)
    np.testing.assert_allclose(f.noise_per_iterate, each, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "workload", [WORKLOADS["momentum"], WORKLOADS["schedule"]], ids=["momentum", "schedule"]
)
@pytest.mark.parametrize(
    "participation", [ap.once(), ap.epochs(5, 4), ap.min_separation(3, 7)], ids=str
)
def test_the_loss_is_the_error_and_its_gradient_is_right(workload, participation):
    c = np.sort(np.random.default_rng(0).random(12) + 0.1)[::-1]
    for objective in (Average(), Damped(0.9)):
        loss = ToeplitzLoss(Problem(workload, objective, participation))
        value, slope = loss(c)
        f = Toeplitz("t", workload, objective, participation, c, False)
        assert np.exp(value) == pytest.approx(f.error, rel=1e-10)
        numeric = [(loss(c + 1e-6 * e)[0] - loss(c - 1e-6 * e)[0]) / 2e-6 for e in np.eye(len(c))]
        np.testing.assert_allclose(slope, numeric, atol=1e-8)


@pytest.mark.parametrize("steps", reference.OPTIMAL_TOEPLITZ)
def test_the_best_toeplitz_encoder(steps):
    f = ap.design("toeplitz", steps=steps)
    assert f.error == pytest.approx(reference.OPTIMAL_TOEPLITZ[steps], rel=1e-6)
    assert f.sensitivity_is_exact


def test_for_the_maximum_error_the_square_root_is_the_best_toeplitz_encoder():
    """Fichtenberger, Henzinger and Upadhyay (2023)."""
    root = ap.design("sqrt-toeplitz", steps=64, normalized=False, objective=Maximum())
    found = ap.design("toeplitz", steps=64, objective=Maximum())
    np.testing.assert_allclose(found.coefficients, root.coefficients, rtol=1e-3)
    assert found.error == pytest.approx(root.error, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "participation", [ap.once(), ap.epochs(4, 16), ap.min_separation(4, 12)], ids=str
)
def test_more_bands_and_more_buffers_are_better_and_everything_is_exact(participation):
    def error(name, **options):
        f = ap.design(name, steps=64, participation=participation, **options)
        assert f.sensitivity_is_exact
        return f.error

    by_bands = [error("toeplitz", bands=p) for p in (1, 2, 4, 8)] + [error("toeplitz")]
    by_buffers = [error("blt", buffers=m) for m in (1, 2, 3)]
    for errors in (by_bands, by_buffers):
        assert all(more <= fewer * (1 + 1e-9) for fewer, more in itertools.pairwise(errors))
    assert error("toeplitz", bands=8) < error("sqrt-toeplitz", bands=8, normalized=False)


@pytest.mark.slow
def test_a_long_run_starts_from_a_short_ones_optimum():
    """Within 1e-4 of the search from the square root, at a hundredth of its steps."""
    seen = []
    f = ap.design("toeplitz", steps=20_000, progress=seen.append)
    assert f.error == pytest.approx(320_350.3, rel=1e-5)  # by 300 steps from the square root
    assert len(seen) < 60
