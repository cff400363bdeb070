"""Streams from O(T) recurrences, against dense linear algebra."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.streaming import Streaming
from antiphase.objective import Average, Curvature, Damped, Restarts
from antiphase.problem import Problem
from antiphase.solvers.dense import dense_optimum
from antiphase.solvers.streaming import is_streamable, streaming_optimum

T = 40


COSINE = 0.5 * (1 + np.cos(np.pi * np.arange(T) / (T - 1)))


WORKLOADS = {
    "prefix sums": ap.Workload.sgd(T),
    "schedule to zero": ap.Workload.sgd(T, learning_rates=COSINE),
    "weight decay": ap.Workload.sgd(T, weight_decay=0.1),
    "zero rates between": ap.Workload.sgd(
        T, learning_rates=[1.0, 0.0, 1.0, 1.0] * (T // 4), weight_decay=0.1
    ),
    "delay": ap.Workload.sgd(T, delay=3),
    "momentum": ap.Workload.sgd(T, momentum=0.9),
    "nesterov": ap.Workload.sgd(T, momentum=0.9, nesterov=True, weight_decay=0.01),
    "momentum, schedule, delay": ap.Workload.sgd(T, momentum=0.9, learning_rates=COSINE, delay=2),
    "EMA": ap.Workload.sgd(T).with_ema(0.9),
    "momentum and EMA": ap.Workload.sgd(T, momentum=0.5).with_ema(0.9),
    "tail average": ap.Workload.sgd(T).with_tail_average(20),
}


EVERY = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS.keys())


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize(
    "objective", [Average(), Damped(0.9, final_weight=3.0)], ids=["average", "damped"]
)
def test_the_stream_is_the_dense_optimum(workload, objective):
    problem = Problem(workload, objective, ap.once())
    dense = dense_optimum(problem, tolerance=1e-9)
    f = streaming_optimum(problem, tolerance=1e-9, buffers="exact")
    assert f.error == pytest.approx(dense.error, rel=2e-8)
    assert f.lower_bound <= dense.error * (1 + 1e-12)
    assert dense.lower_bound <= f.error * (1 + 1e-12)
    C = f.encoder()
    root = objective.root(workload)
    assert f.error == pytest.approx(np.square(np.linalg.solve(C.T, root.T)).sum(), rel=1e-9)
    np.testing.assert_allclose(
        f.encoder_columns().squared_norms(), np.square(C).sum(axis=0), rtol=1e-12
    )
    np.testing.assert_allclose(
        f.noise_per_iterate, np.square(f.decoder()).sum(axis=1), rtol=1e-8, atol=1e-12
    )
    for rows in (1, 7, T - 1):
        assert f.sensitivity_of(rows) == pytest.approx(
            ap.sensitivity(C[:rows, :rows], ap.once()), rel=1e-12
        )


@pytest.mark.slow
def test_few_buffers_cost_utility_never_privacy():
    errors = []
    for buffers in (1, 2, 3, 4, 6, 8):
        f = ap.design("dp-mf", steps=256, buffers=buffers)
        errors.append(f.error)
        assert f.buffers == buffers
        assert ap.sensitivity(f.encoder(), ap.once()) <= 1 + 1e-12
        assert f.gap >= 0
    assert (np.diff(errors) < 0).all()


def test_restarts_are_solved_once():
    f = ap.design("dp-mf+", steps=103, tau=10)
    assert isinstance(f, Streaming)
    assert len(f.distinct) == 2
    assert f.restarts()[:3] == [0, 10, 20]
    assert not np.triu(f.encoder(), 1).any()
    assert np.count_nonzero(f.encoder()[50:, :50]) == 0


def test_what_has_no_short_recurrence_is_left_to_the_dense_path():
    plain = ap.Workload.sgd(8)
    assert is_streamable(Problem(plain, Average(), ap.once()))
    assert not is_streamable(Problem(ap.Workload.from_matrix(plain.dense()), Average(), ap.once()))
    assert not is_streamable(Problem(plain, Curvature([0.1, 0.5]), ap.once()))
    assert not is_streamable(Problem(plain, Restarts(4, include_final=True), ap.once()))
    assert is_streamable(Problem(ap.Workload.sgd(8, momentum=0.9), Restarts(4), ap.once()))
    assert not is_streamable(
        Problem(ap.Workload.sgd(8, delay=2).with_ema(0.5), Average(), ap.once())
    )
