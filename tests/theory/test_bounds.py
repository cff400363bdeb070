"""The bounds are what the paper's proofs give, on matrices small enough to look at in full."""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

import antiphase as ap
from antiphase.factorizations.dense import Dense
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.objective import Average, Restarts
from antiphase.theory import bounds
from antiphase.theory.bounds import Constants
from antiphase.theory.decoder_norms import DecoderNorms
from experiments import lower_bounds, sequences
from tests import reference

DESIGNS = [
    ("dp-sgd", {}),
    ("anti-pgd", {}),
    ("chess", {}),
    ("tree", {}),
    ("tree", {"estimator": "online"}),
    ("sqrt-toeplitz", {}),
    ("dp-mf", {}),
    ("dp-mf+", {"tau": 7}),
    ("damped", {"rho": 0.9}),
]


def factored(decoder):
    """The factorization with this decoder (its diagonal positive)."""
    steps = len(decoder)
    encoder = np.tril(np.linalg.solve(decoder, np.tril(np.ones((steps, steps)))))
    return Dense("given", ap.Workload.sgd(steps), Average(), ap.once(), encoder)


def banded(steps):
    """An encoder of four diagonals with scaled columns."""
    coefficients = np.array([1.0, 0.5, 0.3, -0.2])
    return Toeplitz("banded", ap.Workload.sgd(steps), Average(), ap.once(), coefficients, True)


def rise_and_fall(steps, diagonal=0.1):
    """A decoder whose first column rises by 1 a step to T/2 and falls to 0; the rest is small."""
    t = np.arange(1, steps + 1)
    decoder = diagonal * np.eye(steps)
    decoder[:, 0] = np.minimum(t, steps - t)
    return decoder


def variances(f, curvature, learning_rate):
    """``E‖x_t − x*‖²`` under noise of length 1, in one direction of this curvature."""
    decay = [1.0, learning_rate * curvature - 1.0]
    rows = learning_rate * lfilter([1.0], decay, f.sensitivity * f.noising(), axis=0)
    return np.concatenate([[0.0], np.square(rows).sum(axis=1)])


