"""The time and the value of ε, against dp-accounting."""

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant

from antiphase import accounting
from antiphase.accounting import poisson
from benchmarks.question import Claim, Loss
from benchmarks.timing import Timing, format_ratio, format_seconds, seconds
from experiments.runner import Table

TITLE = "Accounting"
DELTA = 1e-6
MULTIPLIERS = [0.341, 0.682, 1.0, 1.364, 2.728, 5.456]
POISSON = {  # noise multiplier, sampling rate, steps
    "noise multiplier 1, q = 0.01, 2,000 steps": (1.0, 0.01, 2000),
    "noise multiplier 0.8, q = 469/60,000, 2,048 steps": (0.8, 469 / 60_000, 2048),
}
AGREE = 1e-6


def measure(run):
    run.report("ε of one Gaussian mechanism, and of Poisson samples")
    rows = [
        _compare(
            f"Gaussian, noise multiplier {s}",
            lambda s=s: accounting.gaussian_epsilon(s, DELTA),
            lambda s=s: _gaussian(s),
        )
        for s in MULTIPLIERS
    ]
    for name, (s, rate, steps) in POISSON.items():
        rows.append(
            _compare(
                f"Poisson, {name}",
                lambda s=s, q=rate, t=steps: _ours(s, q, t),
                lambda s=s, q=rate, t=steps: _poisson(s, q, t),
            )
        )
    return {"delta": DELTA, "rows": rows}


def _gaussian(multiplier):
    """By dp-accounting at its default discretisation."""
    accountant = pld_privacy_accountant.PLDAccountant()
    return accountant.compose(dp_event.GaussianDpEvent(multiplier)).get_epsilon(DELTA)


def _ours(multiplier, rate, steps):
    poisson._loss_distribution.cache_clear()  # which remembers the last few
    return accounting.poisson_epsilon(multiplier, DELTA, sampling_rate=rate, steps=steps)


def _poisson(multiplier, rate, steps):
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    return pld_privacy_accountant.PLDAccountant().compose(event, steps).get_epsilon(DELTA)


def _compare(name, ours, theirs):
    epsilons = {"ours": ours(), "theirs": theirs()}
    taken = {"ours": [], "theirs": []}
    for _ in range(5):
        taken["ours"].append(seconds(ours))
        taken["theirs"].append(seconds(theirs))
    timings = {who: Timing.of(taken[who][0], taken[who]).json() for who in taken}
    return {"name": name, **epsilons, "seconds": timings}


def tables(record):
    rows = []
    for row in record["rows"]:
        ours, theirs = (row["seconds"][who]["median"] for who in ("ours", "theirs"))
        epsilons = [f"{row[who]:.9g}" for who in ("ours", "theirs")]
        times = [format_seconds(ours), format_seconds(theirs), format_ratio(theirs / ours)]
        rows.append([row["name"], *epsilons, *times])
    headings = [
        "",
        "ε, antiphase",
        "ε, dp-accounting",
        "time, antiphase",
        "time, dp-accounting",
        "faster",
    ]
    return [Table(f"ε at δ = {record['delta']:g}", headings, rows)]


def claims(record):
    gaussian = [row for row in record["rows"] if row["name"].startswith("Gaussian")]
    above = [row["ours"] / row["theirs"] - 1 for row in gaussian]
    least, most = float(np.min(above)), float(np.max(above))
    return [
        Claim(
            "Gaussian ε over dp-accounting's, relative",
            f"{least:+.1e} … {most:+.1e}",
            f"≤ {AGREE:g}",
            most <= AGREE,
        )
    ]


def losses(record):
    why = (
        "ours calls dp-accounting at a finer interval than its default, and for both of its "
        "estimates"
    )
    lost = []
    for row in record["rows"]:
        ours, theirs = (row["seconds"][who]["median"] for who in ("ours", "theirs"))
        if theirs < ours:
            what = f"{row['name']}: {format_seconds(theirs)} against {format_seconds(ours)}"
            lost.append(Loss(what, why))
    return lost


def notes(record):
    return [
        "Each ε is computed five times, in alternation. Correlated noise needs a single Gaussian, "
        "whose ε antiphase computes in closed form and rounds up; dp-accounting discretises the "
        "privacy loss at its default interval, and its ε is an upper bound too. For Poisson "
        "samples antiphase calls dp-accounting, at the interval at which both of its estimates "
        "agree; it is slower where that interval is finer than the default.",
    ]


def draw(record, folder):
    return []
