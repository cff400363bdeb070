"""Private training by `make_private` and `make_private_with_epsilon`."""

import pytest
import torch
from torch.utils.data import DataLoader

import antiphase as ap
from antiphase.torch import PrivacyEngine
from tests.torch.setting import Training, data, epoch, make_private, small_model


def test_make_private_with_epsilon_meets_its_target():
    model, target = small_model(), {"target_epsilon": 3.0, "target_delta": 1e-5, "epochs": 4}
    engine = PrivacyEngine(mechanism="dp-mf+", tau=5)
    engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(), batch_size=12),
        max_grad_norm=1.0,
        **target,
    )
    assert 2.99 < engine.get_epsilon(1e-5) <= 3.0
    assert engine.mechanism.factorization.objective.tau == 5
    again = PrivacyEngine(mechanism="dp-mf+", tau=5)
    make_private(again, None, noise_multiplier=None, **target)
    assert again.mechanism.digest == engine.mechanism.digest
    with pytest.raises(TypeError, match="give one of the two"):
        make_private(PrivacyEngine(), None, **target)
    with pytest.raises(TypeError, match="use make_private_with_epsilon"):
        make_private(PrivacyEngine(mechanism="dp-sgd"), None, noise_multiplier=None, **target)
    with pytest.raises(ValueError, match="has its noise multiplier already"):
        make_private(
            PrivacyEngine(mechanism=engine.mechanism), None, noise_multiplier=None, **target
        )


def test_a_second_plan_needs_a_second_engine():
    training = Training()
    begin = training.engine.state_dict()
    training.run(1)
    with pytest.raises(ValueError, match="second release"):
        make_private(training.engine, None, epochs=1)
    training.engine.load_state_dict(begin)
    assert training.release.position == 0
    with pytest.raises(ValueError, match="has released 1 steps"):
        make_private(training.engine, None, epochs=1)


def test_loaders_without_indices_or_length_need_trusted_participation():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from zip(*data(12).tensors, strict=True)

    endless = DataLoader(Endless(), batch_size=4)
    with pytest.raises(ValueError, match="no length"):
        make_private(PrivacyEngine(mechanism="dp-mf"), endless, steps=3, participation="trusted")
    engine = PrivacyEngine(mechanism=ap.design("dp-mf", steps=3))
    with pytest.raises(ValueError, match="no indices"):
        make_private(engine, endless)
    epoch(*make_private(engine, endless, participation="trusted"))
    assert engine.remaining_steps == 0
