"""``make demo``: four mechanisms on handwritten digits, at two privacy budgets, in two minutes."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from antiphase import __version__, data
from antiphase._util import files
from antiphase._util.progress import Progress, ProgressReport
from antiphase.reporting import charts, page
from antiphase.torch.recipe import Outcome, Recipe
from antiphase.torch.training import train

TITLE = "Handwritten digits, logistic regression, with differential privacy"
DELTA = 1e-4  # well below one over 1,436 examples
# One learning rate for each ε, the same for all mechanisms, chosen on a fifth of the training part that was held out.
RATES = {1.0: 0.5, 8.0: 2.0}
EPSILONS = tuple(RATES)
SETTING: dict[str, Any] = {"epochs": 10, "batch_size": 64, "delta": DELTA, "clip_norm": 1.0}
PLAIN, SAMPLED = "DP-SGD, fixed order", "DP-SGD, Poisson batches"
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {  # label: name, options
    PLAIN: ("dp-sgd", {}),
    SAMPLED: ("dp-sgd", {}),
    "DP-MF": ("dp-mf", {}),
    "DP-MF⁺": ("dp-mf+", {}),
    "damped, ρ = 0.99": ("damped", {"rho": 0.99, "final_weight": 15.0}),  # √ of 230 steps
}
ALONE = "no privacy"


@dataclass(frozen=True, eq=False)
class Result:
    """Outcomes by label and ε; None is without privacy."""

    outcomes: dict[tuple[str, float | None], list[Outcome]]
    stopped: bool = False

    def rows(self) -> dict[str, list[str]]:
        """For a table: mean ± standard error in percent."""
        table = {
            label: [_words(self.outcomes.get((label, e), [])) for e in EPSILONS]
            for label in MECHANISMS
        }
        return table | {ALONE: [_words(self.outcomes.get((ALONE, None), []))] * len(EPSILONS)}

    @property
    def statement(self) -> Any:
        """Of the best mechanism without random batches, at the smallest ε."""
        best = self.best(EPSILONS[0])
        return "" if best is None else self.outcomes[best, EPSILONS[0]][0].statement

    def best(self, epsilon: float) -> str | None:
        """Of those that need no random batches."""
        means = {
            label: _mean(self.outcomes[label, epsilon])
            for label in MECHANISMS
            if (label, epsilon) in self.outcomes and label != SAMPLED
        }
        return max(means, key=lambda label: means[label]) if means else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "setting": SETTING | {"learning_rates": {f"{e:g}": rate for e, rate in RATES.items()}},
            "stopped": self.stopped,
            "results": [
                {
                    "label": label,
                    "name": _name(label),
                    "epsilon": epsilon,
                    "accuracies": [o.accuracy for o in found],
                    "seeds": [o.seed for o in found],
                    "noise_multiplier": found[0].noise_multiplier,
                }
                for (label, epsilon), found in self.outcomes.items()
            ],
        }


def run(trials: int, progress: Progress | None = None) -> Result:
    """Train everything; Ctrl-C keeps what was finished."""
    digits = data.load("digits")
    points: list[tuple[str, float | None]] = [(label, e) for e in EPSILONS for label in MECHANISMS]
    points.append((ALONE, None))
    outcomes: dict[tuple[str, float | None], list[Outcome]] = {}
    done = 0
    try:
        for seed in range(trials):
            for label, epsilon in points:
                if progress is not None:
                    task = label if epsilon is None else f"{label}, ε = {epsilon:g}"
                    progress(ProgressReport(done, trials * len(points), task=task))
                name, options = MECHANISMS.get(label, ("none", {}))
                rate = RATES[epsilon or EPSILONS[-1]]
                recipe = Recipe(
                    mechanism=name, options=options, poisson=label == SAMPLED, epsilon=epsilon, learning_rate=rate,
                    **SETTING,
                )  # fmt: skip
                outcome = train(recipe, digits, seed=seed, evaluate=10)
                outcomes.setdefault((label, epsilon), []).append(outcome)
                done += 1
    except KeyboardInterrupt:
        if not outcomes:
            raise
        return Result(outcomes, stopped=True)
    if progress is not None:
        progress(ProgressReport(done, done))
    return Result(outcomes)


def write(folder: Path, found: Result) -> list[Path]:
    """The page and the results it was drawn from."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_bytes(
        folder / "results.json", json.dumps(found.to_dict(), indent=2, ensure_ascii=False).encode()
    )
    return [page.write(folder / "report.html", _page(found)), folder / "results.json"]


