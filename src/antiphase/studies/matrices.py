"""The paper's matrices: ``Λ_τ`` for T = 12, τ = 3, and the decoders of DP-MF and DP-MF⁺ at T = 50, τ = 10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from antiphase.objective import Restarts
from antiphase.report import charts, figures
from antiphase.studies.running import Cell, Found, Result, Table

NAME = "matrices"
TITLE = "What the paper weighs, and what two designs do"
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


def summary(found: Found, full: bool) -> dict[str, Any]:
    results = {cell["matrix"]: result for cell, result in found}
    return {name: {k: v for k, v in result.items() if k != "matrix"} for name, result in results.items()}


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    matrices = [cell["result"]["matrix"] for cell in record["cells"]]
    labels = ["Λ_τ, T = 12, τ = 3", "B of DP-MF, T = 50", "B of DP-MF⁺, T = 50, τ = 10"]
    shown = dict(zip(labels, matrices, strict=True))
    return [*figures.draw(folder / NAME, charts.HeatMaps(record["title"], shown, "step of the noise", "iterate"))]


def words(record: dict[str, Any]) -> list[Table]:
    rows = [
        [label, *(f"{record['summary'][name][key]:.4f}" for key in ("all iterates", "relative to restarts"))]
        for label, name in (("DP-MF", MF), ("DP-MF⁺, τ = 10", PLUS))
    ]
    return [
        Table(
            "Squared noise of 50 steps, at sensitivity 1",
            ["mechanism", "‖B‖²", "‖Λ_τ B‖²"],
            rows,
            "Each design is best by its own measure. Figure: Λ_τ and both decoders.",
        )
    ]
