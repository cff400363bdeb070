import numpy as np
import pytest

from antiphase import Workload
from antiphase.objective import Average, Curvature, Damped, Maximum, Restarts

T = 12
S = np.tril(np.ones((T, T)))
SGD = Workload.sgd(T)


def literal_lambda(steps, tau):
    """Λ_τ from the paper's Eq. 9, with steps counted from 1."""
    out = np.zeros((steps, steps))
    for t in range(1, steps + 1):
        base = t - tau if t % tau == 0 else t // tau * tau
        weight = 1.0 if t % tau == 0 else tau**-0.5
        out[t - 1, t - 1] = weight
        if base >= 1:
            out[t - 1, base - 1] -= weight
    return out


@pytest.mark.parametrize("tau", [1, 2, 3, 5, 7, 12, 13])
def test_restarts_are_the_papers_definition(tau):
    np.testing.assert_allclose(Restarts(tau).root(SGD), literal_lambda(T, tau) @ S, atol=1e-14)


def test_restarts_of_any_workload_are_differences_of_its_rows():
    workload = Workload.sgd(T, momentum=0.9)
    expected = literal_lambda(T, 5) @ workload.dense()
    np.testing.assert_allclose(Restarts(5).root(workload), expected, atol=1e-13)


def test_include_final_adds_the_last_restart():
    root = Restarts(5, include_final=True).root(SGD)
    np.testing.assert_array_equal(root[-1], S[9])
    assert len(root) == T + 1
    assert len(Restarts(13, include_final=True).root(SGD)) == T  # no restart, no row


def test_anchored_at_the_end_the_last_iterate_keeps_its_weight():
    start, end = Restarts(5).root(SGD), Restarts(5, anchor="end").root(SGD)
    assert start[-1, -1] == pytest.approx(5**-0.5)
    assert end[-1, -1] == 1.0
    assert [b[:2] for b in Restarts(5, anchor="end").blocks(T)] == [(0, 2), (2, 7), (7, 12)]
    np.testing.assert_array_equal(Restarts(4, anchor="end").root(SGD), Restarts(4).root(SGD))


def test_the_weight_between_restarts_is_free():
    blocks = Restarts(4, weight=0.25).blocks(T)
    np.testing.assert_array_equal(blocks[0][2], [0.25, 0.25, 0.25, 1.0])


def test_damped_prefix_sums_are_geometric():
    lag = np.subtract.outer(np.arange(T), np.arange(T))
    expected = np.where(lag >= 0, 0.9 ** np.maximum(lag, 0), 0)
    np.testing.assert_allclose(Damped(0.9).root(SGD), expected, atol=1e-14)
    np.testing.assert_allclose(Damped(1.0).root(SGD), S)
    halved = Workload.sgd(T, learning_rates=0.5)
    np.testing.assert_allclose(Damped(0.9).root(halved), expected / 2, atol=1e-14)


def test_final_weight_and_weights_scale_rows():
    weights = np.arange(1.0, T + 1)
    root = Average(weights, final_weight=2.0).root(SGD)
    np.testing.assert_allclose(root[:-1], weights[:-1, None] * S[:-1])
    np.testing.assert_allclose(root[-1], 2 * T * S[-1])


def test_curvature_is_the_sum_over_the_spectrum():
    """In closed form at a constant rate, else by directions; a tiny change of rate switches."""
    spectrum, p, rate = [0.0, 0.5, 2.0], [1.0, 2.0, 3.0], 0.3
    for final in (1.0, 3.0):
        roots = [Damped(1 - rate * h, final_weight=final).root(SGD) for h in spectrum]
        expected = sum(q * h * h * (M.T @ M) for h, q, M in zip(spectrum, p, roots, strict=True))
        root = Curvature(spectrum, rate, p, final_weight=final).root(SGD)
        np.testing.assert_allclose(root.T @ root, expected, rtol=1e-12)
    for decay in (0.0, 0.4):
        rates = np.full(T, 0.5)
        plain = Workload.sgd(T, learning_rates=rates, weight_decay=decay)
        rates[-1] *= 1 + 1e-13
        other = Workload.sgd(T, learning_rates=rates, weight_decay=decay)
        assert plain.is_constant_rate_sgd
        assert not other.is_constant_rate_sgd
        one, two = (Curvature(spectrum, rate, p, final_weight=2.0).root(w) for w in (plain, other))
        np.testing.assert_allclose(one.T @ one, two.T @ two, rtol=1e-10)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Restarts(0), "tau = 0"),
        (lambda: Restarts(1.5), "tau = 1.5"),
        (lambda: Restarts(3, weight=0.0), "weight = 0.0"),
        (lambda: Restarts(3, include_final="yes"), "include_final = 'yes'"),
        (lambda: Restarts(3, anchor="middle"), "anchor = 'middle'"),
        (lambda: Damped(1.1), "rho = 1.1"),
        (lambda: Damped(-0.1), "rho = -0.1"),
        (lambda: Damped(np.nan), "rho = nan"),
        (lambda: Average(final_weight=0), "final_weight = 0"),
        (lambda: Average([1.0, np.nan]), r"weights\[1\] = nan"),
        (
            lambda: Average([0.0] * (T - 1) + [1.0]),
            r"weights\[0\] = 0: every iterate needs a positive weight",
        ),
        (lambda: Average([1.0, 1.0]).root(SGD), "weights has 2 entries for 12 steps"),
        (lambda: Curvature([]), "spectrum"),
        (lambda: Curvature([-1.0]), "spectrum"),
        (lambda: Curvature([3.0], 1.0), "diverges"),
        (lambda: Curvature([1.0], 0.0), "learning_rate = 0.0"),
        (lambda: Curvature([1.0, 2.0], 0.1, [0.0, 0.0]), "probabilities"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_weights_of_a_toeplitz_decoders_coefficients():
    np.testing.assert_array_equal(Average().toeplitz_weights(np.array([1.0, 2.0])), [5, 4])
    np.testing.assert_array_equal(Maximum().toeplitz_weights(np.ones(2)), [1, 1])
    assert Maximum().is_maximum
    assert not Average().is_maximum


def test_restarts_of_plain_sgd_are_independent_blocks_and_nothing_else_is():
    """The blocks of the root, put together, are the root; the columns follow the delay."""
    workload = Workload.sgd(T, learning_rates=np.linspace(1, 0.1, T), delay=2)
    objective = Restarts(5)
    root = objective.root(workload)
    row = column = 0
    for block in objective.block_roots(workload):
        rows, columns = block.shape if block.any() else (0, block.shape[1])
        np.testing.assert_allclose(
            root[row : row + rows, column : column + columns], block[:rows], atol=1e-14
        )
        root[row : row + rows, column : column + columns] = 0.0
        row, column = row + rows, column + columns
    assert column == T
    assert not root.any()
    for other, w in (
        (Restarts(5, include_final=True), SGD),
        (Restarts(5), Workload.sgd(T, momentum=0.5)),
        (Average(), SGD),
    ):
        assert other.independent_blocks(w) is other.block_roots(w) is None


def test_only_averages_are_weights_on_the_iterates():
    weights = Average(final_weight=3.0).iterate_weights(T)
    np.testing.assert_array_equal(weights, [1.0] * (T - 1) + [3.0])
    for other in (Damped(0.9), Restarts(3), Curvature([1.0], 0.1), Maximum()):
        assert other.iterate_weights(T) is None
        assert other.is_maximum == isinstance(other, Maximum)
