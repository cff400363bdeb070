"""``antiphase design``: from a name people know to a mechanism file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase.cli import console
from antiphase.cli.console import (
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
    Schedule,
    Separation,
    Steps,
    err,
    out,
)  # fmt: skip


def design(
    name: Annotated[str, typer.Argument(help="dp-mf+, dp-mf, damped, dp-sgd, tree, sqrt-toeplitz, …", metavar="NAME")],
    steps: Steps,
    epochs: Epochs = 1,
    tau: Annotated[int | None, typer.Option(help="dp-mf+: steps between virtual restarts (default: all).")] = None,
    rho: Annotated[float | None, typer.Option(help="damped: how much of an error is left after a step.")] = None,
    final_weight: Annotated[float | None, typer.Option(help="How much the last iterate counts, among many.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Any other option of the mechanism, as name=value.")
    ] = None,
    buffers: Annotated[str | None, typer.Option(help="Vectors of memory: auto, exact or a number.")] = None,
    tolerance: Annotated[float | None, typer.Option(help="Certified gap at which the search stops.")] = None,
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
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write, as in mnist.antiphase.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for figures of it, SVG and PNG.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Design a mechanism: write it to a file, print its error, the certified bound and the gap.

    With --epsilon and --delta (or --noise-multiplier) it is calibrated too, and ready to train with.

    Example: antiphase design dp-mf+ --steps 256 --epochs 4 --epsilon 8 --delta 1e-5 -o plan.antiphase
    """
    import antiphase as ap

    options = console.options_of(option)
    given = {"tau": tau, "rho": rho, "final_weight": final_weight, "tolerance": tolerance}
    options |= {key: value for key, value in given.items() if value is not None}
    if buffers is not None:
        options["buffers"] = int(buffers) if buffers.isdigit() else buffers
    workload = ap.Workload.sgd(steps, **console.optimizer(steps, lr, schedule, momentum, nesterov, weight_decay))
    who: dict[str, Any] = {"epochs": epochs}
    if separation is not None:
        who = {"participation": ap.min_separation(epochs, separation)}
    closing = console.Closing(tolerance or 1e-9)
    with console.bar(quiet or as_json, "{task.fields[gap]}") as progress:
        task = progress.add_task(f"designing {name}", total=1.0, gap="")

        def report(iteration: int, gap: float) -> None:
            progress.update(task, completed=closing.share(gap), gap=f"gap {gap:.0e}")

        f = ap.design(name, workload=workload, progress=report, **who, **options)
        bound = f.lower_bound
    made: Any = f
    if epsilon is not None or noise_multiplier is not None:
        made = ap.calibrate(
            f, epsilon=epsilon, delta=delta, noise_multiplier=noise_multiplier, clip_norm=clip, adjacency=adjacency
        )
    digest = made.save(output) if output is not None else None
    drawn = _draw(figures, f) if figures is not None else []
    calibrated = made is not f
    if as_json:
        console.print_json(
            {
                "name": f.name,
                "options": {k: v for k, v in f.options.items() if isinstance(v, int | float | str)},
                "steps": f.steps,
                "participation": f.participation.describe(),
                "workload": f.workload.describe(),
                "form": type(f).__name__,
                "buffers": getattr(f, "buffers", None),
                "sensitivity": f.sensitivity,
                "error": f.error,
                "lower_bound": bound,
                "gap": f.gap,
                "noise_multiplier": made.noise_multiplier if calibrated else None,
                "clip_norm": made.clip_norm if calibrated else None,
                "epsilon": made.epsilon() if calibrated and delta is not None else None,
                "delta": delta,
                "file": None if output is None else str(output),
                "digest": digest,
                "figures": [str(p) for p in drawn],
            }
        )
        return
    out.print(console.facts(_facts(f, bound, made if calibrated else None)))
    if output is None:
        err.print("[dim]Nothing was written: say -o FILE to keep it.[/]")
    else:
        out.print(f"\nWritten to {output} ({'mechanism' if calibrated else 'factorization'}, {str(digest)[:16]}…)")
        if not calibrated:
            err.print(f"[dim]Calibrate it with: antiphase calibrate {output} --epsilon 8 --delta 1e-6 -o …[/]")
    for path in drawn:
        out.print(f"Figure: {path}")


def _facts(f: Any, bound: float, mechanism: Any) -> dict[str, str]:
    options = ", ".join(f"{k} = {v:g}" for k, v in f.options.items() if isinstance(v, int | float))
    rows = {
        "mechanism": f.name + (f", {options}" if options else ""),
        "setting": f"{f.steps:,} steps, {f.participation.describe()}, {f.workload.describe()}",
        "kept as": _form(f),
        "sensitivity": f"{f.sensitivity:.6g}" + ("" if f.sensitivity_is_exact else " (an upper bound)"),
        "error": f"{f.error:.8g}   squared noise, summed over what its objective counts, at noise multiplier 1",
        "bound": f"{bound:.8g}   no encoder for this objective has less",
        "gap": f"{f.gap:.1e}" if f.gap < 0.1 else f"{f.error / bound:.3f} × the optimum",
    }
    if mechanism is not None:
        rows["noise multiplier"] = f"{mechanism.noise_multiplier:.6g} at clip norm {mechanism.clip_norm:g}"
        if mechanism.target_delta is not None:
            from antiphase.statement import rounded_up

            rows["promise"] = (
                f"ε = {rounded_up(mechanism.epsilon())} at δ = {mechanism.target_delta:g} ({mechanism.adjacency})"
            )
    return rows


def _form(f: Any) -> str:
    buffers = getattr(f, "buffers", None)
    if buffers is not None:
        return f"a stream with {buffers} vectors of memory"
    return f"{type(f).__name__.lower()}, {f.bands:,} diagonals"


def _draw(folder: Path, f: Any) -> list[Path]:
    from antiphase.comparison import LABELS
    from antiphase.report import charts, figures

    designs = {LABELS.get(f.name, f.name): (f.name, f)}
    wanted: dict[str, Any] = {"noise": lambda: charts.noise_per_iterate(designs, "Noise that stays in the model")}
    if f.steps <= charts.MOST_STEPS:
        wanted |= {
            "spectrum": lambda: charts.noise_spectrum(designs),
            "matrices": lambda: charts.encoder_and_decoder(f),
        }
    else:
        console.warn(f"{f.steps:,} steps are too many for a spectrum and for heat maps; they are left out")
    paths = []
    for name, make in wanted.items():
        figures.draw(folder / name, make())
        paths.append(folder / f"{name}.svg")
    return paths
