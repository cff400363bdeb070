"""All choices of a whole training, and its outcome."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from antiphase._util import checks as check
from antiphase.design import designs
from antiphase.statement import PrivacyStatement
from antiphase.workload import SCHEDULES

NO_PRIVACY = "none"  # in place of a mechanism: plain SGD over the same batches


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All choices of a training. They are public: tuning them on private data costs privacy.

    Attributes:
        epochs: passes over the data.
        batch_size: examples of a batch; for Poisson samples the expected number.
        learning_rate: of SGD.
        mechanism: a name that `antiphase.design` knows, or "none": plain SGD over the same batches,
            without clipping, noise or privacy. "dp-sgd" is Opacus' own, on Poisson samples and with
            their amplification, unless ``poisson`` is False.
        options: of the design.
        poisson: whether "dp-sgd" trains on Poisson samples.
        epsilon: ε of the whole training; or give ``noise_multiplier``.
        noise_multiplier: of the whole training; or give ``epsilon``.
        delta: δ of the whole training.
        clip_norm: of the gradient of each example.
        model: as of `antiphase.torch.models.build_model`.
        momentum: of SGD.
        nesterov: whether the momentum is Nesterov's.
        weight_decay: of SGD.
        schedule: of the learning rate.
        inputs: "range": as the data set has them (images in [0, 1]); "standard": (x − mean)/std by
            its public constants.
        grad_sample_mode: as of `PrivacyEngine.make_private`.

    Raises:
        ValueError: if a value is not allowed.
        TypeError: if δ, or one of ε and the noise multiplier, is missing.

    Example:
        >>> recipe = Recipe(epochs=2, batch_size=40, learning_rate=0.5, epsilon=8.0, delta=1e-5)
        >>> recipe.is_planned
        True
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
        check.choice("mechanism", self.mechanism, (NO_PRIVACY, *designs()))
        object.__setattr__(self, "options", dict(self.options))
        if not self.is_private:
            return
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise TypeError(
                f"epsilon = {self.epsilon}, noise_multiplier = {self.noise_multiplier}: give one, "
                "the other follows"
            )
        if self.delta is None:
            raise TypeError(
                "delta = None: δ is yours to choose, well below one over the number of records"
            )

    @property
    def is_private(self) -> bool:
        """Whether gradients are clipped and noise is added."""
        return self.mechanism != NO_PRIVACY

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
    """The result of a training.

    Accuracy and loss are those on the test set. They follow from the released weights and the test
    set, so they cost no privacy as long as it shares no records with the training data; for the
    records of the test set itself they are not private.

    Attributes:
        recipe: what was trained.
        dataset: the name of the data set.
        seed: of the first weights and the order of the batches.
        accuracy: at the end.
        loss: mean cross-entropy at the end.
        finite: False if the training diverged.
        curve: (step, accuracy, loss) during the training.
        steps: steps done.
        seconds: of the steps alone.
        statement: the privacy statement; None without privacy.
        weights: of the model, by name.
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
    weights: Mapping[str, torch.Tensor] = field(repr=False, compare=False)

    @property
    def noise_multiplier(self) -> float | None:
        """The noise multiplier; None without privacy."""
        return None if self.statement is None else self.statement.noise_multiplier

    @property
    def epsilon(self) -> float | None:
        """ε of the statement; None without privacy."""
        return None if self.statement is None else self.statement.epsilon

    @property
    def delta(self) -> float | None:
        """δ of the statement; None without privacy."""
        return None if self.statement is None else self.statement.delta

    def to_dict(self) -> dict[str, Any]:
        """All but the weights, for JSON: a loss that is not finite is None."""

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
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
