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
from antiphase._util.values import digest
from antiphase.design import designs
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.participation import from_epochs
from antiphase.sampling import FIXED_ORDER
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
        mechanism: a name that `antiphase.design` knows; or what it returned, calibrated or not; or
            "none": plain SGD over the same batches, without clipping, noise or privacy. "dp-sgd" is
            Opacus' own, on Poisson samples and with their amplification, unless ``poisson`` is
            False.
        options: of a design by name.
        poisson: whether "dp-sgd" trains on Poisson samples.
        epsilon: ε of the whole training; or give ``noise_multiplier``. A mechanism that is
            calibrated has both already.
        noise_multiplier: of the whole training; or give ``epsilon``.
        delta: δ of the whole training; by default that of the mechanism.
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
    mechanism: str | Factorization | Mechanism = "dp-mf+"
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
        object.__setattr__(self, "options", dict(self.options))
        if self.factorization is None:
            check.choice("mechanism", self.mechanism, (NO_PRIVACY, *designs()))
        elif self.options:
            raise TypeError(
                f"options = {self.options}: the mechanism is designed already; give them to "
                "antiphase.design"
            )
        if isinstance(self.mechanism, Mechanism):
            self._adopt(self.mechanism)
        elif self.is_private:
            self._require_budget()

    def _adopt(self, mechanism: Mechanism) -> None:
        """Take δ from a calibrated mechanism; refuse what contradicts it."""
        for name in ("epsilon", "noise_multiplier"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} = {getattr(self, name):g}: the mechanism is calibrated already, with "
                    f"noise multiplier {mechanism.noise_multiplier:g}. Leave {name} out, or give a "
                    "design that is not calibrated"
                )
        if self.clip_norm != mechanism.clip_norm:
            raise ValueError(
                f"clip_norm = {self.clip_norm:g} must be that of the calibrated mechanism, "
                f"{mechanism.clip_norm:g}"
            )
        if mechanism.amplified:
            raise ValueError(
                f"mechanism: its ε holds for batches drawn by {mechanism.sampling.name}, and "
                "training here draws them in a fixed order. Calibrate it without a sampler, or "
                "train with PrivacyEngine and antiphase.torch.batch_sampler_for"
            )
        if self.delta is None:
            object.__setattr__(self, "delta", mechanism.target_delta)
        self._require_delta()

    def _require_budget(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise TypeError(
                f"epsilon = {self.epsilon}, noise_multiplier = {self.noise_multiplier}: give one, "
                "the other follows"
            )
        self._require_delta()

    def _require_delta(self) -> None:
        if self.delta is None:
            raise TypeError(
                "delta = None: δ is yours to choose, well below one over the number of records"
            )

    @property
    def factorization(self) -> Factorization | None:
        """What was designed already; None if the mechanism is given by name."""
        if isinstance(self.mechanism, Mechanism):
            return self.mechanism.factorization
        return self.mechanism if isinstance(self.mechanism, Factorization) else None

    @property
    def name(self) -> str:
        """Name of the mechanism."""
        return str(self.mechanism if self.factorization is None else self.factorization.name)

    @property
    def is_private(self) -> bool:
        """Whether gradients are clipped and noise is added."""
        return self.name != NO_PRIVACY

    @property
    def is_sampled(self) -> bool:
        """Whether batches are Poisson samples."""
        return self.factorization is None and self.name == "dp-sgd" and self.poisson

    @property
    def is_planned(self) -> bool:
        """Whether noise comes from a plan of ours: such a run can be resumed."""
        return self.is_private and not self.is_sampled

    def require_fit(self, examples: int) -> None:
        """Refuse data that the batch size, or a mechanism that is designed already, does not fit.

        Args:
            examples: number of training examples.

        Raises:
            ValueError: with what would fit.
        """
        if self.batch_size > examples:
            raise ValueError(
                f"batch_size = {self.batch_size} must be at most the number of training examples, "
                f"{examples}"
            )
        f = self.factorization
        if f is None:
            return
        every = -(-examples // self.batch_size)
        if f.steps != self.epochs * every:
            raise ValueError(
                f"steps = {f.steps} of the mechanism must be those of the training, "
                f"{self.epochs * every}: epochs = {self.epochs}, of {every} batches of "
                f"{self.batch_size} from {examples} examples. Design it with steps = "
                f"{self.epochs * every} and epochs = {self.epochs}, or change epochs or batch_size"
            )
        # The participation ledger would refuse a later step; this is before any.
        own, needed = f.participation, from_epochs(f.steps, self.epochs)
        if own.max_participations < self.epochs or (
            self.epochs > 1
            and (own.separation != every if own.fixed_order else own.separation > every)
        ):
            raise ValueError(
                f"participation = {own.describe()} of the mechanism must allow that of the "
                f"training, {needed.describe()}. Design it with epochs = {self.epochs}"
            )

    def to_dict(self) -> dict[str, Any]:
        """All choices, for JSON: a mechanism that was given is its name and digest."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["poisson"] = self.is_sampled
        given = None
        if isinstance(self.mechanism, Mechanism):
            given = self.mechanism.digest
        elif self.factorization is not None:
            given = digest(self.factorization.content())
        return values | {"mechanism": self.name, "mechanism_digest": given}


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
            "recipe": self.recipe.to_dict(),
            "sampler": FIXED_ORDER.name if self.statement is None else self.statement.sampler,
            "sampling_rate": None if self.statement is None else self.statement.sampling_rate,
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
