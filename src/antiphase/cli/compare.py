"""``antiphase compare`` and ``recommend``: which mechanism, and how much better."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphase._util.progress import ProgressReport
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
    Sampler,
    SamplingRate,
    Schedule,
    Separation,
    Steps,
    misused,
    out,
)

if TYPE_CHECKING:
    from antiphase.comparison import Candidate, Comparison, Entry, Setting


NEEDED = {
    "poisson": "Poisson sampling, anew for every step",
    "cyclic-poisson": "Poisson sampling within each group, anew for every step",
    "balls-in-bins": "chance in who is in which batch, and nobody who knows",
}
Parameters = Annotated[
    int, typer.Option(help="Size of the model: for the memory and the time of the noise.", min=1)
]
Tolerance = Annotated[float, typer.Option(help="Certified gap at which designs stop.")]


def compare(
    steps: Steps,
    epochs: Epochs = 1,
    epsilon: Epsilon = None,
    delta: Delta = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            "--mechanism",
            "-m",
            help="Which one, with options and sampler; may be given often: dp-mf+:tau=128, dp-sgd:poisson.",
            autocompletion=lambda incomplete: [
                name for name in console.MECHANISMS if name.startswith(incomplete)
            ],
        ),
    ] = None,
    family: Annotated[
        bool,
        typer.Option(
            "--family", help="Those that take a search, too: toeplitz, banded, blt, few buffers."
        ),
    ] = False,
    sampler: Sampler = None,
    sampling_rate: SamplingRate = None,
    separation: Separation = None,
    lr: Rate = 1.0,
    schedule: Schedule = "constant",
    momentum: Momentum = 0.0,
    nesterov: Nesterov = False,
    weight_decay: Decay = 0.0,
    adjacency: Adjacency = "zero-out",
    parameters: Parameters = 100_000,
    tolerance: Tolerance = 1e-3,
    html: Annotated[
        Path | None, typer.Option(help="Write a page that opens in any browser.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures, SVG and PNG.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of the table.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Put mechanisms side by side: how much noise each leaves in the model at equal privacy, and what it costs.

    Example: antiphase compare --steps 256 --epochs 4 --epsilon 8 --delta 1e-5
    """
    from antiphase import comparison

    if as_csv and as_json:
        raise misused("--csv and --json: give one")
    if family and mechanism:
        raise misused("--family and --mechanism: give one")
    console.check_sampler(sampler, sampling_rate, needs_rate=False)
    if sampler is not None and epsilon is None:
        raise misused(
            f"--sampler {sampler} needs --epsilon and --delta: what it brings depends on them"
        )
    console.check_output(html)
    setting = _setting(
        steps, console.participation(steps, epochs, separation),
        console.optimizer(steps, lr, schedule, momentum, nesterov, weight_decay),
        epsilon=epsilon, delta=delta, adjacency=adjacency, parameters=parameters, sampler=sampler or "fixed-order",
        rate=sampling_rate,
    )  # fmt: skip
    chosen = (
        [_candidate(text, setting) for text in mechanism]
        if mechanism
        else comparison.usual_candidates(setting, family)
    )
    with console.bar(quiet or as_json or as_csv, "{task.fields[gap]}") as progress:
        found = comparison.compare(
            setting, chosen, tolerance=tolerance, progress=_reporter(progress, tolerance)
        )
    drawn = _draw(figures, found) if figures is not None else []
    if html is not None:
        from antiphase.reporting import page

        drawn.append(page.write(html, _page(found, console.command())))
    if as_json:
        console.print_json(found.to_dict() | {"files": [str(path) for path in drawn]})
    elif as_csv:
        _print_csv(found)
    else:
        _print(found)
        for path in drawn:
            out.print(f"Written to {path}")
    size = setting.sampling_rate * len(setting.participation.patterns(steps))
    if abs(size - 1) > 0.01:
        console.warn(
            f"at rate {setting.sampling_rate:g} sampled batches are {size:.3g} times as large as those in the fixed "
            "order: the noise in their mean is that of the sum over so much"
        )
    for label, reason in found.refused.items():
        console.warn(f"without {label}: {reason}")
    if found.stopped:
        console.stop("by Ctrl-C: this is what there was")


