"""``antiphase train``, ``data`` and ``demo``: from data to a private model."""

from __future__ import annotations

import math
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase._util.progress import ProgressReport
from antiphase.cli import console
from antiphase.cli.console import (
    MECHANISMS,
    Clip,
    Decay,
    Delta,
    Epsilon,
    Json,
    Momentum,
    Multiplier,
    Nesterov,
    Quiet,
    Schedule,
    misused,
    one_of,
    out,
)

Folder = Annotated[
    Path | None, typer.Option(help="Folder that has the files of a data set known by name.")
]


def train(
    data: Annotated[
        str,
        typer.Option(help="digits, mnist, fashion-mnist, cifar10; or your folder, .npz or .csv."),
    ],
    epochs: Annotated[int, typer.Option(help="How often each example takes part.", min=1)] = 1,
    batch_size: Annotated[int, typer.Option(help="Examples a step.", min=1)] = 64,
    lr: Annotated[
        float,
        typer.Option("--lr", "--learning-rate", help="Learning rate, the first of a schedule."),
    ] = 0.5,
    mechanism: Annotated[
        str,
        typer.Option(
            help="As in design; dp-sgd: Poisson batches; none: no privacy.",
            click_type=one_of("none", *MECHANISMS),
            metavar="NAME",
        ),
    ] = "dp-mf+",
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: Multiplier = None,
    clip: Clip = 1.0,
    model: Annotated[
        str, typer.Option(help="logistic, mlp, cnn, or module:function.")
    ] = "logistic",
    momentum: Momentum = 0.0,
    nesterov: Nesterov = False,
    weight_decay: Decay = 0.0,
    schedule: Schedule = "constant",
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Of the mechanism, as in tau=128.")
    ] = None,
    fixed_order: Annotated[
        bool, typer.Option("--fixed-order", help="dp-sgd without Poisson batches.")
    ] = False,
    inputs: Annotated[
        str,
        typer.Option(
            help="range: as they are; standard: by public mean and deviation.",
            click_type=one_of("range", "standard"),
        ),
    ] = "range",
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="How gradients are clipped.",
            click_type=one_of("hooks", "functorch", "ghost"),
        ),
    ] = "hooks",
    trials: Annotated[int, typer.Option(help="Train so often, with the next seeds.", min=1)] = 1,
    seed: Annotated[
        int, typer.Option(help="For first weights and order, never for the noise.", min=0)
    ] = 0,
    insecure_noise: Annotated[
        int | None, typer.Option(help="A seed for the noise too: repeatable, and protects nobody.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints and the noise key.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in that folder.")
    ] = False,
    folder: Folder = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the weights, .safetensors.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page that opens in any browser.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the training curves, SVG and PNG.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model with differential privacy, and say what is promised.

    Example: antiphase train --data digits --epochs 4 --epsilon 8 --delta 1e-4
    """
    _check(mechanism, epsilon, delta, noise_multiplier, nesterov and not momentum)
    if output is not None and trials > 1:
        raise misused(f"--output keeps one model, and there are {trials} trials")
    console.check_output(output, html)
    _check_folder(checkpoint, resume, trials)
    from antiphase.torch.training import Recipe

    recipe = Recipe(
        epochs=epochs, batch_size=batch_size, learning_rate=lr, mechanism=mechanism,
        options=console.options_of(option), poisson=not fixed_order, epsilon=epsilon,
        noise_multiplier=noise_multiplier, delta=delta, clip_norm=clip, model=model, momentum=momentum,
        nesterov=nesterov, weight_decay=weight_decay, schedule=schedule, inputs=inputs, grad_sample_mode=mode,
    )  # fmt: skip
    if checkpoint is not None and not recipe.is_planned:
        raise misused(
            "--checkpoint: runs without privacy, or of dp-sgd on Poisson batches, cannot be resumed"
        )
    hush = quiet or as_json
    dataset = load(data, folder, hush)
    outcomes, stopped = _trials(
        recipe, dataset, seed, trials, insecure_noise, checkpoint, resume, hush
    )
    written = _report(outcomes, html, figures) if outcomes else []
    if output is not None and outcomes:
        _save_weights(output, outcomes[0].weights)
        written.append(output)
    if as_json:
        totals = {"stopped": stopped, "files": [str(path) for path in written]} | _summary(outcomes)
        console.print_json({"trials": [o.to_dict() for o in outcomes]} | totals)
    elif outcomes:
        _print(outcomes, dataset)
        for path in written:
            out.print(f"Written to {path}")
    if stopped:
        again = shlex.join(["antiphase", *(w for w in sys.argv[1:] if w != "--resume"), "--resume"])
        how = f". Go on with: {again}" if checkpoint is not None else ""
        console.stop(f"by Ctrl-C, {len(outcomes)} of {trials} trial{'s' * (trials > 1)} done{how}")


# ---- inside ------------------------------------------------------------------------------------------------


def _check(
    mechanism: str,
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    nesterov_alone: bool,
) -> None:
    """Refuse what is no promise, or a promise where nothing is private."""
    if nesterov_alone:
        raise misused("--nesterov needs --momentum above 0")
    if mechanism == "none":
        if (epsilon, delta, noise_multiplier) != (None, None, None):
            raise misused(
                "--mechanism none has no privacy: leave --epsilon, --delta and --noise-multiplier out"
            )
        return
    console.check_promise(epsilon, delta, noise_multiplier)
    if epsilon is None and noise_multiplier is None:
        raise misused(
            "give --epsilon or --noise-multiplier, and --delta; or --mechanism none for no privacy"
        )
    if delta is None:
        raise misused(
            "--delta is needed, and yours to choose: well below one over the number of examples"
        )


def _check_folder(checkpoint: Path | None, resume: bool, trials: int) -> None:
    if checkpoint is None:
        if resume:
            raise misused("--resume needs --checkpoint: the folder of the run to go on with")
    elif not resume and checkpoint.exists() and any(checkpoint.iterdir()):
        raise FileExistsError(
            f"{checkpoint} is not empty: go on with its run by --resume, or give another folder"
        )
    elif resume and trials == 1 and not (checkpoint / "run.json").exists():
        raise FileNotFoundError(
            f"{checkpoint}: there is no run to go on with; begin one without --resume"
        )


def load(name: str, folder: Path | None, quiet: bool) -> Any:
    """The data set, with a bar while bytes come in."""
    from antiphase import data

    with console.bar(quiet) as progress:
        tasks: dict[str, Any] = {}

        def report(now: ProgressReport) -> None:
            if now.task not in tasks:
                tasks[now.task] = progress.add_task(now.task, total=now.total)
            progress.update(tasks[now.task], completed=now.done, total=now.total)

        return data.load(name, folder=folder, progress=report)


def _trials(
    recipe: Any, dataset: Any, seed: int, trials: int, insecure: int | None, checkpoint: Path | None, resume: bool,
    quiet: bool,
) -> tuple[list[Any], bool]:  # fmt: skip
    """All trials, or those before Ctrl-C."""
    from antiphase.torch.training import train as run

    outcomes: list[Any] = []
    steps = recipe.epochs * -(-len(dataset.train) // recipe.batch_size)
    with console.bar(quiet, "{task.fields[accuracy]}") as progress:
        task = progress.add_task(f"training, {recipe.mechanism}", total=None, accuracy="")

        def reporter(trial: int) -> Callable[..., None]:
            def report(now: ProgressReport) -> None:
                shown = f"accuracy {now.metrics['accuracy']:.1%}" if now.metrics else ""
                progress.update(
                    task, completed=trial * steps + now.done, total=trials * steps, accuracy=shown
                )

            return report

        for trial in range(trials):
            place = checkpoint
            if checkpoint is not None and trials > 1:
                place = checkpoint / f"seed-{seed + trial}"
            there = trials == 1 or (place is not None and place.exists() and any(place.iterdir()))
            try:
                outcomes.append(
                    run(
                        recipe, dataset, seed=seed + trial, insecure_noise=insecure, checkpoint=place,
                        resume=resume and there, evaluate=max(steps // 20, 1), progress=reporter(trial),
                    )
                )  # fmt: skip
            except KeyboardInterrupt:
                return outcomes, True
    return outcomes, False


def _summary(outcomes: list[Any]) -> dict[str, Any]:
    accuracies = [o.accuracy for o in outcomes]
    mean = statistics.fmean(accuracies) if accuracies else None
    spread = statistics.stdev(accuracies) / len(accuracies) ** 0.5 if len(accuracies) > 1 else None
    return {"accuracy": mean, "standard_error": spread}


def _print(outcomes: list[Any], dataset: Any) -> None:
    first = outcomes[0]
    rows = [
        [str(o.seed), f"{o.accuracy:.2%}{'' if o.finite else ' (diverged)'}", f"{o.loss:.4f}", str(o.steps),
         console.seconds(o.seconds)]
        for o in outcomes
    ]  # fmt: skip
    title = f"{_label(first.recipe.mechanism)} on {dataset.name}"
    console.show(
        console.columns(
            "seed", "test accuracy", "test loss", "steps", "time", title=title, rows=rows
        )
    )
    total = _summary(outcomes)
    if total["standard_error"] is not None:
        out.print(
            f"mean {total['accuracy']:.2%} ± {total['standard_error']:.2%} (standard error)\n"
        )
    if first.statement is None:
        out.print("Not private: trained without clipping and noise.")
        return
    print(first.statement)
    if len(outcomes) > 1:
        out.print(
            f"That is for each trial alone; all {len(outcomes)}, if they are released, are together "
            f"({_together(outcomes)}, {first.delta:g})-differentially private."
        )


def _label(mechanism: str) -> str:
    from antiphase.candidates import LABELS

    return "no privacy" if mechanism == "none" else LABELS.get(mechanism, mechanism)


def _together(outcomes: list[Any]) -> str:
    """ε of all trials, whose noise is independent: rounded up."""
    from antiphase import accounting
    from antiphase.statement import rounded_up

    one, count = outcomes[0].statement, len(outcomes)
    if one.mu is None:
        epsilon = accounting.poisson_epsilon(
            one.noise_multiplier,
            one.delta,
            sampling_rate=one.sampling_rate,
            steps=one.steps * count,
        )
    else:
        # PRIVACY: separate Gaussian mechanisms: their μ² add up.   [G15]
        epsilon = accounting.gaussian_epsilon((1 - 1e-12) / (one.mu * math.sqrt(count)), one.delta)
    return rounded_up(epsilon)


def _save_weights(path: Path, weights: Any) -> None:
    from safetensors.torch import save

    from antiphase._util import files

    files.write_bytes(path, save(dict(weights)))


def _report(outcomes: list[Any], html: Path | None, folder: Path | None) -> list[Path]:
    if html is None and folder is None:
        return []
    from datetime import UTC, datetime

    from antiphase import __version__
    from antiphase.reporting import charts, figures, page

    recipe, name = outcomes[0].recipe, outcomes[0].recipe.mechanism
    label = _label(name)
    curves = charts.training_curves(
        [
            {"name": charts.NON_PRIVATE if name == "none" else name, "label": label, "steps": [p[0] for p in o.curve],
             "accuracies": [p[1] for p in o.curve]}
            for o in outcomes
        ]
    )  # fmt: skip
    written = []
    if folder is not None:
        written += list(figures.draw(folder / "training", curves))
    if html is not None:
        total, promise = _summary(outcomes), ""
        if recipe.is_private:
            promise = f" with ε = {outcomes[0].epsilon:.4g} at δ = {recipe.delta:g}"
        columns = [
            page.Column("seed", "seed"),
            page.Column("accuracy", "test accuracy", "%", better="high", digits=4),
            page.Column("loss", "test loss", better="low", digits=4),
            page.Column("steps", "steps", digits=0),
            page.Column("seconds", "time", "s", digits=3),
        ]
        rows = [
            {
                "seed": str(o.seed),
                "accuracy": 100 * o.accuracy,
                "loss": o.loss,
                "steps": o.steps,
                "seconds": o.seconds,
            }
            for o in outcomes
        ]
        spread = (
            "" if total["standard_error"] is None else f" ± {100 * total['standard_error']:.2g}"
        )
        made = page.Page(
            title=f"antiphase: {label} on {outcomes[0].dataset}",
            question=f"How well does a {recipe.model} model do on {outcomes[0].dataset}{promise}?",
            answer=f"It reaches {100 * total['accuracy']:.1f}{spread} % on test data{promise}.",
            points=[
                f"{_count(len(outcomes), 'trial')}, {_count(recipe.epochs, 'epoch')}, batches of {recipe.batch_size}."
            ],
            grids=[page.Grid("Trials", columns, rows)],
            charts=[curves],
            statements=[outcomes[0].statement] if outcomes[0].statement is not None else [],
            reproduce=[console.command()],
            notes=_notes(outcomes[0]),
            made=f"antiphase {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        )
        written.append(page.write(html, made))
    return written


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _notes(outcome: Any) -> list[str]:
    if outcome.statement is None:
        return ["Nothing here is private: there was neither clipping nor noise."]
    if outcome.statement.noise_source.startswith("INSECURE"):
        return ["The noise came from a seed that can be guessed: it repeats, and protects nobody."]
    return ["The noise is drawn from a new secret key every time: results repeat in distribution."]
