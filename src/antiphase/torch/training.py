"""A whole private training, from a recipe and a dataset to an outcome: what ``antiphase train`` runs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from randomgen import AESCounter
from safetensors.torch import save as serialise
from torch import nn
from torch.utils.data import DataLoader, default_collate
from torch.utils.data import Dataset as TorchDataset

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.interrupts import graceful_interrupt
from antiphase._util.progress import Progress, ProgressReport
from antiphase.data import Dataset
from antiphase.design import design, names
from antiphase.errors import StateError
from antiphase.mechanism import Mechanism, calibrate
from antiphase.noise.key import Key
from antiphase.participation import min_separation
from antiphase.sampling import Poisson
from antiphase.statement import PrivacyStatement
from antiphase.torch import run_directory
from antiphase.torch.batch_selection import fixed_order_loader
from antiphase.torch.models import model
from antiphase.torch.privacy_engine import PrivacyEngine
from antiphase.workload import SCHEDULES

Tensor = torch.Tensor

CHECKPOINTS = 10  # a run, at least
SMALL = (
    1 << 20
)  # numbers in the gradients of a batch; below, waking a second thread takes longer than the work


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All choices of a training. They are public: whoever tunes them on private data has to account for that.

    ``mechanism`` is a name that `antiphase.design` knows, with its ``options``, or ``"none"``: plain SGD over the same
    batches, without clipping, noise or privacy. ``dp-sgd`` is Opacus' own, on Poisson samples and with their
    amplification, unless ``poisson`` is False.

    Inputs are used as the dataset has them (images in [0, 1]), with ``inputs="standard"`` as ``(x − mean)/std`` by
    its public constants.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    mechanism: str = "dp-mf+"
    options: Mapping[str, Any] = field(default_factory=dict)
    poisson: bool = True
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    clip_norm: float = 1.0
    model: str = "logistic"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: str = "constant"
    inputs: str = "range"
    grad_sample_mode: str = "hooks"

    def __post_init__(self) -> None:
        check.whole_number("epochs", self.epochs)
        check.whole_number("batch_size", self.batch_size)
        check.positive_number("learning_rate", self.learning_rate)
        check.positive_number("clip_norm", self.clip_norm)
        check.real_number("momentum", self.momentum, minimum=0.0, below=1.0)
        check.real_number("weight_decay", self.weight_decay, minimum=0.0)
        check.choice("schedule", self.schedule, tuple(SCHEDULES))
        check.choice("inputs", self.inputs, ("range", "standard"))
        check.choice("mechanism", self.mechanism, ("none", *names()))
        object.__setattr__(self, "options", dict(self.options))
        if not self.is_private:
            return
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise TypeError(
                f"epsilon = {self.epsilon}, noise_multiplier = {self.noise_multiplier}: give one, the other follows"
            )
        if self.delta is None:
            raise TypeError(
                "delta = None: δ is yours to choose, well below one over the number of records"
            )

    @property
    def is_private(self) -> bool:
        return self.mechanism != "none"

    @property
    def is_sampled(self) -> bool:
        """Whether batches are Poisson samples."""
        return self.mechanism == "dp-sgd" and self.poisson

    @property
    def is_planned(self) -> bool:
        """Whether noise comes from a plan of ours: such a run can be resumed."""
        return self.is_private and not self.is_sampled


@dataclass(frozen=True)
class Outcome:
    """What a training came to.

    Accuracy and loss are those on the test set, at the end and in ``curve`` as (step, accuracy, loss). They follow from
    the released weights and the test set, so they cost no privacy as long as it shares no records with the training
    data; of the records in the test set itself they are not private.

    ``finite`` is False where the training diverged; ``statement`` is None where nothing private was trained.
    ``seconds`` is the time of the steps alone.
    """

    recipe: Recipe
    dataset: str
    seed: int
    accuracy: float
    loss: float
    finite: bool
    curve: tuple[tuple[int, float, float], ...]
    steps: int
    seconds: float
    statement: PrivacyStatement | None
    weights: Mapping[str, Tensor] = field(repr=False, compare=False)

    @property
    def noise_multiplier(self) -> float | None:
        return None if self.statement is None else self.statement.noise_multiplier

    @property
    def epsilon(self) -> float | None:
        return None if self.statement is None else self.statement.epsilon

    @property
    def delta(self) -> float | None:
        return None if self.statement is None else self.statement.delta

    def to_dict(self) -> dict[str, Any]:
        """All but the weights, for JSON: a loss that is no number is None."""

        def number(x: float) -> float | None:
            return x if math.isfinite(x) else None

        plain = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "weights"
        }
        return plain | {
            "recipe": dataclasses.asdict(self.recipe),
            "loss": number(self.loss),
            "curve": [(step, accuracy, number(loss)) for step, accuracy, loss in self.curve],
            "noise_multiplier": self.noise_multiplier,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "statement": None if self.statement is None else dataclasses.asdict(self.statement),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)


def train(
    recipe: Recipe,
    dataset: Dataset,
    *,
    seed: int = 0,
    insecure_noise: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate: int | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Train as ``recipe`` says on a dataset of `antiphase.data`.

    ``seed`` decides the first weights, the order of the batches and dropout, never the noise, and never which records
    Poisson sampling draws: those come from a new secret key. ``insecure_noise`` makes them a function of it and of
    ``seed``, for studies, and the statement says so. The global generators are left as they were.

    The test set is looked at every ``evaluate`` steps and at the end, the training data only by its noisy gradients.
    ``progress`` is called after every step; its report holds the newest accuracy and loss as ``metrics``.

    In the folder ``checkpoint`` the run keeps its key, its state (at least every epoch, and on Ctrl-C), and at the end
    ``model.safetensors``. ``resume`` goes on with the run that is there, if it is this one, and ends with the same
    weights, bit for bit, as if it had never stopped.
    """
    seed = check.whole_number("seed", seed, minimum=0)
    evaluate = None if evaluate is None else check.whole_number("evaluate", evaluate)
    folder = None if checkpoint is None else Path(checkpoint)
    if resume and folder is None:
        raise TypeError("resume = True needs checkpoint: the folder of the run to go on with")
    if folder is not None:
        if not recipe.is_planned:
            raise ValueError(
                f"mechanism = {recipe.mechanism!r} keeps no checkpoints here; leave checkpoint out"
            )
        identity = _identity(recipe, dataset, seed, insecure_noise)
        run_directory.refuse_another_run(folder, resume, identity)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        run = _Run(recipe, dataset, seed, run_directory.key(folder, insecure_noise), folder)
        if folder is not None:
            run_directory.begin(folder, run.key, identity)
            run.restore()
        with (
            _threads(run.work),
            _without_hook_warnings(),
            graceful_interrupt(folder is not None) as interrupted,
        ):
            for batch in itertools.islice(_endless(run.loader), run.steps - run.done):
                run.step(*batch)
                if evaluate is not None and run.done % evaluate == 0:
                    run.evaluate()
                if run.done % run.save_every == 0:
                    run.save()
                try:
                    if progress is not None:
                        progress(ProgressReport(run.done, run.steps, metrics=run.latest()))
                    if interrupted():
                        raise KeyboardInterrupt
                except KeyboardInterrupt:
                    run.save()
                    raise
            run.evaluate()
        run.save()
        return run.outcome()


