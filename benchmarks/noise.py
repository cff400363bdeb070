"""Time of a row of noise: antiphase, JAX Privacy, opake and ``torch.randn`` in alternation."""

import resource

import torch

import antiphase as ap
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.objective import Average
from antiphase.solvers.closed_form import square_root_coefficients
from benchmarks import peers
from benchmarks.question import Claim, Loss
from benchmarks.timing import format_ratio, format_seconds, seconds, take_turns
from experiments.runner import Table

TITLE = "Noise"
CIFAR, LARGE = 550_570, 10_000_000  # the parameters of the paper's CIFAR-10 network; ten million
STEPS, DENSE_STEPS = 400, {False: 400, True: 2000}
REPETITIONS = {CIFAR: 60, LARGE: 5}
SLOWER_THAN_RANDN = 1.6


def measure(run):
    rows = []
    with peers.Worker("jax-privacy") as worker, peers.optional_worker("opake") as other:
        for d in (CIFAR, LARGE):
            run.report(f"rows of {d:,} numbers")
            rows += _rows(d, worker, other)
    run.report(f"dense, T = {DENSE_STEPS[run.full]}")
    rows.append(_dense(DENSE_STEPS[run.full]))
    return {
        "rows": rows,
        "threads": len(peers.cores()),
        "peer": worker.hello,
        "other": other and other.hello,
        "megabytes": _megabytes(),
    }


def _rows(d, worker, other):
    streams = {
        "independent": _stream(ap.design("dp-sgd", steps=STEPS), d),
        "4 buffers": _stream(ap.design("dp-mf", steps=STEPS, buffers=4), d),
        "4 buffers, insecure key": _stream(
            ap.design("dp-mf", steps=STEPS, buffers=4), d, ap.Key.insecure(0)
        ),
        "4 buffers, one thread": _stream(ap.design("dp-mf", steps=STEPS, buffers=4), d, threads=1),
        "16 bands": _stream(_banded(16), d),
    }
    works = {"torch.randn": lambda: torch.randn(d)}
    works |= {f"antiphase, {name}": stream.next for name, stream in streams.items()}
    kept = {f"antiphase, {name}": stream.memory for name, stream in streams.items()}
    for name, vectors in {"independent": 0, "blt": 4, "toeplitz": 15, "banded": 15}.items():
        if d == LARGE and vectors > 4:
            continue  # gigabytes
        worker.ask("stream", name=name, steps=STEPS, parameters=d, vectors=vectors)
        label = {
            "independent": "independent",
            "blt": "BLT, 4 buffers",
            "toeplitz": "Toeplitz, 16 bands",
            "banded": "16 bands",
        }[name]
        works[f"JAX Privacy, {label}"] = _asking(worker, name, d)
        kept[f"JAX Privacy, {label}"] = vectors * d * 4
    for name, vectors in {"blt": 4, "banded": 15}.items() if other else []:
        if d == LARGE and vectors > 4:
            continue
        other.ask("stream", name=name, steps=STEPS, parameters=d, vectors=vectors)
        label = {"blt": "BLT, 4 buffers", "banded": "16 bands"}[name]
        works[f"opake, {label}"] = _asking(other, name, d)
        kept[f"opake, {label}"] = vectors * d * 4
    taken = take_turns(works, REPETITIONS[d], warm=3)
    return [
        {"name": name, "d": d, "memory": kept.get(name, 0)} | timing.json()
        for name, timing in taken.items()
    ]


def _asking(worker, name, d):
    return lambda: worker.ask("row", name=name, parameters=d)["seconds"]


def _stream(factorization, d, key=None, threads=None, memory="1GB"):
    mechanism = ap.calibrate(factorization, noise_multiplier=1.0)
    return mechanism.noise(
        d, key=key or ap.Key.generate(), threads=threads or len(peers.cores()), memory=memory
    )


def _banded(bands):
    """The first coefficients of the square root, with normalised columns."""
    return Toeplitz(
        "banded",
        ap.Workload.sgd(STEPS),
        Average(),
        ap.once(),
        square_root_coefficients(bands),
        True,
    )