def _page(found: Result) -> page.Page:
    runs = [
        {"name": _name(label), "label": label, "epsilon": epsilon, "accuracy": o.accuracy,
         "steps": [p[0] for p in o.curve], "accuracies": [p[1] for p in o.curve]}
        for (label, epsilon), group in found.outcomes.items()
        for o in group
    ]  # fmt: skip
    least, most = EPSILONS[0], EPSILONS[-1]
    rows = [
        {"name": _name(label), "label": label}
        | {
            f"at{e:g}": 100 * _mean(found.outcomes[label, e])
            for e in EPSILONS
            if (label, e) in found.outcomes
        }
        | {
            f"se{e:g}": 100 * _error(found.outcomes[label, e])
            for e in EPSILONS
            if len(found.outcomes.get((label, e), [])) > 1
        }
        for label in MECHANISMS
    ]
    columns = [page.Column("label", "mechanism")]
    for e in EPSILONS:
        columns += [
            page.Column(f"at{e:g}", f"accuracy at ε = {e:g}", "%", "on test data", "high", 3),
            page.Column(f"se{e:g}", "±", "%", "standard error of the mean", None, 2),
        ]
    best = found.best(least) or PLAIN
    answer = (
        f"Without random batches, {best} reads {_percent(found, best, least)} of the digits at ε = {least:g}; DP-SGD "
        f"reads {_percent(found, PLAIN, least)}."
    )
    points = [
        f"With Poisson batches, where they can be had, DP-SGD reads {_percent(found, SAMPLED, least)} at "
        f"ε = {least:g}.",
        f"At ε = {most:g} the best without them is {found.best(most)} with "
        f"{_percent(found, found.best(most) or PLAIN, most)}; without any privacy the same model reads "
        f"{_words(found.outcomes.get((ALONE, None), []))} %.",
        f"Each is a promise for every example: (ε, δ = {DELTA:g})-differential privacy of all that is released.",
    ]
    trials = max(len(group) for group in found.outcomes.values())
    return page.Page(
        title="antiphase: digits",
        question="How well can a model read handwritten digits while every example stays private?",
        answer=answer,
        points=points,
        grids=[page.Grid(f"Accuracy, means of {trials} seeds", columns, rows)],
        charts=[
            _told_apart(charts.accuracy_against_epsilon(runs)),
            *(
                _told_apart(
                    charts.training_curves(
                        [r for r in runs if r["epsilon"] == e],
                        f"Accuracy while training, ε = {e:g}",
                    )
                )
                for e in EPSILONS
            ),
        ],
        statements=[found.statement] if found.statement else [],
        reproduce=["antiphase demo"],
        notes=[
            f"1,797 digits of 8 × 8 pixels, 1,436 of them to train; {SETTING['epochs']} epochs, batches of "
            f"{SETTING['batch_size']}, clip norm {SETTING['clip_norm']:g}, learning rate "
            f"{' and '.join(f'{rate:g} at ε = {e:g}' for e, rate in RATES.items())}: the same for all mechanisms, "
            "chosen on a part of the training data that was held out.",
            "The noise comes from a new secret key every time, so figures repeat within their standard errors.",
        ],
        made=f"antiphase {__version__}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def _told_apart(chart: charts.Lines) -> charts.Lines:
    """One mechanism has one colour; on Poisson batches it is dashed."""
    series = [replace(s, dashed=True) if s.label == SAMPLED else s for s in chart.series]
    return replace(chart, series=series)


def _name(label: str) -> str:
    return MECHANISMS[label][0] if label in MECHANISMS else charts.NON_PRIVATE


def _mean(found: list[Outcome]) -> float:
    return statistics.fmean(o.accuracy for o in found)


def _error(found: list[Outcome]) -> float:
    return (
        statistics.stdev(o.accuracy for o in found) / math.sqrt(len(found))
        if len(found) > 1
        else 0.0
    )


def _words(found: list[Outcome]) -> str:
    if len(found) < 2:
        return f"{100 * _mean(found):.1f}" if found else "–"
    return f"{100 * _mean(found):.1f} ± {100 * _error(found):.1f}"


def _percent(found: Result, label: str, epsilon: float) -> str:
    group = found.outcomes.get((label, epsilon))
    return f"{100 * _mean(group):.1f} %" if group else "–"
