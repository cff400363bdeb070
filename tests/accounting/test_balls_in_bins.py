"""Balls-in-bins sampling: bounds are above exact values, which integration gives."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

import antiphase as ap
from antiphase import accounting
from antiphase.accounting import balls_in_bins

pytestmark = pytest.mark.slow


def exact_delta(gram, s, epsilon, nodes=400):
    """δ for one or two bins, by integration.

    Given ``w = u₁ − u₂``, L is ``u₂`` plus a constant, and the rest is the closed form of one
    Gaussian. Independent of the code under test.
    """
    G = np.asarray(gram) / (np.max(np.diagonal(gram)) * s * s)
    if len(G) == 1:
        return accounting.gaussian_delta(s, epsilon)
    return max(_remove(G, epsilon, nodes), _add(G, epsilon, nodes))


def _parts(G, mean):
    """Distribution of w = u₁ − u₂ and of u₂ given w, for ``u ~ N(mean, G)``."""
    var = G[0, 0] + G[1, 1] - 2 * G[0, 1]
    slope = (G[0, 1] - G[1, 1]) / var
    return mean[0] - mean[1], var, slope, mean[1], G[1, 1] - slope**2 * var


def _integrated(G, mean, value, nodes):
    centre, var, slope, base, rest = _parts(G, mean)
    x, weight = np.polynomial.legendre.leggauss(nodes)
    w = centre + 10 * math.sqrt(var) * x
    density = np.exp(-((w - centre) ** 2) / (2 * var)) / math.sqrt(2 * math.pi * var)
    return float(
        np.sum(weight * 10 * math.sqrt(var) * density * value(w, base + slope * (w - centre), rest))
    )


def _loss_shift(G, w):
    """``L = u₂ + this``."""
    return np.logaddexp(w - G[0, 0] / 2, -G[1, 1] / 2) - math.log(2)


def _tail(mean, var, above):
    return ndtr((mean - above) / math.sqrt(var))


def _remove(G, epsilon, nodes):
    """P(L > ε) − e^ε Q(L > ε)."""

    def chance(w, mean, var):
        return _tail(mean, var, epsilon - _loss_shift(G, w))

    P = sum(_integrated(G, G[i], chance, nodes) for i in range(2)) / 2
    return P - math.exp(epsilon) * _integrated(G, np.zeros(2), chance, nodes)


def _add(G, epsilon, nodes):
    """Q(−L > ε) − e^ε P(−L > ε)."""

    def chance(w, mean, var):
        return 1 - _tail(mean, var, -epsilon - _loss_shift(G, w))

    P = sum(_integrated(G, G[i], chance, nodes) for i in range(2)) / 2
    return _integrated(G, np.zeros(2), chance, nodes) - math.exp(epsilon) * P


def a_gram(rng):
    M = np.abs(rng.normal(size=(4, 2)))
    return M.T @ M


def test_one_bin_is_the_gaussian_mechanism():
    found = balls_in_bins.delta_bound(np.eye(1), 1.0, 1.0, samples=1 << 16).value
    exact = accounting.gaussian_delta(1.0, 1.0)
    assert exact <= found <= 1.15 * exact


def test_delta_bounds_are_above_and_near_the_exact_value():
    rng = np.random.default_rng(3)
    for _ in range(10):
        gram, s, epsilon = a_gram(rng), rng.uniform(0.5, 2.0), rng.uniform(0.0, 2.0)
        exact = exact_delta(gram, s, epsilon)
        found = balls_in_bins.delta_bound(gram, s, epsilon, samples=1 << 16).value
        assert exact <= found <= exact + 6 * math.sqrt(exact / 65536) + 40 / 65536


@pytest.mark.parametrize(("added", "exact"), [(False, _remove), (True, _add)])
def test_both_directions_have_their_losses(added, exact):
    """δ of removing and of adding a record, each against integration."""
    gram, samples = np.array([[1.0, 0.3], [0.3, 0.8]]), 1 << 18
    for epsilon in (0.0, 0.5, 1.0):
        mixture = balls_in_bins._Mixture(gram, 1.0)
        excess = mixture.excess(epsilon, samples, mixture.generator(epsilon), added)
        expected = exact(gram, epsilon, 400)
        assert excess.sum() / samples == pytest.approx(
            expected, abs=5 * math.sqrt(expected / samples)
        )


@pytest.mark.parametrize("delta", [1e-3, 1e-4, 1e-5, 1e-6])
def test_so_many_samples_show_that_a_fifth_of_delta_is_below_delta(delta):
    samples, failure = balls_in_bins.required_samples(delta), balls_in_bins.FAILURE_PROBABILITY
    assert balls_in_bins.hoeffding_bound(delta / 5, samples, failure) <= delta
    few = samples // 4
    assert samples == 1 << 18 or balls_in_bins.hoeffding_bound(delta / 5, few, failure) > delta


def test_estimates_of_small_epsilon_are_close():
    """One bin is the Gaussian mechanism."""
    exact = accounting.gaussian_epsilon(300.0, 1e-3)
    assert exact <= balls_in_bins.estimated_epsilon(np.eye(1), 300.0, 1e-3) <= 3 * exact


def test_epsilon_is_certified():
    gram = np.array([[1.0, 0.3], [0.3, 0.8]])
    found = balls_in_bins.epsilon_bound(gram, 1.0, 1e-3)
    assert exact_delta(gram, 1.0, found.value) <= 1e-3
    assert found.value <= accounting.gaussian_epsilon(1.0, 1e-3)
    assert found == balls_in_bins.epsilon_bound(gram, 1.0, 1e-3)


def test_an_estimate_that_is_too_small_is_corrected(monkeypatch):
    gram = np.array([[1.0, 0.3], [0.3, 0.8]])
    honest = balls_in_bins.estimated_epsilon(gram, 1.0, 1e-2)
    monkeypatch.setattr(balls_in_bins, "estimated_epsilon", lambda *_, **__: honest / 2)
    assert exact_delta(gram, 1.0, honest / 2) > 1e-2
    assert exact_delta(gram, 1.0, balls_in_bins.epsilon_bound(gram, 1.0, 1e-2).value) <= 1e-2


def test_candidates_are_chosen_before_they_are_certified(monkeypatch):
    """The failure probabilities of all attempts add up to the stated one."""
    asked = []

    def third_time(gram, s, epsilon, *, failure, samples):
        asked.append((epsilon, failure))
        return balls_in_bins.MonteCarloBound(0.5e-2 if len(asked) == 3 else 1.0, samples, failure)

    monkeypatch.setattr(balls_in_bins, "delta_bound", third_time)
    found = balls_in_bins.epsilon_bound(np.eye(2), 1.0, 1e-2, failure=1e-3)
    assert len(asked) == 3
    candidates, failures = zip(*asked, strict=True)
    assert found.value == candidates[2] > candidates[1] > candidates[0]
    assert sum(failures) <= found.failure == 1e-3


def test_epsilon_covers_the_first_rows():
    """Against the leading block of the encoder, in two bins."""
    f = ap.design("dp-sgd", steps=4, epochs=2)
    m = ap.calibrate(f, noise_multiplier=1.0, delta=1e-2, sampling=ap.sampling.BallsInBins())
    for rows in (2, 3, 4):
        means = np.array([f.encoder()[:rows, p].sum(axis=1) for p in f.participation.patterns(4)])
        gram = means @ means.T
        s = m.noise_scale / math.sqrt(gram.diagonal().max())
        assert exact_delta(gram, s, m.epsilon(rows=rows)) <= 1e-2


@pytest.mark.parametrize("worse", [False, True])
def test_the_worse_direction_counts(monkeypatch, worse):
    """Removing a record was worse wherever we looked, but the bound does not depend on it."""

    def excess(self, epsilon, samples, rng, added):
        return np.array([0.25 * samples if added == worse else 0.0])

    monkeypatch.setattr(balls_in_bins._Mixture, "excess", excess)
    found = balls_in_bins.delta_bound(np.eye(2), 1.0, 1.0, samples=1 << 16).value
    assert (
        balls_in_bins.hoeffding_bound(0.25, 1 << 16, balls_in_bins.FAILURE_PROBABILITY / 2)
        <= found
        <= 0.27
    )


def test_more_bins_amplify_more():
    several = [balls_in_bins.epsilon_bound(np.eye(count), 1.0, 1e-3).value for count in (1, 4, 16)]
    assert several[0] > several[1] > several[2]


def test_hoeffding_bounds_fail_as_rarely_as_stated():
    """Counted for binomial means."""
    rng = np.random.default_rng(0)
    for p in (0.001, 0.1, 0.9):
        misses = sum(
            balls_in_bins.hoeffding_bound(m, 200, 0.05) < p
            for m in rng.binomial(200, p, size=2000) / 200
        )
        assert misses <= 0.05 * 2000 + 4 * math.sqrt(2000 * 0.05)
    assert balls_in_bins.hoeffding_bound(0.0, 100, 0.01) == pytest.approx(
        1 - 0.01 ** (1 / 100), rel=1e-6
    )
    assert balls_in_bins.hoeffding_bound(1.0, 100, 0.01) == 1.0


def test_hoeffding_bounds_are_rounded_up():
    for mean in (0.0, 1e-5, 0.1, 0.7):
        assert (
            balls_in_bins._relative_entropy(mean, balls_in_bins.hoeffding_bound(mean, 1000, 0.01))
            > math.log(1 / 0.01) / 1000
        )


@pytest.mark.parametrize(
    ("gram", "s", "epsilon", "said"),
    [
        ([[1.0, -0.1], [-0.1, 1.0]], 1.0, 1.0, "negative"),
        (np.ones((2, 3)), 1.0, 1.0, "symmetric"),
        (np.eye(2), 0.0, 1.0, "noise_multiplier"),
        (np.eye(2), 1.0, -1.0, "epsilon"),
    ],
)
def test_bad_input_is_named(gram, s, epsilon, said):
    with pytest.raises(ValueError, match=said):
        balls_in_bins.delta_bound(gram, s, epsilon)


def test_a_delta_that_no_number_of_samples_certifies_is_refused():
    with pytest.raises(ValueError, match="delta = 1e-09 is too small"):
        balls_in_bins.estimated_epsilon(np.eye(2), 1.0, 1e-9)
    f = ap.design("sqrt-toeplitz", steps=8, epochs=2)
    with pytest.raises(ValueError, match="delta = 1e-09 is too small"):
        ap.calibrate(f, epsilon=1.0, delta=1e-9, sampling=ap.sampling.BallsInBins())


def test_failure_probabilities_of_a_calibration_add_up(monkeypatch):
    """Each of at most 16 certificates has its share; then there is no amplification."""
    asked = []

    def never(gram, s, delta, *, failure):
        asked.append(failure)
        return balls_in_bins.MonteCarloBound(1e9, 1, failure)

    monkeypatch.setattr(balls_in_bins, "epsilon_bound", never)
    f = ap.design("sqrt-toeplitz", steps=8, epochs=2)
    plain = ap.calibrate(f, epsilon=1.0, delta=1e-2).noise_multiplier
    assert (
        ap.calibrate(
            f, epsilon=1.0, delta=1e-2, sampling=ap.sampling.BallsInBins()
        ).noise_multiplier
        == plain
    )
    assert 1 < len(asked) <= 17  # with the certificate of the result
    assert sum(asked[:16]) <= balls_in_bins.FAILURE_PROBABILITY * (1 + 1e-12)


def test_importance_weights_are_unbiased():
    """E[weight] = 1, and E[weight·1{L > t}] is the probability of L > t under P."""
    mixture = balls_in_bins._Mixture(np.array([[1.0, 0.2], [0.2, 0.7]]), 1.3)
    losses, weights = mixture.importance_sampled_losses(
        1 << 18, np.random.default_rng(1), deviations=0.5
    )
    assert weights.mean() == pytest.approx(1.0, abs=0.01)
    plain = mixture.losses(0.5, 1 << 18, np.random.default_rng(2), added=False)
    assert (weights * (losses > 0.5)).mean() == pytest.approx(len(plain) / (1 << 18), abs=0.01)


def test_losses_are_those_above_the_threshold():
    """None above a threshold that nothing reaches; all samples above one that all reach."""
    mixture = balls_in_bins._Mixture(np.eye(2), 1.0)
    for added in (False, True):
        assert len(mixture.losses(1e3, 1000, np.random.default_rng(1), added)) == 0
        assert len(mixture.losses(-1e3, 20000, np.random.default_rng(1), added)) == 20000


def test_gram_matrices_are_symmetric_up_to_rounding():
    """A relative difference of 1e-9 is accepted."""
    gram = np.array([[1.0, 0.5], [0.5 * (1 + 1e-12), 1.0]])
    assert balls_in_bins.delta_bound(gram, 1.0, 1.0, samples=1 << 10).value <= 1
    with pytest.raises(ValueError, match="symmetric"):
        balls_in_bins.delta_bound(gram + np.diag([1e-6], 1), 1.0, 1.0, samples=1 << 10)


def test_relative_entropy_of_certain_events():
    """It is log 2 for a certain event against a fair coin, either way; 0 for equal coins."""
    assert (
        balls_in_bins._relative_entropy(0.0, 0.5)
        == balls_in_bins._relative_entropy(1.0, 0.5)
        == pytest.approx(math.log(2))
    )
    assert balls_in_bins._relative_entropy(0.3, 0.3) == 0.0
    assert balls_in_bins.hoeffding_bound(1.0, 100, 1e-3) == 1.0


@pytest.mark.parametrize(("s", "delta"), [(1.0, 1e-2), (0.7, 1e-3), (2.0, 1e-3)])
def test_the_estimate_is_near_the_certificate_and_the_exact_value(s, delta):
    """Within 3 %; by integration the estimate suffices, and nine tenths of it do not."""
    gram = np.array([[1.0, 0.3], [0.3, 1.0]])
    likely = balls_in_bins.estimated_epsilon(gram, s, delta)
    assert likely <= balls_in_bins.epsilon_bound(gram, s, delta).value <= 1.03 * likely
    assert exact_delta(gram, s, likely) <= delta < exact_delta(gram, s, 0.9 * likely)
