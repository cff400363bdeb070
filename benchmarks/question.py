"""The names of a module that is a question of the benchmarks; `benchmarks.__main__` runs them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import antiphase as ap
from antiphase.factorizations.dense import Dense
from antiphase.objective import Average
from experiments.runner import Table

Record = dict[str, Any]  # measurements, as JSON


@dataclass(frozen=True)
class Run:
    """Whether to measure all sizes or those of a few minutes, and a progress callback."""

    full: bool
    report: Callable[[str], None]


@dataclass(frozen=True)
class Claim:
    """A measurement beside the value asked for, and whether it holds."""

    what: str
    measured: str
    asked: str
    holds: bool


@dataclass(frozen=True)
class Loss:
    """A comparison in which a peer is ahead, and why."""

    what: str
    why: str


class Question(Protocol):
    TITLE: str

    def measure(self, run: Run) -> Record: ...

    def tables(self, record: Record) -> list[Table]: ...

    def claims(self, record: Record) -> list[Claim]: ...

    def losses(self, record: Record) -> list[Loss]:
        """List every comparison in which a peer is ahead."""

    def notes(self, record: Record) -> list[str]:
        """Describe the measurement and its results in paragraphs for the page."""

    def draw(self, record: Record, folder: Path) -> list[Path]:
        """Draw the figures."""


def excess(encoder: Any, epochs: int, optimum: float) -> float:
    """Relative excess of an encoder's squared error over a certified optimum, in float64."""
    steps = len(encoder)
    # Positive diagonal: the same noise distribution with other signs.
    encoder = encoder * np.where(np.diagonal(encoder) < 0, -1.0, 1.0)[:, None]
    participation = ap.once() if epochs == 1 else ap.epochs(epochs, steps // epochs)
    f = Dense("encoder", ap.Workload.sgd(steps), Average(), participation, encoder)
    return float(f.error / optimum - 1)


def optimum(steps: int, epochs: int) -> float:
    """A certified lower bound on the squared error of every encoder."""
    options = {"buffers": "exact"} if epochs == 1 else {"tolerance": 1e-8}
    return float(ap.design("dp-mf", steps=steps, epochs=epochs, **options).lower_bound)
