"""Several epochs by block-cyclic matrices, compared with the dense solver on small problems."""

import numpy as np
import pytest
from scipy.linalg import block_diag

import antiphase as ap
from antiphase.factorizations.block_diagonal import BlockDiagonal
from antiphase.factorizations.streaming import Streaming
from antiphase.linalg import banded, block_cyclic
from antiphase.objective import Average, Curvature, Damped, Restarts
from antiphase.problem import Problem
from antiphase.sensitivity import DenseColumns
from antiphase.solvers import dual
from antiphase.solvers.dense import dense_optimum
from antiphase.solvers.multi_epoch import (
    MultiEpochDual,
    _encoder_blocks,
    _normalised,
    is_block_cyclic,
    multi_epoch_bounds,
    multi_epoch_optimum,
)

RATES = np.linspace(1.0, 0.3, 60)
CASES = {
    "plain": (ap.Workload.sgd(24), 6),
    "short last epoch": (ap.Workload.sgd(23), 6),
    "momentum": (ap.Workload.sgd(24, momentum=0.9), 6),
    "momentum, odd epochs": (ap.Workload.sgd(25, momentum=0.9), 5),
    "momentum, one group": (ap.Workload.sgd(12, momentum=0.9), 3),
    "nesterov": (ap.Workload.sgd(29, momentum=0.8, nesterov=True, learning_rates=RATES[:29]), 7),
    "decay and ema": (ap.Workload.sgd(26, weight_decay=0.1, momentum=0.5).with_ema(0.5), 9),
    "delay": (ap.Workload.sgd(26, delay=3), 6),
    "one position": (ap.Workload.sgd(9), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_blocks_bound_and_gram_are_those_of_the_dense_formula(name):
    workload, every = CASES[name]
    objective = Average(np.linspace(0.5, 2, workload.steps))
    problem = Problem(workload, objective, ap.once()).banded
    search = MultiEpochDual(problem, every, tolerance=1e-12, accuracy=1e-16)
    V = [np.random.default_rng(0).uniform(1, 2, len(v))[:, None, None] * v for v in search.start()]
    classes = [np.arange(j, problem.size, every) for j in range(every)]
    groups = [np.array([c for c in classes if len(c) == count]) for _, count in search.layout.sizes]
    root = objective.root(workload)[:, ~workload.idle]
    exact = dual._evaluate(root, groups, V)
    for sharp, within in ((False, 1e-8), (True, 1e-11)):
        point = search.evaluate(V, sharp=sharp)
        assert point.bound == pytest.approx(exact.bound, rel=within)
        for found, x in zip(point.X, exact.X, strict=True):
            np.testing.assert_allclose(found, x, atol=within * np.abs(x).max())
    Y = exact.more[0]
    X = search.gram(search.layout.full(V))
    np.testing.assert_allclose(X, Y.T @ Y, atol=1e-10 * np.abs(X).max())
    low, high = search.certified(V)
    assert low <= exact.bound <= high


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_optimum_is_that_of_the_dense_path(name):
    workload, every = CASES[name]
    participation = ap.epochs(-(-workload.steps // every), every)
    problem = Problem(workload, Damped(0.95, final_weight=2.0), participation)
    assert is_block_cyclic(problem)
    f = multi_epoch_optimum(problem, tolerance=1e-8)
    g = dense_optimum(problem, tolerance=1e-8)
    assert f.error == pytest.approx(g.error, rel=3e-8)
    assert f.lower_bound <= g.error
    assert g.lower_bound <= f.error
    assert f.sensitivity == pytest.approx(1, abs=1e-12)
    low, high = multi_epoch_bounds(problem, tolerance=1e-8)
    assert low <= g.error
    assert high >= g.lower_bound
    assert ap.sensitivity(f.encoder(), participation) <= 1 + 1e-12


def test_cross_terms_are_counted():
    """A search that stops at once leaves cross terms; the sensitivity is at most 1 with them."""
    workload, participation = ap.Workload.sgd(48), ap.epochs(8, 6)
    f = multi_epoch_optimum(Problem(workload, Average(), participation), tolerance=0.5)
    X = f.encoder().T @ f.encoder()
    blocks = [X[np.ix_(c, c)] for c in participation.patterns(48)]
    assert max(np.abs(b - np.diag(np.diagonal(b))).max() for b in blocks) > 1e-6
    assert max(np.abs(b).sum() for b in blocks) <= 1 + 1e-12


@pytest.mark.parametrize("objective", [Average(), Restarts(10)], ids=["whole", "stretches"])
@pytest.mark.parametrize("name", ["plain", "short last epoch", "momentum", "delay"])
def test_classes_are_scaled_by_all_that_one_record_can_do(name, objective):
    """In each class the |entries| of CᵀC sum up to 1, before anything is normalised.

    Far from the optimum, where cross terms are large, the diagonal alone would not.
    """
    workload, every = CASES[name]
    participation = ap.epochs(-(-workload.steps // every), every)
    problem = Problem(workload, objective, participation)
    search = MultiEpochDual(problem.banded, every, tolerance=1e-12, accuracy=1e-16)
    C = block_diag(*_encoder_blocks(search, search.evaluate(search.start()), problem))
    X = C.T @ C
    blocks = [X[np.ix_(c, c)] for c in participation.patterns(workload.steps)]
    assert min(np.trace(b) for b in blocks) < 0.9
    np.testing.assert_allclose([np.abs(b).sum() for b in blocks], 1, atol=1e-8)


@pytest.mark.parametrize("count", [1, 2])
def test_whatever_the_search_believes_an_optimum_has_sensitivity_1(count):
    blocks, participation = [3 * np.tri(8 // count)] * count, ap.epochs(2, 4)
    f = _normalised(blocks, Problem(ap.Workload.sgd(8), Average(), participation), bound=None)
    assert ap.sensitivity(f.encoder(), participation) == pytest.approx(1.0, abs=1e-12)


def test_what_is_not_block_cyclic_is_left_to_the_dense_path():
    plain, twice = ap.Workload.sgd(12), ap.epochs(2, 6)
    assert is_block_cyclic(Problem(plain, Average(), twice))
    assert not is_block_cyclic(Problem(ap.Workload.from_matrix(plain.dense()), Average(), twice))
    assert not is_block_cyclic(Problem(plain, Curvature([0.5]), twice))
    assert not is_block_cyclic(Problem(plain, Average(), ap.min_separation(2, 6)))
    assert not is_block_cyclic(
        Problem(ap.Workload.sgd(12, momentum=0.9), Average(), ap.epochs(12, 1))
    )
    gaps = np.ones(12)
    gaps[4] = 0.0
    assert not is_block_cyclic(Problem(ap.Workload.sgd(12, learning_rates=gaps), Average(), twice))
    with pytest.raises(ValueError, match="short recurrences"):
        multi_epoch_bounds(Problem(plain, Curvature([0.5]), twice), tolerance=1e-3)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"delay": 2}]
)
@pytest.mark.parametrize("anchor", ["start", "end"])
def test_restarts_are_a_recurrence(options, anchor):
    for steps in (7, 12):
        workload = ap.Workload.sgd(steps, learning_rates=RATES[:steps], **options)
        for followed in (workload, workload.with_ema(0.7), workload.with_tail_average(3)):
            for tau in (1, 2, 5, 20):
                objective = Restarts(tau, anchor=anchor)
                P, N, weights = objective.recurrence(followed)
                moved = banded.apply(N, banded.shift_rows(np.eye(steps), followed.delay))
                root = weights[:, None] * banded.solve(P, moved)
                np.testing.assert_allclose(root, objective.root(followed), atol=1e-11)
    assert Restarts(3).recurrence(ap.Workload.sgd(6, weight_decay=0.1)) is None
    assert Restarts(3, include_final=True).recurrence(ap.Workload.sgd(6)) is None


def test_restarts_in_every_epoch_stream_and_are_cut_where_the_objective_is():
    f = ap.design("dp-mf+", steps=60, epochs=4, tau=15)
    assert isinstance(f, Streaming)
    assert f.restarts() == [0, 15, 30, 45]
    assert len(f.distinct) == 1, "equal segments are kept once"
    g = ap.design("dp-mf+", steps=60, epochs=4, tau=8)
    assert isinstance(g, Streaming)
    for stream in (f, g):
        columns = stream.encoder_columns()
        dense = DenseColumns(stream.encoder())
        for pattern in (*stream.participation.patterns(60), np.array([0, 1, 20]), np.array([3])):
            np.testing.assert_allclose(columns.gram(pattern), dense.gram(pattern), atol=1e-12)
        assert stream.sensitivity == pytest.approx(
            ap.sensitivity(stream.encoder(), stream.participation), rel=1e-12
        )
        error = np.square(np.linalg.norm(stream.objective.root(stream.workload) @ stream.noising()))
        assert stream.error == pytest.approx(stream.sensitivity**2 * error, rel=1e-9)


def test_longer_stretches_are_blocks():
    f = ap.design("dp-mf+", steps=60, epochs=6, tau=25)
    assert isinstance(f, BlockDiagonal)
    assert f.restarts() == [0, 25, 50]
    assert f.gap <= 1e-9


@pytest.mark.slow
@pytest.mark.issue(23)
def test_tiny_learning_rates_do_not_spoil_the_certificate(shown):
    """A cosine schedule ends at 6e-6 of its first rate: badly scaled, not ill-conditioned."""
    steps = 640
    rates = 0.5 * (1 + np.cos(np.pi * np.arange(steps) / steps))
    workload = ap.Workload.sgd(steps, learning_rates=rates, momentum=0.9)
    problem = Problem(workload, Restarts(steps), ap.epochs(16, steps // 16))
    gap = multi_epoch_optimum(problem, tolerance=1e-6).gap
    shown("momentum 0.9, cosine schedule, 640 steps, 16 epochs", f"gap {gap:.1e}", "<= 1e-6")
    assert gap <= 1e-6


@pytest.mark.parametrize("every", [2, 3, 4, 6])
def test_the_condition_number_is_a_bound(shown, every):
    """Of the matrices ``K_s`` with diagonal 1, against the dense ones; in one block and more."""
    workload, participation = ap.Workload.sgd(24, momentum=0.9), ap.epochs(24 // every, every)
    search = MultiEpochDual.of(Problem(workload, Average(), participation), 1e-6)
    V = search.layout.full(search.start())
    low, high = search.ends(V)
    squares = np.geomspace(low, high, 5)
    for sharp in (False, True):
        matrices = search._matrices(V, sharp)
        bound = search._summed(matrices, squares, np.ones(5))[2]
        exact = 0.0
        for square in squares:
            total = np.zeros((search.layout.groups, search.layout.block) * 2)
            block_cyclic.add_inverse(total, matrices(np.array([square])), 1.0)
            K = np.linalg.inv(total.reshape((search.layout.groups * search.layout.block,) * 2))
            entries = matrices(np.array([square])).diagonal.ravel()
            np.testing.assert_allclose(entries, np.diagonal(K), rtol=1e-5)
            scale = np.sqrt(np.diagonal(K))
            exact = max(exact, np.linalg.cond(K / np.outer(scale, scale)))
        shown(f"condition number, by QR: {sharp}", f"{bound / exact:.1f} × exact", ">= 1, <= 1e4")
        assert 1 <= bound / exact <= 1e4


@pytest.mark.parametrize("decay", [0.9, 0.3, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rates_that_decay_strongly(decay, momentum):
    """Down to 1e-39 of the first: the search needs no definite products, and is certified."""
    workload = ap.Workload.sgd(40, learning_rates=0.1 * decay ** np.arange(40), momentum=momentum)
    f = multi_epoch_optimum(Problem(workload, Average(), ap.epochs(8, 5)), tolerance=1e-9)
    assert f.gap <= 1e-9
    assert f.sensitivity <= 1 + 1e-12
