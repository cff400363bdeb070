"""Mechanisms side by side for one setting: what each leaves in the model at equal privacy, and what it costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase import accounting
from antiphase._util.checks import Array
from antiphase._util.progress import Progress, ProgressReport
from antiphase.accounting.accountant import adjacency_factor
from antiphase.candidates import (
    REFUSALS,
    Candidate,
    Setting,
    fixed_order_rate,
    made_for,
    usual_candidates,
)
from antiphase.design import design
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.noise_cost import kept_bytes, padded, seconds_a_row
from antiphase.objective import Average, Objective

__all__ = [
    "Candidate",
    "Comparison",
    "Entry",
    "Setting",
    "compare",
    "fixed_order_rate",
    "undominated",
    "usual_candidates",
]


@dataclass(frozen=True, eq=False)
class Entry:
    """One mechanism in one setting. Noise is a standard deviation per coordinate, at clip norm 1 and the learning rates
    of the setting, before division by the batch size.

    ``over_optimum`` is the squared noise over all iterates, relative to the least that any encoder on batches in a
    fixed order could have at the same promise: at least 1, but with amplification, which may beat that. Where the
    setting has a sampler that amplifies nothing here, ``unamplified`` says why.
    ``design_seconds`` includes the calibration; designs that were cached take next to none. ``noise_bytes`` is what the
    noise keeps from step to step, ``step_seconds`` the time for a row of it, where that takes longest (not a number if
    it was not measured).
    """

    candidate: Candidate
    mechanism: Mechanism
    deviation: Array  # of the noise in each iterate
    over_optimum: float | None  # None if Ctrl-C came before the optimum was known
    design_seconds: float
    noise_bytes: int
    step_seconds: float
    unamplified: str
    vector_bytes: int  # of one float32 vector as long as the model, as noise keeps it

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def label(self) -> str:
        return self.candidate.label

    @property
    def factorization(self) -> Factorization:
        return self.mechanism.factorization

    @property
    def amplified(self) -> bool:
        return self.mechanism.amplified

    @property
    def vectors(self) -> float:
        """How many float32 vectors as long as the model the noise keeps."""
        return self.noise_bytes / self.vector_bytes

    @property
    def average(self) -> float:
        """Over all iterates, root mean square."""
        return float(np.sqrt(np.mean(self.deviation**2)))

    @property
    def final(self) -> float:
        """In the last iterate, which is the one most people use."""
        return float(self.deviation[-1])

    @property
    def gap(self) -> float | None:
        """How far from optimal for its own objective; None for those not designed to be optimal."""
        return None if self.factorization.bound is None else float(self.factorization.gap)

    def error_under(self, objective: Objective) -> float:
        """The squared noise that ``objective`` counts, with this much privacy: to be compared within one setting."""
        f = self.factorization
        return (self.mechanism.noise_scale / f.sensitivity) ** 2 * f.error_under(objective)

    def to_dict(self, base: Entry | None = None) -> dict[str, Any]:
        """Plain numbers; relative ones against ``base``."""
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
            "average_relative": None if base is None else self.average / base.average,
            "final_relative": None if base is None else self.final / base.final,
            "over_optimum": self.over_optimum,
            "gap": self.gap,
            "design_seconds": self.design_seconds,
            "noise_bytes": self.noise_bytes,
            "vectors": self.vectors,
            "step_seconds": self.step_seconds,
            "digest": self.mechanism.digest,
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found; ``refused`` says why a candidate is missing.

    ``optimum`` is certified: no encoder on batches in a fixed order leaves less squared noise, summed over the
    iterates, at noise multiplier 1. It is None if Ctrl-C came before it was known. ``stopped`` says that Ctrl-C came:
    candidates or measurements are missing.
    """

    setting: Setting
    entries: tuple[Entry, ...]
    refused: Mapping[str, str]
    optimum: float | None
    stopped: bool = False

    @property
    def base(self) -> Entry | None:
        """DP-SGD without amplification, against which the others are measured."""
        return next((e for e in self.entries if e.name == "dp-sgd" and not e.amplified), None)

    def frontier(self, cost: Callable[[Entry], float]) -> tuple[Entry, ...]:
        """Entries that no other beats: none has as little noise over all iterates at as little ``cost``, and less of
        one of them. Those whose cost was not measured are not on it."""
        known = [e for e in self.entries if math.isfinite(cost(e))]
        kept = undominated([(e.average, cost(e)) for e in known])
        return tuple(e for e, keep in zip(known, kept, strict=True) if keep)

    @property
    def memory_frontier(self) -> tuple[Entry, ...]:
        """Least noise for the memory that it keeps."""
        return self.frontier(lambda e: e.noise_bytes)

    @property
    def time_frontier(self) -> tuple[Entry, ...]:
        """Least noise for the time that a step of it takes."""
        return self.frontier(lambda e: e.step_seconds)

    def rows(self) -> list[dict[str, Any]]:
        """Every entry as plain numbers, with what it takes to see it beside the others."""
        memory, time_ = self.memory_frontier, self.time_frontier
        return [
            e.to_dict(self.base) | {"memory_frontier": e in memory, "time_frontier": e in time_}
            for e in self.entries
        ]

    def to_dict(self) -> dict[str, Any]:
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
            "mechanisms": self.rows(),
            "refused": dict(self.refused),
            "stopped": self.stopped,
        }


