"""Mechanisms side by side for one setting: what each leaves in the model at equal privacy, and what it costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from antiphase import _checks as check
from antiphase import accounting
from antiphase._checks import Array
from antiphase.design import design, names
from antiphase.errors import AntiphaseError
from antiphase.factorization.base import Factorization
from antiphase.mechanism import Mechanism, calibrate
from antiphase.noise import Key
from antiphase.objective import Average, Objective
from antiphase.participation import Participation, from_epochs
from antiphase.workload import Workload

if TYPE_CHECKING:
    from antiphase.noise.stream import NoiseStream

Progress = Callable[[str, int, int, float | None], None]  # what, how many are done, of how many, gap so far

LABELS = {
    "dp-sgd": "DP-SGD",
    "anti-pgd": "Anti-PGD",
    "chess": "Chess",
    "tree": "tree, full Honaker",
    "fourier": "Fourier",
    "sqrt-toeplitz": "square root",
    "dp-mf": "DP-MF",
    "dp-mf+": "DP-MF⁺",
    "damped": "damped",
    "bisr": "inverse square root",
    "lambda-cgd": "DP-λCGD",
    "toeplitz": "Toeplitz",
    "banded": "banded",
    "blt": "BLT",
    "epoch-restarts": "restarts with every epoch",
}
SYMBOLS = {"tau": "τ", "rho": "ρ", "final_weight": "final weight", "correlation": "λ"}
MEASURED = 8192  # numbers a row of noise has where making it takes long: the time is proportional
ENOUGH = 128  # rows of such a stream that are timed
WIDEST = 1 << 21  # numbers a row has that is timed elsewhere; for larger models, too, the time is proportional
MEMORY = 512_000_000  # bytes that noise keeps, where it has a choice; and bytes that a measurement may take


@dataclass(frozen=True)
class Candidate:
    """A mechanism to compare: a name that `design` knows, its options, and how batches are drawn."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    poisson: bool = False

    def __post_init__(self) -> None:
        check.choice("name", self.name, tuple(names()))
        if self.poisson and self.name != "dp-sgd":
            raise ValueError(f"{self.name} with Poisson samples: amplification is analysed for dp-sgd alone")

    @property
    def label(self) -> str:
        """
        >>> Candidate("dp-mf+", {"tau": 64}).label, Candidate("tree", {"estimator": "online"}).label
        ('DP-MF⁺, τ = 64', 'tree, online')
        >>> Candidate("damped", {"rho": 1 - 2e-5, "final_weight": 45.4863}).label
        'damped, ρ = 0.99998, final weight = 45.49'
        """
        options = dict(self.options)
        words = [LABELS.get(self.name, self.name)]
        if self.name == "tree" and "estimator" in options:
            words = ["tree", str(options.pop("estimator"))]
        words += [f"{SYMBOLS.get(k, k)} = {_short(v)}" for k, v in options.items() if np.ndim(v) == 0]
        return ", ".join([*words, "Poisson batches"] if self.poisson else words)


@dataclass(frozen=True, eq=False)
class Setting:
    """What is trained, for how long, and what is to be promised.

    Without ``epsilon`` the noise multiplier is 1 for all: the noise is then relative, and there is nothing to amplify.
    """

    workload: Workload
    participation: Participation
    epsilon: float | None = None
    delta: float | None = None
    adjacency: str = "zero-out"
    parameters: int = 100_000  # how many numbers the model has: for the memory and the time of the noise

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check.positive_number("epsilon", self.epsilon)
            if self.delta is None:
                raise ValueError("delta = None: δ is yours to choose, well below one over the number of records")
            accounting.checked_delta("delta", self.delta)
        check.whole_number("parameters", self.parameters)

    @classmethod
    def of(cls, steps: int, epochs: int = 1, *, optimizer: Mapping[str, Any] | None = None, **rest: Any) -> Setting:
        """So many steps of SGD with these options, in so many epochs of a fixed order."""
        workload = Workload.sgd(steps, **(optimizer or {}))
        return cls(workload, from_epochs(workload.steps, epochs), **rest)

    @property
    def steps(self) -> int:
        return self.workload.steps

    @property
    def sampling_rate(self) -> float:
        """The chance of a record to be in a Poisson batch of the size that the fixed order has."""
        return 1 / len(self.participation.classes(self.steps))

    def describe(self) -> str:
        words = [f"{self.steps:,} step{'s' * (self.steps > 1)}", self.participation.describe()]
        if self.workload.describe() != "sgd":
            words.append(self.workload.describe())
        if self.epsilon is not None:
            words.append(f"ε = {self.epsilon:g}, δ = {self.delta:g} ({self.adjacency})")
        return ", ".join(words)


