"""``antiphase design``: from a name people know to a mechanism file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase._util.interrupts import graceful_interrupt
from antiphase._util.progress import ProgressReport
from antiphase.cli import console
from antiphase.cli.console import (
    MECHANISMS,
    Adjacency,
    Clip,
    Decay,
    Delta,
    Epochs,
    Epsilon,
    Json,
    Momentum,
    Multiplier,
    Nesterov,
    Quiet,
    Rate,
    Sampler,
    SamplingRate,
    Schedule,
    Separation,
    Steps,
    one_of,
    out,
)  # fmt: skip


def design(
    name: Annotated[str, typer.Argument(click_type=one_of(*MECHANISMS), metavar="NAME")],
    steps: Steps,
    epochs: Epochs = 1,
    tau: Annotated[
        int | None, typer.Option(help="dp-mf+: steps between virtual restarts (default: all).")
    ] = None,
    rho: Annotated[
        float | None, typer.Option(help="damped: how much of an error is left after a step.")
    ] = None,
    final_weight: Annotated[
        float | None,
        typer.Option(help="dp-mf, damped: how much the last iterate counts, others counting 1."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Any other option of the mechanism, as name=value."),
    ] = None,
    bands: Annotated[
        str | None,
        typer.Option(
            help="Diagonals of the encoder: a number; or auto, the best for --sampler cyclic-poisson."
        ),
    ] = None,
    buffers: Annotated[
        str | None, typer.Option(help="Vectors of memory: auto, exact or a number.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Certified gap at which the search stops.")
    ] = None,
    separation: Separation = None,
    lr: Rate = 1.0,
    schedule: Schedule = "constant",
    momentum: Momentum = 0.0,
    nesterov: Nesterov = False,
    weight_decay: Decay = 0.0,
    epsilon: Epsilon = None,
    delta: Delta = None,
    noise_multiplier: Multiplier = None,
    clip: Clip = 1.0,
    adjacency: Adjacency = "zero-out",
    sampler: Sampler = None,
    sampling_rate: SamplingRate = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, as in plan.antiphase.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for figures of it, SVG and PNG.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Design a mechanism: write it to a file, print its error, the certified bound and the gap.

    NAME is one of dp-sgd, anti-pgd, chess, tree, sqrt-toeplitz, fourier, bisr, lambda-cgd, toeplitz, banded, blt,
    epoch-restarts, dp-mf, dp-mf+, damped, curvature, optimal.
    With --epsilon and --delta (or --noise-multiplier) it is calibrated too, and ready to train with.

    \b
    Example: antiphase design dp-mf+ --steps 256 --epochs 4 \\
               --epsilon 8 --delta 1e-5 -o plan.antiphase
    """
    import antiphase as ap

    console.check_promise(epsilon, delta, noise_multiplier)
    console.check_adjacency(adjacency, sampled=sampler is not None)
    console.check_sampler(sampler, sampling_rate)
    promised = epsilon is not None or noise_multiplier is not None
    if not promised and (clip, adjacency, sampler) != (1.0, "zero-out", None):
        raise console.misused(
            "--clip, --adjacency and --sampler belong to a promise: give --epsilon and --delta too"
        )
    console.check_output(output)
    given = {
        "tau": tau,
        "rho": rho,
        "final_weight": final_weight,
        "tolerance": tolerance,
        "buffers": _count(buffers),
    }
    given["bands"] = _count(bands)
    options = console.options_of(option) | {
        key: value for key, value in given.items() if value is not None
    }
    workload = ap.Workload.sgd(
        steps, **console.optimizer(steps, lr, schedule, momentum, nesterov, weight_decay)
    )
    promise: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "clip_norm": clip,
        "adjacency": adjacency,
    }
    if sampler == "cyclic-poisson" or bands == "auto":
        if (epochs, separation) != (1, None):
            raise console.misused(
                "--epochs and --separation: cyclic Poisson samples take records as the bands allow"
            )
        if sampler != "cyclic-poisson":
            raise console.misused("--bands auto is for --sampler cyclic-poisson")
        promise |= {"noise_multiplier": noise_multiplier, "sampling_rate": sampling_rate}
        made, tried = _for_cyclic(name, options, workload, promise, quiet or as_json)
        _finish(made.factorization, made, output, figures, as_json, quiet, tried=tried)
        return
    who = console.participation(steps, epochs, separation)
    closing = console.Closing(tolerance or _usual_tolerance(steps, epochs))
    with (
        console.bar(quiet or as_json, "{task.fields[gap]}") as progress,
        graceful_interrupt() as stopped,
    ):
        task = progress.add_task(f"designing {name}", total=1.0, gap="")

        def report(now: ProgressReport) -> bool:
            if now.gap is not None:
                progress.update(task, completed=closing.share(now.gap), gap=f"gap {now.gap:.0e}")
            return stopped()

        f = ap.design(name, workload=workload, participation=who, progress=report, **options)
        _ = f.lower_bound  # solved for here, where a design has none of its own
    made = None
    if promised:
        promise |= {"noise_multiplier": noise_multiplier, "sampling_rate": sampling_rate}
        made = ap.calibrate(f, sampler=sampler or "fixed-order", **promise)
    _finish(f, made, output, figures, as_json, quiet, stopped())


