r"""Figure 2: a random quadratic that is not strongly convex.

d = 100, L = 10, T = 5000, σ = 20, x₀ = 0. (a) The average of ``‖∇f(x_t)‖²`` and (b) the last one,
for learning rates γ from 1e-4 to 1; (c) the curve over the steps at γ = 0.01. The paper simulates;
here expectations over the noise and over the random shift b are exact, beside runs simulated with
the library's own noise. Beyond the paper: DP-SGD, and the damped design that is best at each γ by
exact evaluation, for the average and the last iterate in equal parts.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np

import antiphase as ap
from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.reporting import charts, figures
from antiphase.theory.damping import best_damping
from antiphase.theory.quadratic import Quadratic, expectation
from experiments.runner import Cell, Result, Results, Table
from experiments.simulation import simulate

NAME = "quadratic"
TITLE = "A quadratic that is not strongly convex, L = 10, 5,000 steps"
REVISION = 1  # raise it with every change that changes a result
SEED = 2
STEPS, SMOOTHNESS, SIGMA, DIMENSION = 5000, 10.0, 20.0, 100
# Logarithmic from 1e-4 to 1, finer around the best, as the paper says; on both sides of 2/L = 0.2.
RATES = [1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 7e-3, 0.01, 0.015, 0.03, 0.06, 0.1, 0.15, 0.3, 1.0]
TAUS = [1, 2, 10, 50, 100, 200, 500, 1000, 5000]  # the paper's; τ = 1 is DP-SGD
CURVE_RATE, TAU = 0.01, 50  # of Figure 2 c
EARLY = 50  # the step at which divergence is shown; later the gradient overflows
FINAL_WEIGHTS = (1.0, 10.0, 70.0)  # candidates for the damped design: none, and up to √T

LABELS = {"dp-sgd": "DP-SGD", "dp-mf": "DP-MF", "dp-mf+": "DP-MF⁺", "damped": "damped"}


def cells(full: bool) -> list[Cell]:
    """Every mechanism at every learning rate; ``full`` simulates more runs."""
    setting = {
        "steps": STEPS,
        "smoothness": SMOOTHNESS,
        "sigma": SIGMA,
        "dimension": DIMENSION,
        "runs": 64 if full else 16,
        "seed": SEED,
    }
    designs: list[Cell] = [{"mechanism": "damped"}, {"mechanism": "dp-mf"}]
    designs += [{"mechanism": "dp-mf+", "tau": tau} for tau in TAUS]
    return [
        design
        | {"rate": rate}
        | setting
        | {"curve": rate == CURVE_RATE and design.get("tau", TAU) in (1, TAU)}
        for design in designs
        for rate in RATES
    ]


def work(cell: Cell) -> Result:
    """Average and last squared gradient norm, exact and simulated, unless they diverge."""
    problem = Quadratic.paper(cell["dimension"], cell["smoothness"])
    noise = cell["sigma"] / math.sqrt(cell["dimension"])
    rate = cell["rate"]
    growth = (1 - rate * cell["smoothness"]) ** 2  # per step, squared, in the steepest direction
    if growth > 1:
        sgd = ap.design("dp-sgd", steps=EARLY)
        early = expectation(sgd, problem, learning_rate=rate, noise=noise).gradient
        return {"diverges": True, "growth": growth, "early": early.last}
    design = _damped(problem, cell) if cell["mechanism"] == "damped" else _design(cell)
    expected = expectation(design, problem, learning_rate=rate, noise=noise).gradient
    paths = simulate(
        design, problem, learning_rate=rate, noise=noise, runs=cell["runs"], seed=cell["seed"]
    ).gradient
    result = {
        "diverges": False,
        "average": expected.average,
        "last": expected.last,
        "simulated average": _mean(paths.mean(axis=1)),
        "simulated last": _mean(paths[:, -1]),
    }
    if cell["mechanism"] == "damped":
        result |= design.options
    if cell["curve"]:
        spread = paths.std(axis=0, ddof=1) / math.sqrt(len(paths))
        result["curve"] = {
            "exact": rounded(expected.total),
            "mean": rounded(paths.mean(axis=0)),
            "error": rounded(spread),
        }
    return result


def _design(cell: Cell) -> Factorization:
    options = {"tau": cell["tau"]} if "tau" in cell else {}
    return ap.design(cell["mechanism"], steps=cell["steps"], buffers="exact", **options)


def _damped(problem: Quadratic, cell: Cell) -> Factorization:
    return best_damping(
        problem,
        steps=cell["steps"],
        learning_rate=cell["rate"],
        last=0.5,
        final_weights=FINAL_WEIGHTS,
        precision=0.2,
    ).factorization


def _mean(values: Array) -> list[float]:
    """The mean, and its standard error."""
    return [float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))]


def rounded(values: Array) -> list[float]:
    """The values of a curve to five digits, as they are kept."""
    return [float(f"{value:.5g}") for value in values]


def summary(results: Results, full: bool) -> dict[str, Any]:
    """The mechanisms at every rate, the best rates, and how well simulations agree."""
    rates = [_at(rate, results) for rate in RATES]
    return {
        "rates": rates,
        "best": {
            name: min(
                (row[name]["average"]["exact"], row["rate"]) for row in rates if not row["diverges"]
            )
            for name in LABELS
        },
        "standard errors between exact and simulated": _agreement(results),
        "period of the oscillation": _period(_curve_of(results, "dp-mf+")),
    }


def _at(rate: float, results: Results) -> dict[str, Any]:
    """All mechanisms at one learning rate; of DP-MF⁺ the best τ, for the average and the last."""
    at_rate = [(cell, result) for cell, result in results if cell["rate"] == rate]
    _, first = at_rate[0]
    if first["diverges"]:
        growth, early = first["growth"], first["early"]
        return {"rate": rate, "diverges": True, "growth a step": growth, "early": early}
    row: dict[str, Any] = {"rate": rate, "diverges": False}
    for name in LABELS:
        row[name] = {}
        for key in ("average", "last"):
            several = [(cell, result) for cell, result in at_rate if _is(cell, name)]
            cell, result = min(several, key=lambda pair: pair[1][key])
            mean, error = result[f"simulated {key}"]
            row[name][key] = {
                "exact": result[key],
                "simulated": mean,
                "error": error,
                "tau": cell.get("tau"),
            }
    row["advantage"] = {
        key: 1 - row["dp-mf+"][key]["exact"] / row["dp-mf"][key]["exact"]
        for key in ("average", "last")
    }
    (damped,) = [result for cell, result in at_rate if _is(cell, "damped")]
    row["damping"] = {"rho": damped["rho"], "final_weight": damped["final_weight"]}
    return row


def _is(cell: Cell, name: str) -> bool:
    """Whether a cell counts for a mechanism: DP-SGD is DP-MF⁺ with τ = 1, and counts for both."""
    return cell["mechanism"] == ("dp-mf+" if name == "dp-sgd" else name) and (
        name != "dp-sgd" or cell["tau"] == 1
    )


def _agreement(results: Results) -> dict[str, float]:
    """Standard errors between simulated means and exact values.

    They are not independent: runs of one seed share their noise.
    """
    apart = [
        abs(result[f"simulated {key}"][0] - result[key]) / result[f"simulated {key}"][1]
        for _, result in results
        if not result["diverges"]
        for key in ("average", "last")
    ]
    return {"compared": len(apart), "median": float(np.median(apart)), "largest": max(apart)}


def _curve_of(results: Results, name: str) -> dict[str, list[float]]:
    curves = {
        (cell["mechanism"], cell.get("tau")): result["curve"]
        for cell, result in results
        if cell["curve"]
    }
    mechanism = {"dp-sgd": ("dp-mf+", 1), "dp-mf+": ("dp-mf+", TAU)}.get(name, (name, None))
    return cast(dict[str, list[float]], curves[mechanism])


def _period(curve: dict[str, list[float]]) -> float:
    """The period of the strongest oscillation in the second half of a curve."""
    part = np.array(curve["exact"][1:])[-(STEPS // 2) :]
    power = np.abs(np.fft.rfft(part - part.mean())) ** 2
    return float(len(part) / np.argmax(power))


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Squared gradient by learning rate, relative to DP-MF, and over the steps."""
    results = [(cell["settings"], cell["result"]) for cell in record["cells"]]
    runs = record["settings"]["runs"]
    rows = record["summary"]["rates"]
    drawn = {
        "average": _against_rates(rows, "average", "Average over all steps", runs),
        "last": _against_rates(rows, "last", "Last step", runs),
        "advantage": _advantage(rows),
        "curve": _over_steps(results, np.arange(0, STEPS + 1, 5)),
        "oscillation": _over_steps(results, np.arange(STEPS - 5 * TAU, STEPS + 1), runs),
    }
    return [
        path
        for name, chart in drawn.items()
        for path in figures.draw(folder / f"{NAME}-{name}", chart)
    ]