def _dense(steps):
    """The mean over all rows: every K-th row computes the K that follow."""
    noise = _stream(ap.design("sqrt-toeplitz", steps=steps), CIFAR, memory="1GB")
    taken = sum(seconds(noise.next) for _ in range(steps)) / steps
    name = f"antiphase, dense, T = {steps}, mean of all rows"
    times = dict.fromkeys(("first", "median", "low", "high"), taken)
    return {"name": name, "d": CIFAR, "memory": noise.memory, **times, "count": steps}


def _megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _of(record, name, d=CIFAR):
    return next(row["median"] for row in record["rows"] if (row["name"], row["d"]) == (name, d))


def tables(record):
    headings = ["", "a row", "quartiles", "to torch.randn", "kept"]
    tables = []
    for d in dict.fromkeys(row["d"] for row in record["rows"]):
        randn = _of(record, "torch.randn", d)
        rows = [
            [
                row["name"],
                format_seconds(row["median"]),
                f"{format_seconds(row['low'])} … {format_seconds(row['high'])}",
                format_ratio(row["median"] / randn),
                f"{row['memory'] / 1e6:.0f} MB",
            ]
            for row in record["rows"]
            if row["d"] == d
        ]
        tables.append(Table(f"d = {d:,}, float32", headings, rows))
    return tables


def claims(record):
    ours = _of(record, "antiphase, 4 buffers")
    blt = ours / _of(record, "JAX Privacy, BLT, 4 buffers")
    randn = ours / _of(record, "torch.randn")
    what = "secure noise, 4 buffers, to"
    limit = f"≤ {SLOWER_THAN_RANDN} ×"
    return [
        Claim(f"{what} JAX Privacy's BLT stream", format_ratio(blt), "≤ 1 ×", blt <= 1),
        Claim(f"{what} torch.randn", format_ratio(randn), limit, randn <= SLOWER_THAN_RANDN),
    ]


COUNTERPARTS = {  # {theirs: ours that does the same work}
    "JAX Privacy, independent": "antiphase, independent",
    "JAX Privacy, BLT, 4 buffers": "antiphase, 4 buffers",
    "JAX Privacy, 16 bands": "antiphase, 16 bands",
    "JAX Privacy, Toeplitz, 16 bands": "antiphase, 16 bands",
    "opake, BLT, 4 buffers": "antiphase, 4 buffers",
    "opake, 16 bands": "antiphase, 16 bands",
    "torch.randn": "antiphase, independent",
}


FIRST_ROW = "JAX Privacy, BLT, 4 buffers"  # whose first row is compared with ours


def _first(record):
    rows = {row["name"]: row["first"] for row in record["rows"] if row["d"] == CIFAR}
    return rows[FIRST_ROW], rows[COUNTERPARTS[FIRST_ROW]]


def losses(record):
    why = "ours uses a cryptographic generator for every number; theirs is not secure"
    lost = []
    theirs, ours = _first(record)
    if theirs < ours:
        times = f"{format_seconds(theirs)} against {format_seconds(ours)}"
        loading = (
            "ours loads its compiled kernel and touches new buffers; theirs was compiled, and "
            "drew a row that is not timed, when its stream was created"
        )
        lost.append(Loss(f"first row, {FIRST_ROW}, d = {CIFAR:,}: {times}", loading))
    for row in record["rows"]:
        if row["name"] not in COUNTERPARTS:
            continue
        ours = _of(record, COUNTERPARTS[row["name"]], row["d"])
        if row["median"] < ours:
            times = f"{format_seconds(row['median'])} against {format_seconds(ours)}"
            lost.append(Loss(f"{row['name']}, d = {row['d']:,}: {times}", why))
    return lost


def notes(record):
    theirs, ours = _first(record)
    return [
        f"One row of noise for all parameters, with {record['threads']} threads unless stated "
        "(`torch.randn` uses one). Our rows are drawn by a cryptographic generator from a secret "
        "key, those of an insecure key too; the two differ in where the key comes from. JAX "
        "Privacy's `update` is compiled once; a BLT keeps its buffers in float32. opake's noise is "
        "PyTorch's. Dense noise is multiplied in blocks of rows, so its time is the mean over the "
        "whole run.",
        f"First timed row: JAX Privacy's BLT {format_seconds(theirs)}, after it was compiled and "
        f"drew a row when its stream was created; ours {format_seconds(ours)}, including the "
        "loading of its compiled kernel.",
    ]


def draw(record, folder):
    return []