@dataclass(frozen=True, eq=False)
class Entry:
    """One mechanism in one setting. Noise is a standard deviation per coordinate, at clip norm 1 and the learning rates
    of the setting, before division by the batch size.

    ``over_optimum`` is the squared noise over all iterates, relative to the least that any encoder on batches in a
    fixed order could have at the same promise: at least 1, but for Poisson batches, whose amplification may beat that.
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
            "poisson": self.candidate.poisson,
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
        return next((e for e in self.entries if e.name == "dp-sgd" and not e.candidate.poisson), None)

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
            "optimum": self.optimum,
            "mechanisms": [entry.to_dict(self.base) for entry in self.entries],
            "refused": dict(self.refused),
            "stopped": self.stopped,
        }


def usual_candidates(setting: Setting) -> list[Candidate]:
    """Those that people compare; DP-SGD also with the amplification that Poisson batches would bring."""
    poisson = [Candidate("dp-sgd", poisson=True)] if setting.epsilon is not None and setting.sampling_rate < 1 else []
    return [
        Candidate("dp-sgd"),
        *poisson,
        Candidate("tree"),
        Candidate("sqrt-toeplitz"),
        Candidate("dp-mf"),
        Candidate("dp-mf+", {"tau": setting.steps}),
    ]


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
    candidates = list({candidate.label: candidate for candidate in candidates}.values())
    if not candidates:
        raise ValueError("candidates = []: there is nothing to compare")
    made: list[tuple[Candidate, Mechanism, float, int]] = []
    refused: dict[str, str] = {}
    stopped = False
    for i, candidate in enumerate(candidates):
        report = _reporter(progress, candidate.label, i, len(candidates))
        report(0, None)
        began = time.perf_counter()
        try:
            mechanism = _mechanism(setting, candidate, tolerance, report)
            seconds = time.perf_counter() - began
            made.append((candidate, mechanism, seconds, _noise_bytes(mechanism, setting.parameters)))
        except REFUSALS as error:
            refused[candidate.label] = str(error) or type(error).__name__
        except KeyboardInterrupt:
            if not made:
                raise
            stopped = True
            refused |= {c.label: "stopped" for c in candidates[i:]}
            break
    if not made:
        raise ValueError("nothing is left to compare: " + "; ".join(f"{k}: {v}" for k, v in refused.items()))
    _reporter(progress, "", len(candidates), len(candidates))(0, None)
    optimum = _known_optimum([mechanism.factorization for _, mechanism, _, _ in made])
    entries = []
    try:
        if optimum is None and not stopped:
            optimum = _optimum(setting, tolerance)
    except KeyboardInterrupt:
        stopped = True
    for candidate, mechanism, seconds, memory in made:
        row = math.nan
        try:
            row = _step_seconds(mechanism, setting.parameters, memory) if measure and not stopped else row
        except KeyboardInterrupt:
            stopped = True
        entries.append(_entry(setting, candidate, mechanism, optimum, (seconds, memory, row)))
    return Comparison(setting, tuple(entries), refused, optimum, stopped)


# ---- inside ------------------------------------------------------------------------------------------------
REFUSALS = (AntiphaseError, ValueError, TypeError, MemoryError)


def _short(value: Any) -> str:
    """Four digits, and more where a damping is near 1: what it is less by is what counts."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.7g}" if 0.999 < value < 1 else f"{value:.4g}"


def _reporter(progress: Progress | None, label: str, done: int, total: int) -> Callable[[int, float | None], None]:
    def report(iteration: int, gap: float | None) -> None:
        if progress is not None:
            progress(label, done, total, gap)

    return report


