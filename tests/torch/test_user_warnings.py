"""Warnings point at the line of the user's script that led to them."""

import warnings

import pytest
import torch

from antiphase.errors import AntiphaseWarning
from antiphase.torch.user_warnings import warn
from tests.torch.setting import Training


def test_a_warning_points_at_the_caller_outside_of_the_library():
    with pytest.warns(AntiphaseWarning, match="^message$") as record:
        warn("message")
    assert record[0].filename == __file__


def test_a_warning_of_a_step_points_at_the_training_loop():
    """Several frames of antiphase and torch are between the warning and the loop."""
    training = Training(epochs=1)
    training.inner.param_groups[0]["lr"] = 0.5
    inputs, targets = next(iter(training.loader))
    training.optimizer.zero_grad()
    torch.nn.functional.cross_entropy(training.module(inputs), targets).backward()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        training.optimizer.step()
    assert [w.filename for w in seen if issubclass(w.category, AntiphaseWarning)] == [__file__]
