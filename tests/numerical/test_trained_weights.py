"""Weights trained by the private optimizers against NumPy."""

import pytest

from tests.torch import test_private_optimizer as update

pytestmark = [pytest.mark.issue(6), pytest.mark.slow]


def test_weights_equal_those_of_numpy(shown):
    worst = {
        name: max(update.difference_from_numpy(name, mode) for mode in ("hooks", "ghost"))
        for name in update.OPTIMIZERS
    }
    shown(
        "trained weights against NumPy",
        str({k: f"{v:.0e}" for k, v in worst.items()}),
        "≤ 1e-5 each",
    )
    assert max(worst.values()) <= 1e-5
