"""Accuracies of mechanisms by ε: means with standard errors, comparisons, chart and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from antiphase.reporting import charts
from experiments.runner import Table

Mean = list[float]  # the mean and its standard error
ByEpsilon = dict[str, Mean]

LABELS = {
    "dp-sgd": "DP-SGD, Poisson batches",
    "dp-mf": "DP-MF",
    "dp-mf+": "DP-MF⁺, τ = 2000",
    "damped": "damped",
}
AHEAD = (
    ("dp-mf+", "dp-mf"),
    ("dp-mf", "dp-sgd"),
    ("dp-mf+", "dp-sgd"),
    ("damped", "dp-sgd"),
    ("damped", "dp-mf+"),
)


def mean(runs: Sequence[float]) -> Mean:
    """The mean of runs and its standard error; the error of a single run is given as 0."""
    error = np.std(runs, ddof=1) / math.sqrt(len(runs)) if len(runs) > 1 else 0.0
    return [float(np.mean(runs)), float(error)]


def key(epsilon: float) -> str:
    """ε (or another number) as a key of JSON."""
    return f"{epsilon:g}"


def comparisons(accuracy: Mapping[str, ByEpsilon]) -> dict[str, ByEpsilon]:
    """The differences of the pairs of AHEAD at each ε."""
    return {
        f"{one} over {other}": differences(accuracy[one], accuracy[other]) for one, other in AHEAD
    }


def differences(one: ByEpsilon, other: ByEpsilon) -> ByEpsilon:
    """The difference of two means at each ε, and its standard error."""
    return {e: [one[e][0] - other[e][0], math.hypot(one[e][1], other[e][1])] for e in one}


def verdict(difference: Mean) -> str:
    """``better`` or ``worse`` by more than two standard errors, or ``alike``."""
    gain, error = difference
    return "alike" if abs(gain) <= 2 * error else "better" if gain > 0 else "worse"


def chart(
    accuracy: Mapping[str, ByEpsilon], title: str, note: str, level: float | None = None
) -> charts.Lines:
    """Accuracies by ε; ``level`` is the accuracy without noise."""
    series = []
    for name, values in accuracy.items():
        means, errors = 100 * np.array(list(values.values())).T
        series.append(
            charts.Series(name, LABELS[name], np.array([float(e) for e in values]), means, errors)
        )
    if level is not None:
        x = series[0].x
        series.append(
            charts.Series(
                charts.NON_PRIVATE,
                "no noise",
                x,
                np.full(len(x), 100 * level),
                dashed=True,
                points=False,
            )
        )
    return over_budgets(title, series, note)


def over_budgets(title: str, series: list[charts.Series], note: str) -> charts.Lines:
    """The chart of accuracies in percent by ε that all studies draw."""
    x, y = "privacy budget ε (smaller is more private)", "accuracy on the test images (%)"
    return charts.Lines(title, x, y, series, log_x=True, note=note)


def tables(accuracy: Mapping[str, ByEpsilon], title: str, note: str) -> list[Table]:
    """A table of accuracies and a table of comparisons."""
    epsilons = list(next(iter(accuracy.values())))
    rows = [
        [LABELS[name], *(percent(value) for value in values.values())]
        for name, values in accuracy.items()
    ]
    ahead = {_label(pair): values for pair, values in comparisons(accuracy).items()}
    return [
        Table(title, ["accuracy (%) at ε =", *epsilons], rows, note),
        comparison_table("Who is ahead", ["points at ε =", *epsilons], ahead),
    ]


def comparison_table(title: str, headings: list[str], ahead: Mapping[str, ByEpsilon]) -> Table:
    """The differences of pairs of mechanisms, each with its verdict."""
    rows = [
        [pair, *(f"{percent(value, '+')} {verdict(value)}" for value in values.values())]
        for pair, values in ahead.items()
    ]
    return Table(title, headings, rows, "alike: within two standard errors.")


def percent(value: Mean, sign: str = "") -> str:
    """A mean and its standard error in percent."""
    return f"{100 * value[0]:{sign}.1f} ± {100 * value[1]:.2f}"


def _label(pair: str) -> str:
    one, other = pair.split(" over ")
    return f"{LABELS[one].split(',')[0]} over {LABELS[other].split(',')[0]}"
