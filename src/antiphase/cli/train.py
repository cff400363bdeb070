"""``antiphase train``: from data to a private model."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphase import accounting
from antiphase._util import files
from antiphase._util.progress import ProgressReport
from antiphase.cli import errors, output
from antiphase.cli.data import load_data
from antiphase.cli.errors import usage_error
from antiphase.cli.options import (
    DATA_HELP,
    MECHANISMS,
    CalibrationOptions,
    DataFolder,
    DisplayOptions,
    FiguresFolder,
    HtmlFile,
    LearningRate,
    MechanismOptions,
    OptimizerOptions,
    one_of,
    parse_options,
    require_writable,
    typed_command,
)
from antiphase.cli.progress import progress_bar
from antiphase.statement import PrivacyStatement, rounded_up

if TYPE_CHECKING:
    from antiphase.torch.training import Outcome, Recipe


@dataclass(frozen=True)
class TrainingOptimizerOptions(OptimizerOptions):
    """The optimizer, SGD, with the default learning rate of training."""

    lr: LearningRate = 0.5


@dataclass(frozen=True)
class ModelOptions:
    """The model, its inputs, and how its gradients are clipped."""

    model: Annotated[str, typer.Option(help="logistic, mlp, cnn, or module:function.")] = "logistic"
    inputs: Annotated[
        str,
        typer.Option(
            help="range: as they are; standard: by public mean and deviation.",
            click_type=one_of("range", "standard"),
        ),
    ] = "range"
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            help="How gradients are clipped.",
            click_type=one_of("hooks", "functorch", "ghost"),
        ),
    ] = "hooks"


@dataclass(frozen=True)
class TrialOptions:
    """How many trainings, with which seeds, and where their state is kept."""

    trials: Annotated[int, typer.Option(help="Number of trainings, each with its seed.", min=1)] = 1
    seed: Annotated[
        int, typer.Option(help="For initial weights and order, never for the noise.", min=0)
    ] = 0
    insecure_noise: Annotated[
        int | None, typer.Option(help="A seed for the noise: repeatable, but not private.")
    ] = None
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder for checkpoints and the noise key.")
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in that folder.")] = False

    def require_consistent_folder(self) -> None:
        """Refuse to overwrite a run, or to resume one that does not exist."""
        if self.checkpoint is None:
            if self.resume:
                raise usage_error("--resume needs --checkpoint: the folder of the run to resume")
        elif not self.resume and _has_files(self.checkpoint):
            raise FileExistsError(
                f"{self.checkpoint} is not empty: resume its run with --resume, or give another "
                "folder"
            )
        elif self.resume and self.trials == 1 and not (self.checkpoint / "run.json").exists():
            raise FileNotFoundError(
                f"{self.checkpoint}: there is no run to resume; start one without --resume"
            )

    def folder(self, seed: int) -> Path | None:
        """Return the folder of the trial with this seed."""
        if self.checkpoint is None or self.trials == 1:
            return self.checkpoint
        return self.checkpoint / f"seed-{seed}"

    def resumes(self, folder: Path | None) -> bool:
        """Whether the trial with this folder resumes a run, rather than starts one."""
        return self.resume and (self.trials == 1 or (folder is not None and _has_files(folder)))


def train(
    *,
    data: Annotated[str, typer.Option(help=DATA_HELP)],
    epochs: Annotated[int, typer.Option(help="How often each example takes part.", min=1)] = 1,
    batch_size: Annotated[int, typer.Option(help="Examples per step.", min=1)] = 64,
    mechanism: Annotated[
        str,
        typer.Option(
            help="As in design; dp-sgd: Poisson batches; none: no privacy.",
            click_type=one_of("none", *MECHANISMS),
            metavar="NAME",
        ),
    ] = "dp-mf+",
    option: MechanismOptions = None,
    fixed_order: Annotated[
        bool, typer.Option("--fixed-order", help="dp-sgd without Poisson batches.")
    ] = False,
    calibration: CalibrationOptions,
    architecture: ModelOptions,
    optimizer: TrainingOptimizerOptions,
    run: TrialOptions,
    folder: DataFolder = None,
    weights: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the weights, .safetensors.")
    ] = None,
    html: HtmlFile = None,
    figures: FiguresFolder = None,
    display: DisplayOptions,
) -> None:
    """Train a model with differential privacy and print its privacy statement.

    Example: antiphase train --data digits --epochs 4 --epsilon 8 --delta 1e-4
    """
    _require_budget(mechanism, calibration)
    if weights is not None and run.trials > 1:
        raise usage_error(f"--output is for one model, and there are {run.trials} trials")
    require_writable(weights, html)
    run.require_consistent_folder()
    from antiphase.torch.training import Recipe

    recipe = Recipe(
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=optimizer.lr,
        mechanism=mechanism,
        options=parse_options(option),
        poisson=not fixed_order,
        epsilon=calibration.epsilon,
        noise_multiplier=calibration.noise_multiplier,
        delta=calibration.delta,
        clip_norm=calibration.clip,
        model=architecture.model,
        momentum=optimizer.momentum,
        nesterov=optimizer.nesterov,
        weight_decay=optimizer.weight_decay,
        schedule=optimizer.schedule,
        inputs=architecture.inputs,
        grad_sample_mode=architecture.mode,
    )
    if run.checkpoint is not None and not recipe.is_planned:
        raise usage_error(
            "--checkpoint: runs without privacy, or of dp-sgd on Poisson batches, cannot be resumed"
        )
    dataset = load_data(data, folder, display.silent)
    outcomes = _run_trials(recipe, dataset, run, display.silent)
    written = _write_files(outcomes, weights, html, figures) if outcomes else []
    stopped = len(outcomes) < run.trials
    if display.as_json:
        output.print_json(_to_dict(outcomes) | {"stopped": stopped, "files": written})
    elif outcomes:
        _print(outcomes, dataset.name)
        output.print_files(written)
    if stopped:
        _report_interruption(len(outcomes), run)


def _require_budget(mechanism: str, calibration: CalibrationOptions) -> None:
    """Refuse a training whose privacy is not determined."""
    if mechanism == "none":
        if calibration.given:
            raise usage_error(
                "--mechanism none has no privacy: omit --epsilon, --delta and --noise-multiplier"
            )
    elif not calibration.given:
        raise usage_error(
            "give --epsilon or --noise-multiplier, and --delta; or --mechanism none for no privacy"
        )
    elif calibration.delta is None:
        raise usage_error("--delta is needed: well below one over the number of examples")


def _has_files(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())


def _run_trials(recipe: Recipe, dataset: Any, run: TrialOptions, silent: bool) -> list[Outcome]:
    """Return the outcomes of all trials, or of those before Ctrl-C."""
    from antiphase.torch.training import train as train_model

    outcomes: list[Outcome] = []
    steps = recipe.epochs * -(-len(dataset.train) // recipe.batch_size)
    description = f"training, {recipe.mechanism}"
    bar = progress_bar(silent, description, "{task.fields[accuracy]}", accuracy="")
    with bar as update:
        for trial in range(run.trials):
            folder = run.folder(run.seed + trial)
            try:
                outcome = train_model(
                    recipe,
                    dataset,
                    seed=run.seed + trial,
                    insecure_noise=run.insecure_noise,
                    checkpoint=folder,
                    resume=run.resumes(folder),
                    evaluate=max(steps // 20, 1),
                    progress=_trial_progress(update, trial, run.trials, steps),
                )
            except KeyboardInterrupt:
                break
            outcomes.append(outcome)
    return outcomes


def _trial_progress(
    update: Callable[..., None], trial: int, trials: int, steps: int
) -> Callable[[ProgressReport], None]:
    def report(now: ProgressReport) -> None:
        update(
            completed=trial * steps + now.done,
            total=trials * steps,
            accuracy=f"accuracy {now.metrics['accuracy']:.1%}" if now.metrics else "",
        )

    return report


def _write_files(
    outcomes: list[Outcome], weights: Path | None, html: Path | None, figures_folder: Path | None
) -> list[Path]:
    written: list[Path] = []
    if figures_folder is not None or html is not None:
        from antiphase.reporting import figures, page, training_report

        curves = training_report.curves(outcomes)
        if figures_folder is not None:
            written += figures.draw(figures_folder / "training", curves)
        if html is not None:
            written.append(page.write(html, training_report.page(outcomes, typed_command())))
    if weights is not None:
        from safetensors.torch import save

        files.write_bytes(weights, save(dict(outcomes[0].weights)))
        written.append(weights)
    return written


def _to_dict(outcomes: list[Outcome]) -> dict[str, Any]:
    from antiphase.reporting.training_report import mean_accuracy, standard_error

    return {
        "trials": [outcome.to_dict() for outcome in outcomes],
        "accuracy": mean_accuracy(outcomes) if outcomes else None,
        "standard_error": standard_error(outcomes),
    }


def _print(outcomes: list[Outcome], data: str) -> None:
    from antiphase.reporting.training_report import label, mean_accuracy, standard_error

    first = outcomes[0]
    rows = [
        [
            str(outcome.seed),
            f"{outcome.accuracy:.2%}{'' if outcome.finite else ' (diverged)'}",
            f"{outcome.loss:.4f}",
            str(outcome.steps),
            output.format_seconds(outcome.seconds),
        ]
        for outcome in outcomes
    ]
    headings = ("seed", "test accuracy", "test loss", "steps", "time")
    title = f"{label(first)} on {data}"
    output.print_table(output.number_table(*headings, title=title, rows=rows))
    error = standard_error(outcomes)
    if error is not None:
        mean = mean_accuracy(outcomes)
        output.print_text(f"mean {mean:.2%} ± {error:.2%} (standard error)\n")
    if first.statement is None:
        output.print_text("Not private: trained without clipping and noise.")
        return
    print(first.statement)
    if len(outcomes) > 1:
        output.print_text(
            f"That holds for each trial alone; if all {len(outcomes)} are released, they are "
            f"together ({_epsilon_of_all(first.statement, len(outcomes))}, {first.delta:g})-differentially private."
        )


def _epsilon_of_all(one: PrivacyStatement, count: int) -> str:
    """Return ε of ``count`` trainings with independent noise, rounded up."""
    if one.mu is None:
        assert one.sampling_rate is not None
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


def _report_interruption(done: int, run: TrialOptions) -> None:
    message = f"by Ctrl-C; {done} of {output.plural(run.trials, 'trial')} done"
    if run.checkpoint is not None:
        arguments = [word for word in sys.argv[1:] if word != "--resume"]
        message += f". Resume with: {shlex.join(['antiphase', *arguments, '--resume'])}"
    errors.interrupted(message)
