"""``antiphase train``: from data to a private model."""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from antiphase import accounting
from antiphase._util import files
from antiphase.cli import errors, options, output
from antiphase.cli.commands import one_of
from antiphase.cli.data import load_data
from antiphase.cli.design import default_tolerance
from antiphase.cli.errors import usage_error
from antiphase.cli.progress import training_bar
from antiphase.cli.report import ReportOptions
from antiphase.mechanism import load
from antiphase.reporting import training_report
from antiphase.reporting.training_report import mean_accuracy, standard_error
from antiphase.statement import PrivacyStatement, rounded_up

if TYPE_CHECKING:
    from antiphase.torch.recipe import Outcome, Recipe

CLIPPING_MODES = ("hooks", "functorch", "ghost")
INPUTS = ("range", "standard")


MECHANISM = one_of("none", *options.MECHANISMS)


def _name_or_file(word: str) -> str:
    """Parse the name of a mechanism, or the path of a file with one."""
    return word if _is_path(word) else str(MECHANISM["parser"](word))


def _is_path(word: str) -> bool:
    return bool(Path(word).suffix) or "/" in word or Path(word).exists()


@dataclass(frozen=True)
class TrainingOptimizer(options.Optimizer):
    """The optimizer, SGD, with the default learning rate of training."""

    lr: options.LearningRate = 0.5


@dataclass(frozen=True)
class TrainingCalibration(options.Calibration):
    """The privacy budget; a mechanism file may lack only δ."""

    def __post_init__(self) -> None:
        if self.delta is None or self.given:
            super().__post_init__()


@dataclass(frozen=True)
class RecipeOptions:
    """What is trained, and by which mechanism."""

    epochs: Annotated[int, Option(help="Number of epochs.", min=1)] = 1
    batch_size: Annotated[int, Option(help="Examples per step.", min=1)] = 64
    mechanism: Annotated[
        str,
        Option(
            help="As in design; a file that design wrote; or none, for no privacy.",
            metavar="NAME|FILE",
            parser=_name_or_file,
            autocompletion=MECHANISM["autocompletion"],
        ),
    ] = "dp-mf+"
    option: options.MechanismOptions = None
    fixed_order: Annotated[bool, Option("--fixed-order", help="dp-sgd in a fixed order.")] = False
    model: Annotated[str, Option(help="logistic, mlp, cnn, or module:function.")] = "logistic"
    inputs: Annotated[
        str,
        Option(help="As they are, or standardised.", **one_of(*INPUTS)),
    ] = "range"
    mode: Annotated[
        str,
        Option(
            "--mode",
            "--grad-sample-mode",
            help="How per-example gradients are computed.",
            **one_of(*CLIPPING_MODES),
        ),
    ] = "hooks"

    def recipe(self, calibration: options.Calibration, optimizer: options.Optimizer) -> Recipe:
        """Return the recipe of the training."""
        from antiphase.torch.recipe import Recipe

        return Recipe(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=optimizer.lr,
            mechanism=load(self.mechanism) if _is_path(self.mechanism) else self.mechanism,
            options=options.parse_options(self.option),
            poisson=not self.fixed_order,
            epsilon=calibration.epsilon,
            noise_multiplier=calibration.noise_multiplier,
            delta=calibration.delta,
            clip_norm=calibration.clip,
            model=self.model,
            momentum=optimizer.momentum,
            nesterov=optimizer.nesterov,
            weight_decay=optimizer.weight_decay,
            schedule=optimizer.schedule,
            inputs=self.inputs,
            grad_sample_mode=self.mode,
        )