class _Run:
    """A training under way: between two calls of `step` it can be saved, and restored elsewhere."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, seed: int, key: Key, folder: Path | None
    ) -> None:
        self.recipe, self.dataset, self.seed, self.key, self.folder = (
            recipe,
            dataset,
            seed,
            key,
            folder,
        )
        self.net = model(recipe.model, dataset.shape, len(dataset.classes))
        self.test = Table(dataset, dataset.test, recipe.inputs)
        table = Table(dataset, dataset.train, recipe.inputs)
        every = -(-len(table) // recipe.batch_size)
        self.steps, self.done, self.seconds = recipe.epochs * every, 0, 0.0
        self.save_every = min(every, -(-self.steps // CHECKPOINTS))
        self.work = recipe.batch_size * sum(p.numel() for p in self.net.parameters())
        self.curve: list[tuple[int, float, float]] = []
        sgd = torch.optim.SGD(
            self.net.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum, nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
        )  # fmt: skip
        self.scheduler = None
        if recipe.schedule != "constant":
            rate, steps = SCHEDULES[recipe.schedule], self.steps
            self.scheduler = torch.optim.lr_scheduler.LambdaLR(sgd, lambda t: rate(t / steps))
        self.module, self.criterion = self.net, nn.CrossEntropyLoss()
        self.optimizer: Any = sgd
        self.engine: PrivacyEngine | None = None
        self.amplified: Mechanism | None = None
        self.loader: Any = DataLoader(
            table,
            recipe.batch_size,
            shuffle=True,
            collate_fn=_collate,
            generator=torch.Generator().manual_seed(seed),
        )
        if not recipe.is_private:
            self.loader = fixed_order_loader(self.loader)
            return
        made = self._sampled() if recipe.is_sampled else self._planned()
        self.module, self.optimizer, self.loader = made[0], made[1], made[-1]
        if len(made) == 4:  # ghost clipping has a loss of its own
            self.criterion = made[2]
        if (
            recipe.is_planned and key.is_insecure
        ):  # a secret key draws the run's id at random, at the first step
            self.optimizer.release.begin(f"{key.subkey('run', str(seed)):032x}")

    def _planned(self) -> Any:
        recipe = self.recipe
        self.engine = _engine(recipe.mechanism, key=self.key, **recipe.options)
        how = self._parts() | {
            "epochs": recipe.epochs,
            "scheduler": self.scheduler,
            "poisson_sampling": False,
        }
        if recipe.epsilon is None:
            how["noise_multiplier"] = recipe.noise_multiplier
            return self.engine.make_private(target_delta=recipe.delta, **how)
        return self.engine.make_private_with_epsilon(
            target_epsilon=recipe.epsilon, target_delta=recipe.delta or 0.0, **how
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
        # PRIVACY: who is drawn must be as secret as the noise, or there is no amplification.   [G9]
        self.loader.generator = torch_generator(self.key, "samples", seed)
        return _engine("dp-sgd").make_private(
            noise_multiplier=self.amplified.noise_multiplier, poisson_sampling=True,
            noise_generator=torch_generator(self.key, "noise", seed), **self._parts(),
        )  # fmt: skip

    def _parts(self) -> dict[str, Any]:
        return {
            "module": self.net, "optimizer": self.optimizer, "criterion": self.criterion, "data_loader": self.loader,
            "max_grad_norm": self.recipe.clip_norm, "grad_sample_mode": self.recipe.grad_sample_mode,
        }  # fmt: skip

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        began = time.perf_counter()
        self.optimizer.zero_grad()
        self.criterion(self.module(inputs), targets).backward()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.done += 1
        self.seconds += time.perf_counter() - began

    def evaluate(self) -> None:
        if not self.curve or self.curve[-1][0] < self.done:
            self.curve.append((self.done, *score(self.module, self.test)))

    def latest(self) -> dict[str, float]:
        return (
            dict(zip(("accuracy", "loss"), self.curve[-1][1:], strict=True)) if self.curve else {}
        )

    def save(self) -> None:
        """What `restore` needs, and at the end the weights; whatever is there is replaced whole."""
        if self.folder is None or self.engine is None:
            return
        kept = {"curve": self.curve, "seconds": self.seconds}
        files.write_bytes(self.folder / "curve.json", json.dumps(kept).encode())
        self.engine.save_checkpoint(path=self.folder / "checkpoint", **self._state())
        if self.done == self.steps:
            files.write_bytes(self.folder / "model.safetensors", serialise(self.weights()))

    def restore(self) -> None:
        """Go on where the folder's checkpoint is, or write the first one: before any step, so that none is lost."""
        assert self.folder is not None
        assert self.engine is not None
        if not (self.folder / "checkpoint").exists():
            if any(ledger.stat().st_size for ledger in self.folder.glob("key.*.ledger")):
                # PRIVACY: to begin again would be a second release, and nobody would account for the first.   [G15]
                raise StateError(
                    f"{self.folder}: steps were released, and their checkpoint is gone. Put it back"
                )
            self.save()
            return
        curve, self.seconds = run_directory.curve(self.folder / "curve.json")
        self.engine.load_checkpoint(path=self.folder / "checkpoint", **self._state())
        self.done = self.steps - self.engine.remaining_steps
        self.curve = [point for point in curve if point[0] <= self.done]

    def _state(self) -> dict[str, Any]:
        return {"module": self.module, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}

    def outcome(self) -> Outcome:
        statement = None if self.engine is None else self.engine.statement(self.recipe.delta)
        if self.amplified is not None:
            statement = self.amplified.statement(released=self.done, insecure=self.key.is_insecure)
            statement = dataclasses.replace(statement, participation="whenever it is drawn")
            if not self.key.is_insecure:
                statement = dataclasses.replace(statement, noise_source=TWISTER)
        weights = self.weights()
        _, accuracy, loss = self.curve[-1]
        finite = math.isfinite(loss) and all(
            bool(torch.isfinite(w).all()) for w in weights.values()
        )
        return Outcome(
            self.recipe, self.dataset.name, self.seed, accuracy, loss, finite, tuple(self.curve), self.done,
            self.seconds, statement, weights,
        )  # fmt: skip


