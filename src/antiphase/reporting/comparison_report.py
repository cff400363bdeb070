"""Charts and a page for a comparison of mechanisms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from antiphase.comparison import Comparison, Entry, batches_needed, conclusion
from antiphase.comparison.conclusion import REQUIREMENTS
from antiphase.reporting.charts import MAX_STEPS, Lines, frontier, noise_per_iterate, noise_spectrum
from antiphase.reporting.content import Column, Grid, Page, version_and_time


def charts(comparison: Comparison) -> dict[str, Lines]:
    """Charts of a comparison by name.

    Args:
        comparison: the compared mechanisms.

    Returns:
        ``noise`` per iterate; ``spectrum`` of the noise, for few enough steps; and the frontiers
        ``memory`` and ``time``, where there is more than one mechanism.
    """
    return {name: make(comparison) for name, make in builders(comparison).items()}


def builders(comparison: Comparison) -> Mapping[str, Callable[[Comparison], Lines]]:
    """The functions that make each of the `charts`."""
    makers = {"noise": _noise}
    if comparison.setting.steps <= MAX_STEPS and not all(e.amplified for e in comparison.entries):
        makers["spectrum"] = _spectrum
    if len(comparison.entries) > 1:
        makers["memory"] = _memory
        if comparison.time_frontier:
            makers["time"] = _time
    return makers


def _noise(comparison: Comparison) -> Lines:
    noise = {entry.label: (entry.name, entry.deviation) for entry in comparison.entries}
    return _with_samplers(replace(noise_per_iterate(noise), note=""), comparison, "Dashed")


def _spectrum(comparison: Comparison) -> Lines:
    in_fixed_order = [entry for entry in comparison.entries if not entry.amplified]
    return noise_spectrum({e.label: (e.name, e.factorization) for e in in_fixed_order})


def _memory(comparison: Comparison) -> Lines:
    chart = frontier(
        {
            entry.label: (entry.name, 1 + entry.vectors, entry.average)
            for entry in comparison.entries
        },
        [entry.label for entry in comparison.memory_frontier],
        "Least noise for the memory",
        "vectors in memory, including the model",
    )
    return _with_samplers(chart, comparison, "Diamonds")


def _time(comparison: Comparison) -> Lines:
    chart = frontier(
        {e.label: (e.name, 1e3 * e.step_seconds, e.average) for e in comparison.entries},
        [entry.label for entry in comparison.time_frontier],
        "Least noise for the time",
        f"time of the noise per step (ms, {comparison.setting.parameters:,} parameters)",
    )
    return _with_samplers(chart, comparison, "Diamonds")


def _with_samplers(chart: Lines, comparison: Comparison, sign: str) -> Lines:
    """Mark the mechanisms whose batches are drawn at random, and say so in the note."""
    sampled = {entry.label for entry in comparison.entries if entry.amplified}
    series = [replace(s, sampled=s.label in sampled) for s in chart.series]
    note = f"{sign}: random batches, with amplified privacy." if sampled else ""
    return replace(chart, series=series, note=f"{chart.note} {note}".strip())


def page(comparison: Comparison, command: str) -> Page:
    """Page about a comparison.

    Args:
        comparison: the compared mechanisms.
        command: the command line that reproduces it.
    """
    setting, entries = comparison.setting, comparison.entries
    best = min(entries, key=lambda entry: entry.final)
    notes = [
        "Noise is a standard deviation per coordinate of the summed updates, at clip norm 1, "
        "before division by the batch size."
    ]
    notes.append(batches_needed(comparison))
    notes += [f"{e.label} is not amplified: {e.unamplified}" for e in entries if e.unamplified]
    notes += [f"Without {label}: {reason}" for label, reason in comparison.refused.items()]
    return Page(
        title="antiphase: mechanisms compared",
        question=f"Which noise for {setting.describe()}?",
        answer=conclusion(comparison),
        points=_points(comparison, best),
        grids=grids(comparison),
        charts=list(charts(comparison).values()),
        statements=[best.mechanism.statement()] if setting.delta is not None else [],
        reproduce=[command],
        notes=notes,
        made=version_and_time(),
    )


def grids(comparison: Comparison) -> list[Grid]:
    """Tables of a comparison: noise, and cost."""
    entries = comparison.entries
    rows = [_row(e, row) for e, row in zip(entries, comparison.rows(), strict=True)]
    return [
        Grid("Noise in the model at equal privacy", _noise_columns(comparison), rows),
        Grid("Cost", _cost_columns(comparison.setting.parameters), rows),
    ]


def _row(entry: Entry, row: Mapping[str, Any]) -> dict[str, Any]:
    measured = math.isfinite(entry.step_seconds)
    return {
        **row,
        "step_ms": 1e3 * entry.step_seconds if measured else None,
        "mb": entry.noise_bytes / 1e6,
        "drawn": entry.mechanism.sampling.label if entry.amplified else "fixed order",
        "frontier": _frontiers(row),
        "sampled": entry.amplified,
    }


def _frontiers(row: Mapping[str, Any]) -> str | None:
    """Name the frontiers that a mechanism is on.

    >>> _frontiers({"memory_frontier": True, "time_frontier": True})
    'memory, time'
    """
    return ", ".join(cost for cost in ("memory", "time") if row[f"{cost}_frontier"]) or None


def _noise_columns(comparison: Comparison) -> list[Column]:
    average = "standard deviation per coordinate, over all iterates"
    final = "standard deviation per coordinate in the last iterate"
    rival = "DP-SGD" if comparison.dp_sgd("poisson") else "DP-SGD, fixed order"
    columns = [
        Column("label", "mechanism"),
        Column(
            "noise_multiplier",
            "noise multiplier",
            help="noise over sensitivity, for the given privacy budget",
            digits=4,
        ),
        Column("average", "average iterate", "σ", average, "low", 4),
        Column("final", "final iterate", "σ", final, "low", 4),
        Column("average_relative", f"average / {rival}", better="low", digits=3),
        Column("final_relative", f"final / {rival}", better="low", digits=3),
        Column(
            "over_optimum", "over optimum", "×", "squared noise over the certified least", "low", 4
        ),
        Column("gap", "gap", "", "from the optimum for its own objective, at most", digits=2),
    ]
    if comparison.setting.sampling.amplifies:
        columns.insert(1, Column("drawn", "batches"))
    return columns


def _cost_columns(parameters: int) -> list[Column]:
    on_frontier = "no other has as little noise in the average iterate at as little of these"
    return [
        Column("label", "mechanism"),
        Column("design_seconds", "design", "s", "time to design; next to none if cached", digits=2),
        Column("mb", "noise memory", "MB", f"for {parameters:,} parameters", digits=3),
        Column("step_ms", "noise per step", "ms", "longest time for a row of noise", digits=2),
        Column("frontier", "frontier", "", on_frontier),
    ]


def _points(comparison: Comparison, best: Entry) -> list[str]:
    setting, points = comparison.setting, []
    least = min(comparison.entries, key=lambda entry: entry.average)
    if least is not best and best.average > least.average:
        points.append(
            f"Over all iterates {least.label} leaves least; {best.label} leaves "
            f"{best.average / least.average - 1:.1%} more there."
        )
    if least.over_optimum is not None and least.over_optimum < 1:
        points.append(
            f"{least.label} leaves less noise over all iterates than any encoder on batches in a "
            f"fixed order can. It needs {REQUIREMENTS[least.mechanism.sampling.name]}."
        )
    elif least.over_optimum is not None:
        points.append(
            f"{least.label}'s squared noise over all iterates is {least.over_optimum:.4f} times "
            "the certified least: no encoder on batches in a fixed order has less."
        )
    if setting.epsilon is None:
        points.append("Every mechanism here has noise multiplier 1, so the same ε at any δ.")
    else:
        points.append(
            f"Every mechanism here promises ε = {setting.epsilon:g} at δ = {setting.delta:g} "
            f"({setting.adjacency}) for the whole training."
        )
    return points
