"""Accuracies of several mechanisms at several ε: means with standard errors, who is ahead, a chart, a table."""

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
    """Of one run alone there is no standard error; 0 stands for it."""
    error = np.std(runs, ddof=1) / math.sqrt(len(runs)) if len(runs) > 1 else 0.0
    return [float(np.mean(runs)), float(error)]


def key(epsilon: float) -> str:
    return f"{epsilon:g}"


def comparisons(accuracy: Mapping[str, ByEpsilon]) -> dict[str, ByEpsilon]:
    """By how much, at each ε, the one of two mechanisms is better, and the standard error of that."""
    return {
        f"{one} over {other}": {
            e: [
                accuracy[one][e][0] - accuracy[other][e][0],
                math.hypot(accuracy[one][e][1], accuracy[other][e][1]),
            ]
            for e in accuracy[one]
        }
        for one, other in AHEAD
    }


def verdict(difference: Mean) -> str:
    """``better`` or ``worse`` by more than two standard errors, or ``alike``."""
    gain, error = difference
    return "alike" if abs(gain) <= 2 * error else "better" if gain > 0 else "worse"


def chart(
    accuracy: Mapping[str, ByEpsilon], title: str, note: str, level: float | None = None
) -> charts.Lines:
    """Curves over ε; ``level`` is the accuracy without noise."""
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
    """Accuracies in percent by ε, the way every study shows them."""
    budget, accuracy = (
        "privacy budget ε (smaller is more private)",
        "accuracy on the test images (%)",
    )
    return charts.Lines(title, budget, accuracy, series, log_x=True, note=note)


def tables(accuracy: Mapping[str, ByEpsilon], title: str, note: str) -> list[Table]:
    """Accuracies, then who is ahead of whom."""
    epsilons = list(next(iter(accuracy.values())))
    rows = [
        [LABELS[name], *(percent(value) for value in values.values())]
        for name, values in accuracy.items()
    ]
    ahead = [
        [_in_words(pair), *(f"{percent(value, '+')} {verdict(value)}" for value in values.values())]
        for pair, values in comparisons(accuracy).items()
    ]
    return [
        Table(title, ["accuracy (%) at ε =", *epsilons], rows, note),
        Table(
            "Who is ahead",
            ["points at ε =", *epsilons],
            ahead,
            "alike: within two standard errors.",
        ),
    ]


def percent(value: Mean, sign: str = "") -> str:
    return f"{100 * value[0]:{sign}.1f} ± {100 * value[1]:.2f}"


def _in_words(pair: str) -> str:
    one, other = pair.split(" over ")
    return f"{LABELS[one].split(',')[0]} over {LABELS[other].split(',')[0]}"
