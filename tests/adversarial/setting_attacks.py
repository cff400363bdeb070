"""Attacks by settings, parameters and batches: rows 31 to 33, 35, 38, 39, 44 and 47."""

import itertools
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.torch import PrivacyEngine
from tests.adversarial.attacks import (
    CLIP,
    MODES,
    Outcome,
    Setup,
    attack,
    data,
    exact,
    refused,
    seeded,
    small_model,
    targets_for,
    tokens,
    warned,
)

# Row 31: settings changed after make_private


def _set(path, value):
    def change(setup):
        *owners, name = path.split(".")
        item = setup
        for owner in owners:
            item = getattr(item, owner)
        setattr(item, name, value)

    change.__name__ = path
    return change


def frozen_parameter(setup):
    setup.model[0].weight.requires_grad_(False)


def added_parameter(setup):
    setup.inner.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def other_inner_optimizer(setup):
    setup.optimizer.original_optimizer = torch.optim.Adam(setup.model.parameters())


def other_mechanism(setup):
    setup.optimizer.release.mechanism = None


def replaced_noise(setup):
    setup.optimizer.release = lambda sums, _: [s.clone().float() for s in sums]


SETTINGS = [
    _set("optimizer.max_grad_norm", 27 * CLIP),
    _set("optimizer.noise_multiplier", 0.0),
    _set("optimizer.expected_batch_size", 1),
    _set("optimizer.loss_reduction", "sum"),
    _set("optimizer.release.divisor", 1.0),
    _set("optimizer.release.ledger", None),
    _set("optimizer.release.batches", None),
    _set("loader.batch_sampler.batch_size", 3),
    _set("module.loss_reduction", "sum"),
    _set("module.batch_first", False),
    frozen_parameter,
    added_parameter,
    other_inner_optimizer,
    other_mechanism,
    replaced_noise,
]


@attack(
    31,
    "changed after make_private",
    "refused",
    *[(change, mode) for change in SETTINGS for mode in MODES],
)
def changed_setting(change, mode):
    """ε and the noise are for the values that make_private was given."""
    setup = Setup(small_model(), data(12, 5), mode=mode)
    setup.step(*next(iter(setup.loader)))
    batch = next(iter(setup.loader))
    release = setup.optimizer.release
    before = release.drawn, setup.weights()

    def act():
        change(setup)
        setup.step(*batch)

    found = refused(act, None, AttributeError, KeyError)
    if release.drawn != before[0] or not all(map(torch.equal, before[1], setup.weights())):
        return Outcome("WRONG", "released")
    return found


@attack(31, "the criterion's reduction changed after make_private", "refused", "ghost")
def changed_reduction(mode):
    """Ghost clipping needs one loss for each example."""
    setup = Setup(small_model(), data(12, 5), mode=mode)
    setup.criterion.criterion.reduction = "sum"
    return refused(lambda: setup.step(*next(iter(setup.loader))), setup)


# Row 32: one plan per engine


@attack(32, "the first of two plans steps", "refused", *MODES)
def first_of_two_plans(mode):
    """Its releases would not be accounted for."""
    setup = Setup(small_model(), data(12, 5), mode=mode)
    model = small_model()
    setup.engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
        data_loader=DataLoader(TensorDataset(setup.inputs, setup.targets), batch_size=12),
        steps=2,
        grad_sample_mode=mode,
    )
    return refused(lambda: setup.step(*next(iter(setup.loader))), setup)


@attack(32, "make_private again after a step", "refused", *MODES)
def plan_after_a_step(mode):
    """A second training on the same data is a second release."""
    setup = Setup(small_model(), data(12, 5), mode=mode)
    setup.step(*next(iter(setup.loader)))
    model = small_model()

    def again():
        setup.engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            noise_multiplier=1.0,
            data_loader=DataLoader(TensorDataset(setup.inputs, setup.targets), batch_size=12),
            steps=2,
            max_grad_norm=CLIP,
            grad_sample_mode=mode,
        )

    return refused(again, setup)


# Row 33: rows that are not examples


class TimeFirst(nn.Module):
    """Swaps examples and time for its layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x.transpose(0, 1))).mean(dim=0))


LENGTHS = {"T < B": 5, "T = B": 12, "T > B": 20}


@attack(33, "a time-first layer", "exact", *[(name, mode) for name in LENGTHS for mode in MODES])
def time_first(name, mode):
    """The recorder knows the dimension of the examples in every tensor."""
    return exact(seeded(TimeFirst), data(12, LENGTHS[name], 3), mode=mode)


class Swapped(nn.Module):
    """Inputs and outputs of shape (time, examples, features)."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).mean(dim=0)


@attack(
    33,
    "inputs whose examples are not first",
    "refused",
    *[(name, mode) for name in LENGTHS for mode in MODES],
)
def inputs_with_time_first(name, mode):
    """A model of (time, examples, features) with batch_first=True: make_private refuses."""
    return refused(lambda: Setup(seeded(Swapped)(), data(12, LENGTHS[name], 3), mode=mode))


