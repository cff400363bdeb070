"""The paper's matrices: ``Λ_τ`` for T = 12, τ = 3 (appendix), and the decoders of DP-MF and DP-MF⁺ at T = 50, τ = 10.

python -m antiphase.studies.matrices --output results
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from antiphase.objective import Restarts
from antiphase.report import charts, figures

WEIGHT = {"steps": 12, "tau": 3}
DECODERS = {"steps": 50, "tau": 10}


def results() -> dict[str, Any]:
    """All numbers of the study."""
    identity = ap.Workload.from_matrix(np.eye(WEIGHT["steps"]))
    mf = ap.design("dp-mf", steps=DECODERS["steps"])
    plus = ap.design("dp-mf+", steps=DECODERS["steps"], tau=DECODERS["tau"])
    return {
        "weight": Restarts(WEIGHT["tau"]).root(identity).tolist(),
        "decoder dp-mf": mf.decoder().tolist(),
        "decoder dp-mf+": plus.decoder().tolist(),
        "error dp-mf": mf.error,
        "error dp-mf+": plus.error,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder for the JSON and the figures")
    folder = parser.parse_args(arguments).output
    began = time.perf_counter()
    data = results()
    record = {
        "study": "matrices",
        "command": "python -m antiphase.studies.matrices",
        "versions": {"antiphase": ap.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "seconds": round(time.perf_counter() - began, 2),
        "settings": {"weight": WEIGHT, "decoders": DECODERS},
        "results": data,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "matrices.json").write_text(json.dumps(record))
    shown = {
        "Λ_τ, T = 12, τ = 3": data["weight"],
        "B of DP-MF, T = 50": data["decoder dp-mf"],
        "B of DP-MF⁺, T = 50, τ = 10": data["decoder dp-mf+"],
    }
    title = "What the paper weighs, and what two designs do"
    figures.draw(folder / "matrices", charts.HeatMaps(title, shown, "step of the noise", "iterate"))
    print(f"{folder / 'matrices.json'}, {folder / 'matrices.png'}, {folder / 'matrices.svg'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
