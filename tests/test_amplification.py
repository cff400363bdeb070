"""What sampling is worth, against dp-accounting; and what is refused."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

import antiphase as ap
from antiphase import accounting
from antiphase.sensitivity import sensitivity

pytestmark = pytest.mark.slow

STEPS, TAU, RATE, DELTA = 32, 4, 0.05, 1e-5


def banded(participation=None):
    """Block-diagonal, and so of τ bands."""
    who = participation or ap.min_separation(STEPS // TAU, apart=TAU)
    return ap.design("dp-mf+", steps=STEPS, tau=TAU, participation=who)


def amplified(**more):
    how = {"noise_multiplier": 1.0, "delta": DELTA, "sampler": "cyclic-poisson", "sampling_rate": RATE}
    return ap.calibrate(banded(), **(how | more))


def by_dp_accounting(s, rate, steps):
    accountant = pld.PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(s))
    return accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps)).get_epsilon(DELTA)


def test_cyclic_poisson_is_dp_sgd_of_fewer_rounds():
    m = amplified()
    assert m.factorization.bands == TAU
    assert m.epsilon() == pytest.approx(by_dp_accounting(1.0, TAU * RATE, STEPS // TAU), rel=1e-6)
    assert m.noise_scale == pytest.approx(sensitivity(m.factorization.encoder(), ap.once()))  # one column at a time
    assert m.epsilon(rows=TAU + 1) == pytest.approx(by_dp_accounting(1.0, TAU * RATE, 2), rel=1e-6)
    assert m.epsilon_of_runs([STEPS, STEPS]) == pytest.approx(
        by_dp_accounting(1.0, TAU * RATE, 2 * STEPS // TAU), rel=1e-6
    )
    assert m.mu() is None


def of_bands(name, apart=TAU):
    f = ap.design(name, steps=STEPS, bands=TAU, participation=ap.min_separation(STEPS // apart, apart=apart))
    return ap.calibrate(f, noise_multiplier=1.0, delta=DELTA, sampler="cyclic-poisson", sampling_rate=RATE)


def test_the_noise_is_for_the_largest_column():
    m = of_bands("toeplitz")
    norms = np.linalg.norm(m.factorization.encoder(), axis=0)
    assert norms.min() < 0.9 * norms.max()
    assert m.noise_scale >= norms.max() * (1 - 1e-12)


@pytest.mark.parametrize("apart", [TAU, TAU // 2])
def test_there_are_as_many_groups_as_bands_however_often_a_record_may_come(monkeypatch, apart):
    """What the accountant is asked; a group that comes once more than others counts."""
    monkeypatch.setattr(accounting, "poisson_epsilon", lambda s, delta, *, sampling_rate, steps: (sampling_rate, steps))
    m = of_bands("banded", apart)
    assert np.diagonal(m.factorization.encoder(), 1 - TAU).any()
    assert [m.epsilon(rows=rows) for rows in (1, TAU, TAU + 1, STEPS - 1, STEPS)] == [
        (TAU * RATE, rounds) for rounds in (1, 1, 2, STEPS // TAU, STEPS // TAU)
    ]


def test_calibration_is_safe():
    m = amplified(noise_multiplier=None, epsilon=2.0)
    assert 1.9 < m.epsilon() <= 2.0
    assert m.noise_multiplier < accounting.gaussian_noise_multiplier(2.0, DELTA) * np.sqrt(STEPS / TAU)


def test_columns_of_a_group_share_no_row():
    """What the reduction rests on, by the matrix itself."""
    C = banded().encoder()
    for group in range(TAU):
        columns = C[:, group::TAU]
        gram = columns.T @ columns
        np.testing.assert_allclose(gram, np.diag(np.diagonal(gram)), atol=1e-15)


def test_balls_in_bins_is_between_nothing_and_no_amplification():
    f = ap.design("sqrt-toeplitz", steps=8, epochs=2)
    plain = ap.calibrate(f, noise_multiplier=1.0, delta=1e-2)
    hidden = ap.calibrate(f, noise_multiplier=1.0, delta=1e-2, sampler="balls-in-bins")
    assert 0 < hidden.epsilon() < plain.epsilon()
    assert hidden.noise_scale == plain.noise_scale
    assert hidden.delta(plain.epsilon()) <= 1e-2
    assert hidden.epsilon_of_runs([8, 8]) == plain.epsilon_of_runs([8, 8])
    assert "bounded by sampling" in str(hidden.statement()).replace("\n", " ")


def test_balls_in_bins_calibration_is_safe():
    f = ap.design("sqrt-toeplitz", steps=8, epochs=2)
    m = ap.calibrate(f, epsilon=2.0, delta=1e-2, sampler="balls-in-bins")
    assert 1.8 < m.epsilon() <= 2.0
    assert m.noise_multiplier < ap.calibrate(f, epsilon=2.0, delta=1e-2).noise_multiplier


def test_files_keep_the_sampler(tmp_path):
    f = ap.design("sqrt-toeplitz", steps=8, epochs=2)
    for m in (amplified(), ap.calibrate(f, noise_multiplier=1.0, sampler="balls-in-bins")):
        m.save(tmp_path / "m")
        again = ap.load(tmp_path / "m")
        assert (again.sampler, again.sampling_rate, again.digest) == (m.sampler, m.sampling_rate, m.digest)


@pytest.mark.parametrize(
    ("factorization", "promise", "said"),
    [
        (lambda: banded(ap.once()), {"sampler": "cyclic-poisson", "sampling_rate": RATE}, "design for participation"),
        (
            lambda: banded(ap.min_separation(STEPS // TAU - 1, apart=TAU)),
            {"sampler": "cyclic-poisson", "sampling_rate": RATE},
            "design for participation",
        ),
        (banded, {"sampler": "cyclic-poisson"}, "sampling_rate = None"),
        (banded, {"sampler": "cyclic-poisson", "sampling_rate": 0.3}, "use fewer bands"),
        (banded, {"sampler": "cyclic-poisson", "sampling_rate": RATE, "adjacency": "replace-one"}, "replace-one"),
        (banded, {"sampler": "poisson", "sampling_rate": RATE}, "independent noise"),
        (banded, {"sampler": "fixed-order", "sampling_rate": RATE}, "sampling_rate"),
        (banded, {"sampler": "balls-in-bins"}, "one slot in every epoch"),
        (
            lambda: ap.design("sqrt-toeplitz", steps=8),
            {"sampler": "balls-in-bins", "adjacency": "replace-one"},
            "replace-one",
        ),
        (lambda: ap.design("fourier", steps=8, epochs=2), {"sampler": "balls-in-bins"}, "negative"),
        (lambda: ap.design("sqrt-toeplitz", steps=8), {"sampler": "balls-in-bins", "sampling_rate": 0.1}, "has none"),
    ],
)
def test_what_is_not_covered_is_refused(factorization, promise, said):
    with pytest.raises(ValueError, match=said):
        ap.calibrate(factorization(), noise_multiplier=1.0, **promise)


def test_users_of_a_federation_are_no_samples():
    from antiphase.federated import Server

    m = ap.calibrate(
        banded(), noise_multiplier=1.0, delta=DELTA, sampler="cyclic-poisson", sampling_rate=RATE, unit="user"
    )
    with pytest.raises(ValueError, match="no amplification"):
        Server(m, {"w": np.zeros(3, np.float32)}, clients_per_round=4, key=ap.Key.insecure(1))
