"""Arguments of a planned mechanism that are accepted with a warning."""

import dataclasses
import warnings

import pytest
import torch

from antiphase.errors import AntiphaseWarning
from antiphase.torch import PrivacyEngine
from antiphase.torch.request import Request
from tests.torch.setting import data, make_private, small_model


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["dp-sgd", "dp-mf"])
def test_a_large_delta_is_warned_about(mechanism):
    target = {"target_epsilon": 4.0, "max_grad_norm": 1.0, "epochs": 2}
    model, loader = small_model(), torch.utils.data.DataLoader(data(), batch_size=12)
    parts = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": loader,
    }
    with pytest.warns(
        UserWarning, match="publishing one whole record would satisfy this guarantee"
    ):
        PrivacyEngine(mechanism=mechanism).make_private_with_epsilon(
            **parts, target_delta=0.05, **target
        )


@pytest.mark.issue(23)
def test_examples_that_a_dropped_batch_leaves_out_are_warned_about():
    """In a fixed order these are the same ones in every epoch."""
    loader = torch.utils.data.DataLoader(data(), batch_size=50, drop_last=True, shuffle=True)
    with pytest.warns(AntiphaseWarning, match="the same 10 of 60 examples are never trained on"):
        make_private(PrivacyEngine(mechanism="dp-mf"), loader, epochs=2)
    whole = torch.utils.data.DataLoader(data(), batch_size=12, drop_last=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AntiphaseWarning)
        make_private(PrivacyEngine(mechanism="dp-mf"), whole, epochs=2)


def test_arguments_do_not_change_after_they_were_checked():
    given = {field.name: None for field in dataclasses.fields(Request)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Request(**given).clipping = "adaptive"
