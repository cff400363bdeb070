"""``antiphase demo``: four mechanisms on handwritten digits, at two privacy budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphase import data
from antiphase._util import files
from antiphase._util.progress import Progress, ProgressReport
from antiphase.reporting import charts, page
from antiphase.reporting.training_report import mean_accuracy, standard_error
from antiphase.statement import PrivacyStatement
from antiphase.torch.recipe import Outcome, Recipe
from antiphase.torch.training import train

TITLE = "Handwritten digits, logistic regression, with differential privacy"
DELTA = 1e-4  # well below one over 1,436 examples
# The learning rate for each ε, shared by all mechanisms: the best on a held-out fifth of the
# training data.
LEARNING_RATES = {1.0: 0.5, 8.0: 2.0}
EPSILONS = tuple(LEARNING_RATES)
SETTING: dict[str, Any] = {"epochs": 10, "batch_size": 64, "delta": DELTA, "clip_norm": 1.0}
FIXED_ORDER, POISSON = "DP-SGD, fixed order", "DP-SGD, Poisson batches"
NO_PRIVACY = "no privacy"
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {  # label: name, options
    FIXED_ORDER: ("dp-sgd", {}),
    POISSON: ("dp-sgd", {}),
    "DP-MF": ("dp-mf", {}),
    "DP-MF⁺": ("dp-mf+", {}),
    "damped, ρ = 0.99": ("damped", {"rho": 0.99, "final_weight": 15.0}),  # √ of 230 steps
}

Point = tuple[str, float | None]  # label and ε; None without privacy
POINTS: tuple[Point, ...] = (
    *((label, epsilon) for epsilon in EPSILONS for label in MECHANISMS),
    (NO_PRIVACY, None),
)


@dataclass(frozen=True, eq=False)
class DemoResult:
    """Trained models.

    Attributes:
        outcomes: the trainings of each point, one for each seed.
        stopped: whether Ctrl-C stopped the demo before its end.
    """

    outcomes: dict[Point, list[Outcome]]
    stopped: bool = False

    def rows(self) -> dict[str, list[str]]:
        """Return mean ± standard error in percent, by label and ε."""
        rows = {label: [self.accuracy(label, e) for e in EPSILONS] for label in MECHANISMS}
        return rows | {NO_PRIVACY: [self.accuracy(NO_PRIVACY, None)] * len(EPSILONS)}

    def accuracy(self, label: str, epsilon: float | None, with_error: bool = True) -> str:
        """Return the mean accuracy in percent, with its standard error if there is one."""
        outcomes = self.outcomes.get((label, epsilon), [])
        if not outcomes:
            return "–"
        error = standard_error(outcomes) if with_error else None
        mean = f"{100 * mean_accuracy(outcomes):.1f}"
        return mean if error is None else f"{mean} ± {100 * error:.1f}"

    def best(self, epsilon: float) -> str:
        """Return the label of the most accurate mechanism that needs no random batches."""
        trained = [
            label for label in MECHANISMS if label != POISSON and (label, epsilon) in self.outcomes
        ]
        accuracy = {label: mean_accuracy(self.outcomes[label, epsilon]) for label in trained}
        return max(trained, key=lambda label: accuracy[label], default=FIXED_ORDER)

    @property
    def statement(self) -> PrivacyStatement | None:
        """Statement of the best mechanism without random batches, at the smallest ε."""
        outcomes = self.outcomes.get((self.best(EPSILONS[0]), EPSILONS[0]))
        return None if outcomes is None else outcomes[0].statement

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the weights as plain values that JSON can hold."""
        rates = {f"{epsilon:g}": rate for epsilon, rate in LEARNING_RATES.items()}
        return {
            "setting": SETTING | {"learning_rates": rates},
            "stopped": self.stopped,
            "results": [
                {
                    "label": label,
                    "name": _name(label),
                    "epsilon": epsilon,
                    "accuracies": [outcome.accuracy for outcome in outcomes],
                    "seeds": [outcome.seed for outcome in outcomes],
                    "noise_multiplier": outcomes[0].noise_multiplier,
                }
                for (label, epsilon), outcomes in self.outcomes.items()
            ],
        }


def run(trials: int, progress: Progress | None = None) -> DemoResult:
    """Train all models; Ctrl-C keeps what is finished.

    Args:
        trials: number of seeds.
        progress: called before each training, and at the end.
    """
    digits = data.load("digits")
    outcomes: dict[Point, list[Outcome]] = {}
    report = progress or (lambda now: None)
    total = trials * len(POINTS)
    try:
        for done, (seed, (label, epsilon)) in enumerate(
            (seed, point) for seed in range(trials) for point in POINTS
        ):
            task = label if epsilon is None else f"{label}, ε = {epsilon:g}"
            report(ProgressReport(done, total, task=task))
            outcome = train(_recipe(label, epsilon), digits, seed=seed, evaluate=10)
            outcomes.setdefault((label, epsilon), []).append(outcome)
    except KeyboardInterrupt:
        if not outcomes:
            raise
        return DemoResult(outcomes, stopped=True)
    report(ProgressReport(total, total))
    return DemoResult(outcomes)