# ---- inside ------------------------------------------------------------------------------------------------


def _setting(steps: int, participation: Any, optimizer: dict[str, Any], **rest: Any) -> Setting:
    import antiphase as ap
    from antiphase.comparison import Setting

    console.check_promise(rest["epsilon"], rest["delta"])
    return Setting(ap.Workload.sgd(steps, **optimizer), participation, **rest)


def _setting_arguments(
    steps: int, epochs: int, lr: float, schedule: str, momentum: float, nesterov: bool, decay: float
) -> list[str]:
    words = ["--steps", str(steps)]
    given = {"--epochs": (epochs, 1), "--lr": (lr, 1.0), "--schedule": (schedule, "constant")}
    given |= {"--momentum": (momentum, 0.0), "--weight-decay": (decay, 0.0)}
    for name, (value, usual) in given.items():
        if value != usual:
            words += [name, _number(value)]
    return words + (["--nesterov"] if nesterov else [])


def _number(value: Any) -> str:
    """As short as it can be typed.

    >>> _number(16.0), _number(0.1), _number(2**-0.5), _number("cosine")
    ('16', '0.1', '0.7071067811865476', 'cosine')
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _candidate(text: str, setting: Setting) -> Candidate:
    from antiphase.comparison import Candidate
    from antiphase.design import options_for
    from antiphase.sampling import SAMPLERS

    name, _, rest = text.partition(":")
    if name not in console.MECHANISMS:
        raise misused(f"--mechanism {text}: must be one of {', '.join(console.MECHANISMS)}")
    parts = [part for part in rest.split(",") if part]
    samplers = [part for part in parts if part in SAMPLERS]
    if len(samplers) > 1:
        raise misused(f"--mechanism {text}: {samplers[0]} and {samplers[1]} cannot both be")
    sampler = samplers[0] if samplers else None
    options = console.options_of([part for part in parts if part not in SAMPLERS])
    known = options_for(name)
    if unknown := sorted(set(options) - set(known)):
        raise misused(
            f"--mechanism {text}: {name} has no option {unknown[0]}; it takes {', '.join(known)}"
        )
    if (
        name == "dp-mf+" and (sampler or setting.sampler) != "cyclic-poisson"
    ):  # there the best is looked for
        options.setdefault("tau", setting.steps)
    return Candidate(name, options, sampler)


def _reporter(progress: Any, tolerance: float) -> Any:
    task = progress.add_task("designing", total=1.0, gap="")
    searches: dict[str, console.Closing] = {}

    def report(now: ProgressReport) -> None:
        gap = now.gap
        search = searches.setdefault(now.task, console.Closing(tolerance))
        share = 0.0 if gap is None else search.share(gap)
        label = f"designing {now.task}" if now.task else "measuring"
        progress.update(
            task,
            description=label,
            completed=(now.done + share) / (now.total or 1),
            gap="" if gap is None else f"gap {gap:.0e}",
        )

    return report


def _print_csv(found: Comparison) -> None:
    rows = [{k: v for k, v in row.items() if k != "options"} for row in found.rows()]
    writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _print(found: Comparison) -> None:
    setting, base = found.setting, found.base
    noise = [
        "mechanism",
        "noise\nmultiplier",
        "average\niterate",
        "final\niterate",
        "over\noptimum",
    ]
    if setting.sampler != "fixed-order":
        noise.insert(1, "amplified")
    cost = ["design", "noise\nkeeps", "noise\na step"]
    rows = [_cells(entry, found) for entry in found.entries]
    at = (
        "equal privacy"
        if setting.epsilon is not None
        else "noise multiplier 1, which is equal privacy"
    )
    title = f"Noise in the model at {at}\n{setting.describe()}"
    table = console.columns(*noise, *cost, title=title, rows=rows)
    if console.fits(table):
        console.show(table)
    else:  # two narrow tables
        console.show(console.columns(*noise, title=title, rows=[row[: len(noise)] for row in rows]))
        costs = [[row[0], *row[len(noise) :]] for row in rows]
        console.show(console.columns("mechanism", *cost, title="What it costs", rows=costs))
    relative = ", and in percent of DP-SGD's" if base is not None else ""
    console.explain(
        f"Iterates: standard deviation of the noise per coordinate, summed over the batch, at clip norm 1{relative}. "
        "Over optimum: squared noise over all iterates, relative to the certified least of any encoder on batches in "
        f"a fixed order. Memory and time of a step are for {setting.parameters:,} parameters; designs that were made "
        "before come from the cache. A star marks what no other row beats: in noise of the average iterate and memory, "
        "or in that noise and time."
    )


def _cells(entry: Entry, found: Comparison) -> list[str]:
    row = entry.to_dict(found.base)

    def both(value: float, relative: float | None) -> str:
        return f"{value:#.4g}".rstrip(".") + ("" if relative is None else f" {relative:4.0%}")

    def starred(text: str, frontier: tuple[Entry, ...]) -> str:
        return text + (" *" if entry in frontier else "  ")

    amplified = (
        ["yes" if entry.amplified else "no"] if found.setting.sampler != "fixed-order" else []
    )
    return [
        entry.label, *amplified, f"{entry.mechanism.noise_multiplier:.4g}",
        both(entry.average, row["average_relative"]), both(entry.final, row["final_relative"]),
        "–" if entry.over_optimum is None else f"{entry.over_optimum:.3f} ×",
        console.seconds(entry.design_seconds), starred(console.size(entry.noise_bytes), found.memory_frontier),
        starred(console.seconds(entry.step_seconds), found.time_frontier),
    ]  # fmt: skip


def _charts(found: Comparison) -> dict[str, Any]:
    from antiphase.reporting import charts

    amplified = [e for e in found.entries if e.amplified]
    known: dict[str, Any] = {e.label: (e.name, e.deviation) for e in found.entries}
    note = "Dashed: with amplification." if amplified else ""
    noise = charts.noise_per_iterate(known)
    series = [
        charts.Series(s.name, s.label, s.x, s.y, dashed=any(e.label == s.label for e in amplified))
        for s in noise.series
    ]
    made: dict[str, Any] = {
        "noise": charts.Lines(
            noise.title, noise.x_label, noise.y_label, series, log_y=True, note=note
        )
    }
    if found.setting.steps <= charts.MAX_STEPS:
        plain = {e.label: (e.name, e.factorization) for e in found.entries if not e.amplified}
        made |= {"spectrum": charts.noise_spectrum(plain)} if plain else {}
    return made | _frontiers(found)


def _frontiers(found: Comparison) -> dict[str, Any]:
    """Noise against what it costs, where there is something to choose from."""
    from antiphase.reporting import charts

    made = {}
    if len(found.entries) > 1:
        made["memory"] = charts.frontier(
            {e.label: (e.name, 1 + e.vectors, e.average) for e in found.entries},
            [e.label for e in found.memory_frontier],
            "Least noise for the memory",
            "vectors in memory, with the model itself",
        )
    if len(found.time_frontier) and len(found.entries) > 1:
        made["time"] = charts.frontier(
            {e.label: (e.name, 1e3 * e.step_seconds, e.average) for e in found.entries},
            [e.label for e in found.time_frontier],
            "Least noise for the time",
            f"noise of a step (milliseconds, {found.setting.parameters:,} parameters)",
        )
    return made


def _draw(folder: Path, found: Comparison) -> list[Path]:
    from antiphase.reporting import figures

    charts = _charts(found)
    for name, chart in charts.items():
        figures.draw(folder / name, chart)
    return [folder / f"{name}.svg" for name in charts]


def _page(found: Comparison, command: str) -> Any:
    from datetime import UTC, datetime

    from antiphase import __version__
    from antiphase.reporting.page import Column, Grid, Page

    setting = found.setting
    best = min(found.entries, key=lambda e: e.final)
    rows = [
        row
        | {
            "step_ms": 1e3 * e.step_seconds if math.isfinite(e.step_seconds) else None,
            "mb": e.noise_bytes / 1e6,
        }
        | {
            "drawn": "sampled, amplified" if e.amplified else "not amplified",
            "frontier": _on_frontier(row),
        }
        for e, row in zip(found.entries, found.rows(), strict=True)
    ]
    noise = [
        Column("label", "mechanism"),
        Column(
            "noise_multiplier",
            "noise multiplier",
            help="noise over sensitivity, for the promise asked",
            digits=4,
        ),
        Column(
            "average",
            "average iterate",
            "σ",
            "standard deviation per coordinate, over all iterates",
            "low",
            4,
        ),
        Column(
            "final",
            "final iterate",
            "σ",
            "standard deviation per coordinate in the last iterate",
            "low",
            4,
        ),
        Column("average_relative", "average / DP-SGD", better="low", digits=3),
        Column("final_relative", "final / DP-SGD", better="low", digits=3),
        Column(
            "over_optimum", "over optimum", "×", "squared noise over the certified least", "low", 4
        ),
        Column("gap", "gap", "", "from the optimum for its own objective, at most", digits=2),
    ]
    if setting.sampler != "fixed-order":
        noise.insert(1, Column("drawn", "batches"))
    cost = [
        Column("label", "mechanism"),
        Column(
            "design_seconds", "design", "s", "time to design; cached designs take none", digits=2
        ),
        Column("mb", "noise keeps", "MB", f"for {setting.parameters:,} parameters", digits=3),
        Column("step_ms", "noise a step", "ms", "time for a row of noise, at worst", digits=2),
        Column(
            "frontier",
            "frontier",
            "",
            "no other has as little noise in the average iterate at as little of these",
        ),
    ]
    return Page(
        title="antiphase: mechanisms compared",
        question=f"Which noise for {setting.describe()}?",
        answer=_answer(found, best),
        points=_points(found, best),
        grids=[
            Grid("Noise in the model at equal privacy", noise, rows),
            Grid("What it costs", cost, rows),
        ],
        charts=list(_charts(found).values()),
        statements=[best.mechanism.statement()] if setting.delta is not None else [],
        reproduce=[command],
        notes=[
            "Noise is a standard deviation per coordinate of the summed updates, at clip norm 1, before division by "
            "the batch size.",
            *(
                f"{e.label} is not amplified: {e.unamplified}"
                for e in found.entries
                if e.unamplified
            ),
            *(f"Without {label}: {reason}" for label, reason in found.refused.items()),
        ],
        made=f"antiphase {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def _on_frontier(row: dict[str, Any]) -> str | None:
    """
    >>> _on_frontier({"memory_frontier": True, "time_frontier": True})
    'memory, time'
    """
    return ", ".join(what for what in ("memory", "time") if row[f"{what}_frontier"]) or None


def _answer(found: Comparison, best: Entry) -> str:
    if len(found.entries) > 1 and max(e.final for e in found.entries) <= best.final * (1 + 1e-9):
        return "All of them leave the same noise in the final model."
    relative = ""
    if found.base is not None and best is not found.base:
        relative = f": {best.final / found.base.final:.0%} of DP-SGD's, at the same privacy"
    return f"{best.label} leaves least noise in the final model{relative}."


def _points(found: Comparison, best: Entry) -> list[str]:
    setting, points = found.setting, []
    least = min(found.entries, key=lambda e: e.average)
    if least is not best and best.average > least.average:
        points.append(
            f"Over all iterates {least.label} leaves least; {best.label} leaves {best.average / least.average - 1:.1%} "
            "more there."
        )
    if least.over_optimum is not None and least.over_optimum < 1:
        points.append(
            f"{least.label}: less noise over all iterates than any encoder on batches in a fixed order could have. It "
            f"needs true {NEEDED[least.mechanism.sampler]}."
        )
    elif least.over_optimum is not None:
        points.append(
            f"{least.label}'s squared noise over all iterates is {least.over_optimum:.4f} times the certified least: "
            "no encoder on batches in a fixed order has less."
        )
    points.append(
        f"Every mechanism here promises ε = {setting.epsilon:g} at δ = {setting.delta:g} ({setting.adjacency}) for "
        "the whole training."
        if setting.epsilon is not None
        else "Every mechanism here has noise multiplier 1, and so the same ε at any δ."
    )
    return points
