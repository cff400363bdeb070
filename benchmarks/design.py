"""How long does a certified optimum take? In seconds, and as a ratio to work of known size.

python -m benchmarks.design [--json]
"""

import argparse
import json
import os
import sys
import time

os.environ["ANTIPHASE_CACHE"] = "off"

import numpy as np
from rich.console import Console
from rich.table import Table

import antiphase as ap

DENSE = [(256, 16), (512, 16)]
STREAMED = [256, 1024, 4096, 16_384]


def seconds(work):
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


def measure():
    for steps, epochs in DENSE:
        S = np.tril(np.ones((steps, steps)))
        svd = min(seconds(lambda S=S: np.linalg.svd(S))[0] for _ in range(3))
        took, f = seconds(lambda t=steps, e=epochs: ap.design("dp-mf", steps=t, epochs=e))
        yield {"what": f"dp-mf, T = {steps}, {epochs} epoch(s)", "seconds": took, "svds": took / svd, "gap": f.gap}
    _ = ap.design("dp-mf", steps=64).gap  # compiled
    taken = {}
    for steps in STREAMED:
        taken[steps], f = seconds(lambda t=steps: (f := ap.design("dp-mf", steps=t), f.gap)[0])
        ratio = taken[steps] / taken[STREAMED[0]]
        what = f"dp-mf, T = {steps}, streamed, {f.buffers} buffers"
        yield {"what": what, "seconds": taken[steps], "times": ratio, "gap": f.gap}
    one, f = seconds(lambda: ap.design("dp-mf+", steps=50, tau=50))
    took, f = seconds(lambda: ap.design("dp-mf+", steps=5000, tau=50))
    yield {"what": "dp-mf+, T = 5000, τ = 50", "seconds": took, "blocks": took / one, "gap": f.gap}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    as_json = parser.parse_args().json
    with Console(stderr=True).status("designing"):
        rows = list(measure())
    if as_json:
        print(json.dumps(rows))
        return 0
    table = Table("design", "time", "ratio", "gap")
    for row in rows:
        ratio = f"{row['svds']:.0f} SVDs of its size" if "svds" in row else ""
        ratio = f"{row['times']:.1f} × T = {STREAMED[0]}" if "times" in row else ratio
        ratio = f"{row['blocks']:.1f} × one block" if "blocks" in row else ratio
        table.add_row(row["what"], f"{row['seconds']:.2f} s", ratio, f"{row['gap']:.0e}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