def _mechanism(setting: Setting, candidate: Candidate, tolerance: float, report: Any) -> Mechanism:
    options = dict(candidate.options)
    if candidate.name in ("dp-mf", "dp-mf+", "damped", "curvature", "optimal"):
        options.setdefault("tolerance", tolerance)
    f = design(
        candidate.name,
        workload=setting.workload,
        participation=setting.participation,
        progress=report,
        **options,
    )
    promise: dict[str, Any] = {"adjacency": setting.adjacency}
    if candidate.poisson:
        if setting.epsilon is None:
            raise ValueError("epsilon = None: what Poisson batches bring depends on ε and δ; give both")
        promise |= {"sampler": "poisson", "sampling_rate": setting.sampling_rate}
    if setting.epsilon is None:
        return calibrate(f, noise_multiplier=1.0, delta=setting.delta, **promise)
    return calibrate(f, epsilon=setting.epsilon, delta=setting.delta, **promise)


def _known_optimum(designs: list[Factorization]) -> float | None:
    """The bound of a design that is optimal for all iterates alike, if there is one."""
    known = [f.bound for f in designs if f.bound is not None and f.objective == Average()]
    return max(known) if known else None


def _optimum(setting: Setting, tolerance: float) -> float:
    """The certified least squared noise over the iterates."""
    best = design("dp-mf", workload=setting.workload, participation=setting.participation, tolerance=tolerance)
    return best.lower_bound


def _entry(
    setting: Setting,
    candidate: Candidate,
    mechanism: Mechanism,
    optimum: float | None,
    cost: tuple[float, int, float],
) -> Entry:
    f = mechanism.factorization
    deviation = mechanism.noise_scale / f.sensitivity * np.sqrt(f.noise_per_iterate)
    over = None
    if optimum is not None:
        # The optimum is one of unamplified mechanisms, with their noise multiplier: Poisson batches can do better.
        multiplier = mechanism.noise_multiplier
        if candidate.poisson:
            multiplier = calibrate(f, epsilon=setting.epsilon, delta=setting.delta).noise_multiplier
        over = float(np.sum(deviation**2) / (multiplier**2 * optimum))
    return Entry(candidate, mechanism, deviation, over, *cost)


def _padded(parameters: int) -> int:
    from antiphase.noise.normals import CHUNK

    return -(-parameters // CHUNK) * CHUNK


def _noise_bytes(mechanism: Mechanism, parameters: int) -> int:
    """What the noise keeps from step to step: seen at a small model, for it is proportional."""
    from antiphase.noise.stream import engine_for

    whole, width = _padded(parameters), min(_padded(parameters), MEASURED)
    needed = engine_for(mechanism.factorization, mechanism.noise_scale, width, 1 << 60).memory // width * whole
    if _is_regenerated(mechanism):  # as many rows as there is room for, at least four
        return min(needed, max(MEMORY // (16 * whole), 1) * 16 * whole)
    return needed


def _is_regenerated(mechanism: Mechanism) -> bool:
    from antiphase.noise.engines import Regenerated
    from antiphase.noise.normals import CHUNK
    from antiphase.noise.stream import engine_for

    return isinstance(engine_for(mechanism.factorization, mechanism.noise_scale, CHUNK, 1 << 60), Regenerated)


def _step_seconds(mechanism: Mechanism, parameters: int, memory: int) -> float:
    """Seconds for a row of noise, where it takes longest; measured at a smaller model where this one is large."""

    def stream(width: int, budget: int = 2 * MEMORY) -> NoiseStream:
        return mechanism.noise(width, key=Key.insecure(0), memory=budget)  # nothing is released

    whole = _padded(parameters)
    if not _is_regenerated(mechanism):
        width = max(min(parameters, WIDEST, MEMORY * whole // max(memory, 1)), 1)
        stream(width).next()  # what takes time but once
        return parameters / width * float(np.median(_times(stream(width), min(mechanism.steps, 12))))
    # All earlier normals are drawn again for a block of rows: the last block takes longest.
    rows = min(mechanism.steps, ENOUGH, memory // (4 * whole))
    width = min(whole, MEASURED)
    last = stream(width, 4 * width * max(rows, 4))
    last.skip(mechanism.steps - rows)
    return whole / width * sum(_times(last, rows)) / rows


def _times(stream: NoiseStream, rows: int) -> list[float]:
    times = []
    for _ in range(rows):
        began = time.perf_counter()
        stream.next()
        times.append(time.perf_counter() - began)
    return times
