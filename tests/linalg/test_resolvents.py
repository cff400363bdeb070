"""Resolvents of banded problems, against the matrices themselves."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.linalg import resolvents
from antiphase.objective import Average
from antiphase.problem import Problem
from antiphase.solvers.spectrum import DiagonalFactor, extreme_eigenvalues

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


@EVERY
def test_a_node_is_a_resolvent(workload):
    """Diagonal and generators of ``Σ w_k (W⁻¹ + s_k²D)⁻¹`` against the matrices themselves."""
    problem = Problem(workload, Average(), ap.once()).banded
    n, q = problem.size, problem.half_bandwidth
    rng = np.random.default_rng(0)
    v, squares, weights = (
        rng.uniform(0.5, 2, n),
        np.array([0.01, 0.3, 5.0]),
        np.array([0.2, 0.5, 1.0]),
    )
    root = Average().root(workload)[:, ~workload.idle]
    W = root.T @ root
    X = sum(
        w * W @ np.linalg.inv(np.eye(n) + s * np.diag(v) @ W)
        for s, w in zip(squares, weights, strict=True)
    )
    common = problem.weighted_bands, problem.N, v, q
    np.testing.assert_allclose(
        resolvents.diagonal_of_sum(*common, squares, weights), np.diagonal(X), rtol=1e-9
    )
    move, g, h, x = resolvents.generators(*common, squares, weights)
    found = np.diag(x)
    for j in range(n - 1):
        S = g[j].copy()
        for i in range(j + 1, n):
            if i > j + 1:
                S = np.column_stack([(move[i] * S).sum(axis=1), S[:, :-1]])
            found[i, j] = found[j, i] = (h[i] * S).sum()
    np.testing.assert_allclose(found, X, rtol=1e-7, atol=1e-9 * np.abs(X).max())
    low, high = extreme_eigenvalues(problem, DiagonalFactor(np.sqrt(v)), accuracy=1e-6)
    eigenvalues = np.linalg.eigvalsh(np.sqrt(v)[:, None] * W * np.sqrt(v))
    assert low == pytest.approx(1 / eigenvalues[-1], rel=1e-3)
    assert high == pytest.approx(1 / eigenvalues[0], rel=0.05)