@attack(33, "inputs whose examples are not first, without the gradient check", "refused",
       *[(name, mode) for name in LENGTHS if name != "T = B" for mode in MODES])  # fmt: skip
def unchecked_inputs_with_time_first(name, mode):
    """Rows are counted. With as many times as examples, only the gradient check can tell."""
    setup = Setup(seeded(Swapped)(), data(12, LENGTHS[name], 3), mode=mode, probe=False)
    inputs, targets = next(iter(setup.loader))
    return refused(lambda: setup.step(inputs.transpose(0, 1).contiguous(), targets), setup)


@attack(33, "rows left out, or used twice", "refused",
       *[(rows, mode) for rows in ("fewer", "more", "none") for mode in MODES])  # fmt: skip
def other_rows(rows, mode):
    """There must be as many rows as examples in the loader's batch."""
    setup = Setup(small_model(), data(12, 5), mode=mode)
    inputs, targets = next(iter(setup.loader))
    index = {"fewer": torch.arange(7), "more": torch.arange(14) % 12, "none": torch.arange(0)}[rows]
    return refused(lambda: setup.step(inputs[index], targets[index]), setup)


# Row 35: gradients divided by counts over the batch


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(9, 4, scale_grad_by_freq=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(self.embedding(x).mean(dim=1))


@attack(35, "scale_grad_by_freq", "refused", *itertools.product(MODES, ("checked", "probe=False")))
def scaled_by_frequency(mode, checked):
    """Each gradient would depend on counts over all examples."""
    options = {} if checked == "checked" else {"probe": False}

    def act():
        setup = Setup(seeded(Words)(), tokens(12, 6, 4), mode=mode, **options)
        setup.step(*next(iter(setup.loader)))

    return refused(act)


# Row 38: parameters outside the private optimizer


@attack(38, "parameters in another optimizer", "refused", *MODES, "dp-sgd")
def two_optimizers(mode):
    """A second optimizer would train the head on raw gradients."""
    model = small_model()
    inner = torch.optim.SGD(model[0].parameters(), lr=0.1)
    how = {"mechanism": "dp-sgd", "steps": None} if mode == "dp-sgd" else {"mode": mode}
    return refused(lambda: Setup(model, data(12, 5), inner=inner, **how))


@attack(38, "a frozen parameter is unfrozen later", "refused", *MODES)
def unfrozen_parameter(mode):
    """Its gradients would not be clipped."""
    model = small_model()
    model[2].requires_grad_(False)
    inner = torch.optim.SGD(model[0].parameters(), lr=0.1)
    setup = Setup(model, data(12, 5), mode=mode, inner=inner)
    setup.step(*next(iter(setup.loader)))
    model[2].requires_grad_(True)
    return refused(lambda: setup.step(*next(iter(setup.loader))), setup, AttributeError)


# Row 39: learning rates


@attack(39, "a scheduler that was not handed over", "warned", *MODES)
def other_rates(mode):
    """Privacy holds; the design is for other rates."""
    setup = Setup(small_model(), data(12, 5), mode=mode)
    scheduler = torch.optim.lr_scheduler.StepLR(setup.inner, 1, 0.5)

    def act():
        for _ in range(2):
            setup.step(*next(iter(setup.loader)))
            scheduler.step()

    return warned(act, "learning rate is")


# Row 44: DP-SGD on another loader


@attack(44, "DP-SGD on the old loader", "refused", *MODES)
def old_loader(mode):
    """ε is that of Poisson samples, and these batches are not sampled."""
    model, inputs = small_model(), data(60, 5)
    own = DataLoader(TensorDataset(inputs, targets_for(60)), batch_size=12)
    engine = PrivacyEngine(mechanism="dp-sgd")
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=own,
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
        grad_sample_mode=mode,
    )
    criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()
    before = [p.detach().clone() for p in model.parameters()]

    def act():
        batch = next(iter(own))
        made[1].zero_grad()
        criterion(made[0](batch[0]), batch[1]).backward()
        made[1].step()

    found = refused(act)
    same = all(map(torch.equal, before, model.parameters())) and not len(engine.accountant)
    return found if same else Outcome("WRONG", "the model moved")


# Row 47: keys without a file


@attack(47, "a checkpoint without a key file", "warned", *MODES)
def no_key_file(mode):
    """No other process could continue from the checkpoint."""
    setup = Setup(small_model(), data(12, 5), mode=mode, key=ap.Key.generate())
    setup.step(*next(iter(setup.loader)))
    with tempfile.TemporaryDirectory() as folder:
        return warned(
            lambda: setup.engine.save_checkpoint(
                path=Path(folder) / "c", module=setup.module, optimizer=setup.optimizer
            ),
            "key",
        )
