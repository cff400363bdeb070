"""Optima as dense matrices: sensitivity, idle steps, refusals."""

import numpy as np
import pytest

from antiphase import Workload, epochs, once
from antiphase.objective import Average, Damped
from antiphase.problem import Problem
from antiphase.sensitivity import sensitivity
from antiphase.solvers.dense import dense_optimum, optimal_encoder


def test_whatever_the_search_believes_an_optimum_has_sensitivity_1(monkeypatch):
    monkeypatch.setattr(
        "antiphase.solvers.dense.optimal_encoder", lambda *_, **__: (3 * np.tri(8), 1.0)
    )
    f = dense_optimum(Problem(Workload.sgd(8), Average(), epochs(2, 4)), tolerance=1e-9)
    assert sensitivity(f.encoder(), epochs(2, 4)) == pytest.approx(1.0, abs=1e-12)


def test_idle_steps_get_independent_noise():
    workload = Workload.sgd(8, delay=2)
    C, _ = optimal_encoder(Average().root(workload), once().patterns(8), tolerance=1e-9)
    np.testing.assert_array_equal(C[6:, 6:], np.eye(2))
    assert not C[6:, :6].any()
    C, _ = optimal_encoder(Average().root(workload), epochs(2, 4).patterns(8), tolerance=1e-9)
    assert 0 < C[7, 7] < 0.02
    assert sensitivity(C, epochs(2, 4)) <= 1 + 1e-12


def test_an_objective_that_sees_too_little_is_refused():
    root = Damped(0.5).root(Workload.sgd(5))
    root[2] = 0.0
    with pytest.raises(ValueError, match="does not see every gradient"):
        optimal_encoder(root, once().patterns(5), tolerance=1e-9)
