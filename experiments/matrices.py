"""The paper's matrices: ``Λ_τ`` for T = 12, τ = 3, and the decoders of DP-MF and DP-MF⁺ at T = 50, τ = 10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from antiphase.objective import Restarts
from antiphase.reporting import charts, figures
from experiments.runner import Cell, Result, Results, Table

NAME = "matrices"
TITLE = "The matrices of DP-MF and DP-MF⁺"
REVISION = 1  # raise it with every change that changes a result
WEIGHT, MF, PLUS = "weight", "dp-mf", "dp-mf+"


def cells(full: bool) -> list[Cell]:
    return [
        {"matrix": WEIGHT, "steps": 12, "tau": 3},
        {"matrix": MF, "steps": 50, "tau": 10},
        {"matrix": PLUS, "steps": 50, "tau": 10},
    ]


def work(cell: Cell) -> Result:
    """One matrix; of a decoder also the squared noise that each of the two objectives counts, at sensitivity 1."""
    root = Restarts(cell["tau"]).root(ap.Workload.from_matrix(np.eye(cell["steps"])))
    if cell["matrix"] == WEIGHT:
        return {"matrix": root.tolist()}
    options = {"tau": cell["tau"]} if cell["matrix"] == PLUS else {}
    design = ap.design(cell["matrix"], steps=cell["steps"], buffers="exact", **options)
    decoder = design.decoder() * design.sensitivity
    return {
        "matrix": decoder.tolist(),
        "all iterates": float(np.square(decoder).sum()),
        "relative to restarts": float(np.square(root @ decoder).sum()),
    }


def summary(found: Results, full: bool) -> dict[str, Any]:
    results = {cell["matrix"]: result for cell, result in found}
    return {
        name: {k: v for k, v in result.items() if k != "matrix"} for name, result in results.items()
    }


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    weight, mf, plus = (cell["result"]["matrix"] for cell in record["cells"])
    note = "Colour grows with the square root of the size, so that small values show."
    drawn = {
        "weight": charts.HeatMaps(
            "What DP-MF⁺ weighs", {"Λ, T = 12, τ = 3": weight}, "iterate", "row", note=note
        ),
        "decoders": charts.HeatMaps(
            "What each iterate keeps of each step's noise",
            {"B of DP-MF, T = 50": mf, "B of DP-MF⁺, T = 50, τ = 10": plus},
            "step of the noise",
            "iterate",
            note=note,
        ),
    }
    return [
        path
        for name, chart in drawn.items()
        for path in figures.draw(folder / f"{NAME}-{name}", chart)
    ]


def tables(record: dict[str, Any]) -> list[Table]:
    rows = [
        [
            label,
            *(
                f"{record['summary'][name][key]:.4f}"
                for key in ("all iterates", "relative to restarts")
            ),
        ]
        for label, name in (("DP-MF", MF), ("DP-MF⁺, τ = 10", PLUS))
    ]
    return [
        Table(
            "Squared noise of 50 steps, at sensitivity 1",
            ["mechanism", "‖B‖²", "‖Λ_τ B‖²"],
            rows,
            "Each design is best by its own measure.",
        )
    ]
