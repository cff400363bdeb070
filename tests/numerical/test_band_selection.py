"""The selected number of bands against an exhaustive search."""

import math

import pytest

import antiphase as ap
from antiphase import accounting

pytestmark = pytest.mark.issue(13)

STEPS, DELTA = 64, 1e-5


PAIRS = [(0.5, 1 / 32), (1.0, 1 / 24), (3.0, 1 / 16)]  # ε, sampling rate


@pytest.mark.long
def test_the_best_number_of_bands_is_that_of_an_exhaustive_search(shown):
    """With as little noise as the best, every other number of bands exceeds ε.

    By the accountant itself, for columns of norm 1.
    """
    said = []
    for epsilon, rate in PAIRS:
        found = ap.select_bands(
            "toeplitz",
            steps=STEPS,
            sampling=ap.sampling.CyclicPoisson(rate),
            epsilon=epsilon,
            delta=DELTA,
        )
        assert found.mechanism.epsilon() <= epsilon
        best = [
            p
            for p in range(1, round(1 / rate) + 1)
            if _promised(p, rate, found.expected_noise * (1 + 1e-9)) <= epsilon
        ]
        said.append(
            f"ε = {epsilon:g}, rate 1/{1 / rate:.0f}: {found.bands} and {best}, "
            f"{len(found.trials)} tried"
        )
        assert best == [found.bands]
    shown(
        "bands by search and by trying all, 64 steps",
        "; ".join(said),
        "the same for three (ε, rate)",
    )


def _promised(bands, rate, expected):
    """ε of so many bands with so much expected squared noise."""
    s = math.sqrt(expected / ap.design("toeplitz", steps=STEPS, bands=bands).error)
    return accounting.poisson_epsilon(
        s, DELTA, sampling_rate=bands * rate, steps=-(-STEPS // bands)
    )
