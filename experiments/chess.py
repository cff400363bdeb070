"""Figure 4: Chess and PGD (DP-SGD) on the quadratic of Figure 2, at γ = 0.02.

Both have sensitivity 1 and about the same ‖B‖, but PGD converges to a noise level while Chess grows
linearly: its noise returns at every step with the opposite sign, and adds up at that frequency. The
bracket of the theorems distinguishes them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from antiphase.reporting import charts, figures
from antiphase.theory.bounds import noise_terms
from antiphase.theory.quadratic import Quadratic, expectation
from experiments.quadratic import rounded
from experiments.runner import Cell, Result, Results, Table
from experiments.simulation import simulate

NAME = "chess"
TITLE = "Chess diverges where PGD settles, with the same ‖B‖"
REVISION = 1  # raise it with every change that changes a result
SEED = 4
LABELS = {"dp-sgd": "PGD (DP-SGD)", "chess": "Chess"}


def cells(full: bool) -> list[Cell]:
    """Both mechanisms; ``full`` simulates more runs."""
    setting = {
        "steps": 5000,
        "rate": 0.02,
        "smoothness": 10.0,
        "sigma": 20.0,
        "dimension": 100,
        "runs": 64 if full else 16,
        "seed": SEED,
    }
    return [{"mechanism": name} | setting for name in LABELS]


def work(cell: Cell) -> Result:
    """The squared gradient over the steps, exact and simulated, and the terms of the bounds."""
    problem = Quadratic.paper(cell["dimension"], cell["smoothness"])
    design = ap.design(cell["mechanism"], steps=cell["steps"])
    setting: dict[str, Any] = {
        "learning_rate": cell["rate"],
        "noise": cell["sigma"] / math.sqrt(cell["dimension"]),
    }
    paths = simulate(design, problem, **setting, runs=cell["runs"], seed=cell["seed"]).gradient
    expected = expectation(design, problem, **setting).gradient.total
    spread = paths.std(axis=0, ddof=1) / math.sqrt(len(paths))
    steps = np.arange(len(expected))
    half = steps >= len(steps) // 2
    tau = round(1 / (cell["rate"] * cell["smoothness"]))
    return {
        "sensitivity": design.sensitivity,
        "frobenius": float(design.noise_per_iterate.sum()),
        "tau": tau,
        "bracket": noise_terms(design, tau).weighted,
        "averages": {
            str(n): float(expected[: n + 1].mean())
            for n in (cell["steps"] // k for k in (8, 4, 2, 1))
        },
        "slope": float(np.polyfit(steps[half], expected[half], 1)[0]),
        "last": float(expected[-1]),
        "curve": {
            "exact": rounded(expected),
            "mean": rounded(paths.mean(axis=0)),
            "error": rounded(spread),
        },
    }


def summary(results: Results, full: bool) -> dict[str, Any]:
    """Each mechanism without its curve, and how well simulations agree."""
    mechanisms = {
        cell["mechanism"]: {k: v for k, v in result.items() if k != "curve"}
        for cell, result in results
    }
    curves = [result["curve"] for _, result in results]
    compared = range(20, results[0][0]["steps"] + 1, 20)
    apart = [abs(c["mean"][i] - c["exact"][i]) / c["error"][i] for c in curves for i in compared]
    return mechanisms | {
        "slope of the resonance": _resonance(results[0][0]),
        "standard errors between exact and simulated": {
            "compared": len(apart),
            "largest": max(apart),
        },
    }


def _resonance(cell: Cell) -> float:
    """What Chess adds to ``E‖∇f‖²`` per step.

    The power that its noise gains at half a cycle per step, times the gain of gradient descent at
    that frequency, ``γ²h²/(1 + ρ)²`` with ``ρ = 1 − γh``, over all directions.
    """
    h = Quadratic.paper(cell["dimension"], cell["smoothness"]).spectrum
    gain = (cell["rate"] * h / (2 - cell["rate"] * h)) ** 2
    return float(2 * cell["sigma"] ** 2 / cell["dimension"] * gain.sum())


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """The squared gradient over the steps, on a logarithmic and a linear scale."""
    curves = {cell["settings"]["mechanism"]: cell["result"]["curve"] for cell in record["cells"]}
    steps = np.arange(0, record["settings"]["steps"] + 1, 10)
    series = []
    for name, label in LABELS.items():
        exactly, mean, error = (
            np.array(curves[name][part])[steps] for part in ("exact", "mean", "error")
        )
        series += [
            charts.Series(
                name, f"{label}, simulated", steps, mean, error, line=False, points=False
            ),
            charts.Series(name, label, steps, exactly, points=False),
        ]
    runs = record["settings"]["runs"]
    note = (
        f"γ = {record['settings']['rate']:g}. Lines: exact expectations. "
        f"Bands: means of {runs} simulated runs, ± one standard error."
    )
    drawn = {
        kind: charts.Lines(
            record["title"], "step", "‖∇f(x)‖², expected", series, log_y=kind == "log", note=note
        )
        for kind in ("log", "linear")
    }
    return [
        path
        for kind, chart in drawn.items()
        for path in figures.draw(folder / f"{NAME}-{kind}", chart)
    ]


def tables(record: dict[str, Any]) -> list[Table]:
    """Norms, bracket, averages and slope of both mechanisms."""
    summed = record["summary"]
    rows = [
        [label, f"{row['sensitivity']:g}", f"{row['frobenius']:,.0f}", f"{row['bracket']:,.0f}"]
        + [f"{value:#.4g}" for value in row["averages"].values()]
        + [f"{row['last']:#.4g}", f"{row['slope']:.5f}"]
        for label, row in ((label, summed[name]) for name, label in LABELS.items())
    ]
    lengths = [f"average,\n{int(n):,} steps" for n in summed["chess"]["averages"]]
    return [
        Table(
            record["title"],
            ["mechanism", "sens", "‖B‖²", "‖Λ_τ B‖²", *lengths, "last", "slope"],
            rows,
            f"Squared gradients, exact expectations, at γ = {record['settings']['rate']:g}; "
            f"τ = 1/γL = {summed['chess']['tau']}. Slope: per step, over the second half; the "
            f"resonance of Chess gives {summed['slope of the resonance']:.5f}.",
        )
    ]
