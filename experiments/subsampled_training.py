"""Training under the noise of a mechanism, where only a few examples of every batch are looked at: for studies.

A batch of 500 examples moves the model by its mean clipped gradient, and so does, in the mean, a glimpse of 16 of them
drawn at random. The noise is the whole batch's: its length beside the mean gradient is what training on whole batches
would see. What is learnt so is what noise costs; it is no private training, and nothing is promised for its model.
With glimpses of whole batches it is the training itself.
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
from antiphase.torch.models import model
from antiphase.torch.privacy_engine import PrivacyEngine
from antiphase.torch.training import Table, score

JUDGED = 5000  # training examples, the first ones, that the training error is measured on


@dataclass(frozen=True, kw_only=True)
class Glimpsed:
    """How to train: ``glimpse`` examples of each batch of ``batch_size`` are looked at.

    ``noise_multiplier`` is that of whole batches. With ``poisson`` each batch is a Poisson sample of all examples;
    otherwise batches come in a fixed order, that ``seed`` decides.
    """

    model: str
    learning_rate: float
    noise_multiplier: float
    batch_size: int
    glimpse: int
    poisson: bool = False
    clip_norm: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """Test accuracy and training error of the last model (0.1 and 0.9, as by chance, if it is not finite)."""

    accuracy: float
    training_error: float
    finite: bool
    seconds: float


def train(how: Glimpsed, factorization: Factorization, dataset: Dataset) -> Trained:
    """Train for as many steps as the factorization has; ``how.seed`` decides everything, noise included."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(how.seed)
        net = model(how.model, dataset.shape, len(dataset.classes))
    table = Table(dataset, dataset.train, "standard")
    batches = Glimpses(len(table), how)
    module, optimizer, loader = _private(how, factorization, net, table, batches)
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
    some = Table(
        dataset, Split(dataset.train.inputs[:JUDGED], dataset.train.targets[:JUDGED]), "standard"
    )
    accuracy, _ = score(net, Table(dataset, dataset.test, "standard"))
    return Trained(accuracy, 1 - score(net, some)[0], True, seconds)


def _private(
    how: Glimpsed, factorization: Factorization, net: nn.Module, table: Table, batches: Glimpses
) -> tuple[Any, Any, Any]:
    """The engine's own step. Sums are divided by the size of a glimpse, so the noise is shortened as much."""
    mechanism = calibrate(
        factorization,
        noise_multiplier=how.noise_multiplier * how.glimpse / how.batch_size,
        clip_norm=how.clip_norm,
    )
    key = Key.insecure(how.seed)
    engine = PrivacyEngine(mechanism=mechanism, key=key)
    made: tuple[Any, Any, Any] = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=how.learning_rate),
        data_loader=DataLoader(table, batch_sampler=batches, collate_fn=lambda batch: batch),
        max_grad_norm=how.clip_norm,
        poisson_sampling=False,
        participation="trusted",  # nothing is promised
        memory="512MB",
        probe=False,
    )
    made[1].release.begin(f"{key.subkey('run', str(how.seed)):032x}")
    return made


class Glimpses(BatchSampler):
    """Some examples of one batch after the other, without end."""

    def __init__(self, size: int, how: Glimpsed) -> None:
        self._size, self._how, self.batch_size = size, how, how.glimpse
        self._rng = np.random.default_rng(how.seed)
        self._order = self._rng.permutation(size)

    def __len__(self) -> int:
        return math.ceil(self._size / self._how.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        step = 0
        while True:
            batch = self._sampled() if self._how.poisson else self._next(step % len(self))
            # A batch that came out larger has more examples in its glimpse, and counts for more.
            count = int(len(batch) * self._how.glimpse / self._how.batch_size + self._rng.random())
            yield self._rng.permutation(batch)[:count].tolist()
            step += 1

    def _sampled(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._rng.random(self._size) < self._how.batch_size / self._size)

    def _next(self, which: int) -> NDArray[np.int64]:
        return self._order[which * self._how.batch_size : (which + 1) * self._how.batch_size]
