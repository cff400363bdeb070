"""Issue 13, amplification: what it must show. Each test prints what was measured beside what was asked."""

from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from opacus.accountants import PRVAccountant

import antiphase as ap
from antiphase.accounting import balls_in_bins
from antiphase.federated import Server
from tests.accounting.test_balls_in_bins import a_gram, exact_delta
from tests.torch import test_batch_selection as sampled

pytestmark = pytest.mark.slow

DELTA = 1e-6
CYCLIC = [
    (2048, 8, 469 / 60_000, 1.0),
    (2000, 20, 0.01, 0.8),
    (500, 5, 0.02, 2.0),
]  # T, bands, rate, multiplier
POISSON = [(2048, 469 / 60_000, 1.0), (2000, 0.01, 0.8), (1000, 0.004, 0.6)]


def test_cyclic_poisson_against_dp_accounting(shown):
    """DP-MF⁺ with τ ≤ b: block-diagonal encoders are banded."""
    off = []
    for steps, bands, rate, s in CYCLIC:
        rounds = -(-steps // bands)
        f = ap.design(
            "dp-mf+", steps=steps, tau=bands, participation=ap.min_separation(rounds, apart=bands)
        )
        m = ap.calibrate(
            f, noise_multiplier=s, delta=DELTA, sampler="cyclic-poisson", sampling_rate=rate
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


def test_poisson_against_opacus(shown):
    off = []
    for steps, rate, s in POISSON:
        f = ap.design("dp-sgd", steps=steps)
        m = ap.calibrate(f, noise_multiplier=s, delta=DELTA, sampler="poisson", sampling_rate=rate)
        accountant = PRVAccountant()
        accountant.history = [(s, rate, steps)]
        off.append(m.epsilon() / accountant.get_epsilon(DELTA) - 1)
    said = ", ".join(f"{value:+.2%}" for value in off)
    shown("Poisson DP-SGD ε against Opacus' PRV accountant, relative", said, "within 1 %")
    assert np.abs(off).max() <= 0.01


@pytest.mark.long
@pytest.mark.slow
def test_balls_in_bins_is_above_the_exact_value(shown):
    """200 mixtures of one or two bins, for which δ is an integral in one dimension."""
    rng = np.random.default_rng(13)
    ratios = []
    for case in range(200):
        gram = np.array([[1.0]]) if case % 10 == 0 else a_gram(rng)
        s, epsilon = rng.uniform(0.4, 3.0), rng.uniform(0.0, 3.0)
        exact = exact_delta(gram, s, epsilon)
        ratios.append((balls_in_bins.delta_bound(gram, s, epsilon, samples=1 << 16).value, exact))
    above = sum(bound >= exact for bound, exact in ratios)
    close = np.median([bound / exact for bound, exact in ratios if exact > 1e-3])
    shown(
        "balls in bins: bound at or above the integral",
        f"{above} of 200; median ratio {close:.3f}",
        "200 of 200",
    )
    assert above == 200


def test_a_loader_that_does_not_sample_is_refused(shown):
    """In the PyTorch engine, and in the federated server, whose users are no samples at all."""
    refused = 0
    for make in (sampled.cyclic, sampled.bins, sampled.independent):
        for other in ("shuffled", "fixed order", "sequential"):
            with pytest.raises(ValueError, match="come about in another way"):
                sampled.private(make(), sampled.OTHERS[other](sampled.dataset()))
            refused += 1
    shown(
        "shuffled, fixed-order and sequential loaders under an amplified ε",
        f"{refused} of 9 refused",
        "all",
    )
    for make in (sampled.cyclic, sampled.bins, sampled.independent):
        with pytest.raises(ValueError, match="users are not Poisson samples"):
            Server(replace(make(), unit="user"), {"w": np.zeros(2)}, clients_per_round=4)
    shown("federated servers with an amplified ε", "3 of 3 refused", "all")
