"""`Comparison` and its entries: noise of mechanisms at equal privacy, and its cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util.checks import Array
from antiphase._util.display import Plotted
from antiphase.comparison.candidates import Candidate, Setting
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.objective import Objective


@dataclass(frozen=True, eq=False, repr=False)
class Entry:
    """One mechanism in a comparison.

    Noise is a standard deviation per coordinate, at clip norm 1 and the learning rates of the
    setting, before division by the batch size.

    Attributes:
        candidate: the candidate, with its final options and sampling scheme.
        mechanism: the calibrated mechanism.
        deviation: of the noise in each iterate.
        over_optimum: squared noise over all iterates, relative to the least of any encoder on
            batches in a fixed order with the same (ε, δ). Only amplification can make it less than
            1. None if the optimum was not computed.
        design_seconds: time of design and calibration; next to none for cached designs.
        noise_bytes: what the noise keeps from step to step.
        step_seconds: time of the slowest row of noise; NaN if it was not measured.
        unamplified: why the setting's sampling scheme does not amplify this mechanism.
        vector_bytes: of one float32 vector as long as the model, as noise keeps it.
    """

    candidate: Candidate
    mechanism: Mechanism
    deviation: Array
    over_optimum: float | None
    design_seconds: float
    noise_bytes: int
    step_seconds: float
    unamplified: str
    vector_bytes: int

    @property
    def name(self) -> str:
        """Name of the design."""
        return self.candidate.name

    @property
    def label(self) -> str:
        """Name, options and sampling."""
        return self.candidate.label

    @property
    def factorization(self) -> Factorization:
        """The factorization of the mechanism."""
        return self.mechanism.factorization

    @property
    def amplified(self) -> bool:
        """Whether the mechanism's privacy is amplified by sampling."""
        return self.mechanism.amplified

    @property
    def vectors(self) -> float:
        """How many float32 vectors as long as the model the noise keeps."""
        return self.noise_bytes / self.vector_bytes

    @property
    def average(self) -> float:
        """Root mean square of the noise over all iterates."""
        return float(np.sqrt(np.mean(self.deviation**2)))

    @property
    def final(self) -> float:
        """Noise in the last iterate, the one that is used in most cases."""
        return float(self.deviation[-1])

    @property
    def gap(self) -> float | None:
        """Certified gap for the design's own objective; None if it claims no optimality."""
        return None if self.factorization.bound is None else float(self.factorization.gap)

    def __repr__(self) -> str:
        return f"<Entry {self.label}: noise {self.final:.4g} at the end, mean {self.average:.4g}>"

    def error_under(self, objective: Objective) -> float:
        """Squared noise as an objective weights it; comparable within one setting."""
        f = self.factorization
        return (self.mechanism.noise_scale / f.sensitivity) ** 2 * f.error_under(objective)

    def to_dict(self, baseline: Entry | None = None) -> dict[str, Any]:
        """All figures as plain values; relative ones against ``baseline``."""
        return {
            "name": self.name,
            "label": self.label,
            "options": dict(self.candidate.options),
            "sampler": self.mechanism.sampling.name,
            "amplified": self.amplified,
            "unamplified": self.unamplified,
            "noise_multiplier": self.mechanism.noise_multiplier,
            "sensitivity": self.mechanism.sensitivity,
            "average": self.average,
            "final": self.final,
            "average_relative": None if baseline is None else self.average / baseline.average,
            "final_relative": None if baseline is None else self.final / baseline.final,
            "over_optimum": self.over_optimum,
            "gap": self.gap,
            "design_seconds": self.design_seconds,
            "noise_bytes": self.noise_bytes,
            "vectors": self.vectors,
            "step_seconds": self.step_seconds,
            "digest": self.mechanism.digest,
        }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Plotted):
    """The result of `compare`.

    Attributes:
        setting: what was compared for.
        entries: one for each mechanism.
        refused: why candidates are missing, by label.
        optimum: certified least squared noise over the iterates of any encoder on batches in a
            fixed order, at noise multiplier 1; None if Ctrl-C came first.
        stopped: whether Ctrl-C came, so that candidates or measurements are missing.
    """

    setting: Setting
    entries: tuple[Entry, ...]
    refused: Mapping[str, str]
    optimum: float | None
    stopped: bool = False

    def __repr__(self) -> str:
        best = min(self.entries, key=lambda entry: entry.final)
        return (
            f"<Comparison of {len(self.entries)} mechanisms for {self.setting.describe()}: "
            f"least noise at the end by {best.label}>"
        )

    def to_html(self) -> str:
        """The tables that a notebook shows, as a fragment of HTML."""
        return self._repr_html_()

    def to_frame(self) -> Any:
        """`rows` as a pandas DataFrame, indexed by label.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.rows()).set_index("label")

    @property
    def baseline(self) -> Entry | None:
        """DP-SGD, which the others are compared with: on Poisson batches, or in a fixed order."""
        return self.dp_sgd("poisson") or self.dp_sgd("fixed-order")

    def dp_sgd(self, sampler: str) -> Entry | None:
        """The entry of DP-SGD with that sampler, if there is one."""
        return next(
            (e for e in self.entries if (e.name, e.mechanism.sampling.name) == ("dp-sgd", sampler)),
            None,
        )

    def frontier(self, cost: Callable[[Entry], float]) -> tuple[Entry, ...]:
        """Pareto-optimal entries for the noise over all iterates and a cost.

        Entries whose cost was not measured are left out.
        """
        measured = [e for e in self.entries if math.isfinite(cost(e))]
        optimal = pareto_front([(e.average, cost(e)) for e in measured])
        return tuple(e for e, keep in zip(measured, optimal, strict=True) if keep)

    @property
    def memory_frontier(self) -> tuple[Entry, ...]:
        """Pareto-optimal entries for noise and memory."""
        return self.frontier(lambda e: e.noise_bytes)

    @property
    def time_frontier(self) -> tuple[Entry, ...]:
        """Pareto-optimal entries for noise and time of a step."""
        return self.frontier(lambda e: e.step_seconds)

    def rows(self) -> list[dict[str, Any]]:
        """Every entry as plain values, relative to the baseline."""
        memory, time_ = self.memory_frontier, self.time_frontier
        return [
            e.to_dict(self.baseline) | {"memory_frontier": e in memory, "time_frontier": e in time_}
            for e in self.entries
        ]

    def to_dict(self) -> dict[str, Any]:
        """The setting and all rows as plain values."""
        s = self.setting
        return {
            "steps": s.steps,
            "participation": s.participation.describe(),
            "workload": s.workload.describe(),
            "epsilon": s.epsilon,
            "delta": s.delta,
            "adjacency": s.adjacency,
            "parameters": s.parameters,
            "sampler": s.sampling.name,
            "sampling_rate": s.sampling.rate,
            "optimum": self.optimum,
            "baseline": None if self.baseline is None else self.baseline.label,
            "mechanisms": self.rows(),
            "refused": dict(self.refused),
            "stopped": self.stopped,
        }


def pareto_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Whether each point is Pareto-optimal: no other is as small in both and smaller in one.

    Example:
        >>> pareto_front([(1.0, 5.0), (2.0, 5.0), (2.0, 3.0), (2.0, 3.0), (3.0, 4.0)])
        [True, False, True, True, False]
    """
    optimal: set[tuple[float, float]] = set()
    smallest = math.inf
    for first, second in sorted(set(points)):
        if second < smallest:
            optimal.add((first, second))
            smallest = second
    return [point in optimal for point in points]
