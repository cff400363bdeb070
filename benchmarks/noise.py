"""What does a row of noise cost? As a ratio to ``torch.randn(d)``, measured in turn with it in one run.

python -m benchmarks.noise [--json] [--quick]
"""

import argparse
import json
import os
import sys
import time

os.environ["ANTIPHASE_CACHE"] = "off"

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import antiphase as ap
from antiphase.factorization.toeplitz import Toeplitz, square_root_coefficients
from antiphase.objective import Average

D = 550_570  # the parameters of the paper's CIFAR-10 network


def seconds(work):
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def banded(steps, bands):
    workload = ap.Workload.sgd(steps)
    return Toeplitz("banded", workload, Average(), ap.once(), square_root_coefficients(bands), True)


def stream(factorization, threads, memory="512MB"):
    mechanism = ap.calibrate(factorization, noise_multiplier=1.0)
    return mechanism.noise(D, key=ap.Key.generate(), threads=threads, memory=memory)


def in_turn(noise, repetitions):
    """The median time of a row, and of torch.randn, each measured right after the other."""
    rows, randn = [], []
    for _ in range(10):
        noise.next(), torch.randn(D)
    for _ in range(repetitions):
        randn.append(seconds(lambda: torch.randn(D)))
        rows.append(seconds(noise.next))
    return float(np.median(rows)), float(np.median(randn))


def short(what, asked, factorization, threads, vectors):
    noise = stream(factorization, threads)
    row, randn = in_turn(noise, 150)
    promised = vectors * noise._width * 4
    return {"what": what, "threads": threads, "row": row, "randn": randn, "ratio": row / randn, "asked": asked} | {
        "memory": noise.memory,
        "promised": promised,
    }


def dense(steps, threads):
    """Averaged over all rows of the run: every K-th row pays for the K that follow."""
    noise = stream(ap.design("sqrt-toeplitz", steps=steps), threads, memory="1GB")
    rows, randn = 0.0, []
    for _ in track(range(steps), description=f"dense, T = {steps}", console=Console(stderr=True), transient=True):
        rows += seconds(noise.next)
        randn.append(seconds(lambda: torch.randn(D)))
    base = float(np.median(randn))
    return {"what": f"dense, T = {steps}", "threads": threads, "row": rows / steps, "randn": base} | {
        "ratio": rows / steps / base,
        "asked": 15.0,
        "memory": noise.memory,
        "promised": 10**9,
    }


def measure(quick):
    steps = 200
    yield short("independent", 1.2, ap.design("dp-sgd", steps=steps), 2, 0)
    yield short("independent", None, ap.design("dp-sgd", steps=steps), 1, 0)
    yield short("ring, 16 bands", 3.0, banded(steps, 16), 2, 15)
    yield short("ring, 16 bands", None, banded(steps, 16), 1, 15)
    yield short("4 buffers", 1.6, ap.design("dp-mf", steps=steps, buffers=4), 2, 4)
    yield short("4 buffers", 2.4, ap.design("dp-mf", steps=steps, buffers=4), 1, 4)
    momentum = ap.design("dp-mf", workload=ap.Workload.sgd(steps, momentum=0.9), buffers=4)
    yield short("4 buffers, momentum", None, momentum, 2, 8)
    levels = steps.bit_length()
    yield short("tree, full", None, ap.design("tree", steps=steps), 2, levels)
    yield short("tree, online", None, ap.design("tree", steps=steps, estimator="online"), 2, levels)
    yield dense(400 if quick else 2000, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="a shorter dense run")
    arguments = parser.parse_args()
    rows = list(measure(arguments.quick))
    if arguments.json:
        print(json.dumps(rows))
    else:
        table = Table("noise", "threads", "ms a row", "torch.randn", "ratio", "asked", "MB kept", "promised")
        for r in rows:
            asked = f"≤ {r['asked']:g}" if r["asked"] else ""
            times = (f"{1e3 * r['row']:.2f}", f"{1e3 * r['randn']:.2f}", f"{r['ratio']:.2f}")
            memory = (f"{r['memory'] / 1e6:.1f}", f"{r['promised'] / 1e6:.1f}")
            table.add_row(r["what"], str(r["threads"]), *times, asked, *memory)
        Console().print(table)
        print(f"d = {D:,}, float32; AES-128 keys; a row of torch.randn is drawn by one thread.")
    missed = [r for r in rows if (r["asked"] and r["ratio"] > r["asked"]) or r["memory"] > r["promised"]]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