def _engine(mechanism: str, **options: Any) -> PrivacyEngine:
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Secure RNG turned off"
        )  # where that is so, the statement says it
        return PrivacyEngine(mechanism=mechanism, **options)


def score(module: nn.Module, table: Table, at_once: int = 1000) -> tuple[float, float]:
    """Accuracy and mean cross-entropy."""
    was, correct, loss = module.training, 0, 0.0
    module.eval()
    with torch.no_grad():
        for first in range(0, len(table), at_once):
            inputs, targets = table[first : first + at_once]
            scores = module(inputs)
            correct += int((scores.argmax(dim=1) == targets).sum())
            loss += float(nn.functional.cross_entropy(scores, targets, reduction="sum"))
    module.train(was)
    return correct / len(table), loss / len(table)


# ---- batches -----------------------------------------------------------------------------------------------


class Table(TorchDataset[Any]):
    """Inputs and targets in memory; a whole batch is fetched at once, ten times as fast as example by example."""

    def __init__(self, dataset: Dataset, split: Any, inputs: str) -> None:
        self.inputs, self.targets = torch.as_tensor(split.inputs), torch.as_tensor(split.targets)
        if inputs == "standard":
            if dataset.mean is None or dataset.std is None:
                raise ValueError(
                    f"inputs = 'standard': the dataset {dataset.name} has no public mean and deviation"
                )
            shape = (1, -1) + (1,) * (self.inputs.ndim - 2)
            mean, std = (
                torch.tensor(v, dtype=torch.float32).view(shape)
                for v in (dataset.mean, dataset.std)
            )
            self.inputs = (self.inputs - mean) / std

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self[torch.tensor(indices, dtype=torch.int64)]


