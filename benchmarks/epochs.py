"""How does the search for the optimum over several epochs grow with the number of steps? At a fixed number of epochs.

python -m benchmarks.epochs [--json] [--output results]   (writes epochs.png and .svg)
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import antiphase as ap
from antiphase.factorization.epochs import bound_only
from antiphase.objective import Average
from antiphase.report import charts, figures

EPOCHS = 8
STEPS = [1024, 2048, 4096, 8192, 16_384, 32_768]
TOLERANCE = 1e-6


def search(steps, epochs):
    """One search: how long it took, and what it came to."""
    done = []
    began = time.perf_counter()
    low, _ = bound_only(
        ap.Workload.sgd(steps),
        Average(),
        ap.epochs(epochs, steps // epochs),
        tolerance=TOLERANCE,
        progress=lambda i, gap: done.append((i, gap)),
    )
    iterations, gap = done[-1]
    seconds = time.perf_counter() - began
    return {"steps": steps, "seconds": seconds, "iterations": iterations, "gap": gap, "bound": low}


def measure(steps=STEPS, epochs=EPOCHS, repetitions=2):
    """One row a size: the fastest of a few."""
    ap.design("dp-mf", steps=64, epochs=4)  # warm
    sizes = track(steps, description="searching", console=Console(stderr=True))
    return [min((search(size, epochs) for _ in range(repetitions)), key=lambda r: r["seconds"]) for size in sizes]


def exponent(rows):
    return float(np.polyfit(np.log([r["steps"] for r in rows]), np.log([r["seconds"] for r in rows]), 1)[0])


def draw(rows, path):
    title = f"Search for the optimum, {EPOCHS} epochs, to a gap of {TOLERANCE:.0e}: time ∝ T^{exponent(rows):.2f}"
    points = [(row["steps"], row["seconds"]) for row in rows]
    figures.draw(path, charts.seconds_against_steps({"DP-MF": ("dp-mf", points)}, title))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder for the figure")
    arguments = parser.parse_args()
    rows = measure()
    draw(rows, arguments.output / "epochs")
    if arguments.json:
        print(json.dumps({"epochs": EPOCHS, "exponent": exponent(rows), "rows": rows}))
        return 0
    table = Table("steps", "time", "ratio", "iterations", "gap")
    for row in rows:
        ratio = row["seconds"] / rows[0]["seconds"]
        table.add_row(
            f"{row['steps']:,}", f"{row['seconds']:.2f} s", f"{ratio:.1f}", str(row["iterations"]), f"{row['gap']:.0e}"
        )
    Console().print(table)
    Console().print(f"{EPOCHS} epochs: time grows like T^{exponent(rows):.2f}; see {arguments.output / 'epochs.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
