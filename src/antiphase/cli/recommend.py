"""``antiphase recommend``: recommend a mechanism for a setting."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase import recommendation
from antiphase.cli import output
from antiphase.cli.errors import usage_error
from antiphase.cli.options import (
    BudgetOptions,
    ClipNorm,
    DisplayOptions,
    EpochOptions,
    OptimizerOptions,
    Parameters,
    Tolerance,
    one_of,
)
from antiphase.cli.progress import candidates_bar
from antiphase.comparison import Entry, Setting
from antiphase.recommendation import Recommendation
from antiphase.theory.spectrum import Spectrum


@dataclass(frozen=True)
class LossOptions:
    """What is known of the loss."""

    smoothness: Annotated[
        float | None,
        typer.Option(
            help="A typical curvature of the loss: errors decay by 1 − lr·curvature a step."
        ),
    ] = None
    spectrum: Annotated[
        Path | None,
        typer.Option(
            help="Curvatures of the loss on public data: JSON, a list, or values and weights.",
            metavar="FILE",
        ),
    ] = None
    criterion: Annotated[
        str | None,
        typer.Option(
            help="With --spectrum: loss of the last iterate (default), or average over iterates.",
            click_type=one_of("last", "average"),
        ),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(help="With --spectrum and --initial-gap: for learning rates.", min=1),
    ] = None
    initial_gap: Annotated[
        float | None,
        typer.Option(help="With --spectrum: loss to gain; for k classes at most log k."),
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
    length: EpochOptions,
    budget: BudgetOptions,
    poisson: Annotated[
        bool, typer.Option("--poisson", help="Batches can be true Poisson samples.")
    ] = False,
    loss: LossOptions,
    clip: ClipNorm = 1.0,
    optimizer: OptimizerOptions,
    parameters: Parameters = 100_000,
    tolerance: Tolerance = 1e-3,
    display: DisplayOptions,
) -> None:
    """Recommend a mechanism for a setting, with reasons. No private data are used.

    Example: antiphase recommend --steps 256 --epochs 4 --epsilon 8 --delta 1e-5
    """
    if poisson and not budget.given:
        raise usage_error("--poisson needs --epsilon and --delta: amplification depends on them")
    damping = loss.damping(optimizer.lr)
    setting = Setting(
        optimizer.workload(length.steps),
        length.participation(),
        epsilon=budget.epsilon,
        delta=budget.delta,
        parameters=parameters,
    )
    with candidates_bar(display.silent, tolerance) as report:
        found = recommendation.recommend(
            setting,
            poisson=poisson,
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
        _print(found, [*_arguments(length), *_arguments(optimizer), *_arguments(budget)])


def _print(found: Recommendation, arguments: list[str]) -> None:
    output.print_text(f"For {found.comparison.setting.describe()}, take {found.best.label}.\n")
    for reason in found.reasons:
        output.print_paragraph(reason, bullet="• ")
    output.print_text()
    output.print_paragraph("Assumptions: " + "; ".join(found.assumptions) + ".")
    output.print_text(f"\nTo use it: {_how_to_use(found.best, arguments)}")


def _how_to_use(best: Entry, arguments: list[str]) -> str:
    if best.amplified:
        return "antiphase train --mechanism dp-sgd …"
    if best.name == "curvature":
        return 'antiphase.design("curvature", spectrum=…) in Python, with the same spectrum'
    for name, value in best.candidate.options.items():
        arguments += _argument(name, value)
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
