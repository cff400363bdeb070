"""How good is a stream that keeps so many vectors in memory?"""

import numpy as np

import antiphase as ap
from antiphase.report import charts, figures
from antiphase.studies.running import Table
from benchmarks import peers
from benchmarks.asking import Claim, Loss, excess, optimum
from benchmarks.timing import in_words

TITLE = "Quality at equal memory"
STEPS = 1024
VECTORS = {False: [2, 4, 8], True: [1, 2, 3, 4, 5, 8, 16]}
MOST_BUFFERS = 5  # of a BLT: more are no better
ASKED, SHARE = 4, 0.1
FREE = "its parameters are free, where ours are those of the optimum's own stream, cut short"


def measure(run):
    best = optimum(STEPS, 1)
    with peers.Worker("jax-privacy", core=peers.cores()[0]) as worker:
        rows = [row for count in VECTORS[run.full] for row in _at(count, worker, best, run)]
        run.say("JAX Privacy, Toeplitz, all coefficients")
        whole = worker.ask("toeplitz", steps=STEPS, bands=STEPS)
    rows.append(_row("JAX Privacy, Toeplitz, all coefficients", STEPS - 1, excess(whole["encoder"], 1, best), whole))
    return {"steps": STEPS, "optimum": best, "rows": rows, "peer": worker.hello}


def _at(vectors, worker, best, run):
    run.say(f"{vectors} vectors of memory")
    yield _row("antiphase", vectors, ap.design("dp-mf", steps=STEPS, buffers=vectors).error / best - 1)
    works = {"banded": {"bands": vectors + 1}, "toeplitz": {"bands": vectors + 1}, "blt": {"buffers": vectors}}
    for work, settings in works.items():
        if work == "blt" and vectors > MOST_BUFFERS:
            continue
        made = worker.ask(work, steps=STEPS, **settings)
        name = {"banded": "banded", "toeplitz": "banded Toeplitz", "blt": "BLT"}[work]
        yield _row(f"JAX Privacy, {name}", vectors, excess(made["encoder"], 1, best), made)


def _row(name, vectors, above, made=None):
    return {"name": name, "vectors": vectors, "excess": float(above), "seconds": made and made["seconds"]}


# ---- what is shown -----------------------------------------------------------------------------------------


def _of(record, name):
    return {row["vectors"]: row["excess"] for row in record["rows"] if row["name"] == name}


def tables(record):
    counts = sorted({row["vectors"] for row in record["rows"]})
    names = list(dict.fromkeys(row["name"] for row in record["rows"]))
    rows = []
    for name in names:
        have = _of(record, name)
        rows.append([name, *(f"{100 * have[c]:.3g} %" if c in have else "–" for c in counts)])
    title = f"Excess of the squared error over the certified optimum, T = {record['steps']}, one participation"
    return [Table(title, ["vectors of memory", *map(str, counts)], rows)]


def claims(record):
    ours, blt = _of(record, "antiphase")[ASKED], min(_of(record, "JAX Privacy, BLT").values())
    share = ours / blt
    what = f"{ASKED} vectors, T = {record['steps']}: excess against the best BLT's"
    return [
        Claim(what, f"{100 * ours:.2g} % against {100 * blt:.2g} %, {share:.3f} of it", f"≤ {SHARE}", share <= SHARE)
    ]


def losses(record):
    ours = _of(record, "antiphase")
    return [
        Loss(f"{row['name']}, {row['vectors']} vectors: {row['excess']:.1e} against {ours[row['vectors']]:.1e}", FREE)
        for row in record["rows"]
        if row["vectors"] in ours and row["excess"] < ours[row["vectors"]]
    ]


def words(record):
    slow = max((row for row in record["rows"] if row["seconds"]), key=lambda row: row["seconds"])
    return [
        "The optimum's own stream, cut to so many buffers, beside encoders that need as many vectors to undo: p "
        "bands need p − 1, a BLT one a buffer, a Toeplitz encoder with all its coefficients T − 1.",
        "BLTs are Toeplitz: no number of buffers brings them below the best Toeplitz encoder. JAX Privacy's "
        f"designs took up to {in_words(slow['seconds'])} each.",
    ]


def draw(record, folder):
    series = []
    colours = {"antiphase": "dp-mf", "JAX Privacy, BLT": "tree", "JAX Privacy, banded": "sqrt-toeplitz",
               "JAX Privacy, banded Toeplitz": "chess"}  # fmt: skip
    for name, colour in colours.items():
        have = _of(record, name)
        x = np.array(sorted(have), dtype=float)
        series.append(charts.Series(colour, name, x, np.array([100 * have[int(v)] for v in x])))
    title = f"Excess over the optimum by memory, T = {record['steps']}"
    chart = charts.Lines(title, "vectors of memory", "excess of the squared error (%)", series, log_x=True, log_y=True)
    return list(figures.draw(folder / "benchmark-memory", chart))
