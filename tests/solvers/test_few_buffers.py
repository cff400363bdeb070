"""Few buffers for several epochs: gradients, windows, and what they are worth."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.segments import Segment
from antiphase.factorizations.streaming import Streaming
from antiphase.linalg import adjoints
from antiphase.objective import Average, Restarts
from antiphase.sensitivity import sensitivity
from antiphase.solvers.few_buffers import BufferSearch, _emptied

T, M = 12, 2
WORKLOADS = {
    "prefix sums": ap.Workload.sgd(T),
    "nesterov, averaged": ap.Workload.sgd(T, momentum=0.5, nesterov=True).with_ema(0.5),
    "nothing is carried": ap.Workload.sgd(T).with_curvature(1.0),
}


def random_search(workload, seed=0):
    rng = np.random.default_rng(seed)
    P, N = (np.ascontiguousarray(bands) for bands in workload.recurrence)
    squares = rng.random(T) + 0.5
    search = BufferSearch(P, N, squares, np.arange(T) % 5, *_emptied(T, 5, M))
    x = np.concatenate([rng.normal(size=T), rng.normal(size=T * M), rng.normal(size=T * M) - 0.5])
    return search, x, squares


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_the_error_is_that_of_the_matrices_and_its_gradient_is_right(workload):
    search, x, squares = random_search(workload)
    delta, g, rho = search.scaled(x)
    shape = (T, M, 1)
    C = Segment(
        T, np.arange(T), delta, np.ones(shape), g.reshape(shape), rho.reshape(shape)
    ).dense()
    value, slope = search.loss(x)
    rows = workload.dense() @ np.linalg.inv(C)
    assert value == pytest.approx(np.log(squares @ np.square(rows).sum(axis=1)), rel=1e-12)
    np.testing.assert_allclose(
        np.bincount(np.arange(T) % 5, np.square(C).sum(axis=0)), 1.0, rtol=1e-12
    )
    for i in range(len(x)):
        step = np.zeros_like(x)
        step[i] = 1e-6
        numeric = (search.loss(x + step)[0] - search.loss(x - step)[0]) / 2e-6
        assert slope[i] == pytest.approx(numeric, abs=2e-7), i


def test_columns_an_epoch_apart_share_no_row():
    """For every number of buffers up to the length of an epoch; one row more would be too many."""
    for window in (1, 2, 5):
        for buffers in range(1, window + 1):
            kept, fed = _emptied(T, window, buffers)
            shape = (*kept.shape, 1)
            segment = Segment(
                T, np.arange(T), np.ones(T), np.ones(shape), fed.reshape(shape), kept.reshape(shape)
            )
            C = segment.dense()
            below = np.arange(T)[:, None] - np.arange(T)
            assert segment.reach == below[C != 0].max() + 1 <= window
            if window > 1:
                longer = Segment(
                    T, np.arange(T), np.ones(T), np.ones(shape), np.ones(shape), kept.reshape(shape)
                )
                assert longer.reach == below[longer.dense() != 0].max() + 1 > window


@pytest.mark.slow
def test_few_buffers_are_good_and_more_are_better():
    """Compared with the certified optimum."""
    gaps = [ap.design("dp-mf", steps=64, epochs=4, buffers=m).gap for m in (1, 2, 4)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.10


def test_the_sensitivity_is_exact_in_any_order_with_the_separation():
    f = ap.design("dp-mf", steps=48, participation=ap.min_separation(3, 12), buffers=3)
    assert isinstance(f, Streaming)
    assert f.buffers == 3
    assert f.sensitivity_is_exact
    assert f.sensitivity == pytest.approx(3**0.5, rel=1e-12)
    assert sensitivity(f.encoder(), f.participation) == pytest.approx(f.sensitivity, rel=1e-12)
    fixed = ap.design("dp-mf", steps=48, epochs=4, buffers=3)
    assert sensitivity(fixed.encoder(), fixed.participation) == pytest.approx(1.0, abs=1e-12)


def test_schedules_momentum_and_restarts_are_designed_for():
    """The encoder for the workload at hand is better for it than the one for prefix sums."""
    workload = ap.Workload.sgd(40, momentum=0.9, learning_rates=np.linspace(1, 0.1, 40))
    options = {"epochs": 4, "buffers": 3}
    made = ap.design("dp-mf", workload=workload, **options)
    plain = ap.design("dp-mf", steps=40, **options)
    other = Streaming("s", workload, Average(), plain.participation, plain.distinct, plain.sequence)
    assert made.error < 0.9 * other.error
    assert ap.design("dp-mf+", steps=40, tau=20, **options).error < plain.error_under(Restarts(20))


def test_progress_may_stop_it():
    seen = []
    f = ap.design(
        "dp-mf",
        steps=32,
        epochs=4,
        buffers=2,
        progress=lambda report: seen.append(report.gap) or len(seen) == 3,
    )
    assert len(seen) == 3
    assert f.sensitivity == pytest.approx(1.0, abs=1e-12)


def test_norms_are_those_of_the_kernel_that_judges():
    from antiphase.linalg import stream_kernels

    search, x, _ = random_search(WORKLOADS["prefix sums"], seed=3)
    delta, g, rho = search.scaled(x)
    ones = np.ones((T, M, 1))
    judged = stream_kernels.column_norms(delta, ones, g[:, :, None], rho[:, :, None])
    np.testing.assert_allclose(adjoints.norms(delta, g, rho, np.zeros(T))[0], judged, rtol=1e-13)