def _against_rates(rows: list[dict[str, Any]], key: str, title: str, runs: int) -> charts.Lines:
    series = []
    for name, label in LABELS.items():
        values = [{} if row["diverges"] else row[name][key] for row in rows]
        exactly, simulated, error = (
            np.array([value.get(part, math.nan) for value in values])
            for part in ("exact", "simulated", "error")
        )
        label += {"dp-mf+": ", best τ", "damped": ", best ρ"}.get(name, "")
        series += [
            charts.Series(name, label, np.array(RATES), exactly, points=False),
            charts.Series(
                name, f"{label}, simulated", np.array(RATES), simulated, error, line=False
            ),
        ]
    return charts.Lines(
        f"{title}: squared gradient, by learning rate",
        "learning rate γ",
        "‖∇f(x)‖², expected",
        series,
        log_x=True,
        log_y=True,
        note=f"Lines: exact expectations. Points: means of {runs} simulated runs, ± one standard "
        f"error. L = {SMOOTHNESS:g}, σ = {SIGMA:g}, {STEPS:,} steps.",
        regions=[charts.Region(2 / SMOOTHNESS, 1.4 * RATES[-1], "γ > 2/L:\ndiverges")],
    )


def _advantage(rows: list[dict[str, Any]]) -> charts.Lines:
    fine = [row for row in rows if not row["diverges"]]
    rates = np.array([row["rate"] for row in fine])
    series = [charts.Series("dp-mf", "DP-MF", rates, np.full(len(rates), 100.0), points=False)]
    for name, label in (("dp-mf+", "DP-MF⁺"), ("damped", "damped")):
        for key, dashed in (("average", False), ("last", True)):
            share = [100 * row[name][key]["exact"] / row["dp-mf"][key]["exact"] for row in fine]
            series.append(
                charts.Series(name, f"{label}, {key}", rates, np.array(share), dashed=dashed)
            )
    return charts.Lines(
        "What is left of DP-MF's squared gradient",
        "learning rate γ",
        "‖∇f(x)‖² in percent of DP-MF's, exact expectations",
        series,
        log_x=True,
        note="DP-MF⁺ with the best τ, damped with the best ρ. Solid: average over all steps; "
        "dashed: the last step.",
    )


