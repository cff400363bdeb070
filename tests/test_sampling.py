"""Sampling schemes: their accountants against dp-accounting, and what is refused."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

import antiphase as ap
from antiphase import accounting, sampling
from antiphase.accounting import balls_in_bins, poisson
from antiphase.sensitivity import sensitivity

pytestmark = pytest.mark.slow

STEPS, TAU, RATE, DELTA = 32, 4, 0.05, 1e-5


def banded(participation=None):
    """A block-diagonal encoder, which has τ bands."""
    participation = participation or ap.min_separation(STEPS // TAU, apart=TAU)
    return ap.design("dp-mf+", steps=STEPS, tau=TAU, participation=participation)


def amplified(**more):
    arguments = {
        "noise_multiplier": 1.0,
        "delta": DELTA,
        "sampling": ap.sampling.CyclicPoisson(RATE),
    }
    return ap.calibrate(banded(), **(arguments | more))


def by_dp_accounting(s, rate, steps):
    accountant = pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(s))
    return accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps)).get_epsilon(DELTA)


def test_cyclic_poisson_is_dp_sgd_of_fewer_rounds():
    m = amplified()
    assert m.factorization.bands == TAU
    assert m.epsilon() == pytest.approx(by_dp_accounting(1.0, TAU * RATE, STEPS // TAU), rel=1e-6)
    assert m.noise_scale == pytest.approx(sensitivity(m.factorization.encoder(), ap.once()))
    assert m.epsilon(rows=TAU + 1) == pytest.approx(by_dp_accounting(1.0, TAU * RATE, 2), rel=1e-6)
    assert m.epsilon_of_runs([STEPS, STEPS]) == pytest.approx(
        by_dp_accounting(1.0, TAU * RATE, 2 * STEPS // TAU), rel=1e-6
    )
    assert m.mu() is None


def of_bands(name, apart=TAU):
    f = ap.design(
        name, steps=STEPS, bands=TAU, participation=ap.min_separation(STEPS // apart, apart=apart)
    )
    return ap.calibrate(
        f, noise_multiplier=1.0, delta=DELTA, sampling=ap.sampling.CyclicPoisson(RATE)
    )


def test_noise_is_scaled_by_the_largest_column_norm():
    m = of_bands("toeplitz")
    norms = np.linalg.norm(m.factorization.encoder(), axis=0)
    assert norms.min() < 0.9 * norms.max()
    assert m.noise_scale >= norms.max() * (1 - 1e-12)


@pytest.mark.parametrize("apart", [TAU, TAU // 2])
def test_there_are_as_many_groups_as_bands_for_any_participation(monkeypatch, apart):
    """By the arguments of the accountant; the group with most steps counts."""
    monkeypatch.setattr(
        poisson,
        "poisson_epsilon",
        lambda s, delta, *, sampling_rate, steps: (sampling_rate, steps),
    )
    m = of_bands("banded", apart)
    assert np.diagonal(m.factorization.encoder(), 1 - TAU).any()
    assert [m.epsilon(rows=rows) for rows in (1, TAU, TAU + 1, STEPS - 1, STEPS)] == [
        (TAU * RATE, rounds) for rounds in (1, 1, 2, STEPS // TAU, STEPS // TAU)
    ]


def asked(monkeypatch):
    """Let the accountant return the sampling rate and the number of steps of the question."""
    for name in ("poisson_epsilon", "poisson_delta"):
        monkeypatch.setattr(poisson, name, lambda *_, sampling_rate, steps: (sampling_rate, steps))


def test_poisson_sampling_is_accounted_for_step_by_step(monkeypatch):
    """One group: the rate is unchanged, and there are as many rounds as rows in all runs."""
    asked(monkeypatch)
    f = ap.design("dp-sgd", steps=STEPS, epochs=4)
    m = ap.calibrate(f, noise_multiplier=1.0, delta=DELTA, sampling=ap.sampling.Poisson(RATE))
    assert [m.epsilon(rows=rows) for rows in (1, 7, STEPS)] == [(RATE, 1), (RATE, 7), (RATE, STEPS)]
    assert [m.delta(1.0, rows=rows) for rows in (1, 7, STEPS)] == [
        (RATE, 1),
        (RATE, 7),
        (RATE, STEPS),
    ]
    assert m.epsilon_of_runs([STEPS, 7, 1]) == (RATE, STEPS + 8)


def test_groups_of_each_run_are_rounded_up_on_their_own(monkeypatch):
    """Two runs of τ + 1 rows are four rounds, not ⌈(2τ + 2)/τ⌉."""
    asked(monkeypatch)
    m = of_bands("banded")
    assert m.epsilon_of_runs([TAU + 1, TAU + 1]) == (TAU * RATE, 4)
    assert m.delta(1.0, rows=TAU + 1) == (TAU * RATE, 2)


def test_rates_up_to_one_are_allowed():
    """Every record in every batch, of the dataset or of its group."""
    f = ap.design("dp-sgd", steps=4)
    everyone = ap.calibrate(f, noise_multiplier=2.0, delta=DELTA, sampling=ap.sampling.Poisson(1.0))
    assert everyone.sampling.rate == 1.0
    assert everyone.statement().sensitivity_is_exact
    assert amplified(sampling=ap.sampling.CyclicPoisson(1 / TAU)).sampling.rate == 1 / TAU
    assert amplified().statement().sensitivity_is_exact
    assert "an upper bound" not in str(amplified().statement())


def test_calibration_is_safe():
    m = amplified(noise_multiplier=None, epsilon=2.0)
    assert 1.9 < m.epsilon() <= 2.0
    assert m.noise_multiplier < accounting.gaussian_noise_multiplier(2.0, DELTA) * np.sqrt(
        STEPS / TAU
    )


def test_columns_of_a_group_share_no_row():
    """The assumption of the reduction, by the matrix itself."""
    C = banded().encoder()
    for group in range(TAU):
        columns = C[:, group::TAU]
        gram = columns.T @ columns
        np.testing.assert_allclose(gram, np.diag(np.diagonal(gram)), atol=1e-15)


def test_balls_in_bins_epsilon_is_below_that_without_amplification():
    f = ap.design("sqrt-toeplitz", steps=8, epochs=2)
    plain = ap.calibrate(f, noise_multiplier=1.0, delta=1e-2)
    hidden = ap.calibrate(f, noise_multiplier=1.0, delta=1e-2, sampling=ap.sampling.BallsInBins())
    assert 0 < hidden.epsilon() < plain.epsilon()
    assert hidden.noise_scale == plain.noise_scale
    assert hidden.delta(plain.epsilon()) <= 1e-2
    assert hidden.epsilon_of_runs([8, 8]) == plain.epsilon_of_runs([8, 8])
    assert "bounded by Monte Carlo sampling" in str(hidden.statement()).replace("\n", " ")


def test_bins_sum_their_columns_and_certificates_share_the_failure_probability(monkeypatch):
    """The Gram matrix of the bins; the failure probabilities of 16 certificates add up."""
    f = ap.design("sqrt-toeplitz", steps=9, epochs=3)
    m = ap.calibrate(f, noise_multiplier=1.0, delta=1e-2, sampling=ap.sampling.BallsInBins())
    C = f.encoder()
    bins = [C[:, i] + C[:, i + 3] + C[:, i + 6] for i in range(3)]
    expected = [[float(a @ b) for b in bins] for a in bins]
    np.testing.assert_allclose(m.accountant._gram, expected, rtol=1e-12)
    seen = []

    def bound(gram, s, delta, *, failure):
        seen.append((gram.copy(), s, delta, failure))
        return balls_in_bins.MonteCarloBound(0.125, 1, failure)

    monkeypatch.setattr(balls_in_bins, "epsilon_bound", bound)
    balls_in_bins._certified_epsilon.cache_clear()
    assert m.epsilon() == 0.125
    balls_in_bins._certified_epsilon.cache_clear()
    (gram, s, delta, failure), *more = seen
    np.testing.assert_allclose(gram, expected, rtol=1e-12)
    assert (s, delta, more) == (1.0, 1e-2, [])
    assert failure * balls_in_bins.MAX_CERTIFICATIONS == pytest.approx(
        balls_in_bins.FAILURE_PROBABILITY
    )


def test_balls_in_bins_calibration_is_safe():
    f = ap.design("sqrt-toeplitz", steps=8, epochs=2)
    m = ap.calibrate(f, epsilon=2.0, delta=1e-2, sampling=ap.sampling.BallsInBins())
    assert 1.8 < m.epsilon() <= 2.0
    assert m.noise_multiplier < ap.calibrate(f, epsilon=2.0, delta=1e-2).noise_multiplier


def test_files_keep_the_sampling_scheme(tmp_path):
    f = ap.design("sqrt-toeplitz", steps=8, epochs=2)
    for m in (
        amplified(),
        ap.calibrate(f, noise_multiplier=1.0, sampling=ap.sampling.BallsInBins()),
    ):
        m.save(tmp_path / "m")
        again = ap.load(tmp_path / "m")
        assert (again.sampling, again.digest) == (m.sampling, m.digest)


@pytest.mark.parametrize(
    ("factorization", "promise", "said"),
    [
        (
            lambda: banded(ap.once()),
            {"sampling": ap.sampling.CyclicPoisson(RATE)},
            "design for participation",
        ),
        (
            lambda: banded(ap.min_separation(STEPS // TAU - 1, apart=TAU)),
            {"sampling": ap.sampling.CyclicPoisson(RATE)},
            "design for participation",
        ),
        (
            banded,
            {"sampling": ap.sampling.CyclicPoisson(0.3)},
            "the rate is at most 0.25",
        ),
        (
            banded,
            {"sampling": ap.sampling.CyclicPoisson(RATE), "adjacency": "replace-one"},
            "replace-one",
        ),
        (banded, {"sampling": ap.sampling.Poisson(RATE)}, "independent noise"),
        (banded, {"sampling": ap.sampling.BallsInBins()}, "once in every epoch"),
        (
            lambda: ap.design("sqrt-toeplitz", steps=8),
            {"sampling": ap.sampling.BallsInBins(), "adjacency": "replace-one"},
            "replace-one",
        ),
        (
            lambda: ap.design("fourier", steps=8, epochs=2),
            {"sampling": ap.sampling.BallsInBins()},
            "negative",
        ),
    ],
)
def test_what_is_not_covered_is_refused(factorization, promise, said):
    with pytest.raises(ValueError, match=said):
        ap.calibrate(factorization(), noise_multiplier=1.0, **promise)


@pytest.mark.parametrize(
    ("name", "rate", "expected"),
    [
        ("fixed-order", None, sampling.FixedOrder()),
        ("hash-slots", None, sampling.HashSlots()),
        ("poisson", RATE, sampling.Poisson(RATE)),
        ("cyclic-poisson", 1, sampling.CyclicPoisson(1.0)),
        ("balls-in-bins", None, sampling.BallsInBins()),
    ],
)
def test_a_name_and_a_rate_give_the_scheme(name, rate, expected):
    scheme = sampling.parse(name, rate)
    assert scheme == expected
    assert (scheme.name, scheme.rate) == (name, rate)
    assert {scheme: name} == {expected: name}, "equal schemes have equal hashes"
    assert scheme.amplifies == (name in sampling.AMPLIFYING)
    assert scheme.amplifies == (name not in ("fixed-order", "hash-slots"))


@pytest.mark.parametrize(
    ("name", "rate", "words"),
    [
        ("shuffle", None, "sampler = 'shuffle'"),
        ("poisson", None, "sampling_rate = None"),
        ("cyclic-poisson", None, "sampling_rate = None"),
        ("poisson", 2.0, "sampling_rate = 2.0 must be at most 1"),
        ("cyclic-poisson", 0.0, "sampling_rate = 0.0"),
        ("fixed-order", RATE, "fixed-order has no sampling rate"),
        ("hash-slots", RATE, "hash-slots has no sampling rate"),
        ("balls-in-bins", RATE, "balls-in-bins has no sampling rate"),
    ],
)
def test_a_rate_is_given_exactly_where_there_is_one(name, rate, words):
    with pytest.raises(ValueError, match=words):
        sampling.parse(name, rate)


def test_federated_servers_refuse_amplified_mechanisms():
    from antiphase.federated import Server

    m = ap.calibrate(
        banded(),
        noise_multiplier=1.0,
        delta=DELTA,
        sampling=ap.sampling.CyclicPoisson(RATE),
        unit="user",
    )
    with pytest.raises(ValueError, match="no amplification"):
        Server(m, {"w": np.zeros(3, np.float32)}, clients_per_round=4, key=ap.Key.insecure(1))
