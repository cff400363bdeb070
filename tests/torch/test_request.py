"""Arguments that a planned mechanism does not cover are refused or warned about."""

import pytest
import torch

from antiphase.torch import PrivacyEngine
from tests.torch.setting import Training, data, small_model


def test_unsupported_arguments_are_refused():
    with pytest.raises(ValueError, match="independent noise alone"):
        Training(poisson_sampling=True)
    with pytest.raises(ValueError, match="secret key"):
        Training(noise_generator=torch.Generator())
    with pytest.raises(ValueError, match="secret key"):
        PrivacyEngine(secure_mode=True)
    with pytest.raises(ValueError, match="adaptive"):
        Training(clipping="adaptive")
    with pytest.raises(ValueError, match="is not supported"):
        Training(mode="ghost", clipping="per_layer", max_grad_norm=[1.0] * 4)
    with pytest.raises(TypeError, match="no such option"):
        Training(target_unclipped_quantile=0.5)
    with pytest.raises(TypeError, match="planned ahead"):
        Training(epochs=None)
    with pytest.raises(TypeError, match="noise_multiplier"):
        Training(noise_multiplier=None)
    with pytest.raises(ValueError, match="call make_private"):
        PrivacyEngine().remaining_steps  # noqa: B018
    other = torch.optim.SGD(small_model().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="different than optimizer"):
        Training(optimizer=lambda _: other)


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
