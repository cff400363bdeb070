import numpy as np
import pytest

from antiphase import Workload, epochs, min_separation, once
from antiphase.factorizations.toeplitz import Toeplitz, ToeplitzColumns
from antiphase.objective import Average
from antiphase.participation import Participation
from antiphase.sensitivity import DenseColumns, _computation_cost, is_exact, sensitivity
from tests import brute_force


def random_case(rng):
    """A random lower-triangular encoder and a participation.

    Entries are signed, non-negative, or such that all columns have negative inner products.
    """
    steps = int(rng.integers(1, 9))
    C = np.tril(rng.normal(size=(steps, steps)))
    if rng.random() < 0.25:
        C = np.abs(C)
    elif rng.random() < 0.25:  # every pair repels: here vectors reach more than signs do
        X = np.eye(steps) - rng.uniform(0.5, 0.95) / max(steps - 1, 1) * (1 - np.eye(steps))
        C = np.linalg.cholesky(X).T[::-1, ::-1] * rng.uniform(0.8, 1.2, size=steps)
    if rng.random() < 0.25:
        C = np.triu(C, -int(rng.integers(1, 4)) + 1)
    every, count = int(rng.integers(1, steps + 1)), int(rng.integers(1, 5))
    kinds = [once(), epochs(-(-steps // every), every), min_separation(count, every)]
    return C, kinds[rng.integers(3)]


def shortfall(cases, compute=sensitivity, seed=1):
    """Worst relative shortfall below brute force, and worst error where `is_exact` holds."""
    rng = np.random.default_rng(seed)
    below = wrong = 0.0
    claims = 0
    for _ in range(cases):
        C, participation = random_case(rng)
        true = brute_force.sensitivity(C, participation, rng)
        ours = compute(C, participation)
        below = max(below, 1 - ours / true)
        if is_exact(C, participation, tolerance=1e-13):
            claims += 1
            wrong = max(wrong, abs(ours / true - 1))
    return below, wrong, claims


def test_never_below_brute_force():
    below, wrong, claims = shortfall(150)
    assert below <= 1e-12
    assert wrong <= 1e-12
    assert claims >= 50


def test_one_dimensional_gradients_are_not_the_worst_case():
    """X = I − 0.4(11ᵀ − I): signs reach 3.8, vectors at 120° reach 4.2, and Σ|X| is 5.4."""
    X = np.eye(3) * 1.4 - 0.4
    C = np.linalg.cholesky(X[::-1, ::-1]).T[::-1, ::-1]
    participation, rng = epochs(3, every=1), np.random.default_rng(0)
    assert brute_force.best_signs(C.T @ C) == pytest.approx(3.8)
    assert brute_force.best_vectors(C.T @ C, rng) == pytest.approx(4.2)
    assert sensitivity(C, participation) ** 2 == pytest.approx(5.4)
    assert not is_exact(C, participation)

    def signs_only(C, participation):
        return brute_force.sensitivity(C, participation, rng, vectors=False)

    assert shortfall(150, signs_only)[0] > 1e-3, "the check must notice a maximum over signs only"


def test_row_norms_are_not_column_norms():
    """cholesky(X) has X as the Gram matrix of its rows, so another sensitivity."""
    assert shortfall(150, lambda C, p: sensitivity(C.T, p))[0] > 1e-3


def test_once_is_the_largest_column_norm():
    C = np.array([[3.0, 0.0], [4.0, 2.0]])
    assert sensitivity(C, once()) == 5.0


def test_a_minimum_separation_costs_at_least_a_fixed_order():
    rng = np.random.default_rng(2)
    for _ in range(20):
        C = np.tril(rng.normal(size=(12, 12)))
        assert sensitivity(C, min_separation(3, 4)) >= sensitivity(C, epochs(3, 4)) * (1 - 1e-12)


def test_few_bands_make_a_minimum_separation_exact():
    rng = np.random.default_rng(3)
    C = np.triu(np.tril(rng.normal(size=(9, 9))), -2)  # three bands
    assert is_exact(C, min_separation(3, 3))
    assert not is_exact(C, min_separation(3, 2))
    assert sensitivity(C, min_separation(3, 3)) == pytest.approx(
        brute_force.sensitivity(C, min_separation(3, 3), rng)
    )


def test_a_minimum_separation_costs_what_the_bound_says():
    """``max_π Σ_{i∈π} u_i``, with ``u_i`` the largest ``Σ_{i'∈π'} |X_ii'|`` of a pattern of i."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        steps, count, apart = (int(rng.integers(1, high)) for high in (9, 5, 5))
        C, participation = np.tril(rng.normal(size=(steps, steps))), min_separation(count, apart)
        X, patterns = np.abs(C.T @ C), brute_force.patterns(participation, steps)
        best = [max(X[i, list(p)].sum() for p in patterns if i in p) for i in range(steps)]
        bound = max(sum(best[i] for i in p) for p in patterns)
        assert sensitivity(C, participation) ** 2 == pytest.approx(bound, rel=1e-12)


def test_is_exact_only_where_the_bound_is_attained():
    """One participation always; a fixed order unless a cross term is negative."""
    for participation in (once(), min_separation(1, 1)):
        assert is_exact(np.array([[1.0, 1.0], [0.0, 1.0]]), participation)
    assert is_exact(np.eye(4), epochs(2, every=2), tolerance=0.0)
    assert is_exact(np.array([[1.0, 1.0], [0.0, 1.0]]), epochs(2, every=1), tolerance=0.0), (
        "nothing cancels"
    )
    nearly = np.array([[1.0, -1e-6], [0.0, 1.0]])  # attained but for about 1e-6
    assert not is_exact(nearly, epochs(2, every=1))
    assert is_exact(nearly, epochs(2, every=1), tolerance=1e-5)
    assert is_exact(nearly * [[1, 1e-4], [1, 1]], epochs(2, every=1))
    tall = np.array([[1.0, 0.0], [0.0, 1.0], [0.3, -0.3]])
    assert not is_exact(tall, epochs(2, every=1))
    assert not is_exact(tall, min_separation(2, 1))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_columns_that_cancel_are_an_upper_bound_at_every_scale(scale):
    """Equal gradients cancel there, up to rounding."""
    C = np.array([[0.7, -0.3, -0.4]]) * scale
    assert sensitivity(C, epochs(3, every=1)) == pytest.approx(1.4 * scale)
    assert not is_exact(C, epochs(3, every=1))


class NoGram:
    """Columns too many for a Gram matrix; adjacent ones share a row."""

    steps, reach = 6, 2

    def squared_norms(self):
        return np.arange(1.0, 7.0)

    def gram(self, indices):
        raise MemoryError


def test_one_participation_needs_only_the_norms():
    for participation in (once(), min_separation(1, 2), min_separation(3, 6)):
        assert sensitivity(NoGram(), participation) ** 2 == pytest.approx(6.0)


def test_orthogonal_columns_need_no_gram_matrix():
    """Squared norms of the worst pattern add up; with one more band, cross terms count."""
    for participation in (epochs(3, every=2), min_separation(3, 2)):
        assert sensitivity(NoGram(), participation) ** 2 == pytest.approx(2.0 + 4.0 + 6.0)
        assert is_exact(NoGram(), participation)
    rng = np.random.default_rng(5)
    for bands in (3, 4):
        C = np.triu(np.tril(rng.normal(size=(11, 11))), 1 - bands)
        columns = DenseColumns(C)
        assert columns.reach == bands
        for participation in (epochs(4, 3), min_separation(3, 3)):
            assert sensitivity(C, participation) >= brute_force.sensitivity(
                C, participation, rng
            ) * (1 - 1e-12)
            assert is_exact(C, participation) == (bands == 3)
    for rows, reach in ((np.ones((3, 2)), 2), (np.eye(3), 1), (np.zeros((2, 2)), 1)):
        assert DenseColumns(rows).reach == reach


def test_many_epochs_of_a_few_bands_take_time_and_memory_in_proportion_to_the_steps():
    """A Gram matrix of one pattern would have 50,000 rows: 20 GB."""
    columns = ToeplitzColumns(np.array([1.0, 0.5, 0.25]), np.ones(200_000), 200_000)
    assert columns.falling
    assert sensitivity(columns, epochs(50_000, every=4)) == pytest.approx(
        np.sqrt(50_000 * (1 + 0.25 + 0.0625))
    )


def test_decreasing_toeplitz_encoders_are_exact_and_others_take_the_general_path():
    """For decreasing coefficients the first and densest pattern is the worst."""
    rng = np.random.default_rng(6)
    kinds = {
        "falling": (lambda c: -np.sort(-c), False),
        "rising": (np.sort, False),
        "one step up": (lambda c: -np.sort(-np.r_[c[:-1], 3.0])[[1, 0, *range(2, len(c))]], False),
        "signed": (
            lambda c: -np.sort(-c) * np.where(np.arange(len(c)) == len(c) - 1, -1, 1),
            False,
        ),
        "scaled": (lambda c: -np.sort(-c), True),
    }
    for kind, (arranged, normalized) in kinds.items():
        for steps, bands in ((9, 9), (9, 4), (8, 5)):
            c = arranged(rng.random(bands) + 0.1)
            f = Toeplitz("t", Workload.sgd(steps), Average(), once(), c, normalized)
            assert f.encoder_columns().falling == (kind == "falling")
            for participation in (
                epochs(3, 3),
                epochs(5, 2),
                min_separation(3, 2),
                min_separation(2, 3),
            ):
                true = brute_force.sensitivity(f.encoder(), participation, rng)
                ours = sensitivity(f.encoder_columns(), participation)
                assert ours >= true * (1 - 1e-12), (kind, participation)
                if kind == "falling":
                    assert ours == pytest.approx(true, rel=1e-12)
                    assert is_exact(f.encoder_columns(), participation)


def test_more_participations_than_fit_cost_no_more():
    """Nor do they take more time: 10⁹ participations are as many as fit."""
    rng = np.random.default_rng(4)
    C = np.tril(rng.normal(size=(7, 7)))
    for apart, fit in ((1, 7), (2, 4), (3, 3), (7, 1), (9, 1)):
        assert sensitivity(C, min_separation(10**9, apart)) == sensitivity(
            C, min_separation(fit, apart)
        )


def test_encoders_may_have_more_rows_than_columns():
    H = np.array([[1.0, 0], [0, 1], [1, 1]])
    assert sensitivity(H, once()) == pytest.approx(np.sqrt(2))


class Unheard(Participation):
    fixed_order, max_participations, separation = True, 2, 1

    def patterns(self, steps):
        return []

    def describe(self):
        return "?"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sensitivity([[1.0, np.nan]], once()), r"encoder\[0, 1\] = nan"),
        (lambda: sensitivity([1.0], once()), "encoder has shape"),
        (lambda: sensitivity(np.zeros((1, 0)), once()), "no columns"),
        (lambda: sensitivity("C", once()), "encoder = 'C'"),
        (lambda: sensitivity(np.eye(2), "once"), "participation = 'once'"),
        (lambda: sensitivity(np.eye(5), epochs(2, 2)), "covers 4 of 5 steps"),
        (lambda: sensitivity(np.eye(2), Unheard()), "is not known; use once"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


@pytest.mark.parametrize("scale", [2.7e-162, 1e-170, 1e170])
@pytest.mark.parametrize("participation", [once(), epochs(3, every=1), min_separation(2, 1)])
def test_squares_that_overflow_or_underflow_are_refused(scale, participation):
    with pytest.raises(ValueError, match="out of range"):
        sensitivity(np.eye(3) * scale, participation)


DENSE = DenseColumns(np.tril(np.ones((6, 6))))
FALLING = Toeplitz("t", Workload.sgd(6), Average(), once(), np.ones(6), False).encoder_columns()


@pytest.mark.parametrize(
    ("columns", "participation", "memory", "operations"),
    [
        (DenseColumns(np.eye(6)), epochs(2, every=3), 8 * 6, 6),
        (DENSE, epochs(2, every=3), 40 * 2**2, 3 * (30 * 2**2 + 10_000)),
        (FALLING, epochs(2, every=3), 40 * 2**2, 30 * 2**2 + 10_000),
        (FALLING, min_separation(2, 3), 40 * 2**2, 30 * 2**2),
        (DENSE, min_separation(2, 3), 16 * 6**2, (2 * 2 + 30) * 6**2),
        (DENSE, once(), 8 * 6, 6),
        (DenseColumns(np.eye(6)), min_separation(2, 3), 8 * 6, 2 * (6 + 1000)),
    ],
)
def test_the_cost_announced_for_untrusted_files(columns, participation, memory, operations):
    """Six steps, by hand: 40 bytes and 30 operations for an inner product of two columns."""
    cost = _computation_cost(columns, participation)
    assert cost == {"memory": memory, "operations": operations}