# ---- inside ------------------------------------------------------------------------------------------------


def _finish(
    f: Any,
    made: Any,
    output: Path | None,
    figures: Path | None,
    as_json: bool,
    quiet: bool,
    stopped: bool = False,
    tried: Any = (),
) -> None:
    """Write what was designed, and say so."""
    digest = (made or f).save(output) if output is not None else None
    drawn = _draw(figures, f) if figures is not None else []
    if as_json:
        files = {"file": output, "digest": digest, "figures": drawn}
        more = {"tried": [vars(t) for t in tried], "stopped": stopped}
        console.print_json(_to_dict(f, made) | {k: _text(v) for k, v in files.items()} | more)
        sys.exit(console.INTERRUPTED if stopped else 0)
    facts = _facts(f, made)
    if tried:
        facts["tried"] = (
            f"{', '.join(str(t.bands) for t in tried)} bands: {f.bands} leave least noise at this promise"
        )
    console.show(console.facts(facts))
    if output is not None:
        out.print(
            f"\nWritten to {output} ({'design' if made is None else 'mechanism'}, {str(digest)[:16]}…)"
        )
    for path in drawn:
        out.print(f"Written to {path}")
    if stopped:
        console.stop("by Ctrl-C: this is what there was")
    if output is None:
        console.hint("It was not kept: say -o FILE for that.", quiet)
    elif made is None:
        console.hint(
            f"It promises nothing yet: antiphase calibrate {output} --epsilon … --delta … -o …",
            quiet,
        )


def _for_cyclic(
    name: str, options: dict[str, Any], workload: Any, promise: dict[str, Any], quiet: bool
) -> Any:
    """A mechanism for cyclic Poisson samples, with the best number of bands or with a given one; and what was tried."""
    import antiphase as ap
    from antiphase.band_selection import WIDTHS, cyclic

    if name not in WIDTHS:
        raise console.misused(f"--sampler cyclic-poisson is for few bands: {', '.join(WIDTHS)}")
    width = options.pop("bands", options.pop(WIDTHS[name], "auto"))
    if options:
        raise console.misused(
            f"{next(iter(options))}: with --sampler cyclic-poisson, --bands is the only option"
        )
    if width != "auto":
        return ap.calibrate(cyclic(name, width, workload), sampler="cyclic-poisson", **promise), ()
    if promise.pop("noise_multiplier") is not None:
        raise console.misused(
            "--bands auto needs --epsilon and --delta: which number is best depends on them"
        )
    with console.bar(quiet) as progress:
        task = progress.add_task(f"designing {name}", total=None)
        found = ap.best_bands(
            name, workload=workload, **promise,
            progress=lambda now: progress.update(task, description=f"designing {name}: tried {now.task}"),
        )  # fmt: skip
    return found.mechanism, found.tried


def _count(buffers: str | None) -> int | str | None:
    return int(buffers) if buffers is not None and buffers.isdecimal() else buffers


