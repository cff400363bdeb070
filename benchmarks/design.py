"""How long does a certified optimum take? In seconds, and in units of one singular value decomposition of its size.

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

DENSE = [(256, 1), (512, 1), (1024, 1), (256, 16), (512, 16)]


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
    table = Table("design", "time", "in SVDs of its size", "gap")
    for row in rows:
        ratio = f"{row['svds']:.0f}" if "svds" in row else f"{row['blocks']:.1f} × one block"
        table.add_row(row["what"], f"{row['seconds']:.2f} s", ratio, f"{row['gap']:.0e}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
