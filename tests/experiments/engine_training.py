"""The trainings of the study of MNIST by `PrivacyEngine` and an ordinary training loop."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antiphase.torch import PrivacyEngine
from antiphase.torch.batch_selection import FixedOrderBatches
from antiphase.torch.secret_generator import torch_generator
from experiments import linear_training, mnist


def reference_loss(scores, targets):
    """Cross-entropy; the last class has the score 0."""
    return nn.functional.cross_entropy(nn.functional.pad(scores, (0, 1)), targets)


def tensors():
    seen, _ = mnist.examples()
    targets = np.where(seen.targets.any(axis=1), seen.targets.argmax(axis=1), seen.targets.shape[1])
    return TensorDataset(
        torch.from_numpy(seen.inputs), torch.from_numpy(targets), torch.arange(len(targets))
    )


def linear():
    seen, _ = mnist.examples()
    model = nn.Linear(seen.inputs.shape[1], seen.targets.shape[1], bias=False)
    nn.init.zeros_(model.weight)
    return model


def run(model, optimizer, loader, steps):
    """Train for so many steps; returns the weights and the examples of each step."""
    drawn = []
    while True:
        for inputs, targets, places in loader:
            optimizer.zero_grad()
            reference_loss(model(inputs), targets).backward()
            optimizer.step()
            drawn.append(places.numpy())
            if len(drawn) == steps:
                (weight,) = model.parameters()
                return weight.detach().numpy(), drawn


def by_engine(cell, epsilon, trial, mechanism=None):
    """Train as the study does, by the engine; it designs the mechanism unless one is given."""
    data, model = tensors(), linear()
    order = np.random.default_rng([cell["seed"], trial]).permutation(len(data))
    loader = DataLoader(
        data, batch_sampler=FixedOrderBatches(len(data), cell["batch_size"], order=order.tolist())
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=cell["learning_rate"])
    key, name = mnist.key_and_run(cell, trial)
    options = {"tau": cell["tau"]} if "tau" in cell else {}
    engine = PrivacyEngine(mechanism=mechanism or cell["mechanism"], key=key, **options)
    how = {} if mechanism else {"target_epsilon": epsilon, "target_delta": cell["delta"]}
    made = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        max_grad_norm=cell["clip_norm"],
        steps=cell["steps"],
        poisson_sampling=False,
        **how,
    )
    made[1].release.begin(name)
    return run(*made, cell["steps"])[0]


def sampled_by_engine(cell, trial, multiplier):
    """Opacus' DP-SGD on Poisson samples, and the study's loop on the same samples and noise.

    Opacus samples at rate 1 / (number of batches), and divides by the truncated expected size.
    """
    data, model = tensors(), linear()
    key, _ = mnist.key_and_run(cell, trial)
    loader = DataLoader(
        data,
        cell["batch_size"],
        shuffle=True,
        generator=torch_generator(key, "samples", str(trial)),
    )
    made = PrivacyEngine(mechanism="dp-sgd").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=cell["learning_rate"]),
        data_loader=loader,
        noise_multiplier=multiplier,
        max_grad_norm=cell["clip_norm"],
        poisson_sampling=True,
        noise_generator=torch_generator(key, "noise", str(trial)),
    )
    engine, drawn = run(*made, cell["steps"])
    noise = torch_generator(key, "noise", str(trial))
    ours = linear_training.train(
        mnist.examples()[0],
        drawn,
        (torch.normal(0.0, multiplier, engine.shape, generator=noise).numpy() for _ in drawn),
        learning_rate=cell["learning_rate"],
        divisor=made[1].expected_batch_size,
        clip_norm=cell["clip_norm"],
    )
    return engine, ours[0]