def dense_bracket(f, tau):
    B = np.vstack([np.zeros(f.steps), f.sensitivity * f.decoder()])
    t = np.arange(f.steps + 1)
    at_restarts = B[::tau]
    between, restarts = (
        np.square(B - B[t // tau * tau]).sum(),
        np.square(np.diff(at_restarts, axis=0)).sum(),
    )
    return between, restarts, np.square(at_restarts[-1]).sum()


@pytest.mark.parametrize(("name", "options"), [*DESIGNS, ("banded", {})])
def test_decoder_norms_agree_with_the_dense_decoder(name, options):
    """Through a stream, by diagonals or dense, for every τ, whether it divides the steps or not."""
    f = banded(40) if name == "banded" else ap.design(name, steps=40, **options)
    for tau in (1, 4, 7, 40, 50):
        found = bounds.noise_terms(f, tau)
        np.testing.assert_allclose(
            [found.between, found.restarts, found.final],
            dense_bracket(f, tau),
            rtol=1e-9,
            atol=1e-12,
        )
        assert found.weighted == pytest.approx(f.error_under(Restarts(tau)), rel=1e-9)
    B, n = f.sensitivity * f.decoder(), np.arange(40, 0, -1)
    for kappa in (0.01, 0.3, 5.0):
        m = kappa * B.sum(axis=0) / (1 + kappa * n)
        stale = kappa * np.square(B - np.tril(np.ones((40, 40))) * m).sum()
        np.testing.assert_allclose(
            DecoderNorms(f).stale_and_fresh(kappa), [stale, m @ m], rtol=1e-9
        )


@pytest.mark.parametrize("kappa", [0.01, 0.3, 5.0])
def test_the_fresh_share_is_optimal(kappa):
    f = ap.design("dp-mf", steps=24)
    B, S = f.sensitivity * f.decoder(), np.tril(np.ones((24, 24)))
    best = sum(DecoderNorms(f).stale_and_fresh(kappa))
    rng = np.random.default_rng(0)
    for m in [np.zeros(24), np.ones(24), *rng.uniform(0, 1, (50, 24))]:
        assert best <= kappa * np.square(B - S * m).sum() + m @ m


def test_noise_terms_agree_with_reference_values():
    for (steps, tau), expected in reference.BRACKETS.items():
        for name, value in zip(("dp-sgd", "anti-pgd", "chess"), expected, strict=True):
            f = ap.design(name, steps=steps)
            assert bounds.noise_terms(f, tau).weighted / f.sensitivity**2 == pytest.approx(
                value, rel=1e-12
            )


def test_each_term_is_that_of_the_proof():
    """Both theorems, term by term, against sums written out."""
    f, c = ap.design("dp-mf", steps=30), Constants(2.0, 0.02, 3.0, distance=0.7, gap=0.4)
    found = bounds.nonconvex_bound(f, c)
    assert found.tau == 25
    between, restarts, final = dense_bracket(f, 25)
    assert found.optimization == pytest.approx(8 * 0.4 / (0.02 * 31))
    assert found.parts["between restarts"] == pytest.approx(4 * 0.02**2 * 4 / 31 * between * 9)
    assert found.parts["restarts"] == pytest.approx(40 * 2 * 0.02 / 31 * restarts * 9)
    assert found.total == pytest.approx(found.optimization + found.noise)
    assert found.is_guarantee
    c = Constants(2.0, 0.002, 3.0, distance=0.7)
    found = bounds.published_convex_bound(f, c)
    assert found.tau == math.floor(1 / (8 * 0.004 * math.log2(30))) == 6
    between, restarts, final = dense_bracket(f, 6)
    unit = 12 * 0.002 * 9 / 31
    np.testing.assert_allclose(
        list(found.parts.values()), [unit * 0.004 * between, unit * restarts, unit * final]
    )
    assert found.optimization == pytest.approx(4 * 0.49 / (0.002 * 31))
    assert not found.is_guarantee
    assert "not a guarantee" in found.caveat


def test_single_mechanisms_have_the_rates_of_the_propositions():
    c = Constants(2.0, 0.05, 3.0, distance=0.7)
    pgd, anti, chess = (ap.design(name, steps=64) for name in ("dp-sgd", "anti-pgd", "chess"))
    start, variance = 0.49 / (0.05 * 65), 9.0
    for found, optimization, noise in [
        (bounds.pgd_bound(pgd, c), start, 0.05 * variance),
        (bounds.anti_pgd_bound(anti, c), 2 * start, 4 * 2 * 0.05**2 * variance * 64),  # sens² = T
        (bounds.anti_pgd_by_iterates_bound(anti, c), start, 0.05 * variance * 64),
        (bounds.pgd_by_virtual_bound(pgd, c), 2 * start, 2 * 2 * 0.05**2 * 64 * variance),
        (bounds.chess_bound(chess, c), 2 * start, 2 * 2 * 0.05**2 * 65 * variance),
    ]:
        assert found.optimization == pytest.approx(optimization)
        assert found.noise == pytest.approx(noise)
        assert found.is_guarantee
    assert bounds.plain_convex_bound(pgd, c).total == pytest.approx(
        bounds.pgd_by_virtual_bound(pgd, c).total
    )
    assert bounds.plain_convex_bound(chess, c).total <= bounds.chess_bound(chess, c).total


@pytest.mark.parametrize(("name", "options"), DESIGNS)
def test_fresh_noise_is_below_the_plain_sequence_and_the_propositions(name, options):
    f = ap.design(name, steps=50, **options)
    for step in (0.001, 0.02, 0.25):
        c = Constants(1.0, step, 1.0, distance=1.0, gap=0.5)
        ours = bounds.convex_bound(f, c)
        assert ours.total <= bounds.plain_convex_bound(f, c).total / 4
        if name == "dp-sgd":
            assert ours.total <= bounds.pgd_bound(f, c).total / 2
        if name == "anti-pgd":
            assert ours.total <= bounds.anti_pgd_bound(f, c).total / 4


def test_the_frobenius_rate_reports_its_terms():
    f = ap.design("dp-sgd", steps=9)
    found = bounds.frobenius_rate(f, Constants(1.0, 0.1, 2.0, distance=3.0, lipschitz=5.0))
    assert found.optimization == pytest.approx(9 / 0.9)
    assert found.bias == pytest.approx(0.1 * 25)
    assert found.noise == pytest.approx(0.1 * 2 * 5 * math.sqrt(45) / 3)
    assert not found.is_guarantee


def test_the_published_convex_bound_is_exceeded_and_ours_is_not():
    """The counter-example at a small size; tests/numerical/test_bounds.py has 4,096 steps."""
    f, step, curvature = factored(rise_and_fall(1024)), 1 / 80, 0.3
    c = Constants(1.0, step, 1 / f.sensitivity, distance=0.0)
    error = curvature / 2 * variances(f, curvature, step).mean() / f.sensitivity**2
    assert error > 3 * bounds.published_convex_bound(f, c).total
    assert error <= bounds.convex_bound(f, c).total


# ---- the sequences --------------------------------------------------------------------------


def test_the_virtual_sequences_take_gradients_without_noise_and_restart():
    rng = np.random.default_rng(1)
    noise, rate = ap.design("dp-mf", steps=20).decoder() @ rng.normal(size=(20, 3)), 0.1
    x = sequences.iterates(np.tanh, np.ones(3), noise, rate)
    plain, restarting = (sequences.virtual_iterates(x, noise, rate, tau) for tau in (None, 6))
    for t in range(20):
        np.testing.assert_allclose(plain[t + 1], plain[t] - rate * np.tanh(x[t]), atol=1e-14)
        expected = x[t + 1] if (t + 1) % 6 == 0 else restarting[t] - rate * np.tanh(x[t])
        np.testing.assert_allclose(restarting[t + 1], expected, atol=1e-14)


def test_anti_pgd_is_randomized_smoothing_path_by_path():
    rng = np.random.default_rng(2)
    for gradient in (np.tanh, np.sin, lambda x: x * np.array([0.1, 1.0, 4.0])):
        z, start, rate = rng.normal(size=(50, 3)), rng.normal(size=3), 0.2
        x = sequences.iterates(gradient, start, z, rate)  # B = I
        moved = x + rate * np.vstack([np.zeros(3), z])
        np.testing.assert_allclose(
            moved, sequences.smoothed_iterates(gradient, start, z, rate), atol=1e-13
        )
        np.testing.assert_allclose(moved, sequences.virtual_iterates(x, z, rate), atol=1e-14)


@pytest.mark.parametrize("step", [0.01, 0.1, 0.25, 0.9])
def test_noise_on_one_curvature_in_closed_form(step):
    """PGD, Anti-PGD and PGD's virtual sequence on f = (L/2)‖x‖², against dense matrices."""
    steps, L = 60, 2.0
    c = Constants(L, step / L, 3.0)
    for name, closed in (
        ("dp-sgd", lower_bounds.pgd_noise),
        ("anti-pgd", lower_bounds.anti_pgd_noise),
    ):
        f = ap.design(name, steps=steps)
        dense = L / 2 * 9 * variances(f, L, step / L) / f.sensitivity**2
        for t in (1, 2, steps):
            assert closed(t, c) == pytest.approx(dense[t], rel=1e-12)
    x = sequences.iterates(
        lambda x: L * x, np.zeros(steps), np.tril(np.ones((steps, steps))), step / L
    )  # Z = I
    virtual = sequences.virtual_iterates(x, np.tril(np.ones((steps, steps))), step / L)
    assert lower_bounds.pgd_virtual_noise(steps, c) == pytest.approx(
        L / 2 * 9 * np.square(virtual[-1]).sum(), rel=1e-11
    )


# ---- what is refused ------------------------------------------------------------------------


def test_conditions_are_checked_and_reported():
    f, anti = ap.design("dp-sgd", steps=64), ap.design("anti-pgd", steps=64)
    fast = Constants(1.0, 0.3, 1.0, distance=1.0, gap=1.0)
    with pytest.raises(
        ValueError, match=r"learning_rate × smoothness = 0.3: Theorem 4.6.* at most 0.25"
    ):
        bounds.nonconvex_bound(f, fast)
    with pytest.raises(ValueError, match=r"Theorem 4.7.* at most 0.125"):
        bounds.published_convex_bound(f, fast)
    with pytest.raises(ValueError, match=r"Proposition 4.5.* a learning_rate of at most 0.25"):
        bounds.anti_pgd_bound(anti, fast)
    with pytest.raises(ValueError, match="below 1"):
        bounds.convex_bound(f, Constants(2.0, 0.5, 1.0, distance=1.0))
    with pytest.raises(ValueError, match=r"τ = 1/\(8γL log₂T\) = 0.208, below one step"):
        bounds.published_convex_bound(f, Constants(1.0, 0.1, 1.0, distance=1.0))
    slow = Constants(1.0, 0.01, 1.0, distance=1.0, gap=1.0)
    for tau in (24, 401):
        with pytest.raises(ValueError, match=rf"tau = {tau}: .*take tau = 100"):
            bounds.nonconvex_bound(f, slow, tau=tau)
    with pytest.raises(ValueError, match="at most 1/"):
        bounds.published_convex_bound(f, slow, tau=3)
    with pytest.raises(TypeError, match=r"gap = None: Theorem 4.6"):
        bounds.nonconvex_bound(f, Constants(1.0, 0.01, 1.0, distance=1.0))
    with pytest.raises(ValueError, match="about PGD alone"):
        bounds.pgd_bound(anti, slow)
    with pytest.raises(ValueError, match="about Anti-PGD alone"):
        bounds.anti_pgd_bound(f, slow)
    with pytest.raises(ValueError, match="at least log 2"):
        lower_bounds.pgd_lower_bound(10, slow)
    with pytest.raises(ValueError, match="plain gradient descent"):
        bounds.convex_bound(ap.design("dp-mf", workload=ap.Workload.sgd(8, momentum=0.5)), slow)
    with pytest.raises(ValueError, match="smoothness = -1"):
        Constants(-1.0, 0.1, 1.0)


def test_a_whole_tau_is_not_lost_to_rounding():
    f = ap.design("dp-sgd", steps=200)
    for tau in range(4, 200):
        assert bounds.nonconvex_bound(f, Constants(3.0, 1 / (3 * tau), 1.0, gap=1.0)).tau == tau
