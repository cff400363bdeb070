"""The time to find the optimal encoder and its error: one participation."""

import time

import numpy as np

import antiphase as ap
from antiphase.reporting import figures
from benchmarks import peers
from benchmarks.question import Claim, Loss, excess
from benchmarks.time_chart import seconds_against_steps
from benchmarks.timing import OnOneCore, format_ratio, format_seconds
from experiments.runner import Table

TITLE = "Design, one participation"
NAME, EPOCHS = "design", 1
SIZES = {False: [256, 512, 1024], True: [256, 512, 1024, 2048]}
OURS_ALONE = [4096, 16_384, 65_536, 262_144, 1_000_000]
OPTIONS = {"exact": {"buffers": "exact"}, "default": {}}
ASKED = 1024
FASTER, CLOSER, STEEP = 100, 100, 1.15


def measure(run):
    with OnOneCore():
        ours = ours_at(SIZES[run.full], run)
        alone = ours_at(
            OURS_ALONE if run.full else OURS_ALONE[:-1], run, repetitions=1, kinds=["default"]
        )
    with peers.Worker("jax-privacy", core=peers.cores()[0]) as worker:
        theirs = theirs_at(SIZES[run.full], EPOCHS, worker, ours, run)
    return {"epochs": EPOCHS, "ours": ours + alone, "theirs": theirs, "peer": worker.hello}


def ours_at(sizes, run, epochs=EPOCHS, repetitions=5, kinds=tuple(OPTIONS)):
    """Our designs on one core; the first of a process loads and compiles, and is separate."""
    rows = []
    for kind in kinds:
        options = OPTIONS[kind] if epochs == 1 else {}
        first = _seconds(64, epochs, options)[0]
        for steps in sizes:
            run.report(f"antiphase, {kind}, T = {steps:,}")
            several = [_seconds(steps, epochs, options) for _ in range(repetitions)]
            taken, f = [s for s, _ in several], several[-1][1]
            rows.append(
                {
                    "kind": kind,
                    "steps": steps,
                    "seconds": float(np.median(taken)),
                    "spread": [min(taken), max(taken)],
                }
                | {
                    "first": first,
                    "excess": f.gap,
                    "optimum": f.lower_bound,
                    "buffers": getattr(f, "buffers", None),
                }
            )
    return rows


def _seconds(steps, epochs, options):
    began = time.perf_counter()
    f = ap.design("dp-mf", steps=steps, epochs=epochs, **options)
    _ = f.gap
    return time.perf_counter() - began, f


def theirs_at(sizes, epochs, worker, ours, run):
    """The peer's designs on one core, once each: every call compiles anew."""
    rows = []
    for steps in sizes:
        run.report(
            f"JAX Privacy, dense, T = {steps:,}, {epochs} epoch(s): minutes from T = 1,024 on"
        )
        made = worker.ask("dense", steps=steps, epochs=epochs)
        bound = max(row["optimum"] for row in ours if row["steps"] == steps)
        rows.append(
            {
                "steps": steps,
                "seconds": made["seconds"],
                "excess": excess(made["encoder"], epochs, bound),
            }
        )
    return rows


def pairs(record):
    """Our most precise design and theirs, at the same number of steps."""
    precise = {row["steps"]: row for row in record["ours"] if row["kind"] == "exact"}
    return [(precise[row["steps"]], row) for row in record["theirs"]]


def exponent(rows):
    """The exponent of the time in the number of steps."""
    return float(
        np.polyfit(np.log([r["steps"] for r in rows]), np.log([r["seconds"] for r in rows]), 1)[0]
    )


def long_ones(record):
    return [r for r in record["ours"] if r["kind"] == "default" and r["steps"] >= 4096]


def tables(record):
    rows = []
    for row in record["ours"]:
        buffers = f", {row['buffers']} buffers" if row["buffers"] else ""
        rows.append([f"antiphase, {row['kind']}{buffers}", *_figures(row)])
    rows += [["JAX Privacy, dense", *_figures(row)] for row in record["theirs"]]
    return [Table(TITLE, ["", "T", "time", "excess over the optimum"], rows)]


def _figures(row):
    return f"{row['steps']:,}", format_seconds(row["seconds"]), f"{max(row['excess'], 0):.1e}"


def claims(record):
    ours, theirs = next((o, t) for o, t in pairs(record) if t["steps"] == ASKED)
    faster, closer = theirs["seconds"] / ours["seconds"], theirs["excess"] / ours["excess"]
    steep, theirs_steep = exponent(long_ones(record)), exponent(record["theirs"])
    return [
        Claim(
            f"T = {ASKED}: faster than JAX Privacy",
            format_ratio(faster),
            f"≥ {FASTER} ×",
            faster >= FASTER,
        ),
        Claim("with an excess smaller by", format_ratio(closer), f"≥ {CLOSER} ×", closer >= CLOSER),
        Claim(
            "exponent of the time in T",
            f"{steep:.2f} (peer {theirs_steep:.2f})",
            f"≤ {STEEP}",
            steep <= STEEP,
        ),
    ]


def losses(record):
    why = "ours stops at the given tolerance (`tolerance=`), theirs when its gradient is small"
    return [
        Loss(
            f"{TITLE}, T = {t['steps']:,}: excess {t['excess']:.1e} against {o['excess']:.1e}", why
        )
        for o, t in pairs(record)
        if t["excess"] < o["excess"]
    ]


def notes(record):
    first = max(row["first"] for row in record["ours"])
    return [
        "Squared error of all prefix sums, each record in one step. One core for both. JAX "
        "Privacy: `dense.optimize(T)` at its defaults, which compiles at every call. Ours: medians "
        "of five, "
        f"after a first design that loads and compiles ({format_seconds(first)}; later processes "
        "read the compiled code from a cache).",
        "*Exact* has as many buffers as full precision needs, *default* the fewest within 0.1 % of "
        "the optimum. Excess: of ours the certified gap, of theirs the squared error recomputed in "
        "float64 over the certified lower bound.",
    ]


def draw(record, folder):
    curves = {
        "antiphase": (
            "dp-mf",
            [(r["steps"], r["seconds"]) for r in record["ours"] if r["kind"] == "default"],
        ),
        "JAX Privacy, dense": ("tree", [(r["steps"], r["seconds"]) for r in record["theirs"]]),
    }
    ours, theirs = exponent(long_ones(record)), exponent(record["theirs"])
    title = f"Time to design, one participation: T^{ours:.2f} against T^{theirs:.2f}"
    return list(figures.draw(folder / "benchmark-design", seconds_against_steps(curves, title)))
