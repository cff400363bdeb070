"""Training on subsamples of batches, under the noise of whole batches.

The mean clipped gradient of a random subsample estimates that of its batch without bias. The noise
beside it is that of training on whole batches. So the result shows what noise costs in accuracy.
It is not private training, and nothing is promised for its model. With subsamples as large as
batches it is the training itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import BatchSampler, DataLoader

from antiphase.data import Dataset, Split
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import calibrate
from antiphase.noise.key import Key
from antiphase.torch.in_memory import InMemoryDataset, accuracy_and_loss
from antiphase.torch.models import build_model
from antiphase.torch.privacy_engine import PrivacyEngine

MAX_EVALUATED = 5000  # training examples, the first ones, on which the training error is measured


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a training on ``subsample`` examples of each batch of ``batch_size``.

    ``noise_multiplier`` is that of whole batches. With ``poisson`` each batch is a Poisson sample
    of all examples; otherwise batches come in a fixed order that depends on ``seed``.
    """

    model: str
    learning_rate: float
    noise_multiplier: float
    batch_size: int
    subsample: int
    poisson: bool = False
    clip_norm: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """Test accuracy and training error of the last model; chance level if it is not finite."""

    accuracy: float
    training_error: float
    finite: bool
    seconds: float


def train(settings: Settings, factorization: Factorization, dataset: Dataset) -> Trained:
    """Train for the steps of the factorization; the result depends on ``settings.seed`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)
        net = build_model(settings.model, dataset.shape, len(dataset.classes))
    table = InMemoryDataset(dataset, dataset.train, "standard")
    batches = SubsampledBatches(len(table), settings)
    module, optimizer, loader = _private(settings, factorization, net, table, batches)
    criterion, began = nn.CrossEntropyLoss(), time.perf_counter()
    finite = True
    for _, (inputs, targets) in zip(range(factorization.steps), loader, strict=False):
        optimizer.zero_grad()
        loss = criterion(module(inputs), targets)
        loss.backward()
        optimizer.step()
        finite = math.isfinite(float(loss.detach()))
        if not finite:
            break
    seconds = time.perf_counter() - began
    chance = 1 / len(dataset.classes)
    if not finite:
        return Trained(chance, 1 - chance, False, seconds)
    first = slice(MAX_EVALUATED)
    evaluated = Split(dataset.train.inputs[first], dataset.train.targets[first])
    accuracy, _ = accuracy_and_loss(net, InMemoryDataset(dataset, dataset.test, "standard"))
    training_accuracy, _ = accuracy_and_loss(net, InMemoryDataset(dataset, evaluated, "standard"))
    return Trained(accuracy, 1 - training_accuracy, True, seconds)


def _private(
    settings: Settings,
    factorization: Factorization,
    net: nn.Module,
    table: InMemoryDataset,
    batches: SubsampledBatches,
) -> tuple[Any, Any, Any]:
    """Make the training private by the engine.

    Sums are divided by the size of the subsample, so the noise is scaled down by the same factor.
    """
    mechanism = calibrate(
        factorization,
        noise_multiplier=settings.noise_multiplier * settings.subsample / settings.batch_size,
        clip_norm=settings.clip_norm,
    )
    key = Key.insecure(settings.seed)
    engine = PrivacyEngine(mechanism=mechanism, key=key)
    private: tuple[Any, Any, Any] = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=settings.learning_rate),
        data_loader=DataLoader(table, batch_sampler=batches, collate_fn=lambda batch: batch),
        max_grad_norm=settings.clip_norm,
        poisson_sampling=False,
        participation="trusted",  # nothing is promised
        memory="512MB",
        probe=False,
    )
    private[1].release.begin(f"{key.subkey('run', str(settings.seed)):032x}")
    return private


class SubsampledBatches(BatchSampler):
    """A random subsample of each batch, endlessly."""

    def __init__(self, size: int, settings: Settings) -> None:
        self._size, self._settings, self.batch_size = size, settings, settings.subsample
        self._rng = np.random.default_rng(settings.seed)
        self._order = self._rng.permutation(size)

    def __len__(self) -> int:
        return math.ceil(self._size / self._settings.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        step, share = 0, self._settings.subsample / self._settings.batch_size
        while True:
            batch = self._sampled() if self._settings.poisson else self._next(step % len(self))
            # A larger Poisson batch has a larger subsample, and so a larger weight.
            count = int(len(batch) * share + self._rng.random())
            yield self._rng.permutation(batch)[:count].tolist()
            step += 1

    def _sampled(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._rng.random(self._size) < self._settings.batch_size / self._size)

    def _next(self, number: int) -> NDArray[np.int64]:
        size = self._settings.batch_size
        return self._order[number * size : (number + 1) * size]
