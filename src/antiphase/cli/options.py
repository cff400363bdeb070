"""Options that several commands share.

A command takes a group of options as one parameter, whose type is a dataclass of this module:
`expand_groups` makes each of its fields an option.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import math
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from typer import Argument, BadParameter, Option

from antiphase.accounting.accountant import ADJACENCIES
from antiphase.cli.errors import suggestion, usage_error
from antiphase.design import designs
from antiphase.participation import Participation, from_epochs, min_separation
from antiphase.sampling import AMPLIFYING, FIXED_ORDER, Sampling, has_rate, parse
from antiphase.workload import SCHEDULES, Workload

MECHANISMS = tuple(designs())


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command whose type is a dataclass by the dataclass's fields."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            annotations = get_type_hints(groups[name], include_extras=True)
            parameters += [
                field.replace(
                    kind=parameter.KEYWORD_ONLY,
                    annotation=_with_own_errors(annotations[field.name]),
                )
                for field in inspect.signature(groups[name]).parameters.values()
            ]
        else:
            parameters.append(
                parameter.replace(
                    kind=parameter.KEYWORD_ONLY, annotation=_with_own_errors(hints[name])
                )
            )

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{f.name: values.pop(f.name) for f in fields(group)})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def help_text(command: Callable[..., None]) -> str:
    """Return the docstring of a command as its help: paragraphs of one line, and an example.

    Lines of an example are kept (by a backspace, as in Click) and continued by a backslash, so that
    it can be copied.
    """
    *paragraphs, example = (inspect.getdoc(command) or "").split("\n\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return "\n\n".join([*paragraphs, "\b\n" + " \\\n".join(example.splitlines())])


def one_of(*words: str, metavar: str | None = None) -> dict[str, Any]:
    """Return the arguments of an option whose value is one of these words."""

    def parse(word: str) -> str:
        if word not in words:
            similar = suggestion(word, words)
            rule = f"is not known{similar}" if similar else f"must be one of {', '.join(words)}"
            raise BadParameter(f"= {word}: {rule}")
        return word

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return {
        "parser": parse,
        "autocompletion": complete,
        "metavar": metavar or f"[{'|'.join(words)}]",
    }


def _number(kind: type, least: float | None) -> dict[str, Any]:
    """Return the attributes of an option whose value is a number."""
    noun = "a whole number" if kind is int else "a number"
    rule = noun if least is None else f"{noun} of at least {least:g}"

    def parse(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or (least is not None and value < least):
            raise BadParameter(f"= {text}: must be {rule}")
        return value

    return {"parser": parse, "metavar": "INTEGER" if kind is int else "FLOAT", "min": None}


def _with_own_errors(annotation: Any) -> Any:
    """Return the type of a parameter whose number, if it is one, is parsed by `_number`.

    So that errors are the same with every version of Typer.
    """
    kind, *infos = get_args(annotation) or [annotation]
    for number in (int, float):
        if kind in (number, number | None) and infos:
            info = copy.copy(infos[0])
            vars(info).update(_number(number, info.min))
            return Annotated[kind, info]
    return annotation


MechanismFile = Annotated[Path, Argument(help="A mechanism file.", show_default=False)]
Epsilon = Annotated[float | None, Option(help="Privacy budget ε.", show_default=False)]
Delta = Annotated[float | None, Option(help="δ, well below 1/records.", show_default=False)]
ClipNorm = Annotated[float, Option("--clip", "--clip-norm", help="Norm gradients are clipped to.")]
LearningRate = Annotated[
    float, Option("--lr", "--learning-rate", help="Learning rate; the first of a schedule.")
]
DATA_HELP = "digits, mnist, fashion-mnist, cifar10; or your folder, .npz or .csv."
DataFolder = Annotated[Path | None, Option(help="Folder with the files of a known data set.")]
Parameters = Annotated[int, Option(help="Number of model parameters.", min=1)]
Tolerance = Annotated[float, Option(help="Certified gap at which designs stop.")]
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

    steps: Annotated[int, Option(help="Number of steps.", min=1, show_default=False)]
    epochs: Annotated[int, Option(help="Epochs: participations per record.", min=1)] = 1

    def participation(self) -> Participation:
        """Return the participation that the options describe."""
        every = -(-self.steps // self.epochs)
        if (self.epochs - 1) * every >= self.steps:
            raise usage_error(
                f"--epochs {self.epochs} does not fit --steps {self.steps}: with {every} "
                f"step{'s' * (every > 1)} an epoch there are only {-(-self.steps // every)}"
            )
        return from_epochs(self.steps, self.epochs)


@dataclass(frozen=True)
class ParticipationPattern(Epochs):
    """Length of the training, with a fixed order or a minimum separation."""

    separation: Annotated[
        int | None, Option(help="Minimum separation of participations, for any order.", min=1)
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
        Option(help="Instead of --epsilon: noise over sensitivity.", show_default=False),
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
        str, Option(help="How neighbouring data sets differ.", **one_of(*ADJACENCIES))
    ] = "zero-out"
    sampler: Annotated[
        str | None,
        Option(help="How batches are drawn.", **one_of(*AMPLIFYING), show_default=False),
    ] = None
    sampling_rate: Annotated[
        float | None, Option(help="Probability that a record is in a batch.", show_default=False)
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
            raise usage_error("--sampling-rate is for --sampler poisson and cyclic-poisson")

    def require_rate(self) -> None:
        """Refuse a sampler without its sampling rate, and a fixed order with add-remove."""
        self.require_no_stray_rate()
        if self.sampling_rate is None and self.has_rate:
            raise usage_error(f"--sampler {self.sampler} needs --sampling-rate")
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
            raise usage_error(f"{pair!r} must be name=value, as in tau=128")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value.strip()
    return options


def require_writable(*paths: Path | None) -> None:
    """Refuse files that cannot be written, before any work is done for them."""
    for path in filter(None, paths):
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path}: folder {path.parent} does not exist; create it first")


def typed_command() -> str:
    """Return the command line as it was typed."""
    return shlex.join(["antiphase", *sys.argv[1:]])
