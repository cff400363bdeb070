"""``antiphase recommend``: recommend a mechanism for a setting."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from antiphase import recommendation
from antiphase.cli import options, output
from antiphase.cli.commands import one_of
from antiphase.cli.errors import usage_error
from antiphase.cli.progress import candidates_bar
from antiphase.cli.setting import setting_from
from antiphase.comparison import Entry
from antiphase.recommendation import Recommendation
from antiphase.sampling import AMPLIFYING, FIXED_ORDER, CyclicPoisson
from antiphase.theory.spectrum import Spectrum


@dataclass(frozen=True)
class PossibleBatches(options.BatchSampling):
    """How batches can be drawn."""

    sampler: Annotated[
        str,
        Option(
            help=f"How batches can be drawn: {FIXED_ORDER.name}, {', '.join(AMPLIFYING)}.",
            **one_of(FIXED_ORDER.name, *AMPLIFYING, metavar="NAME"),
        ),
    ] = FIXED_ORDER.name


@dataclass(frozen=True)
class LossOptions:
    """What is known of the loss."""

    smoothness: Annotated[
        float | None, Option(help="Curvature of the loss, assumed the same in all directions.")
    ] = None
    spectrum: Annotated[
        Path | None, Option(help="Curvatures on public data, in JSON.", metavar="FILE")
    ] = None
    criterion: Annotated[
        str | None, Option(help="Iterates that count.", **one_of("last", "average"))
    ] = None
    batch_size: Annotated[int | None, Option(help="Batch size, for learning rates.", min=1)] = None
    initial_gap: Annotated[
        float | None, Option(help="Loss at the start minus its minimum, for learning rates.")
    ] = None

    def __post_init__(self) -> None:
        if self.spectrum is None:
            for option in ("criterion", "batch_size", "initial_gap"):
                if getattr(self, option) is not None:
                    raise usage_error(f"--{option.replace('_', '-')} needs --spectrum")
        elif self.smoothness is not None:
            raise usage_error("--smoothness and --spectrum: give one")

    def damping(self, lr: float) -> float | None:
        """Return the share of an error that is left after a step."""
        if self.smoothness is None:
            return None
        if not 0 <= lr * self.smoothness <= 1:
            raise usage_error(
                f"--lr × --smoothness = {lr * self.smoothness:g} must be between 0 and 1, or "
                "training diverges"
            )
        return 1 - lr * self.smoothness


def recommend(
    *,
    length: options.Epochs,
    budget: options.Budget,
    sampling: PossibleBatches,
    loss: LossOptions,
    clip: options.ClipNorm = 1.0,
    optimizer: options.Optimizer,
    parameters: options.Parameters = 100_000,
    tolerance: options.Tolerance = 1e-3,
    display: options.Display,
) -> None:
    """Recommend a mechanism for a setting.

    With reasons; no private data are used.

    What is known of the loss is either --smoothness, with which errors decay by 1 − lr·curvature
    in every step, or --spectrum: a list of curvatures, or values and weights. With a spectrum,
    --batch-size and --initial-gap (for k classes at most log k) give a range of learning rates.

    Example: antiphase recommend --steps 256 --epochs 4 --epsilon 8 --delta 1e-5
    """
    damping = loss.damping(optimizer.lr)
    setting = setting_from(length, budget, sampling, optimizer, parameters)
    with candidates_bar(display.silent, tolerance) as report:
        found = recommendation.recommend(
            setting,
            damping=damping,
            spectrum=None if loss.spectrum is None else Spectrum.load(loss.spectrum),
            criterion=loss.criterion or "last",
            batch_size=loss.batch_size,
            clip_norm=clip,
            initial_gap=loss.initial_gap,
            tolerance=tolerance,
            progress=report,
        )
    if display.as_json:
        output.print_json(found.to_dict())
    else:
        groups = (length, optimizer, budget)
        _print(found, [argument for group in groups for argument in _arguments(group)])


def _print(found: Recommendation, arguments: list[str]) -> None:
    output.print_paragraph(f"For {found.comparison.setting.describe()}, take {found.best.label}.")
    output.print_text()
    for reason in found.reasons:
        output.print_paragraph(reason, bullet="• ")
    output.print_text()
    output.print_paragraph("Assumptions: " + "; ".join(found.assumptions) + ".")
    output.print_text(f"\nTo use it: {_how_to_use(found.best, arguments)}")


def _how_to_use(best: Entry, arguments: list[str]) -> str:
    if best.name == "dp-sgd" and best.amplified:
        return "antiphase train --mechanism dp-sgd …"
    if best.name == "curvature":
        return 'antiphase.design("curvature", spectrum=…) in Python, with the same spectrum'
    sampling = best.mechanism.sampling
    if isinstance(sampling, CyclicPoisson) and "--epochs" in arguments:
        place = arguments.index("--epochs")  # the number of bands determines the participation
        del arguments[place : place + 2]
    for name, value in best.candidate.options.items():
        arguments += _argument(name, value)
    if best.mechanism.adjacency != "zero-out":
        arguments += _argument("adjacency", best.mechanism.adjacency)
    if sampling.amplifies:
        arguments += _argument("sampler", sampling.name)
    if sampling.rate is not None:
        arguments += _argument("sampling_rate", sampling.rate)
    return shlex.join(["antiphase", "design", best.name, *arguments, "-o", "plan.antiphase"])


def _arguments(group: Any) -> list[str]:
    """Return the command-line arguments of a group of options that differ from the defaults."""
    arguments: list[str] = []
    for field in fields(group):
        value = getattr(group, field.name)
        if value != field.default:
            arguments += _argument(field.name, value)
    return arguments


def _argument(name: str, value: Any) -> list[str]:
    """Return an option with its value, as short as it can be typed.

    >>> _argument("final_weight", 16.0), _argument("lr", 0.1), _argument("nesterov", True)
    (['--final-weight', '16'], ['--lr', '0.1'], ['--nesterov'])
    """
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return [option]
    whole = isinstance(value, float) and value.is_integer()
    return [option, str(int(value)) if whole else str(value)]
