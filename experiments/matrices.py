"""Figures 5 and 6: ``Λ_τ``, and the decoders of DP-MF and DP-MF⁺."""

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
    """One cell for each matrix."""
    return [
        {"matrix": WEIGHT, "steps": 12, "tau": 3},
        {"matrix": MF, "steps": 50, "tau": 10},
        {"matrix": PLUS, "steps": 50, "tau": 10},
    ]


def work(cell: Cell) -> Result:
    """One matrix; for a decoder also its squared noise under both objectives, at sensitivity 1."""
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


def summary(results: Results, full: bool) -> dict[str, Any]:
    """The squared noise of each decoder."""
    return {
        cell["matrix"]: {k: v for k, v in result.items() if k != "matrix"}
        for cell, result in results
    }


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Heat maps of the matrices."""
    weight, mf, plus = (cell["result"]["matrix"] for cell in record["cells"])
    note = "Colour grows with the square root of the magnitude, so that small values are visible."
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
    """The squared noise of both decoders under both objectives."""
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
            "Each design is optimal for its own objective.",
        )
    ]