def undominated(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which of these pairs no other beats, by being as small in both and smaller in one.

    >>> undominated([(1.0, 5.0), (2.0, 5.0), (2.0, 3.0), (2.0, 3.0), (3.0, 4.0)])
    [True, False, True, True, False]
    """
    kept: set[tuple[float, float]] = set()
    least = math.inf
    for first, second in sorted(set(points)):
        if second < least:
            kept.add((first, second))
            least = second
    return [point in kept for point in points]


def compare(
    setting: Setting,
    candidates: Sequence[Candidate] | None = None,
    *,
    tolerance: float = 1e-3,
    measure: bool = True,
    progress: Progress | None = None,
) -> Comparison:
    """Design and calibrate each candidate for ``setting``.

    ``tolerance`` is the certified gap at which optimal designs stop; ``measure=False`` leaves out the time of a row.
    A candidate that cannot be had here (too large, say) is listed with the reason, and the others go on; one that is
    named twice appears once. Ctrl-C keeps what was finished.
    """
    candidates = usual_candidates(setting) if candidates is None else list(candidates)
    candidates = list({(c.label, c.sampling or setting.sampling): c for c in candidates}.values())
    if not candidates:
        raise ValueError("candidates = []: there is nothing to compare")
    made: list[tuple[Candidate, Mechanism, str, float, int]] = []
    refused: dict[str, str] = {}
    stopped = False
    for i, candidate in enumerate(candidates):
        report = _reporter(progress, candidate.label, i, len(candidates))
        report(ProgressReport(0))
        began = time.perf_counter()
        try:
            done, mechanism, reason = made_for(setting, candidate, tolerance, report)
            seconds = time.perf_counter() - began
            made.append(
                (done, mechanism, reason, seconds, kept_bytes(mechanism, setting.parameters))
            )
        except REFUSALS as error:
            refused[candidate.label] = str(error) or type(error).__name__
        except KeyboardInterrupt:
            if not made:
                raise
            stopped = True
            refused |= {c.label: "stopped" for c in candidates[i:]}
            break
    if not made:
        raise ValueError(
            "nothing is left to compare: " + "; ".join(f"{k}: {v}" for k, v in refused.items())
        )
    _reporter(progress, "", len(candidates), len(candidates))(ProgressReport(0))
    optimum = _known_optimum([mechanism.factorization for _, mechanism, *_ in made])
    entries = []
    try:
        if optimum is None and not stopped:
            optimum = _optimum(setting, tolerance)
    except KeyboardInterrupt:
        stopped = True
    for candidate, mechanism, reason, seconds, memory in made:
        row = math.nan
        try:
            row = (
                seconds_a_row(mechanism, setting.parameters, memory)
                if measure and not stopped
                else row
            )
        except KeyboardInterrupt:
            stopped = True
        entries.append(
            _entry(setting, candidate, mechanism, optimum, (seconds, memory, row), reason)
        )
    return Comparison(setting, tuple(entries), refused, optimum, stopped)


# ---- inside ------------------------------------------------------------------------------------------------


def _reporter(progress: Progress | None, label: str, done: int, total: int) -> Progress:
    def report(search: ProgressReport) -> None:
        if progress is not None:
            progress(ProgressReport(done, total, search.gap, label))

    return report


def _known_optimum(designs: list[Factorization]) -> float | None:
    """The bound of a design that is optimal for all iterates alike, if there is one."""
    known = [f.bound for f in designs if f.bound is not None and f.objective == Average()]
    return max(known) if known else None


def _optimum(setting: Setting, tolerance: float) -> float:
    """The certified least squared noise over the iterates."""
    best = design(
        "dp-mf", workload=setting.workload, participation=setting.participation, tolerance=tolerance
    )
    return best.lower_bound


def _entry(
    setting: Setting,
    candidate: Candidate,
    mechanism: Mechanism,
    optimum: float | None,
    cost: tuple[float, int, float],
    unamplified: str,
) -> Entry:
    f = mechanism.factorization
    deviation = mechanism.noise_scale / f.sensitivity * np.sqrt(f.noise_per_iterate)
    over = None
    if optimum is not None:
        # The optimum is one of unamplified mechanisms, with their noise multiplier: sampled batches can do better.
        multiplier = mechanism.noise_multiplier
        if mechanism.amplified:
            assert setting.epsilon is not None
            assert setting.delta is not None
            multiplier = accounting.gaussian_noise_multiplier(setting.epsilon, setting.delta)
            multiplier *= adjacency_factor(setting.adjacency)
        over = float(np.sum(deviation**2) / (multiplier**2 * optimum))
    return Entry(
        candidate, mechanism, deviation, over, *cost, unamplified, 4 * padded(setting.parameters)
    )