@dataclass(frozen=True)
class TrialOptions:
    """How many trainings, with which seeds, and where their state is kept."""

    trials: Annotated[int, Option(help="Trainings, with successive seeds.", min=1)] = 1
    seed: Annotated[int, Option(help="Seed of weights and batches, not of the noise.", min=0)] = 0
    insecure_noise: Annotated[int | None, Option(help="Seed for noise: not private.")] = None
    checkpoint: Annotated[Path | None, Option(help="Folder for checkpoints and key.")] = None
    resume: Annotated[bool, Option("--resume", help="Resume the run in that folder.")] = False

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
    data: Annotated[str, Option(help=options.DATA_HELP)],
    training: RecipeOptions,
    calibration: TrainingCalibration,
    optimizer: TrainingOptimizer,
    run: TrialOptions,
    folder: options.DataFolder = None,
    weights: Annotated[Path | None, Option("--output", "-o", help="File for the weights.")] = None,
    report: ReportOptions,
    statement: Annotated[
        bool, Option("--statement", help="Print the whole privacy statement.")
    ] = False,
    display: options.Display,
) -> None:
    """Train a model with differential privacy.

    Test accuracy and the privacy guarantee are printed; with --statement also what the guarantee
    assumes and does not cover. dp-sgd uses Poisson batches unless --fixed-order is given. A
    mechanism file must be designed for as many steps and epochs as the training has. Inputs
    are standardised by public constants. Weights are written as .safetensors.

    Example: antiphase train --data digits --epochs 4 --epsilon 8 --delta 1e-4
    """
    if not _is_path(training.mechanism):
        _require_budget(training.mechanism, calibration)
    if weights is not None and run.trials > 1:
        raise usage_error(f"--output is for one model, and there are {run.trials} trials")
    options.require_writable(weights, report.html, folders=(report.figures,))
    run.require_consistent_folder()
    recipe = training.recipe(calibration, optimizer)
    if run.checkpoint is not None and not recipe.is_planned:
        raise usage_error(
            "--checkpoint: runs without privacy, or of dp-sgd on Poisson batches, cannot be resumed"
        )
    dataset = load_data(data, folder, display.silent)
    outcomes = _run_trials(recipe, dataset, run, display.silent)
    written: list[Path] = []
    if outcomes:
        written += report.write(
            lambda: {"training": training_report.curves(outcomes)},
            partial(training_report.page, outcomes),
        )
        written += _write_weights(weights, outcomes[0])
    stopped = len(outcomes) < run.trials
    if display.as_json:
        output.print_json(_to_dict(outcomes) | {"stopped": stopped, "files": written})
    elif outcomes:
        _print(outcomes, dataset.name, statement)
        output.print_files(written)
    if stopped:
        _report_interruption(len(outcomes), run)


def _require_budget(mechanism: str, calibration: options.Calibration) -> None:
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
    phase = "designing" if recipe.is_planned else "calibrating" if recipe.is_private else "training"
    tolerance = recipe.options.get("tolerance") or default_tolerance(steps, recipe.epochs)
    with training_bar(silent, phase, recipe.name, run.trials, tolerance) as report:
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
                    progress=partial(report, trial=trial),
                )
            except KeyboardInterrupt:
                break
            outcomes.append(outcome)
    return outcomes


def _write_weights(path: Path | None, outcome: Outcome) -> list[Path]:
    if path is None:
        return []
    from safetensors.torch import save

    files.write_bytes(path, save(dict(outcome.weights)))
    return [path]


def _to_dict(outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "trials": [outcome.to_dict() for outcome in outcomes],
        "accuracy": mean_accuracy(outcomes) if outcomes else None,
        "standard_error": standard_error(outcomes),
    }


def _print(outcomes: list[Outcome], data: str, whole_statement: bool) -> None:
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
    title = f"{training_report.label(first)} on {data}"
    output.print_table(output.number_table(*headings, title=title, rows=rows))
    error = standard_error(outcomes)
    if error is not None:
        mean = mean_accuracy(outcomes)
        output.print_text(f"mean {mean:.2%} ± {error:.2%} (standard error)\n")
    if first.statement is None:
        output.print_text("Not private: trained without clipping and noise.")
        return
    output.print_statement(first.statement, short=not whole_statement)
    count = len(outcomes)
    if count > 1:
        output.print_paragraph(
            f"That holds for each trial alone; all {count} together are "
            f"({_epsilon_of_all(first.statement, count)}, {first.delta:g})-differentially private."
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
    if run.checkpoint is None:
        errors.interrupted(f"{message}. --checkpoint FOLDER would keep a run to resume")
    if not any(run.checkpoint.rglob("run.json")):
        errors.interrupted(f"{message}. There is nothing to resume: no training had begun")
    arguments = [word for word in sys.argv[1:] if word != "--resume"]
    command = shlex.join(["antiphase", *arguments, "--resume"])
    errors.interrupted(f"{message}. Resume with:", command)
