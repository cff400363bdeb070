"""Error of a noise stream by the number of vectors that it keeps in memory."""

import numpy as np

import antiphase as ap
from antiphase.reporting import charts, figures
from benchmarks import peers
from benchmarks.question import Claim, Loss, excess, optimum
from benchmarks.timing import format_seconds
from experiments.runner import Table

TITLE = "Quality at equal memory"
STEPS = 1024
EPOCHS = (1, 16)
VECTORS = {False: [2, 4, 8], True: [1, 2, 3, 4, 5, 8, 16]}
MAX_BLT_BUFFERS = 5  # more do not lower the error
ASKED, SHARE = 4, 0.1
WHY = "both are local optima of a descent, and differ by chance"


def measure(run):
    best = {epochs: optimum(STEPS, epochs) for epochs in EPOCHS}
    rows = []
    for epochs in EPOCHS:
        for vectors in VECTORS[run.full]:
            run.report(f"antiphase, {vectors} vectors of memory, {epochs} epoch(s)")
            f = ap.design("dp-mf", steps=STEPS, epochs=epochs, buffers=vectors)
            rows.append(_row("antiphase", epochs, vectors, f.error / best[epochs] - 1))
    with peers.Worker("jax-privacy", core=peers.cores()[0]) as worker:
        for vectors in VECTORS[run.full]:
            run.report(f"JAX Privacy, {vectors} vectors of memory")
            rows += _theirs(vectors, worker, best)
        run.report("JAX Privacy, Toeplitz, all coefficients")
        rows += _one_for_all(
            "Toeplitz, all coefficients", STEPS - 1, "toeplitz", {"bands": STEPS}, worker, best
        )
    return {"steps": STEPS, "optimum": list(best.values()), "rows": rows, "peer": worker.hello}


def _theirs(vectors, worker, best):
    yield from _one_for_all("banded", vectors, "banded", {"bands": vectors + 1}, worker, best)
    yield from _one_for_all(
        "banded Toeplitz", vectors, "toeplitz", {"bands": vectors + 1}, worker, best
    )
    for epochs in EPOCHS if vectors <= MAX_BLT_BUFFERS else []:
        made = worker.ask("blt", steps=STEPS, buffers=vectors, epochs=epochs)
        yield _row(
            "JAX Privacy, BLT", epochs, vectors, excess(made["encoder"], epochs, best[epochs]), made
        )


def _one_for_all(name, vectors, work, settings, worker, best):
    """Rows of one encoder for both numbers of epochs.

    With fewer bands than an epoch has steps, the same encoder is optimal for both.
    """
    made = worker.ask(work, steps=STEPS, **settings)
    for epochs in EPOCHS:
        yield _row(
            f"JAX Privacy, {name}",
            epochs,
            vectors,
            excess(made["encoder"], epochs, best[epochs]),
            made,
        )


def _row(name, epochs, vectors, above, made=None):
    seconds = made and made["seconds"]
    return {
        "name": name,
        "epochs": epochs,
        "vectors": vectors,
        "excess": float(above),
        "seconds": seconds,
    }


def _of(record, name, epochs=1):
    return {
        row["vectors"]: row["excess"]
        for row in record["rows"]
        if (row["name"], row["epochs"]) == (name, epochs)
    }


def _percent(excess):
    """An excess in percent.

    >>> _percent(0.0702), _percent(19.1)
    ('7.02 %', '1,910 %')
    """
    return f"{100 * excess:.3g} %" if excess < 1 else f"{100 * excess:,.0f} %"


def tables(record):
    counts = sorted({row["vectors"] for row in record["rows"]})
    names = list(dict.fromkeys(row["name"] for row in record["rows"]))
    made = []
    for epochs in EPOCHS:
        rows = []
        for name in names:
            have = _of(record, name, epochs)
            rows.append([name, *(_percent(have[c]) if c in have else "–" for c in counts)])
        times = "one participation" if epochs == 1 else f"{epochs} epochs"
        title = (
            "Excess of the squared error over the certified optimum, "
            f"T = {record['steps']}, {times}"
        )
        made.append(Table(title, ["vectors of memory", *map(str, counts)], rows))
    return made


def claims(record):
    ours, blt = _of(record, "antiphase")[ASKED], min(_of(record, "JAX Privacy, BLT").values())
    share = ours / blt
    what = f"{ASKED} vectors, T = {record['steps']}: excess against the best BLT's"
    return [
        Claim(
            what,
            f"{100 * ours:.2g} % against {100 * blt:.2g} %, {share:.3f} of it",
            f"≤ {SHARE}",
            share <= SHARE,
        )
    ]


def losses(record):
    lost = []
    for row in record["rows"]:
        vectors, ours = row["vectors"], _of(record, "antiphase", row["epochs"])
        if vectors in ours and row["excess"] < ours[vectors]:
            what = f"{row['name']}, {row['epochs']} epoch(s), {vectors} vectors"
            excesses = f"excess {row['excess']:.1e} against {ours[vectors]:.1e}"
            lost.append(Loss(f"{what}: {excesses}", WHY))
    return lost


def notes(record):
    slow = max((row for row in record["rows"] if row["seconds"]), key=lambda row: row["seconds"])
    return [
        "Our streams have so many buffers with time-varying coefficients, found by descent. Beside "
        "them: encoders whose inverse needs as many vectors. p bands need p − 1, a BLT one per "
        "buffer, a Toeplitz encoder with all its coefficients T − 1. Over several epochs our "
        "buffers are emptied once per epoch. JAX Privacy's BLT is designed for that "
        "participation; its "
        "banded encoders have fewer bands than an epoch has steps, and are optimal for one epoch "
        "and for several.",
        "BLTs are Toeplitz: no number of buffers brings them below the best Toeplitz encoder. JAX "
        f"Privacy's designs took up to {format_seconds(slow['seconds'])} each.",
    ]


def draw(record, folder):
    colours = {
        "antiphase": "dp-mf",
        "JAX Privacy, BLT": "tree",
        "JAX Privacy, banded": "sqrt-toeplitz",
        "JAX Privacy, banded Toeplitz": "chess",
    }
    paths = []
    for epochs in EPOCHS:
        series = []
        for name, colour in colours.items():
            have = _of(record, name, epochs)
            x = np.array(sorted(have), dtype=float)
            series.append(charts.Series(colour, name, x, np.array([100 * have[int(v)] for v in x])))
        times = "one participation" if epochs == 1 else f"{epochs} epochs"
        title, y = (
            f"Excess over the optimum by memory, T = {record['steps']}, {times}",
            "excess of the squared error (%)",
        )
        chart = charts.Lines(title, "vectors of memory", y, series, log_x=True, log_y=True)
        paths += figures.draw(folder / f"benchmark-memory-{epochs}", chart)
    return paths
