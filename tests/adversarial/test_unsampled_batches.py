"""Batches that are not sampled are refused under an amplified ε."""

from dataclasses import replace

import numpy as np
import pytest

from antiphase.federated import Server
from tests.torch import test_batch_selection as sampled

pytestmark = [pytest.mark.issue(13), pytest.mark.slow]


def test_a_loader_that_does_not_sample_is_refused(shown):
    """In the PyTorch engine, and in the federated server, whose users are not sampled."""
    refused = 0
    for make in (sampled.cyclic, sampled.bins, sampled.independent):
        for other in ("shuffled", "fixed order", "sequential"):
            with pytest.raises(ValueError, match="are formed in another way"):
                sampled.private(make(), sampled.OTHERS[other](sampled.dataset()))
            refused += 1
    shown(
        "shuffled, fixed-order and sequential loaders under an amplified ε",
        f"{refused} of 9 refused",
        "all",
    )
    for make in (sampled.cyclic, sampled.bins, sampled.independent):
        with pytest.raises(ValueError, match="users are not sampled at random"):
            Server(replace(make(), unit="user"), {"w": np.zeros(2)}, clients_per_round=4)
    shown("federated servers with an amplified ε", "3 of 3 refused", "all")
