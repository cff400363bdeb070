"""The time to find the optimal encoder for several epochs, and how it grows with the steps."""

import time

import antiphase as ap
from antiphase.objective import Average
from antiphase.problem import Problem
from antiphase.reporting import figures
from antiphase.solvers.multi_epoch import multi_epoch_bounds
from benchmarks import design, peers
from benchmarks.design import exponent
from benchmarks.question import Claim, Loss
from benchmarks.time_chart import seconds_against_steps
from benchmarks.timing import OnOneCore, format_ratio, format_seconds
from experiments.runner import Table

TITLE = "Design, several epochs"
EPOCHS = 16
SIZES = design.SIZES
FASTER = 50
SEARCHED, SEARCH_EPOCHS, TOLERANCE = [1024, 2048, 4096, 8192, 16_384, 32_768], 8, 1e-6


def measure(run):
    with OnOneCore():
        ours = design.ours_at(SIZES[run.full], run, EPOCHS, repetitions=2, kinds=["exact"])
        sizes = SEARCHED if run.full else SEARCHED[:-2]
        run.report(f"antiphase, search alone, {SEARCH_EPOCHS} epochs, T up to {sizes[-1]:,}")
        searches = searched(sizes, repetitions=1)
    with peers.Worker("jax-privacy", core=peers.cores()[0]) as worker:
        theirs = design.theirs_at(SIZES[run.full], EPOCHS, worker, ours, run)
    return {
        "epochs": EPOCHS,
        "ours": ours,
        "theirs": theirs,
        "searched": searches,
        "peer": worker.hello,
    }


def searched(steps=SEARCHED, epochs=SEARCH_EPOCHS, repetitions=2):
    """The search for the certified bound, without the final square root: the fastest of a few."""
    ap.design("dp-mf", steps=64, epochs=4)  # loads and compiles
    return [
        min((_search(size, epochs) for _ in range(repetitions)), key=lambda r: r["seconds"])
        for size in steps
    ]


def _search(steps, epochs):
    reports = []
    began = time.perf_counter()
    problem = Problem(ap.Workload.sgd(steps), Average(), ap.epochs(epochs, steps // epochs))
    low, _ = multi_epoch_bounds(problem, tolerance=TOLERANCE, progress=reports.append)
    iterations, gap = reports[-1].done, reports[-1].gap
    seconds = time.perf_counter() - began
    return {"steps": steps, "seconds": seconds, "iterations": iterations, "gap": gap, "bound": low}


def tables(record):
    rows = [[f"antiphase, {EPOCHS} epochs", *design._figures(row)] for row in record["ours"]]
    rows += [
        [f"JAX Privacy, dense, {EPOCHS} epochs", *design._figures(row)] for row in record["theirs"]
    ]
    searches = [
        [
            f"{row['steps']:,}",
            format_seconds(row["seconds"]),
            str(row["iterations"]),
            f"{row['gap']:.0e}",
        ]
        for row in record["searched"]
    ]
    return [
        Table(TITLE, ["", "T", "time", "excess over the optimum"], rows),
        Table(
            f"The search alone, {SEARCH_EPOCHS} epochs",
            ["T", "time", "iterations", "gap"],
            searches,
        ),
    ]


def claims(record):
    ours, theirs = next((o, t) for o, t in design.pairs(record) if t["steps"] == design.ASKED)
    faster, steep = theirs["seconds"] / ours["seconds"], exponent(record["searched"])
    what = f"T = {design.ASKED}, {EPOCHS} epochs: faster than JAX Privacy"
    return [
        Claim(what, format_ratio(faster), f"≥ {FASTER} ×", faster >= FASTER),
        Claim(
            f"exponent of the search in T, {SEARCH_EPOCHS} epochs",
            f"{steep:.2f}",
            "≤ 1.2",
            steep <= 1.2,
        ),
    ]


def losses(record):
    return [
        Loss(loss.what.replace(design.TITLE, TITLE), loss.why) for loss in design.losses(record)
    ]


def notes(record):
    ours, theirs = design.pairs(record)[-1]
    return [
        "As above, with a fixed order in each epoch: `dense.optimize(T, epochs=16)`. Ours is a "
        "search in near-linear time, then one dense square root for the encoder.",
        f"Both are accurate to many digits. At T = {ours['steps']:,} ours is within "
        f"{ours['excess']:.0e} of the certified bound, theirs within "
        f"{max(theirs['excess'], 0):.0e}. Ours stops when its certified gap reaches the tolerance.",
    ]


def draw(record, folder):
    points = [(row["steps"], row["seconds"]) for row in record["searched"]]
    ours = [(row["steps"], row["seconds"]) for row in record["ours"]]
    theirs = [(row["steps"], row["seconds"]) for row in record["theirs"]]
    steep = exponent(record["searched"])
    title = (
        f"Time to design, {EPOCHS} epochs; "
        f"the search at {SEARCH_EPOCHS} epochs grows like T^{steep:.2f}"
    )
    curves = {
        "search alone": ("dp-mf+", points),
        "antiphase": ("dp-mf", ours),
        "JAX Privacy, dense": ("tree", theirs),
    }
    return list(figures.draw(folder / "benchmark-epochs", seconds_against_steps(curves, title)))
