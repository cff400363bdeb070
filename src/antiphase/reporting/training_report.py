"""Averages, learning curves and a page for trained models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphase.comparison.candidates import LABELS
from antiphase.reporting import charts
from antiphase.reporting.content import Cell, Column, Grid, Page, version_and_time

if TYPE_CHECKING:
    from antiphase.torch.recipe import Outcome


def mean_accuracy(outcomes: Sequence[Outcome]) -> float:
    """Mean test accuracy of several trainings."""
    return statistics.fmean(outcome.accuracy for outcome in outcomes)


def standard_error(outcomes: Sequence[Outcome]) -> float | None:
    """Standard error of the mean test accuracy; None for fewer than two trainings."""
    if len(outcomes) < 2:
        return None
    deviation = statistics.stdev(outcome.accuracy for outcome in outcomes)
    return deviation / math.sqrt(len(outcomes))


def label(outcome: Outcome) -> str:
    """Label of the mechanism that a model was trained with; of DP-SGD also its batches."""
    recipe = outcome.recipe
    if not recipe.is_private:
        return "no privacy"
    batches = ", Poisson batches" if recipe.is_sampled else ", fixed order"
    name = recipe.name
    return LABELS.get(name, name) + batches * (name == "dp-sgd")


def curves(outcomes: Sequence[Outcome]) -> charts.Lines:
    """Chart of the test accuracy during training."""
    name = outcomes[0].recipe.name
    return charts.training_curves(
        [
            {
                "name": charts.NON_PRIVATE if name == "none" else name,
                "label": label(outcome),
                "sampled": outcome.recipe.is_sampled,
                "steps": [point[0] for point in outcome.curve],
                "accuracies": [point[1] for point in outcome.curve],
            }
            for outcome in outcomes
        ]
    )


def page(outcomes: Sequence[Outcome], command: str) -> Page:
    """Page about trainings that differ in the seed alone.

    Args:
        outcomes: the trainings, at least one.
        command: the command line that reproduces them.
    """
    first, recipe = outcomes[0], outcomes[0].recipe
    promise = ""
    if recipe.is_private:
        promise = f" with ε = {first.epsilon:.4g} at δ = {recipe.delta:g}"
    error = standard_error(outcomes)
    spread = "" if error is None else f" ± {100 * error:.2g}"
    return Page(
        title=f"antiphase: {label(first)} on {first.dataset}",
        question=f"How accurate is a {recipe.model} model on {first.dataset}{promise}?",
        answer=f"It reaches {100 * mean_accuracy(outcomes):.1f}{spread} % on test data{promise}.",
        points=[
            f"{_count(len(outcomes), 'trial')}, {_count(recipe.epochs, 'epoch')}, batches of "
            f"{recipe.batch_size}."
        ],
        grids=[_grid(outcomes)],
        charts=[curves(outcomes)],
        statements=[first.statement] if first.statement is not None else [],
        reproduce=[command],
        notes=[_note(first)],
        made=version_and_time(),
    )


def _grid(outcomes: Sequence[Outcome]) -> Grid:
    columns = [
        Column("seed", "seed"),
        Column("accuracy", "test accuracy", "%", better="high", digits=4),
        Column("loss", "test loss", better="low", digits=4),
        Column("steps", "steps", digits=0),
        Column("seconds", "time", "s", digits=3),
    ]
    rows: list[dict[str, Cell]] = [
        {
            "seed": str(outcome.seed),
            "accuracy": 100 * outcome.accuracy,
            "loss": outcome.loss,
            "steps": outcome.steps,
            "seconds": outcome.seconds,
        }
        for outcome in outcomes
    ]
    return Grid("Trials", columns, rows)


def _note(outcome: Outcome) -> str:
    if outcome.statement is None:
        return "Not private: there was neither clipping nor noise."
    if outcome.statement.insecure:
        return "The noise came from a seed that can be guessed: it is repeatable, but not private."
    return (
        "The noise is drawn from a new secret key in every run: results repeat in distribution "
        "only."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
