"""What do encoders of few bands or buffers cost to design, and what is left of the noise?

python -m benchmarks.families [--json]
"""

import argparse
import json
import os
import sys
import time

from rich.console import Console
from rich.progress import track
from rich.table import Table

import antiphase as ap

STEPS = [1024, 4096]
FAMILIES = [
    *(("banded", {"bands": bands}) for bands in (16, 64)),
    *(("toeplitz", {"bands": bands}) for bands in (16, 64)),
    ("toeplitz", {}),
    *(("blt", {"buffers": buffers}) for buffers in (2, 3, 4, 5)),
]
SEVERAL = [("dp-mf", {"buffers": 4}), ("banded", {"bands": 17}), ("toeplitz", {"bands": 17}), ("blt", {"buffers": 4})]
EPOCHS = 16


def measure(steps=STEPS):
    """One row a design: its mean squared error for prefix sums, and how long it took without the cache."""
    os.environ["ANTIPHASE_CACHE"] = "off"
    for name, options in FAMILIES + SEVERAL:
        ap.design(name, steps=64, epochs=4, **options)  # warm
    wanted = [(size, 1, *family) for size in steps for family in FAMILIES]
    wanted += [(size, EPOCHS, *family) for size in steps for family in SEVERAL]
    rows = []
    for size, epochs, name, options in track(wanted, description="designing", console=Console(stderr=True)):
        began = time.perf_counter()
        f = ap.design(name, steps=size, epochs=epochs, **options)
        error = f.error / size
        seconds = time.perf_counter() - began
        rows.append({"steps": size, "epochs": epochs, "name": name, **options, "error": error, "seconds": seconds})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    rows = measure()
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return 0
    table = Table("steps", "epochs", "encoder", "mean squared error", "seconds")
    for row in rows:
        size = row.get("bands") or row.get("buffers") or "all"
        table.add_row(
            str(row["steps"]),
            str(row["epochs"]),
            f"{row['name']}, {size}",
            f"{row['error']:.4f}",
            f"{row['seconds']:.2f}",
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
