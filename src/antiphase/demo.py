"""``antiphase demo``: four mechanisms on handwritten digits, at two privacy budgets."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from antiphase import data
from antiphase._util import files
from antiphase._util.progress import Progress, ProgressReport
from antiphase.reporting import charts, page
from antiphase.reporting.axes import typeset
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
POISSON, FIXED_ORDER = "DP-SGD, Poisson batches", "DP-SGD, fixed order"
NO_PRIVACY = "no privacy"
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {  # label: name, options
    POISSON: ("dp-sgd", {}),
    FIXED_ORDER: ("dp-sgd", {}),
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

    def best(self, epsilon: float, ordinary: bool = False) -> str | None:
        """Return the label of the most accurate private mechanism at ε, if any was trained.

        Args:
            epsilon: the ε.
            ordinary: whether only mechanisms count that need no random batches.
        """
        trained = [
            label
            for label in MECHANISMS
            if (label, epsilon) in self.outcomes and not (ordinary and label == POISSON)
        ]
        accuracy = {label: mean_accuracy(self.outcomes[label, epsilon]) for label in trained}
        return max(trained, key=accuracy.__getitem__, default=None)

    def headline(self, epsilon: float) -> str:
        """State the best private result at ε, and how it compares with DP-SGD.

        DP-SGD on Poisson batches comes first, then DP-SGD in a fixed order.
        """
        best, ordinary = self.best(epsilon), self.best(epsilon, ordinary=True)
        if best is None:
            return f"No training at ε = {epsilon:g} was finished."
        first = f"The best private result at ε = {epsilon:g} is {self._percent(best, epsilon)}, by "
        if best != POISSON or ordinary is None:
            batches = "" if best == POISSON else ", on ordinary batches"
            return f"{first}{best}{batches}{self._against(best, epsilon)}."
        return (
            f"{first}{best}. On ordinary batches it is {self._percent(ordinary, epsilon)}, by "
            f"{ordinary}{self._against(ordinary, epsilon)}."
        )

    def _percent(self, label: str, epsilon: float) -> str:
        return f"{self.accuracy(label, epsilon, with_error=False)} %"

    def _against(self, label: str, epsilon: float) -> str:
        """The lead over DP-SGD on Poisson batches and then in a fixed order."""
        rivals = {POISSON: "DP-SGD (Poisson batches)", FIXED_ORDER: "DP-SGD in a fixed order"}
        leads = [
            f"{self._lead(label, rival, epsilon)} against {name}"
            for rival, name in rivals.items()
            if rival != label and (rival, epsilon) in self.outcomes
        ]
        return f": {', '.join(leads)}" if leads else ""

    def _lead(self, label: str, rival: str, epsilon: float) -> str:
        """The difference of two accuracies in points, with its standard error."""
        ours, theirs = self.outcomes[label, epsilon], self.outcomes[rival, epsilon]
        points = 100 * (mean_accuracy(ours) - mean_accuracy(theirs))
        errors = [100 * e for e in map(standard_error, (ours, theirs)) if e is not None]
        if len(errors) < 2:
            return typeset(f"{points:+.1f} points")
        error = math.hypot(*errors)
        level = "level, " if abs(points) < 2 * error else ""
        return level + typeset(f"{points:+.1f} ± {error:.1f} points")

    @property
    def statement(self) -> PrivacyStatement | None:
        """Statement of the best mechanism on ordinary batches, at the smallest ε."""
        return self._statement_of(self.best(EPSILONS[0], ordinary=True))

    @property
    def statements(self) -> list[PrivacyStatement]:
        """Statements of the best private result at the smallest ε, and of `statement`."""
        labels = (self.best(EPSILONS[0]), self.best(EPSILONS[0], ordinary=True))
        found = [self._statement_of(label) for label in dict.fromkeys(labels)]
        return [statement for statement in found if statement is not None]

    def _statement_of(self, label: str | None) -> PrivacyStatement | None:
        return None if label is None else self.outcomes[label, EPSILONS[0]][0].statement

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
    trials = max(map(len, result.outcomes.values()))
    rates = " and ".join(f"{rate:g} at ε = {e:g}" for e, rate in LEARNING_RATES.items())
    return page.Page(
        title="antiphase: digits",
        question="How accurately can a model read handwritten digits with differential privacy?",
        answer=result.headline(low),
        points=[
            result.headline(high),
            "DP-SGD on Poisson batches needs random batches, drawn anew and in secret in every "
            "step. All other mechanisms here use ordinary batches in a fixed order.",
            f"Each result is (ε, δ = {DELTA:g})-differentially private for every example. The same "
            f"model without privacy reaches {result.accuracy(NO_PRIVACY, None)} %.",
        ],
        grids=[_grid(result, trials)],
        charts=list(_charts(result)),
        statements=result.statements,
        reproduce=["antiphase demo"],
        notes=[
            "1,797 digits of 8 × 8 pixels, 1,436 of them to train; "
            f"{SETTING['epochs']} epochs, batches of {SETTING['batch_size']}, clip norm "
            f"{SETTING['clip_norm']:g}, learning rate {rates}: the same for all mechanisms, the "
            "best on a held-out part of the training data.",
            "The noise comes from a new secret key in every run, so figures repeat within their "
            "standard errors. Level: they differ by less than two standard errors.",
        ],
        made=page.version_and_time(),
    )


def _grid(result: DemoResult, trials: int) -> page.Grid:
    columns = [page.Column("label", "mechanism")]
    rows: list[dict[str, page.Cell]] = [
        {"name": _name(k), "label": k, "sampled": k == POISSON} for k in MECHANISMS
    ]
    for epsilon in EPSILONS:
        mean, error = f"mean{epsilon:g}", f"error{epsilon:g}"
        title, meaning = f"accuracy at ε = {epsilon:g}", "on test data, ± one standard error"
        columns.append(page.Column(mean, title, "%", meaning, "high", 3, error))
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
            "sampled": label == POISSON,
            "epsilon": epsilon,
            "accuracy": outcome.accuracy,
            "steps": [point[0] for point in outcome.curve],
            "accuracies": [point[1] for point in outcome.curve],
        }
        for (label, epsilon), outcomes in result.outcomes.items()
        for outcome in outcomes
    ]
    yield _with_sampler_note(charts.accuracy_against_epsilon(runs))
    for epsilon in EPSILONS:
        curves = [run for run in runs if run["epsilon"] == epsilon]
        title = f"Accuracy while training, ε = {epsilon:g}"
        yield _with_sampler_note(charts.training_curves(curves, title))


def _with_sampler_note(chart: charts.Lines) -> charts.Lines:
    return replace(chart, note=f"{chart.note} Diamonds: random batches.".strip())
