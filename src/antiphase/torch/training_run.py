"""One training under way: set up, step, evaluate, save, restore."""

from __future__ import annotations

import dataclasses
import json
import math
import time
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as serialise
from torch import nn
from torch.utils.data import DataLoader

from antiphase._util import files
from antiphase._util.checks import Array
from antiphase._util.progress import Progress, ProgressReport
from antiphase.data import Dataset
from antiphase.design import design
from antiphase.errors import StateError
from antiphase.mechanism import Mechanism, calibrate
from antiphase.noise.key import Key
from antiphase.participation import min_separation
from antiphase.sampling import Poisson
from antiphase.statement import PrivacyStatement
from antiphase.torch import run_directory
from antiphase.torch.in_memory import InMemoryDataset, accuracy_and_loss, collate
from antiphase.torch.models import build_model
from antiphase.torch.plan import derive_plan
from antiphase.torch.privacy_engine import PrivacyEngine
from antiphase.torch.recipe import Outcome, Recipe
from antiphase.torch.recorded_loader import fixed_order_loader
from antiphase.torch.secret_generator import torch_generator
from antiphase.torch.user_warnings import warn
from antiphase.workload import SCHEDULES, Workload

Tensor = torch.Tensor

MIN_CHECKPOINTS = 10  # of a run
OPACUS_NOISE_SOURCE = (
    "drawn by Opacus with torch's Mersenne Twister, from a secret state; that is no cryptographic "
    "generator"
)


class TrainingRun:
    """A training that can be saved between two steps, and restored in another process.

    Args:
        recipe: all choices.
        dataset: training and test data.
        seed: of the first weights and the order of the batches.
        key: the secret that noise and samples are drawn from.
        directory: where the run is kept, or None.
        progress: called during the design, with the ``task`` "designing".

    Attributes:
        steps: steps of the whole training.
        done: steps done so far.
        save_every: steps from one checkpoint to the next.
        batch_work: numbers in the gradients of the examples of a batch.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        seed: int,
        key: Key,
        directory: Path | None,
        progress: Progress | None = None,
    ) -> None:
        self.recipe, self.dataset, self.seed = recipe, dataset, seed
        self.key, self.directory = key, directory
        self.net = build_model(recipe.model, dataset.shape, len(dataset.classes))
        self.module, self.criterion = self.net, nn.CrossEntropyLoss()
        self.test = InMemoryDataset(dataset, dataset.test, recipe.inputs)
        train = InMemoryDataset(dataset, dataset.train, recipe.inputs)
        steps_per_epoch = -(-len(train) // recipe.batch_size)
        self.steps, self.done, self.seconds = recipe.epochs * steps_per_epoch, 0, 0.0
        self.save_every = min(steps_per_epoch, -(-self.steps // MIN_CHECKPOINTS))
        self.batch_work = recipe.batch_size * sum(p.numel() for p in self.net.parameters())
        self.curve: list[tuple[int, float, float]] = []
        self.optimizer: Any = torch.optim.SGD(
            self.net.parameters(),
            lr=recipe.learning_rate,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )
        self.scheduler = _scheduler(self.optimizer, recipe.schedule, self.steps)
        self.loader: Any = DataLoader(
            train,
            recipe.batch_size,
            shuffle=True,
            collate_fn=collate,
            generator=torch.Generator().manual_seed(seed),
        )
        self.engine: PrivacyEngine | None = None
        self.amplified: Mechanism | None = None  # of DP-SGD on Poisson samples
        if recipe.is_private:
            self._make_private(progress)
        else:
            self.loader = fixed_order_loader(self.loader)

    def _make_private(self, progress: Progress | None) -> None:
        private = self._sampled() if self.recipe.is_sampled else self._planned(progress)
        self.module, self.optimizer, *criterion, self.loader = private
        if criterion:  # ghost clipping has a loss of its own
            (self.criterion,) = criterion
        if self.recipe.is_planned and self.key.is_insecure:
            # The id of a run under a secret key is drawn at random, at the first step.
            self.optimizer.release.begin(f"{self.key.subkey('run', str(self.seed)):032x}")

    def _planned(self, progress: Progress | None) -> Any:
        recipe, mechanism = self.recipe, self.recipe.mechanism
        plan = derive_plan(
            self.optimizer,
            len(self.loader),
            epochs=recipe.epochs,
            steps=None,
            scheduler=self.scheduler,
        )
        if recipe.factorization is None:
            mechanism = design(
                recipe.name,
                workload=plan.workload,
                participation=plan.participation,
                progress=None if progress is None else _designing(progress),
                **recipe.options,
            )
        else:
            _warn_of_another_optimizer(recipe.factorization.workload, plan.workload)
        self.engine = _engine(mechanism, key=self.key)
        return self.engine.make_private(
            **self._parts(),
            epochs=recipe.epochs,
            scheduler=self.scheduler,
            poisson_sampling=False,
            noise_multiplier=recipe.noise_multiplier,
            target_epsilon=recipe.epsilon,
            target_delta=recipe.delta,
        )

    def _sampled(self) -> Any:
        """DP-SGD by Opacus. Its generators are torch's, with a state from our key."""
        recipe, seed = self.recipe, str(self.seed)
        if recipe.options:
            raise TypeError(
                f"{sorted(recipe.options)}: dp-sgd on Poisson samples has no such option"
            )
        self.amplified = _amplified(
            recipe.epsilon,
            recipe.noise_multiplier,
            recipe.delta,
            recipe.clip_norm,
            1 / len(self.loader),
            self.steps,
        )
        # PRIVACY: samples must be as secret as the noise, or there is no amplification.   [G9]
        self.loader.generator = torch_generator(self.key, "samples", seed)
        return _engine("dp-sgd").make_private(
            **self._parts(),
            noise_multiplier=self.amplified.noise_multiplier,
            poisson_sampling=True,
            noise_generator=torch_generator(self.key, "noise", seed),
        )

    def _parts(self) -> dict[str, Any]:
        return {
            "module": self.net,
            "optimizer": self.optimizer,
            "criterion": self.criterion,
            "data_loader": self.loader,
            "max_grad_norm": self.recipe.clip_norm,
            "grad_sample_mode": self.recipe.grad_sample_mode,
        }

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Train on one batch."""
        start = time.perf_counter()
        self.optimizer.zero_grad()
        self.criterion(self.module(inputs), targets).backward()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.done += 1
        self.seconds += time.perf_counter() - start

    def evaluate(self) -> None:
        """Add accuracy and loss on the test set to the curve, once for each step."""
        if not self.curve or self.curve[-1][0] < self.done:
            self.curve.append((self.done, *accuracy_and_loss(self.module, self.test)))

    def latest(self) -> dict[str, float]:
        """The newest accuracy and loss; empty before the first evaluation."""
        if not self.curve:
            return {}
        return dict(zip(("accuracy", "loss"), self.curve[-1][1:], strict=True))

    def save(self) -> None:
        """Write what `restore` needs, and at the end the weights; each file is replaced whole."""
        if self.directory is None or self.engine is None:
            return
        curve = {"curve": self.curve, "seconds": self.seconds}
        files.write_bytes(self.directory / "curve.json", json.dumps(curve).encode())
        self.engine.save_checkpoint(path=self.directory / "checkpoint", **self._state())
        if self.done == self.steps:
            files.write_bytes(self.directory / "model.safetensors", serialise(self.weights()))

    def restore(self) -> None:
        """Go on from the checkpoint, or write the first one before any step.

        Raises:
            StateError: if steps were released and their checkpoint is missing.
        """
        assert self.directory is not None
        assert self.engine is not None
        if not (self.directory / "checkpoint").exists():
            if any(ledger.stat().st_size for ledger in self.directory.glob("key.*.ledger")):
                # PRIVACY: a new run would be a second release, and the first unaccounted.   [G15]
                raise StateError(
                    f"{self.directory}: steps were released, and their checkpoint is gone. Put it "
                    "back"
                )
            self.save()
            return
        curve, self.seconds = run_directory.read_curve(self.directory / "curve.json")
        self.engine.load_checkpoint(path=self.directory / "checkpoint", **self._state())
        self.done = self.steps - self.engine.remaining_steps
        self.curve = [point for point in curve if point[0] <= self.done]

    def _state(self) -> dict[str, Any]:
        return {"module": self.module, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def weights(self) -> dict[str, Tensor]:
        """A copy of the model's parameters and buffers, by name."""
        return {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}

    def outcome(self) -> Outcome:
        """What the training came to."""
        weights = self.weights()
        _, accuracy, loss = self.curve[-1]
        finite = math.isfinite(loss) and all(
            bool(torch.isfinite(w).all()) for w in weights.values()
        )
        return Outcome(
            recipe=self.recipe,
            dataset=self.dataset.name,
            seed=self.seed,
            accuracy=accuracy,
            loss=loss,
            finite=finite,
            curve=tuple(self.curve),
            steps=self.done,
            seconds=self.seconds,
            statement=self._statement(),
            weights=weights,
        )

    def _statement(self) -> PrivacyStatement | None:
        if self.engine is not None:
            return self.engine.statement(self.recipe.delta)
        if self.amplified is None:
            return None
        is_insecure = self.key.is_insecure
        statement = self.amplified.statement(released=self.done, insecure=is_insecure)
        return dataclasses.replace(
            statement,
            participation="whenever it is drawn",
            noise_source=statement.noise_source if is_insecure else OPACUS_NOISE_SOURCE,
        )


