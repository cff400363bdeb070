"""``antiphase recommend``: recommends a mechanism for a setting."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from antiphase.cli import console
from antiphase.cli.compare import (
    Parameters,
    Tolerance,
    _number,
    _reporter,
    _setting,
    _setting_arguments,
)
from antiphase.cli.console import (
    Clip,
    Decay,
    Delta,
    Epochs,
    Epsilon,
    Json,
    Momentum,
    Nesterov,
    Quiet,
    Rate,
    Schedule,
    Steps,
    misused,
    out,
)

if TYPE_CHECKING:
    from antiphase.comparison import Entry


def recommend(
    steps: Steps,
    epochs: Epochs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    poisson: Annotated[
        bool, typer.Option("--poisson", help="Batches can be true Poisson samples.")
    ] = False,
    smoothness: Annotated[
        float | None,
        typer.Option(
            help="A typical curvature of the loss, with --lr: errors fade by 1 − lr·curvature."
        ),
    ] = None,
    spectrum: Annotated[
        Path | None,
        typer.Option(
            help="Curvatures of the loss on public data: JSON, a list, or values and weights.",
            metavar="FILE",
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            help="With --spectrum, what counts: the last model (usual), or the average over the way.",
            click_type=console.one_of("last", "average"),
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="With --spectrum and --initial-gap: for a range of learning rates.", min=1
        ),
    ] = None,
    initial_gap: Annotated[
        float | None,
        typer.Option(help="How much loss there is to gain: for k classes at most log k."),
    ] = None,
    clip: Clip = 1.0,
    lr: Rate = 1.0,
    schedule: Schedule = "constant",
    momentum: Momentum = 0.0,
    nesterov: Nesterov = False,
    weight_decay: Decay = 0.0,
    parameters: Parameters = 100_000,
    tolerance: Tolerance = 1e-3,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recommend a mechanism for a setting, with the reason. No private data are looked at.

    Example: antiphase recommend --steps 256 --epochs 4 --epsilon 8 --delta 1e-5
    """
    from antiphase.recommendation import recommend as recommended
    from antiphase.theory.spectrum import Spectrum

    known = {"--criterion": criterion, "--batch-size": batch_size, "--initial-gap": initial_gap}
    unused = [name for name, value in known.items() if value is not None and spectrum is None]
    if unused:
        raise misused(f"{unused[0]} needs --spectrum: without, nothing is known of the loss")
    if spectrum is not None and smoothness is not None:
        raise misused("--smoothness and --spectrum: give one")
    if poisson and epsilon is None:
        raise misused("--poisson needs --epsilon and --delta: what it brings depends on them")
    if smoothness is not None and not 0 <= lr * smoothness <= 1:
        raise misused(
            f"--lr × --smoothness = {lr * smoothness:g} must be between 0 and 1, or training diverges"
        )
    setting = _setting(
        steps, console.participation(steps, epochs, None),
        console.optimizer(steps, lr, schedule, momentum, nesterov, weight_decay),
        epsilon=epsilon, delta=delta, parameters=parameters,
    )  # fmt: skip
    damping = None if smoothness is None else 1 - lr * smoothness
    with console.bar(quiet or as_json, "{task.fields[gap]}") as progress:
        found = recommended(
            setting, poisson=poisson, damping=damping, spectrum=None if spectrum is None else Spectrum.load(spectrum),
            criterion=criterion or "last", batch_size=batch_size, clip_norm=clip, initial_gap=initial_gap,
            tolerance=tolerance, progress=_reporter(progress, tolerance),
        )  # fmt: skip
    if as_json:
        console.print_json(found.to_dict())
        return
    out.print(f"For {setting.describe()}, take [bold]{found.best.label}[/].\n")
    for reason in found.reasons:
        out.print(escape(textwrap.fill(reason, 100, initial_indent="• ", subsequent_indent="  ")))
    out.print("\n" + textwrap.fill("Assumptions: " + "; ".join(found.assumptions) + ".", 100))
    plan = _setting_arguments(steps, epochs, lr, schedule, momentum, nesterov, weight_decay)
    if setting.epsilon is not None:
        plan += ["--epsilon", _number(setting.epsilon), "--delta", f"{setting.delta:g}"]
    out.print(f"\nTo use it: {_how_to_use(found.best, plan)}")


def _how_to_use(best: Entry, plan: list[str]) -> str:
    if best.amplified:
        return "antiphase train --mechanism dp-sgd …"
    if best.name == "curvature":
        return 'antiphase.design("curvature", spectrum=…) in Python, with the spectrum given here'
    options = [
        w
        for k, v in best.candidate.options.items()
        for w in (f"--{k.replace('_', '-')}", _number(v))
    ]
    return shlex.join(["antiphase", "design", best.name, *plan, *options, "-o", "plan.antiphase"])