def _usual_tolerance(steps: int, epochs: int) -> float:
    """At which gap a search stops by itself, as `antiphase.design` says."""
    if epochs == 1 or steps <= 1024:
        return 1e-9
    return 1e-6 if steps <= 4096 else 1e-4


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _figures(f: Any, made: Any) -> dict[str, Any]:
    """Sensitivity, error and the certified bound; with Poisson samples those of one participation, and no bound: the
    certified one is for batches that are known."""
    if made is None or made.sampler not in ("poisson", "cyclic-poisson"):
        return {
            "sensitivity": f.sensitivity,
            "error": f.error,
            "lower_bound": f.lower_bound,
            "gap": f.gap,
        }
    error = (made.sensitivity / f.sensitivity) ** 2 * f.error
    return {"sensitivity": made.sensitivity, "error": error, "lower_bound": None, "gap": None}


def _to_dict(f: Any, made: Any) -> dict[str, Any]:
    return {
        "name": f.name,
        "options": {k: v for k, v in f.options.items() if isinstance(v, int | float | str)},
        "steps": f.steps,
        "participation": f.participation.describe(),
        "workload": f.workload.describe(),
        "form": f.form,
        "buffers": getattr(f, "buffers", None),
        "sensitivity_is_exact": f.sensitivity_is_exact,
        **_figures(f, made),
        "noise_multiplier": None if made is None else made.noise_multiplier,
        "clip_norm": None if made is None else made.clip_norm,
        "adjacency": None if made is None else made.adjacency,
        "sampler": None if made is None else made.sampler,
        "sampling_rate": None if made is None else made.sampling_rate,
        "epsilon": None if made is None or made.target_delta is None else made.epsilon(),
        "delta": None if made is None else made.target_delta,
    }


def _facts(f: Any, made: Any) -> dict[str, str]:
    from antiphase.statement import rounded_up

    options = "".join(f", {k} = {v:g}" for k, v in f.options.items() if isinstance(v, int | float))
    optimizer = "" if f.workload.describe() == "sgd" else f", {f.workload.describe()}"
    known = _figures(f, made)
    rows = {
        "mechanism": f.name + options,
        "setting": f"{f.steps:,} step{'s' * (f.steps > 1)}, {f.participation.describe()}{optimizer}",
        "kept as": _form(f),
        "sensitivity": f"{known['sensitivity']:.6g}"
        + ("" if f.sensitivity_is_exact else " (an upper bound)"),
        "error": f"{known['error']:.8g}   squared noise, summed over what its objective counts, at noise multiplier 1",
    }
    if known["gap"] is not None:
        rows["bound"] = f"{f.lower_bound:.8g}   certified: no encoder has less"
        rows["gap"] = f"{f.gap:.1e}" if f.gap < 0.1 else f"{f.gap:.3g}   error over bound, less 1"
    if made is not None:
        rows["noise multiplier"] = f"{made.noise_multiplier:.6g} at clip norm {made.clip_norm:g}"
        if made.target_delta is not None:
            rows["promise"] = (
                f"ε = {rounded_up(made.epsilon())} at δ = {made.target_delta:g} ({made.adjacency})"
            )
        rows |= console.rests_on(made)
    return rows


def _form(f: Any) -> str:
    buffers = getattr(f, "buffers", None)
    if buffers is not None:
        return f"a stream with {buffers} vectors of memory"
    return f"{f.form.lower()}, {f.bands:,} diagonal{'s' * (f.bands > 1)}"


def _draw(folder: Path, f: Any) -> list[Path]:
    from antiphase.candidates import LABELS
    from antiphase.reporting import charts, figures

    designs = {LABELS.get(f.name, f.name): (f.name, f)}
    wanted: dict[str, Any] = {
        "noise": lambda: charts.noise_per_iterate(designs, "Noise that stays in the model")
    }
    if f.steps <= charts.MAX_STEPS:
        wanted |= {
            "spectrum": lambda: charts.noise_spectrum(designs),
            "matrices": lambda: charts.encoder_and_decoder(f),
        }
    else:
        console.warn(
            f"{f.steps:,} steps are too many for a spectrum and for heat maps; they are left out"
        )
    for name, make in wanted.items():
        figures.draw(folder / name, make())
    return [folder / f"{name}.svg" for name in wanted]