def _scheduler(optimizer: Any, schedule: str, steps: int) -> Any:
    if schedule == "constant":
        return None
    rate = SCHEDULES[schedule]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step / steps))


def _designing(progress: Progress) -> Progress:
    """The callback for a design; what it returns does not stop the search, only Ctrl-C does."""

    def report(now: ProgressReport) -> None:
        progress(dataclasses.replace(now, task="designing"))

    return report


def _warn_of_another_optimizer(designed: Workload, trained: Workload) -> None:
    """Warn if the workload of a given mechanism is not that of the training, up to a factor."""
    own, other = _relative_rates(designed), _relative_rates(trained)
    if designed.describe() != trained.describe() or not np.allclose(own, other, rtol=1e-6):
        warn(
            f"the mechanism is designed for {designed.describe()}, and training is by "
            f"{trained.describe()}, with other options or rates: privacy is exact, but the noise "
            "in the model may be larger than necessary"
        )


def _relative_rates(workload: Workload) -> Array:
    rates = workload.learning_rates
    return np.ones(workload.steps) if rates is None else rates / workload.max_learning_rate


def _engine(mechanism: Any, **options: Any) -> PrivacyEngine:
    with warnings.catch_warnings():
        # If the generator is not secure, the statement says so.
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        return PrivacyEngine(mechanism=mechanism, **options)


@lru_cache(maxsize=16)  # takes seconds, and is the same for every trial
def _amplified(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clip_norm: float,
    rate: float,
    steps: int,
) -> Mechanism:
    """DP-SGD on Poisson samples, in which a record may take part in every step."""
    return calibrate(
        design("dp-sgd", steps=steps, participation=min_separation(steps, apart=1)),
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
        clip_norm=clip_norm,
        sampling=Poisson(rate),
    )
