"""What does a row of noise cost? Ours, JAX Privacy's, opake's and ``torch.randn`` in turn."""

import resource

import torch

import antiphase as ap
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.objective import Average
from antiphase.solvers.closed_form import square_root_coefficients
from benchmarks import peers
from benchmarks.asking import Claim, Loss
from benchmarks.timing import in_turn, in_words, ratio_in_words, seconds
from experiments.runner import Table

TITLE = "Noise"
CIFAR, LARGE = 550_570, 10_000_000  # the parameters of the paper's CIFAR-10 network; ten million
STEPS, DENSE_STEPS = 400, {False: 400, True: 2000}
REPETITIONS = {CIFAR: 60, LARGE: 5}
SLOWER_THAN_RANDN = 1.6


def measure(run):
    rows = []
    with peers.Worker("jax-privacy") as worker, peers.where_it_runs("opake") as other:
        for d in (CIFAR, LARGE):
            run.say(f"rows of {d:,} numbers")
            rows += _rows(d, worker, other)
    run.say(f"dense, T = {DENSE_STEPS[run.full]}")
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
        label = {"independent": "independent", "blt": "BLT, 4 buffers", "toeplitz": "Toeplitz, 16 bands",
                 "banded": "16 bands"}[name]  # fmt: skip
        works[f"JAX Privacy, {label}"] = _asking(worker, name, d)
        kept[f"JAX Privacy, {label}"] = vectors * d * 4
    for name, vectors in {"blt": 4, "banded": 15}.items() if other else []:
        if d == LARGE and vectors > 4:
            continue
        other.ask("stream", name=name, steps=STEPS, parameters=d, vectors=vectors)
        label = {"blt": "BLT, 4 buffers", "banded": "16 bands"}[name]
        works[f"opake, {label}"] = _asking(other, name, d)
        kept[f"opake, {label}"] = vectors * d * 4
    taken = in_turn(works, REPETITIONS[d], warm=3)
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
    """The square root's first coefficients, columns normalised: what a ring of rows undoes."""
    return Toeplitz(
        "banded",
        ap.Workload.sgd(STEPS),
        Average(),
        ap.once(),
        square_root_coefficients(bands),
        True,
    )


def _dense(steps):
    """Averaged over all rows of the run: every K-th row pays for the K that follow."""
    noise = _stream(ap.design("sqrt-toeplitz", steps=steps), CIFAR, memory="1GB")
    taken = sum(seconds(noise.next) for _ in range(steps)) / steps
    name = f"antiphase, dense, T = {steps}, mean of all rows"
    return {"name": name, "d": CIFAR, "memory": noise.memory, "first": taken, "median": taken, "low": taken,
            "high": taken, "count": steps}  # fmt: skip


def _megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---- what is shown -----------------------------------------------------------------------------------------


def _of(record, name, d=CIFAR):
    return next(row["median"] for row in record["rows"] if (row["name"], row["d"]) == (name, d))


def tables(record):
    made = []
    for d in dict.fromkeys(row["d"] for row in record["rows"]):
        randn = _of(record, "torch.randn", d)
        rows = [
            [row["name"], in_words(row["median"]), f"{in_words(row['low'])} … {in_words(row['high'])}",
             ratio_in_words(row["median"] / randn), f"{row['memory'] / 1e6:.0f} MB"]
            for row in record["rows"] if row["d"] == d
        ]  # fmt: skip
        made.append(
            Table(f"d = {d:,}, float32", ["", "a row", "quartiles", "to torch.randn", "kept"], rows)
        )
    return made


def claims(record):
    ours = _of(record, "antiphase, 4 buffers")
    blt, randn = (
        ours / _of(record, "JAX Privacy, BLT, 4 buffers"),
        ours / _of(record, "torch.randn"),
    )
    return [
        Claim("secure noise, 4 buffers, to JAX Privacy's BLT stream", ratio_in_words(blt), "≤ 1 ×", blt <= 1),
        Claim("secure noise, 4 buffers, to torch.randn", ratio_in_words(randn), f"≤ {SLOWER_THAN_RANDN} ×",
              randn <= SLOWER_THAN_RANDN),
    ]  # fmt: skip


LIKE = {  # what of ours does the work of which of theirs
    "JAX Privacy, independent": "antiphase, independent",
    "JAX Privacy, BLT, 4 buffers": "antiphase, 4 buffers",
    "JAX Privacy, 16 bands": "antiphase, 16 bands",
    "JAX Privacy, Toeplitz, 16 bands": "antiphase, 16 bands",
    "opake, BLT, 4 buffers": "antiphase, 4 buffers",
    "opake, 16 bands": "antiphase, 16 bands",
    "torch.randn": "antiphase, independent",
}


BEGUN = "JAX Privacy, BLT, 4 buffers"  # whose first row is shown beside ours


def _first(record):
    rows = {row["name"]: row["first"] for row in record["rows"] if row["d"] == CIFAR}
    return rows[BEGUN], rows[LIKE[BEGUN]]


def losses(record):
    why = "ours encrypts a counter with AES-128 for every number, which a generator that need not be secure can save"
    lost = []
    theirs, ours = _first(record)
    if theirs < ours:
        lost.append(
            Loss(
                f"first row, {BEGUN}, d = {CIFAR:,}: {in_words(theirs)} against {in_words(ours)}",
                "ours loads its compiled kernel and touches new buffers; theirs was compiled, and gave a row that is "
                "not timed, when its stream was begun",
            )
        )
    for row in record["rows"]:
        if row["name"] in LIKE and row["median"] < (
            ours := _of(record, LIKE[row["name"]], row["d"])
        ):
            times = f"{in_words(row['median'])} against {in_words(ours)}"
            lost.append(Loss(f"{row['name']}, d = {row['d']:,}: {times}", why))
    return lost


def words(record):
    theirs, ours = _first(record)
    return [
        f"A row for every parameter, {record['threads']} threads for all unless said (`torch.randn` has one of its "
        "own making). Ours are drawn with AES-128 from a secret key, also the insecure ones, which differ in where "
        "the key comes from. JAX Privacy's `update` is compiled once; a BLT keeps its buffers in float32. "
        "opake's noise is PyTorch's. Dense "
        "noise is multiplied in blocks of rows, so its mean is over the whole run.",
        f"First row that is timed: JAX Privacy's BLT {in_words(theirs)}, which was compiled and gave a row when its "
        f"stream was begun; ours {in_words(ours)}, the loading of its compiled kernel included.",
    ]


def draw(record, folder):
    return []
