import numpy as np
import pytest

from antiphase import Workload, epochs, once
from antiphase.objective import Average, Restarts
from antiphase.sensitivity import sensitivity
from antiphase.solvers import dual
from antiphase.solvers.dense import optimal_encoder


def random_problem(rng):
    k, b = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    steps = k * b - int(rng.integers(0, b))
    workload = Workload.sgd(
        steps, learning_rates=rng.uniform(0.1, 1, steps), momentum=rng.choice([0, 0.9])
    )
    objective = Average(rng.uniform(0.2, 2, steps))
    return objective.root(workload), epochs(k, b)


@pytest.mark.slow
def test_the_bound_never_falls_and_the_feasible_point_is_feasible():
    """60 random problems: plain steps never lower the bound, and the result has sensitivity 1."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        root, participation = random_problem(rng)
        classes = participation.patterns(root.shape[1])
        groups = [
            np.array([c for c in classes if len(c) == size]) for size in {len(c) for c in classes}
        ]
        V = [np.tile(0.8 * np.eye(g.shape[1]) + 0.2, (len(g), 1, 1)) for g in groups]
        point = dual._evaluate(root, groups, V)
        for _ in range(15):
            after = dual._evaluate(root, groups, dual.plain_step(point))
            assert after.bound >= point.bound * (1 - 1e-13)
            point = after
        encoder, bound = optimal_encoder(root, classes, tolerance=1e-9)
        assert sensitivity(encoder, participation) <= 1 + 1e-12
        error = np.square(root @ np.linalg.inv(encoder)).sum()
        assert 0 <= error / bound - 1 <= 2e-9


def test_a_search_cut_short_still_certifies():
    root = Average().root(Workload.sgd(64))
    classes = epochs(8, 8).patterns(64)
    best = dual.solve(root, classes).lower_bound
    for iterations in (0, 1, 2, 5):
        early = dual.solve(root, classes, iterations=iterations)
        assert early.lower_bound <= best * (1 + 1e-9)
        assert early.gap > 1e-9
        assert early.iterations == iterations


def test_cross_terms_left_over_are_counted():
    """They are large at the start, of both signs: in each class the |entries| of X sum up to 1."""
    classes = epochs(4, 6).patterns(24)
    Y = dual.solve(Average().root(Workload.sgd(24, momentum=0.9)), classes, iterations=0).factor
    blocks = [Y[:, c].T @ Y[:, c] for c in classes]
    assert min(b.min() for b in blocks) < -0.001
    assert min(np.trace(b) for b in blocks) < 0.9
    np.testing.assert_allclose([np.abs(b).sum() for b in blocks], 1, atol=1e-12)


def test_acceleration_pays():
    root = Average().root(Workload.sgd(64))
    assert dual.solve(root, once().patterns(64)).iterations <= 12
    assert dual.solve(root, epochs(4, 16).patterns(64)).iterations <= 35


def test_more_rows_than_columns_are_no_matter():
    root = np.vstack([Restarts(4, include_final=True).root(Workload.sgd(12)), np.eye(12)])
    tall = dual.solve(root, once().patterns(12))
    square = dual.solve(np.linalg.cholesky(root.T @ root, upper=True), once().patterns(12))
    assert tall.lower_bound == pytest.approx(square.lower_bound, rel=1e-8)
