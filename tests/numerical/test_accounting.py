"""Privacy accountants against reference values and other libraries."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian, pld
from opacus.accountants import PRVAccountant

import antiphase as ap
from antiphase import accounting as ac
from antiphase.accounting import balls_in_bins
from tests import reference
from tests.accounting import test_balls_in_bins as mixtures
from tests.accounting.test_gaussian import draws, exact_delta

pytestmark = pytest.mark.slow


@pytest.mark.issue(3)
def test_noise_multipliers(shown):
    pairs = [
        (ac.gaussian_noise_multiplier(*setting), value)
        for setting, value in reference.NOISE_MULTIPLIERS.items()
    ]
    pairs += [(ac.gaussian_epsilon(s, 1e-6), value) for s, value in reference.EPSILONS.items()]
    worst = max(abs(a / b - 1) for a, b in pairs)
    shown(
        f"noise multipliers and ε of the reference ({len(pairs)} values)", f"{worst:.1e}", "≤ 1e-8"
    )
    assert worst <= 1e-8
    shown(
        "the paper's Stack Overflow ε",
        [round(ac.gaussian_epsilon(0.341 * 2**i, 1e-6), 2) for i in range(5)],
        "17.65 … 0.76",
    )


@pytest.mark.issue(3)
def test_calibration_is_safe_and_agrees(shown):
    f = ap.design("dp-mf", steps=8)
    above = 0.0
    for epsilon, delta in draws(1000, seed=3):
        above = max(above, ap.calibrate(f, epsilon=epsilon, delta=delta).epsilon() / epsilon - 1)
    shown("ε(calibrate(ε₀))/ε₀ − 1 over 1,000 draws", f"at most {above:.1e}", "≤ 0")
    assert above <= 0
    ours, theirs, exact = [], [], []
    for epsilon, delta in draws(1000, seed=4):
        s = ac.gaussian_noise_multiplier(epsilon, delta)
        exact.append(abs(float(exact_delta(s, epsilon)) / ac.gaussian_delta(s, epsilon) - 1))
    rng = np.random.default_rng(5)
    for s, delta in zip(
        10 ** rng.uniform(-1, 1.5, 1000), 10 ** rng.uniform(-15, -2, 1000), strict=True
    ):
        ours.append(ac.gaussian_epsilon(s, delta))
        theirs.append(get_epsilon_gaussian(s, delta))
    difference = max(abs(a - b) / max(b, 1e-3) for a, b in zip(ours, theirs, strict=True))
    shown(f"δ against mpmath ({len(exact)} draws)", f"{max(exact):.1e}", "≤ 1e-6")
    shown(f"ε against dp-accounting ({len(ours)} draws)", f"{difference:.1e}", "≤ 1e-6")
    assert max(exact) <= 1e-6
    assert difference <= 1e-6


@pytest.mark.issue(10)
def test_noise_multipliers_map_to_epsilon(shown):
    """User-level, each user in one of 2,048 rounds, δ = 1e-6."""
    f = ap.design("dp-mf", steps=2048)
    found = [
        ap.calibrate(f, noise_multiplier=0.341 * k, delta=1e-6, unit="user").epsilon(1e-6)
        for k in (1, 2, 4, 8, 16)
    ]
    asked = [17.65, 7.60, 3.44, 1.61, 0.76]
    shown("ε of noise multipliers 0.341 × {1, 2, 4, 8, 16}", [f"{e:.2f}" for e in found], asked)
    assert [round(e, 2) for e in found] == asked


DELTA = 1e-6


CYCLIC = [
    (2048, 8, 469 / 60_000, 1.0),
    (2000, 20, 0.01, 0.8),
    (500, 5, 0.02, 2.0),
]  # T, bands, rate, multiplier


POISSON = [(2048, 469 / 60_000, 1.0), (2000, 0.01, 0.8), (1000, 0.004, 0.6)]


@pytest.mark.issue(13)
def test_cyclic_poisson_against_dp_accounting(shown):
    """DP-MF⁺ with τ ≤ b: block-diagonal encoders are banded."""
    off = []
    for steps, bands, rate, s in CYCLIC:
        rounds = -(-steps // bands)
        f = ap.design(
            "dp-mf+", steps=steps, tau=bands, participation=ap.min_separation(rounds, apart=bands)
        )
        m = ap.calibrate(
            f, noise_multiplier=s, delta=DELTA, sampling=ap.sampling.CyclicPoisson(rate)
        )
        event = dp_accounting.PoissonSampledDpEvent(bands * rate, dp_accounting.GaussianDpEvent(s))
        accountant = pld.PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, rounds))
        off.append(m.epsilon() / accountant.get_epsilon(DELTA) - 1)
    said = ", ".join(f"{value:+.1e}" for value in off)
    shown(
        "cyclic Poisson ε against dp-accounting's PLD of the reduced mechanism, relative",
        said,
        "within 1e-6",
    )
    assert np.abs(off).max() <= 1e-6


@pytest.mark.issue(13)
def test_poisson_against_opacus(shown):
    off = []
    for steps, rate, s in POISSON:
        f = ap.design("dp-sgd", steps=steps)
        m = ap.calibrate(f, noise_multiplier=s, delta=DELTA, sampling=ap.sampling.Poisson(rate))
        accountant = PRVAccountant()
        accountant.history = [(s, rate, steps)]
        off.append(m.epsilon() / accountant.get_epsilon(DELTA) - 1)
    said = ", ".join(f"{value:+.2%}" for value in off)
    shown("Poisson DP-SGD ε against Opacus' PRV accountant, relative", said, "within 1 %")
    assert np.abs(off).max() <= 0.01


@pytest.mark.issue(13)
@pytest.mark.long
def test_balls_in_bins_is_above_the_exact_value(shown):
    """200 mixtures of one or two bins, for which δ is an integral in one dimension."""
    rng = np.random.default_rng(13)
    ratios = []
    for case in range(200):
        gram = np.array([[1.0]]) if case % 10 == 0 else mixtures.a_gram(rng)
        s, epsilon = rng.uniform(0.4, 3.0), rng.uniform(0.0, 3.0)
        exact = mixtures.exact_delta(gram, s, epsilon)
        ratios.append((balls_in_bins.delta_bound(gram, s, epsilon, samples=1 << 16).value, exact))
    above = sum(bound >= exact for bound, exact in ratios)
    close = np.median([bound / exact for bound, exact in ratios if exact > 1e-3])
    shown(
        "balls in bins: bound at or above the integral",
        f"{above} of 200; median ratio {close:.3f}",
        "200 of 200",
    )
    assert above == 200