def _collate(fetched: Any) -> Any:
    """A batch is one already; a list of single examples is what the engine's probe asks for."""
    return default_collate(fetched) if isinstance(fetched, list) else fetched


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


# ---- DP-SGD on Poisson samples -----------------------------------------------------------------------------

TWISTER = "drawn by Opacus with torch's Mersenne Twister, from a secret state; that is no cryptographic generator"


@lru_cache(maxsize=16)  # seconds each, and the same for every trial
def _amplified(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    clip_norm: float,
    rate: float,
    steps: int,
) -> Mechanism:
    made = design("dp-sgd", steps=steps, participation=min_separation(steps, apart=1))
    return calibrate(
        made, epsilon=epsilon, noise_multiplier=noise_multiplier, delta=delta, clip_norm=clip_norm,
        sampling=Poisson(rate),
    )  # fmt: skip


def torch_generator(key: Key, *purpose: str) -> torch.Generator:
    """A generator of torch's whose whole state is drawn from the key."""
    made = torch.Generator()
    state = made.get_state()
    # PRIVACY: torch's seeds are cut to 32 bits, few enough to try them all; the state has 19,968.   [G11]
    words = state.numpy()[24 : 24 + 8 * 624].view(
        np.uint64
    )  # after seed, position and flags; 32 bits in each
    words[:] = AESCounter(key=key.subkey("torch generator", *purpose)).random_raw(624) >> np.uint64(
        32
    )
    made.set_state(state)
    return made


def _identity(
    recipe: Recipe, dataset: Dataset, seed: int, insecure_noise: int | None
) -> dict[str, Any]:
    made = dataclasses.asdict(recipe) | {"data": dataset.name, "data digest": dataset.digest}
    same: dict[str, Any] = json.loads(
        json.dumps(made | {"seed": seed, "insecure_noise": insecure_noise})
    )
    return same


@contextlib.contextmanager
def _without_hook_warnings() -> Iterator[None]:
    """Without what torch says of Opacus' hooks on the first layer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


@contextlib.contextmanager
def _threads(work: int) -> Iterator[None]:
    """One thread for small models: faster, many times so on a busy machine."""
    before = torch.get_num_threads()
    if work < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