def _over_steps(results: Results, steps: Any, runs: int = 0) -> charts.Lines:
    """Exact curves, and with ``runs`` the bands of simulated means."""
    series = []
    for name, label in LABELS.items():
        curve = _curve_of(results, name)
        mean, error, exactly = (np.array(curve[part])[steps] for part in ("mean", "error", "exact"))
        label += f", τ = {TAU}" if name == "dp-mf+" else ""
        if runs:
            series.append(
                charts.Series(
                    name, f"{label}, simulated", steps, mean, error, line=False, points=False
                )
            )
        series.append(charts.Series(name, label, steps, exactly, points=False))
    note = f"γ = {CURVE_RATE:g}. Lines: exact expectations."
    return charts.Lines(
        f"Squared gradient over the {f'last {len(steps) - 1} ' if runs else ''}steps",
        "step",
        "‖∇f(x)‖², expected",
        series,
        log_y=True,
        note=note
        + (f" Bands: means of {runs} simulated runs, ± one standard error." if runs else ""),
    )


def tables(record: dict[str, Any]) -> list[Table]:
    """Squared gradients by learning rate, average and last."""
    rates = record["summary"]["rates"]
    agreement = record["summary"]["standard errors between exact and simulated"]
    note = (
        "Exact expectations. Change: from DP-MF to DP-MF⁺ with the best τ (in brackets; the "
        "theorem's is 1/γL). Damped: one design for average and last in equal parts. Simulated "
        f"means are at most {agreement['largest']:.1f} standard errors off, half of all "
        f"{agreement['compared']} less than {agreement['median']:.1f}."
    )
    return [
        Table(
            f"‖∇f(x)‖²: {what}",
            ["γ", "1/γL", *LABELS.values(), "change"],
            [_row(row, key) for row in rates],
            small,
        )
        for key, what, small in (
            ("average", "average over all steps", ""),
            ("last", "last step", note),
        )
    ]


def _row(row: dict[str, Any], key: str) -> list[str]:
    rate = f"{row['rate']:g}"
    scale = f"{round(1 / (row['rate'] * SMOOTHNESS), 2):,g}"
    if row["diverges"]:
        return [rate, scale, *["diverges"] * len(LABELS), f"× {row['growth a step']:.3g} a step"]
    values = [f"{row[name][key]['exact']:#.4g}" for name in LABELS]
    values[list(LABELS).index("dp-mf+")] += f" ({row['dp-mf+'][key]['tau']})"
    return [rate, scale, *values, f"{-100 * row['advantage'][key]:+.2f} %"]