def write(folder: Path, result: DemoResult) -> list[Path]:
    """Write the page and the results that it shows, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    text = json.dumps(result.to_dict(), indent=2, ensure_ascii=False)
    files.write_bytes(results, text.encode())
    return [page.write(folder / "report.html", _page(result)), results]


def _name(label: str) -> str:
    return MECHANISMS[label][0] if label in MECHANISMS else charts.NON_PRIVATE


def _recipe(label: str, epsilon: float | None) -> Recipe:
    name, options = MECHANISMS.get(label, ("none", {}))
    return Recipe(
        mechanism=name,
        options=options,
        poisson=label == POISSON,
        epsilon=epsilon,
        learning_rate=LEARNING_RATES[epsilon or EPSILONS[-1]],
        **SETTING,
    )


def _page(result: DemoResult) -> page.Page:
    low, high = EPSILONS[0], EPSILONS[-1]
    best, best_at_high = result.best(low), result.best(high)
    trials = max(map(len, result.outcomes.values()))
    rates = " and ".join(f"{rate:g} at ε = {e:g}" for e, rate in LEARNING_RATES.items())

    def percent(label: str, epsilon: float) -> str:
        return f"{result.accuracy(label, epsilon, with_error=False)} %"

    return page.Page(
        title="antiphase: digits",
        question="How accurately can a model read handwritten digits with differential privacy?",
        answer=f"Test accuracy at ε = {low:g} without random batches: {best} {percent(best, low)}, "
        f"DP-SGD {percent(FIXED_ORDER, low)}.",
        points=[
            f"With Poisson batches, DP-SGD reaches {percent(POISSON, low)} at ε = {low:g}.",
            f"At ε = {high:g} the best without random batches is {best_at_high} with "
            f"{percent(best_at_high, high)}; the same model without privacy reaches "
            f"{result.accuracy(NO_PRIVACY, None)} %.",
            f"Each result is (ε, δ = {DELTA:g})-differentially private for every example.",
        ],
        grids=[_grid(result, trials)],
        charts=list(_charts(result)),
        statements=[result.statement] if result.statement else [],
        reproduce=["antiphase demo"],
        notes=[
            "1,797 digits of 8 × 8 pixels, 1,436 of them to train; "
            f"{SETTING['epochs']} epochs, batches of {SETTING['batch_size']}, clip norm "
            f"{SETTING['clip_norm']:g}, learning rate {rates}: the same for all mechanisms, the "
            "best on a held-out part of the training data.",
            "The noise comes from a new secret key in every run, so figures repeat within their "
            "standard errors.",
        ],
        made=page.version_and_time(),
    )


def _grid(result: DemoResult, trials: int) -> page.Grid:
    columns = [page.Column("label", "mechanism")]
    rows: list[dict[str, page.Cell]] = [{"name": _name(k), "label": k} for k in MECHANISMS]
    for epsilon in EPSILONS:
        mean, error = f"mean{epsilon:g}", f"error{epsilon:g}"
        columns += [
            page.Column(mean, f"accuracy at ε = {epsilon:g}", "%", "on test data", "high", 3),
            page.Column(error, "±", "%", "standard error of the mean", None, 2),
        ]
        for row, label in zip(rows, MECHANISMS, strict=True):
            outcomes = result.outcomes.get((label, epsilon), [])
            if outcomes:
                row[mean] = 100 * mean_accuracy(outcomes)
            if (deviation := standard_error(outcomes)) is not None:
                row[error] = 100 * deviation
    return page.Grid(f"Accuracy, means of {trials} seeds", columns, rows)


def _charts(result: DemoResult) -> Iterator[charts.Lines]:
    runs = [
        {
            "name": _name(label),
            "label": label,
            "epsilon": epsilon,
            "accuracy": outcome.accuracy,
            "steps": [point[0] for point in outcome.curve],
            "accuracies": [point[1] for point in outcome.curve],
        }
        for (label, epsilon), outcomes in result.outcomes.items()
        for outcome in outcomes
    ]
    yield _with_poisson_dashed(charts.accuracy_against_epsilon(runs))
    for epsilon in EPSILONS:
        curves = [run for run in runs if run["epsilon"] == epsilon]
        title = f"Accuracy while training, ε = {epsilon:g}"
        yield _with_poisson_dashed(charts.training_curves(curves, title))


def _with_poisson_dashed(chart: charts.Lines) -> charts.Lines:
    """Dash the curve of DP-SGD on Poisson batches, which has the colour of DP-SGD."""
    series = [replace(s, dashed=True) if s.label == POISSON else s for s in chart.series]
    return replace(chart, series=series)
