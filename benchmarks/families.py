"""Error and design time of encoders of one form, with few bands or buffers."""

import time

import antiphase as ap
from benchmarks import peers
from benchmarks.question import Claim, Loss, excess
from benchmarks.timing import OnOneCore, format_ratio, format_seconds
from experiments.runner import Table

TITLE = "Encoders of one form"
STEPS = [1024, 4096]
FORMS = {  # our name and options, and the peer's work
    "BLT, 2 buffers": ("blt", {"buffers": 2}, "blt"),
    "BLT, 4 buffers": ("blt", {"buffers": 4}, "blt"),
    "Toeplitz, 16 bands": ("toeplitz", {"bands": 16}, "toeplitz"),
    "Toeplitz, 64 bands": ("toeplitz", {"bands": 64}, "toeplitz"),
    "Toeplitz, all coefficients": ("toeplitz", {}, "toeplitz"),
    "banded, 16 bands": ("banded", {"bands": 16}, "banded"),
    "banded, 64 bands": ("banded", {"bands": 64}, "banded"),
}
QUICK = [(1024, form) for form in FORMS if form != "banded, 64 bands"]  # others take minutes
OPAKE = ("BLT, 2 buffers", "BLT, 4 buffers", "Toeplitz, 16 bands", "Toeplitz, 64 bands")
PEER = {"jax-privacy": "JAX Privacy", "opake": "opake"}
NO_WORSE = 1.001
LARGER = (
    "Designs at T = 4,096 (`--full`) take JAX Privacy up to half an hour each. They were measured "
    "in a separate run beside other work, so only the orders of magnitude of their times count."
)
WHY = "both are at the optimum of this form; the errors differ by less than 1e-4"


def measure(run):
    wanted = [
        (steps, form) for steps in STEPS for form in FORMS if run.full or (steps, form) in QUICK
    ]
    with OnOneCore():
        for name, options, _ in FORMS.values():
            ap.design(name, steps=96, **options)  # loads and compiles
        ours = {(steps, form): _ours(steps, form) for steps, form in wanted}
    with peers.Worker("jax-privacy", core=peers.cores()[0]) as worker:
        rows = [_row(steps, form, *ours[steps, form], worker, run) for steps, form in wanted]
    with peers.optional_worker("opake", core=peers.cores()[0]) as other:
        shared = [
            (steps, form) for steps, form in wanted if other and form in OPAKE and steps == STEPS[0]
        ]
        rows += [_row(steps, form, *ours[steps, form], other, run) for steps, form in shared]
    return {"rows": rows, "peer": worker.hello, "other": other and other.hello}


def _ours(steps, form):
    """The error, and the shortest of three times (or the only one, if it is long)."""
    name, options, _ = FORMS[form]
    taken = []
    while not taken or (len(taken) < 3 and taken[0] < 5):
        began = time.perf_counter()
        error = ap.design(name, steps=steps, **options).error
        taken.append(time.perf_counter() - began)
    return float(error), min(taken)


def _row(steps, form, error, seconds, worker, run):
    run.report(f"{PEER[worker.name]}, {form}, T = {steps:,}")
    _, options, work = FORMS[form]
    made = worker.ask(work, steps=steps, **(options or {"bands": steps}))
    above = excess(made["encoder"], 1, error)
    return {
        "peer": PEER[worker.name],
        "steps": steps,
        "form": form,
        "error": error,
        "theirs over ours": 1 + above,
        "seconds": seconds,
        "their seconds": made["seconds"],
    }


def tables(record):
    rows = [
        [
            r["form"],
            r["peer"],
            f"{r['steps']:,}",
            f"{r['error'] / r['steps']:.6g}",
            f"{r['theirs over ours'] - 1:+.1e}",
            format_seconds(r["seconds"]),
            format_seconds(r["their seconds"]),
            format_ratio(r["their seconds"] / r["seconds"]),
        ]
        for r in record["rows"]
    ]
    headings = [
        "",
        "peer",
        "T",
        "our mean squared error",
        "theirs above it",
        "our time",
        "their time",
        "faster",
    ]
    return [Table("The same form, designed by both; one participation", headings, rows)]


def claims(record):
    claims = []
    for peer, steps in dict.fromkeys((row["peer"], row["steps"]) for row in record["rows"]):
        rows = [row for row in record["rows"] if (row["peer"], row["steps"]) == (peer, steps)]
        worst = max(1 / row["theirs over ours"] for row in rows)
        slowest = max(row["seconds"] / row["their seconds"] for row in rows)
        what = f"T = {steps:,}, {len(rows)} forms"
        error, limit = f"≤ {worst:.6f}", f"≤ {NO_WORSE}"
        claims.append(Claim(f"{what}: error over {peer}'s", error, limit, worst <= NO_WORSE))
        claims.append(Claim(f"{what}: time over {peer}'s", f"≤ {slowest:.2f}", "≤ 1", slowest <= 1))
    return claims


def losses(record):
    lost = []
    for row in record["rows"]:
        ratio = row["theirs over ours"]
        if ratio < 1 - 1e-12:
            what = f"{row['peer']}, {row['form']}, T = {row['steps']:,}"
            lost.append(Loss(f"{what}: error less by {1 - ratio:.1e}", WHY))
    return lost


def notes(record):
    return [
        "One core for each; the peers once (JAX Privacy compiles at every call), ours the best of "
        "three after a first small design. opake chooses how many buffers it uses, up to the given "
        "number. All squared errors are computed here, from the encoders.",
        *([LARGER] if any(row["steps"] > STEPS[0] for row in record["rows"]) else []),
    ]


def draw(record, folder):
    return []
