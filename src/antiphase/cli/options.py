"""Options that several commands share.

A command takes a group of options as one parameter, whose type is a dataclass of this module; see
`antiphase.cli.commands.expand_groups`.
"""

from __future__ import annotations

import errno
import json
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from antiphase.accounting.accountant import ADJACENCIES
from antiphase.cli.commands import one_of
from antiphase.cli.errors import usage_error
from antiphase.design import designs
from antiphase.participation import Participation, from_epochs, min_separation
from antiphase.sampling import AMPLIFYING, FIXED_ORDER, Sampling, has_rate, parse
from antiphase.workload import SCHEDULES, Workload

MECHANISMS = tuple(designs())

MechanismFile = Annotated[Path, Argument(help="A mechanism file.", show_default=False)]
Epsilon = Annotated[
    float | None, Option(help="Privacy budget ε of the whole training.", show_default=False)
]
Delta = Annotated[
    float | None, Option(help="δ, well below one over the number of records.", show_default=False)
]
ClipNorm = Annotated[
    float,
    Option(
        "--clip", "--clip-norm", "--max-grad-norm", help="Maximum norm of one example's gradient."
    ),
]
LearningRate = Annotated[
    float, Option("--lr", "--learning-rate", help="Learning rate; the first of a schedule.")
]
DATA_HELP = "digits, mnist, fashion-mnist, cifar10; or your folder, .npz or .csv."
DataFolder = Annotated[Path | None, Option(help="Folder with the files of a known data set.")]
Parameters = Annotated[int, Option(help="Number of model parameters.", min=1)]
Tolerance = Annotated[float, Option(help="Relative gap at which designs stop.")]
MechanismOptions = Annotated[
    list[str] | None, Option("--option", help="Another option of the mechanism, as name=value.")
]
Json = Annotated[bool, Option("--json", help="Print JSON to standard output, nothing else.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="No progress and no hints.")]


@dataclass(frozen=True)
class Display:
    """What is printed."""

    as_json: Json = False
    quiet: Quiet = False

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.quiet or self.as_json


@dataclass(frozen=True)
class Epochs:
    """Length of the training."""

    steps: Annotated[int, Option(help="Number of optimizer steps.", min=1, show_default=False)]
    epochs: Annotated[int, Option(help="Epochs: how often a record is used.", min=1)] = 1

    def participation(self) -> Participation:
        """Return the participation that the options describe."""
        every = -(-self.steps // self.epochs)
        if (self.epochs - 1) * every >= self.steps:
            raise usage_error(
                f"--epochs {self.epochs} does not fit --steps {self.steps}: with {every} "
                f"step{'s' * (every > 1)} an epoch there are only {-(-self.steps // every)}. Give "
                f"that many epochs, or --steps {self.epochs * every}"
            )
        return from_epochs(self.steps, self.epochs)


@dataclass(frozen=True)
class ParticipationPattern(Epochs):
    """Length of the training, with a fixed order or a minimum separation."""

    separation: Annotated[
        int | None,
        Option(help="Instead of a fixed order: least steps between two uses of a record.", min=1),
    ] = None

    def participation(self) -> Participation:
        """Return the participation that the options describe."""
        if self.separation is not None:
            return min_separation(self.epochs, self.separation)
        return super().participation()


@dataclass(frozen=True)
class Optimizer:
    """The optimizer, SGD."""

    lr: LearningRate = 1.0
    schedule: Annotated[str, Option(help="Learning-rate schedule.", **one_of(*SCHEDULES))] = (
        "constant"
    )
    momentum: Annotated[float, Option(help="Momentum, below 1.", min=0.0)] = 0.0
    nesterov: Annotated[bool, Option("--nesterov", help="Nesterov momentum.")] = False
    weight_decay: Annotated[float, Option(help="Weight decay.", min=0.0)] = 0.0

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise usage_error("--nesterov needs --momentum above 0")

    def workload(self, steps: int) -> Workload:
        """Return the workload of that many steps."""
        shape = SCHEDULES[self.schedule]
        rates: Any = self.lr
        if self.schedule != "constant":
            rates = [self.lr * shape(t / steps) for t in range(steps)]
        return Workload.sgd(
            steps,
            learning_rates=rates,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


@dataclass(frozen=True)
class Budget:
    """The privacy budget."""

    epsilon: Epsilon = None
    delta: Delta = None

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.delta is None:
            raise usage_error("--epsilon needs --delta: well below one over the number of records")
        if self.delta is not None and not self.given:
            raise usage_error("--delta needs --epsilon")

    @property
    def given(self) -> bool:
        """Whether the noise multiplier follows from the options."""
        return self.epsilon is not None


@dataclass(frozen=True)
class Calibration(Budget):
    """The privacy budget, or the noise multiplier instead; and the clip norm."""

    noise_multiplier: Annotated[
        float | None,
        Option(
            help="Instead of --epsilon: the standard deviation of the noise over clip norm and "
            "sensitivity.",
            show_default=False,
        ),
    ] = None
    clip: ClipNorm = 1.0

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise usage_error("give one of --epsilon and --noise-multiplier; the other follows")
        super().__post_init__()

    @property
    def given(self) -> bool:
        """Whether the noise multiplier is given, or follows from the options."""
        return self.epsilon is not None or self.noise_multiplier is not None

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of `antiphase.calibrate`."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "clip_norm": self.clip,
        }


@dataclass(frozen=True)
class BatchSampling:
    """Adjacency and the sampling of batches."""

    adjacency: Annotated[
        str, Option(help="Which data sets are neighbours.", **one_of(*ADJACENCIES))
    ] = "zero-out"
    sampler: Annotated[
        str | None,
        Option(
            help="How batches are drawn, for privacy amplification. By default they have a fixed "
            "order.",
            **one_of(*AMPLIFYING),
            show_default=False,
        ),
    ] = None
    sampling_rate: Annotated[
        float | None,
        Option(
            "--sampling-rate",
            "--sample-rate",
            help="Probability that a record is in a batch.",
            show_default=False,
        ),
    ] = None

    @property
    def has_rate(self) -> bool:
        """Whether the sampler has a sampling rate."""
        return self.sampler is not None and has_rate(self.sampler)

    def scheme(self, default_rate: float | None = None) -> Sampling:
        """Return the sampling scheme, with a default rate for one that needs a rate."""
        if self.sampler is None:
            return FIXED_ORDER
        use_default = self.has_rate and self.sampling_rate is None
        return parse(self.sampler, default_rate if use_default else self.sampling_rate)

    def require_no_stray_rate(self) -> None:
        """Refuse a sampling rate without a sampler that has one."""
        if self.sampling_rate is not None and not self.has_rate:
            raise usage_error(
                f"--sampling-rate {self.sampling_rate:g} is for --sampler poisson and "
                "cyclic-poisson: give one of them, or omit it"
            )

    def require_rate(self) -> None:
        """Refuse a sampler without its sampling rate, and a fixed order with add-remove."""
        self.require_no_stray_rate()
        if self.sampling_rate is None and self.has_rate:
            raise usage_error(
                f"--sampler {self.sampler} needs --sampling-rate: the probability that a record "
                "is in a batch"
            )
        if self.adjacency == "add-remove" and self.sampler is None:
            raise usage_error(
                "--adjacency add-remove is for Poisson batches: in a fixed order one record more "
                "would shift all later batches. Take zero-out or replace-one"
            )

    def arguments(self) -> dict[str, Any]:
        """Return the options as arguments of `antiphase.calibrate`."""
        return {"adjacency": self.adjacency, "sampling": self.scheme()}


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """Return options given as ``name=value``; values are JSON, or else strings.

    >>> parse_options(["tau=128", "anchor=end", "include_final=true"])
    {'tau': 128, 'anchor': 'end', 'include_final': True}
    """
    options: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not re.fullmatch(r"[a-z_]+", name):
            raise usage_error(f"option {pair!r} must be name=value, as in tau=128")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value.strip()
    return options


def require_writable(*paths: Path | None, folders: tuple[Path | None, ...] = ()) -> None:
    """Refuse files and folders that cannot be written, before any work is done for them."""
    for path in filter(None, paths):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "", str(path))
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path}: there is no folder {path.parent}; create it first")
        try:
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise OSError(
                f"{path} cannot be written ({error.strerror}); give another folder"
            ) from error
    for folder in filter(None, folders):
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder}: is a file; give a folder")


def typed_command() -> str:
    """Return the command line as it was typed."""
    return shlex.join(["antiphase", *sys.argv[1:]])
