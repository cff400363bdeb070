"""What a question of the benchmarks is: a module with these names. `benchmarks.__main__` runs them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import antiphase as ap
from antiphase.factorizations.dense import Dense
from antiphase.objective import Average
from experiments.runner import Table

Record = dict[str, Any]  # what was measured, as JSON


@dataclass(frozen=True)
class Run:
    """How to measure: all that there is if ``full``, else what takes a few minutes. ``say`` is told what goes on."""

    full: bool
    say: Callable[[str], None]


@dataclass(frozen=True)
class Claim:
    """What is asked, what was measured, and whether that will do."""

    what: str
    measured: str
    asked: str
    holds: bool


@dataclass(frozen=True)
class Loss:
    """Where a peer is ahead, by how much, and why."""

    what: str
    why: str


class Question(Protocol):
    TITLE: str

    def measure(self, run: Run) -> Record: ...

    def tables(self, record: Record) -> list[Table]: ...

    def claims(self, record: Record) -> list[Claim]: ...

    def losses(self, record: Record) -> list[Loss]:
        """Every comparison in which a peer is ahead."""

    def words(self, record: Record) -> list[str]:
        """How it was measured, and what the tables say: sentences for the page."""

    def draw(self, record: Record, folder: Path) -> list[Path]:
        """Figures, the first one for the page."""


def excess(encoder: Any, epochs: int, optimum: float) -> float:
    """Of the squared error of an encoder, whoever made it, over a certified optimum: computed here, in float64."""
    steps = len(encoder)
    encoder = (
        encoder * np.where(np.diagonal(encoder) < 0, -1.0, 1.0)[:, None]
    )  # the same noise, other signs
    who = ap.once() if epochs == 1 else ap.epochs(epochs, steps // epochs)
    return float(
        Dense("encoder", ap.Workload.sgd(steps), Average(), who, encoder).error / optimum - 1
    )


def optimum(steps: int, epochs: int) -> float:
    """A certified lower bound on the squared error of every encoder."""
    options = {"buffers": "exact"} if epochs == 1 else {"tolerance": 1e-8}
    return float(ap.design("dp-mf", steps=steps, epochs=epochs, **options).lower_bound)
