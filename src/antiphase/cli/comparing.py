"""``antiphase compare`` and ``advise``: which mechanism, and how much better."""

from __future__ import annotations

import csv
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphase.cli import console
from antiphase.cli.console import (
    Adjacency,
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
    Separation,
    Steps,
    out,
)  # fmt: skip

if TYPE_CHECKING:
    from antiphase.comparison import Candidate, Comparison, Entry, Setting

Parameters = Annotated[int, typer.Option(help="Size of the model: for the memory and the time of the noise.", min=1)]
Tolerance = Annotated[float, typer.Option(help="Certified gap at which designs stop.")]


def compare(
    steps: Steps,
    epochs: Epochs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", "-m", help="Which ones, again and again: dp-mf+:tau=128, dp-sgd:poisson."),
    ] = None,
    separation: Separation = None,
    lr: Rate = 1.0,
    schedule: Schedule = "constant",
    momentum: Momentum = 0.0,
    nesterov: Nesterov = False,
    weight_decay: Decay = 0.0,
    adjacency: Adjacency = "zero-out",
    parameters: Parameters = 100_000,
    tolerance: Tolerance = 1e-3,
    html: Annotated[Path | None, typer.Option(help="Write a page that opens in any browser.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for the figures, SVG and PNG.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of the table.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put mechanisms side by side: how much noise each leaves in the model at equal privacy, and what it costs.

    Example: antiphase compare --steps 256 --epochs 4 --epsilon 8 --delta 1e-5
    """
    from antiphase import comparison

    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json: give one")
    setting = _setting(
        steps, epochs, separation, console.optimizer(steps, lr, schedule, momentum, nesterov, weight_decay),
        epsilon=epsilon, delta=delta, adjacency=adjacency, parameters=parameters,
    )  # fmt: skip
    chosen = [_candidate(text, steps) for text in mechanism] if mechanism else None
    found = _run(comparison.compare, setting, chosen, tolerance, quiet or as_json or as_csv)
    if html is not None:
        from antiphase.report import page

        page.write(html, _page(found, _command()))
    drawn = _draw(figures, found) if figures is not None else []
    if as_json:
        console.print_json(found.to_dict() | {"html": None if html is None else str(html)})
    elif as_csv:
        rows = [{k: v for k, v in e.to_dict(found.base).items() if k != "options"} for e in found.entries]
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _print(found)
        for path in [*drawn, *([html] if html is not None else [])]:
            out.print(f"Written to {path}")
    for label, reason in found.refused.items():
        console.warn(f"without {label}: {reason}")


def advise(
    steps: Steps,
    epochs: Epochs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    poisson: Annotated[bool, typer.Option("--poisson", help="Batches can be true Poisson samples.")] = False,
    smoothness: Annotated[
        float | None, typer.Option(help="A typical curvature of the loss, with --lr: errors fade by 1 − lr·curvature.")
    ] = None,
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
    """Recommend a mechanism for a setting, with the reason. No data is looked at.

    Example: antiphase advise --steps 256 --epochs 4 --epsilon 8 --delta 1e-5
    """
    from antiphase.theory.advice import advise as advice

    setting = _setting(
        steps, epochs, None, console.optimizer(steps, lr, schedule, momentum, nesterov, weight_decay),
        epsilon=epsilon, delta=delta, parameters=parameters,
    )  # fmt: skip
    damping = None if smoothness is None else 1 - lr * smoothness
    with console.bar(quiet or as_json, "{task.fields[gap]}") as progress:
        found = advice(
            setting, poisson=poisson, damping=damping, tolerance=tolerance, progress=_reporter(progress, tolerance)
        )
    if as_json:
        console.print_json(found.to_dict())
        return
    best = found.best
    out.print(f"For {setting.describe()}, take [bold]{best.label}[/].\n")
    for reason in found.reasons:
        out.print(f"• {reason}")
    out.print("\nIt rests on: " + "; ".join(found.rests_on) + ".")
    options = "".join(f" --option {k}={v:g}" for k, v in best.candidate.options.items())
    if best.candidate.poisson:
        out.print("\nTo use it: antiphase train --mechanism dp-sgd …")
    else:
        plan = shlex.join(_setting_arguments(steps, epochs, lr, schedule, momentum, nesterov, weight_decay))
        promise = f" --epsilon {epsilon:g} --delta {delta:g}" if epsilon is not None and delta is not None else ""
        out.print(f"\nTo use it: antiphase design {best.name} {plan}{options}{promise} -o plan.antiphase")


# ---- inside ------------------------------------------------------------------------------------------------


def _setting(steps: int, epochs: int, separation: int | None, optimizer: dict[str, Any], **rest: Any) -> Setting:
    import antiphase as ap
    from antiphase.comparison import Setting

    if rest.get("delta") is not None and rest.get("epsilon") is None:
        raise typer.BadParameter("--delta needs --epsilon")
    if separation is None:
        return Setting.of(steps, epochs, optimizer=optimizer, **rest)
    return Setting(ap.Workload.sgd(steps, **optimizer), ap.min_separation(epochs, separation), **rest)


def _setting_arguments(
    steps: int, epochs: int, lr: float, schedule: str, momentum: float, nesterov: bool, decay: float
) -> list[str]:
    words = ["--steps", str(steps)]
    given = {"--epochs": (epochs, 1), "--lr": (lr, 1.0), "--schedule": (schedule, "constant")}
    given |= {"--momentum": (momentum, 0.0), "--weight-decay": (decay, 0.0)}
    for name, (value, usual) in given.items():
        if value != usual:
            words += [name, f"{value:g}" if isinstance(value, float) else str(value)]
    return words + (["--nesterov"] if nesterov else [])


def _candidate(text: str, steps: int) -> Candidate:
    from antiphase.comparison import Candidate

    name, _, rest = text.partition(":")
    parts = [part for part in rest.split(",") if part]
    poisson = "poisson" in parts
    options = console.options_of([part for part in parts if part != "poisson"])
    if name == "dp-mf+":
        options.setdefault("tau", steps)
    return Candidate(name, options, poisson)


def _reporter(progress: Any, tolerance: float) -> Any:
    task = progress.add_task("designing", total=1.0, gap="")
    searches: dict[str, console.Closing] = {}

    def report(what: str, done: int, total: int, gap: float | None) -> None:
        search = searches.setdefault(what, console.Closing(tolerance))
        share = 0.0 if gap is None else search.share(gap)
        label = f"designing {what}" if what else "measuring"
        progress.update(
            task, description=label, completed=(done + share) / total, gap="" if gap is None else f"gap {gap:.0e}"
        )

    return report


def _run(compare: Any, setting: Setting, chosen: Any, tolerance: float, quiet: bool) -> Comparison:
    with console.bar(quiet, "{task.fields[gap]}") as progress:
        found: Comparison = compare(setting, chosen, tolerance=tolerance, progress=_reporter(progress, tolerance))
    if found.stopped:
        console.warn("stopped by Ctrl-C: what follows is what there was")
    return found


def _print(found: Comparison) -> None:
    setting, base = found.setting, found.base
    noise = ["mechanism", "noise\nmultiplier", "average\niterate", "final\niterate", "over\noptimum"]
    cost = ["design", "noise\nkeeps", "noise\na step"]
    rows = [_cells(entry, base) for entry in found.entries]
    title = f"Noise in the model at equal privacy\n{setting.describe()}"
    tables = [(title, noise + cost, rows)]
    if out.width < console.WIDE:  # two narrow tables
        tables = [
            (title, noise, [row[: len(noise)] for row in rows]),
            ("What it costs", ["mechanism", *cost], [[row[0], *row[len(noise) :]] for row in rows]),
        ]
    for heading, names, body in tables:
        table = console.columns(*names, title=heading)
        for row in body:
            table.add_row(*row)
        out.print(table)
    relative = "; in percent of DP-SGD's" if base is not None else ""
    out.print(
        f"Iterates: standard deviation of the noise per coordinate, summed over the batch, at clip norm 1{relative}.\n"
        "Over optimum: squared noise over all iterates, relative to the certified least of any encoder on batches in\n"
        f"a fixed order. Memory and time of a step are for {setting.parameters:,} parameters.",
        style="dim",
    )


def _cells(entry: Entry, base: Entry | None) -> list[str]:
    row = entry.to_dict(base)

    def both(value: float, relative: float | None) -> str:
        return f"{value:.4g}" + ("" if relative is None else f" {relative:4.0%}")

    return [
        entry.label, f"{entry.mechanism.noise_multiplier:.4g}", both(entry.average, row["average_relative"]),
        both(entry.final, row["final_relative"]), f"{entry.over_optimum:.3f} ×", console.seconds(entry.design_seconds),
        console.size(entry.noise_bytes), console.seconds(entry.step_seconds),
    ]  # fmt: skip


def _command() -> str:
    return shlex.join(["antiphase", *sys.argv[1:]])


def _charts(found: Comparison) -> dict[str, Any]:
    from antiphase.report import charts

    amplified = [e for e in found.entries if e.candidate.poisson]
    known: dict[str, Any] = {e.label: (e.name, e.deviation) for e in found.entries}
    note = "Dashed: with amplification." if amplified else ""
    noise = charts.noise_per_iterate(known)
    series = [
        charts.Series(s.name, s.label, s.x, s.y, dashed=any(e.label == s.label for e in amplified))
        for s in noise.series
    ]
    made: dict[str, Any] = {
        "noise": charts.Lines(noise.title, noise.x_label, noise.y_label, series, log_y=True, note=note)
    }
    if found.setting.steps <= charts.MOST_STEPS:
        plain = {e.label: (e.name, e.factorization) for e in found.entries if not e.candidate.poisson}
        made["spectrum"] = charts.noise_spectrum(plain)
    return made


def _draw(folder: Path, found: Comparison) -> list[Path]:
    from antiphase.report import figures

    charts = _charts(found)
    for name, chart in charts.items():
        figures.draw(folder / name, chart)
    return [folder / f"{name}.svg" for name in charts]


def _page(found: Comparison, command: str) -> Any:
    from datetime import UTC, datetime

    from antiphase import __version__
    from antiphase.report.page import Column, Grid, Page

    setting, base = found.setting, found.base
    best = min((e for e in found.entries), key=lambda e: e.final)
    least = min((e for e in found.entries), key=lambda e: e.average)
    rows = [e.to_dict(base) | {"step_ms": 1e3 * e.step_seconds, "mb": e.noise_bytes / 1e6} for e in found.entries]
    columns = [
        Column("label", "mechanism"),
        Column("noise_multiplier", "noise multiplier", help="noise over sensitivity, for the promise asked", digits=4),
        Column("average", "average iterate", "σ", "standard deviation per coordinate, over all iterates", "low", 4),
        Column("final", "final iterate", "σ", "standard deviation per coordinate in the last iterate", "low", 4),
        Column("average_relative", "average / DP-SGD", better="low", digits=3),
        Column("final_relative", "final / DP-SGD", better="low", digits=3),
        Column("over_optimum", "over optimum", "×", "squared noise over the certified least", "low", 4),
        Column("gap", "gap", "", "from the optimum for its own objective, at most", digits=2),
        Column("design_seconds", "design", "s", "time to design; cached designs take none", digits=2),
        Column("mb", "noise keeps", "MB", f"for {setting.parameters:,} parameters", digits=3),
        Column("step_ms", "noise a step", "ms", "time for a row of noise, at worst", digits=2),
    ]
    answer = f"{best.label} leaves least noise in the final model"
    if base is not None and best is not base:
        answer += f": {best.final / base.final:.0%} of DP-SGD's, at the same privacy"
    points = []
    if least is not best:
        points.append(
            f"Over all iterates {least.label} leaves least; {best.label} leaves {best.average / least.average - 1:.1%} "
            "more there."
        )
    points.append(
        f"The certified optimum: no encoder on batches in a fixed order leaves less than 1/{least.over_optimum:.4g} of "
        f"{least.label}'s squared noise over all iterates."
        if least.over_optimum >= 1
        else f"{least.label} does better than any encoder without amplification could, but only on Poisson batches."
    )
    if setting.epsilon is not None:
        points.append(
            f"Every mechanism here promises ε = {setting.epsilon:g} at δ = {setting.delta:g} ({setting.adjacency}) for "
            "the whole training."
        )
    return Page(
        title="antiphase: mechanisms compared",
        question=f"Which noise for {setting.describe()}?",
        answer=answer + ".",
        points=points,
        grids=[Grid("Noise in the model at equal privacy", columns, rows)],
        charts=list(_charts(found).values()),
        statements=[best.mechanism.statement()] if setting.delta is not None else [],
        reproduce=[command],
        notes=[
            "Noise is a standard deviation per coordinate of the summed updates, at clip norm 1, before division by "
            "the batch size.",
            *(f"Without {label}: {reason}" for label, reason in found.refused.items()),
        ],
        made=f"antiphase {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
