"""``antiphase design``: design a mechanism and write it to a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import antiphase as ap
from antiphase._util.interrupts import graceful_interrupt
from antiphase._util.progress import ProgressReport
from antiphase.band_selection import BAND_OPTIONS, design_for_cyclic_poisson
from antiphase.cli import errors, options, output
from antiphase.cli.commands import one_of
from antiphase.cli.errors import usage_error
from antiphase.cli.progress import SearchProgress, progress_bar
from antiphase.cli.report import FiguresFolder, draw_figures
from antiphase.comparison.candidates import LABELS
from antiphase.factorizations.base import Factorization
from antiphase.reporting import charts
from antiphase.solvers.dispatch import multi_epoch_tolerance
from antiphase.statement import rounded_up


@dataclass(frozen=True)
class DesignOptions:
    """Options of the mechanism."""

    tau: Annotated[int | None, Option(help="dp-mf+: steps between restarts (all).")] = None
    rho: Annotated[float | None, Option(help="damped: share of an error left by a step.")] = None
    final_weight: Annotated[float | None, Option(help="Weight of the last iterate (1).")] = None
    option: options.MechanismOptions = None
    bands: Annotated[str | None, Option(help="Number of diagonals of the encoder, or auto.")] = None
    buffers: Annotated[str | None, Option(help="Number of vectors in memory, auto or exact.")] = (
        None
    )
    tolerance: Annotated[float | None, Option(help="Relative gap to stop at.")] = None

    def given(self) -> dict[str, Any]:
        """Return the options that were given, as `antiphase.design` takes them."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("bands", "buffers"):
            if str(named[name]).isdecimal():
                named[name] = int(named[name])
        other = options.parse_options(named.pop("option"))
        return other | {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Result:
    """A design, calibrated if a budget was given."""

    factorization: Any
    mechanism: Any = None
    tried: Sequence[Any] = ()
    stopped: bool = False

    def save(self, path: Path) -> str:
        """Write the mechanism, or else the design, and return its digest."""
        return str((self.mechanism or self.factorization).save(path))


def design(
    name: Annotated[
        str, Argument(help="The mechanism.", **one_of(*options.MECHANISMS, metavar="NAME"))
    ],
    *,
    length: options.ParticipationPattern,
    settings: DesignOptions,
    optimizer: options.Optimizer,
    calibration: options.Calibration,
    sampling: options.BatchSampling,
    file: Annotated[Path | None, Option("--output", "-o", help="File to write.")] = None,
    figures: FiguresFolder = None,
    display: options.Display,
) -> None:
    """Design a mechanism and write it to a file.

    Printed are its error, a lower bound that is certified for every mechanism, and the gap
    between the two.

    NAME is one of dp-sgd, anti-pgd, chess, tree, sqrt-toeplitz, fourier, bisr, lambda-cgd,
    toeplitz, banded, blt, epoch-restarts, dp-mf, dp-mf+, damped, curvature, optimal.
    With --epsilon and --delta (or --noise-multiplier) it is calibrated too, ready to train with.

    Example: antiphase design dp-mf+ --steps 256 --epochs 4
               --epsilon 8 --delta 1e-5 -o plan.antiphase
    """
    sampling.require_rate()
    if not calibration.given and (calibration.clip, sampling) != (1.0, options.BatchSampling()):
        raise usage_error("--clip, --adjacency and --sampler need --epsilon and --delta")
    options.require_writable(file, folders=(figures,))
    workload = optimizer.workload(length.steps)
    budget = calibration.arguments() | sampling.arguments()
    if sampling.sampler == "cyclic-poisson" or settings.bands == "auto":
        _require_cyclic_sampling(name, length, sampling)
        result = _design_for_cyclic_sampling(name, settings, workload, budget, display.silent)
    else:
        f, stopped = _design(name, settings, workload, length, display.silent)
        mechanism = ap.calibrate(f, **budget) if calibration.given else None
        result = Result(f, mechanism, stopped=stopped)
    digest = None if file is None else result.save(file)
    drawn = [] if figures is None else draw_figures(figures, _charts(result.factorization))
    if display.as_json:
        output.print_json(_to_dict(result) | {"file": file, "digest": digest, "figures": drawn})
        sys.exit(errors.EXIT_INTERRUPTED if result.stopped else 0)
    output.print_facts(_design_facts(result) | _mechanism_facts(result))
    if file is not None:
        kind = "design" if result.mechanism is None else "mechanism"
        output.print_text(f"\nWritten to {file} ({kind}, {str(digest)[:16]}…)")
    output.print_files(drawn)
    if result.stopped:
        errors.interrupted("by Ctrl-C; the design so far was kept")
    output.print_glossary(display.quiet)
    if file is None:
        output.print_hint("The design was not saved; give -o FILE to save it.", display.quiet)
    elif result.mechanism is None:
        calibrate = f"antiphase calibrate {file} --epsilon … --delta … -o …"
        output.print_hint(f"To calibrate it: {calibrate}", display.quiet)


def _design(
    name: str,
    settings: DesignOptions,
    workload: ap.Workload,
    length: options.ParticipationPattern,
    silent: bool,
) -> tuple[Factorization, bool]:
    """Return the design and whether it was stopped by Ctrl-C."""
    participation = length.participation()
    tolerance = settings.tolerance or default_tolerance(length.steps, length.epochs)
    search = SearchProgress(tolerance)
    bar = progress_bar(silent, f"designing {name}", "{task.fields[gap]}", total=1.0, gap="")
    with bar as update, graceful_interrupt() as stopped:

        def report(now: ProgressReport) -> bool:
            if now.gap is not None:
                update(completed=search.share(now.gap), gap=f"gap {now.gap:.0e}")
            return stopped()

        given = settings.given()
        f = ap.design(
            name, workload=workload, participation=participation, progress=report, **given
        )
        _ = f.lower_bound  # computed here, within the progress bar
        return f, stopped()


def _require_cyclic_sampling(
    name: str, length: options.ParticipationPattern, sampling: options.BatchSampling
) -> None:
    if (length.epochs, length.separation) != (1, None):
        raise usage_error(
            "--epochs and --separation: with cyclic Poisson sampling the number of bands "
            "determines the participation"
        )
    if sampling.sampler != "cyclic-poisson":
        raise usage_error("--bands auto is for --sampler cyclic-poisson")
    if name not in BAND_OPTIONS:
        raise usage_error(
            f"--sampler cyclic-poisson needs a banded design: {', '.join(BAND_OPTIONS)}"
        )


def _design_for_cyclic_sampling(
    name: str, settings: DesignOptions, workload: ap.Workload, budget: dict[str, Any], silent: bool
) -> Result:
    """Design with the given number of bands, or with the best one for the budget."""
    given = settings.given()
    bands = given.pop("bands", given.pop(BAND_OPTIONS[name], "auto"))
    if given:
        raise usage_error(
            f"{next(iter(given))}: with --sampler cyclic-poisson, --bands is the only option"
        )
    if bands != "auto":
        f = design_for_cyclic_poisson(name, bands, workload)
        return Result(f, ap.calibrate(f, **budget))
    if budget.pop("noise_multiplier") is not None:
        raise usage_error(
            "--bands auto needs --epsilon and --delta: the best number depends on them"
        )
    with progress_bar(silent, f"designing {name}") as update:
        best = ap.select_bands(
            name,
            workload=workload,
            progress=lambda now: update(description=f"designing {name}: tried {now.task}"),
            **budget,
        )
    return Result(best.mechanism.factorization, best.mechanism, best.trials)


def default_tolerance(steps: int, epochs: int) -> float:
    """Return the gap at which `antiphase.design` stops by default."""
    return 1e-9 if epochs == 1 else multi_epoch_tolerance(steps)


def _errors(result: Result) -> dict[str, Any]:
    """Sensitivity, error, certified bound and gap.

    With Poisson samples the sensitivity is that of one participation, and there is no bound: the
    certified one is for batches in a fixed order.
    """
    f, mechanism = result.factorization, result.mechanism
    if mechanism is None or mechanism.sampling.rate is None:
        shown = ("sensitivity", "error", "lower_bound", "gap")
        return {name: getattr(f, name) for name in shown}
    error = (mechanism.sensitivity / f.sensitivity) ** 2 * f.error
    return {"sensitivity": mechanism.sensitivity, "error": error, "lower_bound": None, "gap": None}


def _to_dict(result: Result) -> dict[str, Any]:
    f, mechanism = result.factorization, result.mechanism
    calibrated = ("noise_multiplier", "clip_norm", "adjacency")
    delta = None if mechanism is None else mechanism.target_delta
    sampling = getattr(mechanism, "sampling", None)
    return {
        "name": f.name,
        "options": {k: v for k, v in f.options.items() if isinstance(v, int | float | str)},
        "steps": f.steps,
        "participation": f.participation.describe(),
        "workload": f.workload.describe(),
        "form": f.form,
        "buffers": getattr(f, "buffers", None),
        "sensitivity_is_exact": f.sensitivity_is_exact,
        **_errors(result),
        **{name: getattr(mechanism, name, None) for name in calibrated},
        "sampler": getattr(sampling, "name", None),
        "sampling_rate": getattr(sampling, "rate", None),
        "epsilon": None if delta is None else mechanism.epsilon(),
        "delta": delta,
        "tried": [vars(trial) for trial in result.tried],
        "stopped": result.stopped,
    }


def _design_facts(result: Result) -> dict[str, str]:
    f = result.factorization
    options = "".join(f", {k} = {v:g}" for k, v in f.options.items() if isinstance(v, int | float))
    optimizer = "" if f.workload.describe() == "sgd" else f", {f.workload.describe()}"
    shown = _errors(result)
    bound = "" if f.sensitivity_is_exact else " (an upper bound)"
    facts = {
        "mechanism": f.name + options,
        "setting": f"{output.plural(f.steps, 'step')}, {f.participation.describe()}{optimizer}",
        "stored as": _storage(f),
        "sensitivity": f"{shown['sensitivity']:.6g}{bound}",
        "error": f"{shown['error']:.8g}   squared noise under the objective, at noise multiplier 1",
    }
    if shown["gap"] is not None:
        facts["bound"] = f"{f.lower_bound:.8g}   certified: no encoder has less"
        facts["gap"] = f"{f.gap:.1e}" if f.gap < 0.1 else f"{f.gap:.3g}   error over bound, less 1"
    return facts


def _mechanism_facts(result: Result) -> dict[str, str]:
    mechanism = result.mechanism
    if mechanism is None:
        return {}
    multiplier = f"{mechanism.noise_multiplier:.6g} at clip norm {mechanism.clip_norm:g}"
    facts = {"noise multiplier": multiplier}
    if mechanism.target_delta is not None:
        epsilon, delta = rounded_up(mechanism.epsilon()), mechanism.target_delta
        facts["privacy"] = f"ε = {epsilon} at δ = {delta:g} ({mechanism.adjacency})"
    facts |= sampling_fact(mechanism)
    if result.tried:
        tried = ", ".join(str(trial.bands) for trial in result.tried)
        facts["tried"] = f"{tried} bands: {result.factorization.bands} leave least noise"
    return facts


def sampling_fact(mechanism: ap.Mechanism) -> dict[str, str]:
    """Return a row about the sampling that an amplified mechanism requires."""
    if not mechanism.amplified:
        return {}
    sampling = mechanism.sampling
    rate = "" if sampling.rate is None else f" at rate {sampling.rate:.6g}"
    return {"requires": f"batches drawn by {sampling.name}{rate}"}


def _storage(f: Any) -> str:
    buffers = getattr(f, "buffers", None)
    if buffers is not None:
        return f"a stream with {buffers} vectors in memory"
    return f"{f.form.lower()}, {output.plural(f.bands, 'diagonal')}"


def _charts(f: Any) -> dict[str, charts.Chart]:
    designs = {LABELS.get(f.name, f.name): (f.name, f)}
    noise = charts.noise_per_iterate(designs, "Noise that stays in the model")
    if f.steps > charts.MAX_STEPS:
        output.print_warning(
            f"no spectrum and no heat maps: {f.steps:,} steps exceed {charts.MAX_STEPS:,}"
        )
        return {"noise": noise}
    return {
        "noise": noise,
        "spectrum": charts.noise_spectrum(designs),
        "matrices": charts.encoder_and_decoder(f),
    }
