"""Private training by `make_private` and `make_private_with_epsilon`."""

import dataclasses

import pytest
import torch
from torch.utils.data import DataLoader

import antiphase as ap
from antiphase.errors import AntiphaseWarning, HorizonError
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


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from zip(*data(12).tensors, strict=True)


def test_loaders_without_indices_or_length_need_trusted_participation():
    endless = DataLoader(Endless(), batch_size=4)
    engine = PrivacyEngine(mechanism=ap.design("dp-mf", steps=3))
    with pytest.raises(ValueError, match="no indices"):
        make_private(engine, endless)
    epoch(*make_private(engine, endless, participation="trusted"))
    assert engine.remaining_steps == 0


@pytest.mark.issue(23)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_steps_and_the_users_word_are_enough_for_an_iterable_dataset(accumulation):
    """Each example takes part at most once; a warning and the statement say whose word this is."""
    endless = DataLoader(Endless(), batch_size=4)
    for incomplete in (
        {"steps": 3},
        {"epochs": 3, "participation": "trusted"},
        {"steps": 3, "participation": ap.once()},
    ):
        with pytest.raises(ValueError, match=r"data_loader has no length.*Give steps=… and part"):
            make_private(PrivacyEngine(mechanism="dp-mf"), endless, **incomplete)
    engine, steps = PrivacyEngine(mechanism="dp-mf"), 3 // accumulation
    with pytest.warns(AntiphaseWarning, match=f"one pass of {steps} steps.*at most once"):
        private = make_private(
            engine,
            endless,
            steps=steps,
            participation="trusted",
            gradient_accumulation_steps=accumulation,
            probe=False,
        )
    assert engine.plan.participation == ap.once()
    assert engine.plan.steps == engine.plan.steps_per_epoch == steps
    module, optimizer, loader = private
    for i, (inputs, targets) in enumerate(loader):
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()
        if (i + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    assert (engine.remaining_steps, engine.completed_epochs) == (0, 1)
    assert "on the user's word, not checked" in engine.statement(1e-5).participation
    with pytest.raises(HorizonError):
        epoch(*private)


@pytest.mark.issue(23)
def test_reprs_tell_the_state_of_a_training_and_nothing_private():
    """One line each: mechanism, steps and noise; neither the key nor counts of examples."""
    assert repr(PrivacyEngine(mechanism="dp-mf")) == "<PrivacyEngine dp-mf: no plan>"
    given = PrivacyEngine(mechanism=ap.design("dp-sgd", steps=15))
    assert repr(given).startswith("<PrivacyEngine <Factorization dp-sgd: 15 steps")
    training = Training(key=ap.Key.generate(), max_grad_norm=0.5).run(2)
    text = "dp-mf: 2 of 15 steps released, noise multiplier 1, clip norm 0.5"
    assert repr(training.engine) == f"<PrivacyEngine {text}>"
    assert repr(training.engine.accountant) == f"<PlanAccountant {text}>"
    assert repr(Training().engine).endswith("clip norm 1, INSECURE>")
    opacus = PrivacyEngine(mechanism="dp-sgd")
    epoch(*make_private(opacus, None))
    assert repr(opacus) == "<PrivacyEngine dp-sgd: 5 steps released by Opacus>"


def test_the_parts_of_a_training_are_not_replaced():
    """Guards hold on to them, and the statement is about them."""
    training = Training().engine._training
    with pytest.raises(dataclasses.FrozenInstanceError):
        training.release = None
