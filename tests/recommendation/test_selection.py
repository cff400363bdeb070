"""Recommendations agree with what is computed from matrices and expectations."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase import accounting
from antiphase.comparison import Setting
from antiphase.recommendation import recommend
from antiphase.sampling import CyclicPoisson, FixedOrder, Poisson
from antiphase.theory.quadratic import Quadratic, expectation
from antiphase.theory.spectrum import Spectrum


def dense_noise(C, sensitivity, fade=1.0):
    """√(Σ_t ‖b_t‖² + T‖b_T‖²) for B = M C⁻¹ with M_ts = fade^(t−s), from dense matrices."""
    T = len(C)
    t = np.arange(T)
    M = np.tril(fade ** np.maximum(t[:, None] - t, 0.0))
    rows = np.square(np.linalg.solve(C.T, M.T).T).sum(axis=1)
    rows[-1] *= T
    return sensitivity * math.sqrt(rows.sum())


def test_several_epochs_in_a_fixed_order():
    """DP-MF⁺ with τ = T, which minimises the criterion; the cheaper one restarts every epoch."""
    found = recommend(Setting.of(64, 4))
    assert found.best.label == "DP-MF⁺, τ = 64"
    plain = dense_noise(np.eye(64), 2.0)
    for label, options in {"DP-MF⁺, τ = 64": {}, "DP-MF⁺, τ = 16": {"tau": 16}}.items():
        f = ap.design("dp-mf+", steps=64, epochs=4, **options)
        assert found.noise[label] == pytest.approx(
            dense_noise(f.encoder(), f.sensitivity) / plain, rel=1e-3
        )
    assert found.noise["DP-SGD, fixed order"] == 1
    assert found.noise["DP-MF⁺, τ = 64"] == min(found.noise.values())
    assert found.cheaper.label == "DP-MF⁺, τ = 16"
    assert found.cheaper.noise_bytes < found.best.noise_bytes / 2
    text = " ".join(found.reasons)
    share = f"{found.noise['DP-MF⁺, τ = 64']:.1%}"
    assert f"leaves {share} of the noise of DP-SGD in a fixed order" in text
    assert f"{found.best.final / found.comparison.baseline.final:.1%} in the last one" in text
    assert "Certified" in text
    assert "DP-SGD on Poisson batches is not compared: its noise depends on ε and δ" in text


def test_errors_that_decay():
    """A damped design, if errors decay as fast."""
    found = recommend(Setting.of(64), damping=0.8)
    assert found.best.label == "damped, ρ = 0.8, final weight = 8"
    f = ap.design("damped", steps=64, rho=0.8, final_weight=8.0)
    expected = dense_noise(f.encoder(), f.sensitivity, 0.8) / dense_noise(np.eye(64), 1.0, 0.8)
    assert found.noise[found.best.label] == pytest.approx(expected, rel=2e-3)
    assert "ρ = 0.8" in found.assumptions[0]
    assert any("a spectrum is a better one" in words for words in found.assumptions)


def test_independent_noise_if_errors_do_not_last():
    """Errors that vanish in one step, or a single step: there is nothing to cancel."""
    for found in (recommend(Setting.of(16), damping=0.0), recommend(Setting.of(1))):
        assert found.best.label == "DP-SGD, fixed order"
        assert found.cheaper is None
        assert "as good as any" in found.reasons[0]


@pytest.mark.slow
@pytest.mark.issue(23)
@pytest.mark.parametrize("random", [False, True], ids=["fixed order", "Poisson"])
@pytest.mark.parametrize(
    ("steps", "epochs", "epsilon", "wins"), [(64, 1, 0.5, True), (64, 4, 8.0, False)]
)
def test_poisson_dp_sgd_is_recommended_only_where_batches_can_be_drawn(
    steps, epochs, epsilon, wins, random
):
    """Poisson DP-SGD wins at a small ε and few participations; if it is not usable, this is said.

    Its noise multiplier is that of its accountant.
    """
    sampling = Poisson(epochs / steps) if random else FixedOrder()
    setting = Setting.of(steps, epochs, epsilon=epsilon, delta=1e-6, sampling=sampling)
    found = recommend(setting)
    assert found.best.amplified is (wins and random)
    amplified = accounting.poisson_noise_multiplier(
        epsilon, 1e-6, sampling_rate=epochs / steps, steps=steps
    )
    whole = accounting.gaussian_noise_multiplier(epsilon, 1e-6) * math.sqrt(epochs)
    assert found.noise["DP-SGD, fixed order"] == pytest.approx(whole / amplified, rel=1e-9)
    assert found.noise["DP-SGD, Poisson batches"] == 1
    correlated = min(v for label, v in found.noise.items() if not label.startswith("DP-SGD"))
    assert (correlated > 1) is wins
    text = " ".join(found.reasons)
    assert ("Poisson batches is predicted to leave less noise" in text) is (wins and not random)
    assert "true Poisson sampling" in text
    assert "DP-SGD in a fixed order" in text
    if not found.best.amplified:
        assert f"leaves {correlated:.1%} of the noise of DP-SGD (Poisson batches)" in text
        assert text.index("DP-SGD (Poisson batches)") < text.index("DP-SGD in a fixed order")


@pytest.mark.slow
@pytest.mark.issue(23)
def test_few_bands_are_candidates_with_cyclic_poisson_sampling():
    """They win where they leave less noise than Poisson DP-SGD and than a fixed order."""
    setting = Setting.of(64, 4, epsilon=2.0, delta=1e-5, sampling=CyclicPoisson(1 / 16))
    found = recommend(setting)
    bands = next(entry for entry in found.comparison.entries if entry.name == "toeplitz")
    assert bands.amplified
    assert found.noise[found.best.label] <= 1.005 * min(found.noise.values())
    ordinary = recommend(Setting.of(64, 4, epsilon=2.0, delta=1e-5))
    assert not ordinary.best.amplified
    assert found.noise[found.best.label] < ordinary.noise[ordinary.best.label]


def test_invalid_arguments_are_errors():
    for damping in (-0.1, 1.1):
        with pytest.raises(ValueError, match="damping = "):
            recommend(Setting.of(8), damping=damping)


def test_a_recommendation_as_plain_values():
    found = recommend(Setting.of(16, 2)).to_dict()
    assert found["recommended"]["name"] == "dp-mf+"
    assert set(found["noise"]) == {row["label"] for row in found["comparison"]["mechanisms"]}


@pytest.mark.slow
def test_a_known_quadratic_ranks_by_its_expectation():
    """The noise is that of `expectation`, and no candidate has less."""
    problem = Quadratic([0.1, 1.0, 4.0], optimum=1.0)
    setting = Setting.of(64, optimizer={"learning_rates": 0.1})
    for criterion in ("last", "average"):
        found = recommend(setting, spectrum=problem, criterion=criterion)

        def value(f, criterion=criterion):
            e = expectation(f, problem, noise=1.0)
            return e.gap.noise[-1] if criterion == "last" else e.gradient.noise.mean()

        plain = value(ap.design("dp-sgd", workload=setting.workload))
        for entry in found.comparison.entries:
            assert found.noise[entry.label] == pytest.approx(
                math.sqrt(value(entry.factorization) / plain), rel=1e-9
            )
        assert found.noise[found.best.label] <= 1.005 * min(found.noise.values())
        assert not any("tolerance" in label for label in found.noise)
        assert {gain.over.split(",")[0] for gain in found.gains} == {"DP-SGD", "DP-MF", "DP-MF⁺"}
        for gain in found.gains:
            assert gain.low == pytest.approx(gain.ratio)
            assert gain.ratio == pytest.approx(
                found.noise[found.best.label] / found.noise[gain.over]
            )


@pytest.mark.slow
def test_damping_is_that_of_the_design():
    setting = Setting.of(64, optimizer={"learning_rates": 0.1})
    found = recommend(
        setting, spectrum=Quadratic(np.full(3, 4.0)), criterion="average"
    )  # one curvature: damping is exact
    assert found.best.name == "damped"
    rho, weight = found.damping
    again = ap.design(
        "damped", workload=setting.workload, rho=rho, final_weight=weight, tolerance=1e-3
    )
    assert again.error == pytest.approx(found.best.factorization.error, rel=1e-6)
    assert rho == pytest.approx(0.6, abs=0.15)
    flat = recommend(Setting.of(64, optimizer={"learning_rates": 1e-3}), spectrum=Quadratic([1e-3]))
    assert flat.damping == (1.0, 8.0)


@pytest.mark.slow
def test_an_estimate_stands_for_a_range():
    """Gains have a range, which includes the gain on the spectrum itself."""
    values = np.geomspace(0.001, 1.0, 10)
    setting = Setting.of(64, optimizer={"learning_rates": 0.5})
    found = recommend(setting, spectrum=Spectrum(values, np.arange(10.0, 0.0, -1.0)))
    known = Quadratic(values, multiplicity=np.arange(10.0, 0.0, -1.0))
    f, plain = found.best.factorization, ap.design("dp-sgd", workload=setting.workload)
    share = math.sqrt(
        expectation(f, known, noise=1.0).gap.noise[-1]
        / expectation(plain, known, noise=1.0).gap.noise[-1]
    )
    gain = found.gains[0]
    assert gain.over == "DP-SGD, fixed order"
    assert gain.low < gain.ratio < gain.high
    assert gain.low * (1 - 1e-9) <= share <= gain.high * (1 + 1e-9)
    assert "down to 1/64" in found.assumptions[0]
    assert "cannot check" in found.assumptions[-1]
    assert found.learning_rates is None
    assert "batch size" in found.reasons[-1]


@pytest.mark.slow
def test_learning_rates_come_from_the_same_expectation():
    problem = Quadratic.paper(20, 4.0)
    setting = Setting.of(200, optimizer={"learning_rates": 0.01})
    found = recommend(setting, spectrum=problem, batch_size=1, clip_norm=0.5)
    f, given = found.best.factorization, 0.01
    values = {
        given * 2 ** (i / 2): expectation(
            f, problem, learning_rate=2 ** (i / 2), noise=0.5
        ).gap.last
        for i in range(-8, 9)
    }
    best = min(values, key=values.get)
    assert found.learning_rates.best == pytest.approx(best)
    assert found.learning_rates.expected == pytest.approx(values[best])
    assert found.learning_rates.low <= found.learning_rates.best <= found.learning_rates.high
    for rate in (found.learning_rates.low, found.learning_rates.high):
        assert min(values.items(), key=lambda item: abs(item[0] - rate))[1] <= 1.1 * values[best]
    assert found.to_dict()["learning_rates"]["best"] == found.learning_rates.best


@pytest.mark.slow
def test_a_spectrum_with_several_epochs_and_poisson_batches():
    values = np.geomspace(0.001, 1.0, 8)
    optimizer = {"learning_rates": 0.5}
    setting = Setting.of(
        64, 4, epsilon=8.0, delta=1e-6, optimizer=optimizer, sampling=Poisson(4 / 64)
    )
    found = recommend(setting, spectrum=values)
    amplified = accounting.poisson_noise_multiplier(8.0, 1e-6, sampling_rate=4 / 64, steps=64)
    whole = accounting.gaussian_noise_multiplier(8.0, 1e-6) * 2
    assert found.noise["DP-SGD, fixed order"] == pytest.approx(whole / amplified, rel=1e-9)
    assert found.noise[found.best.label] <= 1.005 * min(found.noise.values())
    assert [gain.over.split(" =")[0] for gain in found.gains] == [
        "DP-SGD, Poisson batches", "DP-SGD, fixed order", "DP-MF", "DP-MF⁺, τ",
    ]  # fmt: skip
    assert f"leaves {found.gains[0].ratio:.1%} (" in found.reasons[0]


def test_an_invalid_spectrum_is_an_error():
    setting = Setting.of(8, optimizer={"learning_rates": 0.5})
    with pytest.raises(ValueError, match="exclude each other"):
        recommend(setting, spectrum=[1.0], damping=0.5)
    with pytest.raises(ValueError, match="criterion = "):
        recommend(setting, spectrum=[1.0], criterion="best")
    with pytest.raises(ValueError, match="at least 0"):
        recommend(setting, spectrum=[-1.0])
    with pytest.raises(ValueError, match="initial_gap = "):
        recommend(setting, spectrum=[1.0], initial_gap=0.0)
    with pytest.raises(ValueError, match="estimate the spectrum with clip_norm"):
        recommend(Setting.of(2048, optimizer={"learning_rates": 0.5}), spectrum=[10.0])


def test_a_single_step_has_nothing_to_cancel():
    found = recommend(Setting.of(1, optimizer={"learning_rates": 0.5}), spectrum=[1.0])
    assert found.best.label == "DP-SGD, fixed order"
