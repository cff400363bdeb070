"""Parameters outside the private optimizer are refused or frozen, by name."""

import pytest
import torch
from torch import nn

from antiphase.errors import AntiphaseWarning
from antiphase.torch import coverage

pytestmark = pytest.mark.issue(21)


def test_messages_name_the_first_parameters_and_count_the_others():
    """Ten names, and the number of the others."""
    every = [f"p{i}" for i in range(12)]
    assert coverage.shortened(every[:3]) == "p0, p1, p2"
    assert coverage.shortened(every[:10]) == ", ".join(every[:10])
    assert coverage.shortened(every) == ", ".join(every[:10]) + " and 2 more"


def test_what_is_outside_the_optimizer_is_refused_or_frozen_by_name():
    """Another optimizer may train such a parameter."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"optimizer: 1\.weight, 1\.bias require gradients"):
        coverage.require_coverage(model, optimizer)
    with pytest.warns(
        AntiphaseWarning, match=r"1\.weight, 1\.bias: not in the optimizer, and frozen now"
    ):
        coverage.require_coverage(model, optimizer, "freeze")
    assert coverage.Coverage.of(model) == coverage.Coverage(2, 8, ("1.weight", "1.bias"))
    assert coverage.uncovered_parameters(model, optimizer) == {}
