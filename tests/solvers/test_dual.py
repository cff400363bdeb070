import numpy as np
import pytest

from antiphase import Workload, epochs, min_separation, once
from antiphase.factorizations.dense import Dense
from antiphase.linalg.cholesky import reversed_cholesky
from antiphase.objective import Average, Damped, Restarts
from antiphase.problem import Problem
from antiphase.sensitivity import sensitivity
from antiphase.solvers import dual
from antiphase.solvers.dense import dense_optimum, optimal_encoder
from antiphase.solvers.min_separation import min_separation_encoder


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


def test_whatever_the_search_believes_an_optimum_has_sensitivity_1(monkeypatch):
    monkeypatch.setattr(
        "antiphase.solvers.dense.optimal_encoder", lambda *_, **__: (3 * np.tri(8), 1.0)
    )
    f = dense_optimum(Problem(Workload.sgd(8), Average(), epochs(2, 4)), tolerance=1e-9)
    assert sensitivity(f.encoder(), epochs(2, 4)) == pytest.approx(1.0, abs=1e-12)


def test_whatever_it_is_made_from_the_best_for_a_separation_has_sensitivity_1():
    participation = min_separation(2, 3)
    f = min_separation_encoder(
        Problem(Workload.sgd(8), Average(), participation),
        lambda problem: Dense("x", **problem.fields, matrix=3 * np.tri(8), bound=1.0),
    )
    assert sensitivity(f.encoder(), participation) == pytest.approx(1.0, abs=1e-12)


def test_cross_terms_left_over_are_counted():
    """At the start of a search they are large, and of both signs: in each class the |entries| of X sum up to 1."""
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


def test_the_reversed_factor_has_the_gram_matrix_on_its_columns():
    """CᵀC = X: the plain Cholesky factor has CCᵀ = X, and a sensitivity above 1."""
    Y = dual.solve(Average().root(Workload.sgd(32)), once().patterns(32)).factor
    X = Y.T @ Y
    C = reversed_cholesky(Y)
    np.testing.assert_allclose(C.T @ C, X, atol=1e-13)
    assert not np.triu(C, 1).any()
    assert sensitivity(C, once()) == pytest.approx(1.0, abs=1e-12)
    wrong = np.linalg.cholesky(X)
    assert sensitivity(wrong, once()) > 1.2, "the transposed factor must be noticed"


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
