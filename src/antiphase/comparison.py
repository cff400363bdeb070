"""Mechanisms side by side for one setting: what each leaves in the model at equal privacy, and what it costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from antiphase import _checks as check
from antiphase import accounting
from antiphase._checks import Array
from antiphase.amplification import AMPLIFIED, SAMPLERS, adjacency_factor
from antiphase.bands import WIDTHS, best_bands, cyclic
from antiphase.cost import kept_bytes, padded, seconds_a_row
from antiphase.design import design, names
from antiphase.errors import AntiphaseError
from antiphase.factorization.base import Factorization
from antiphase.mechanism import Mechanism, calibrate
from antiphase.objective import Average, Objective
from antiphase.participation import MinSeparation, Participation, from_epochs
from antiphase.workload import Workload

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
SAMPLED = {"poisson": "Poisson batches", "cyclic-poisson": "cyclic Poisson", "balls-in-bins": "balls in bins"}
SYMBOLS = {"tau": "τ", "rho": "ρ", "final_weight": "final weight", "correlation": "λ"}


@dataclass(frozen=True)
class Candidate:
    """A mechanism to compare: a name that `design` knows, its options, and how batches are drawn for it (None: as the
    setting says, where that is analysed for it).

    With cyclic Poisson samples it has the best number of bands, unless its options say another.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sampler: str | None = None

    def __post_init__(self) -> None:
        check.choice("name", self.name, tuple(names()))
        if self.sampler is not None:
            check.choice("sampler", self.sampler, SAMPLERS)
        if self.sampler == "poisson" and self.name != "dp-sgd":
            raise ValueError(f"{self.name} with Poisson samples: amplification is analysed for dp-sgd alone")
        if self.sampler == "cyclic-poisson" and self.name not in WIDTHS:
            raise ValueError(
                f"{self.name} with cyclic Poisson samples: amplification is analysed for few bands, so for "
                f"{', '.join(WIDTHS)}"
            )

    @property
    def amplified(self) -> bool:
        return self.sampler in AMPLIFIED

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
        return ", ".join([*words, SAMPLED[self.sampler]] if self.sampler in SAMPLED else words)


@dataclass(frozen=True, eq=False)
class Setting:
    """What is trained, for how long, and what is to be promised.

    Without ``epsilon`` the noise multiplier is 1 for all: the noise is then relative, and there is nothing to amplify.
    ``sampler`` says how batches can be drawn: what it is known to amplify has its noise multiplier, all else that of
    batches in a fixed order. ``rate`` is the chance of a record to be in one, by default that of batches as large as in
    the fixed order.
    """

    workload: Workload
    participation: Participation
    epsilon: float | None = None
    delta: float | None = None
    adjacency: str = "zero-out"
    parameters: int = 100_000  # how many numbers the model has: for the memory and the time of the noise
    sampler: str = "fixed-order"
    rate: float | None = None

    def __post_init__(self) -> None:
        check.choice("sampler", self.sampler, ("fixed-order", *AMPLIFIED))
        if self.sampler in AMPLIFIED and self.epsilon is None:
            raise ValueError(f"sampler = {self.sampler!r}: what it brings depends on ε and δ; give both")
        if self.sampler in AMPLIFIED and isinstance(self.participation, MinSeparation):
            raise ValueError(
                f"sampler = {self.sampler!r} with a minimum separation: who is drawn by chance keeps none. Compare for "
                "epochs, or for batches that are not sampled"
            )
        if self.rate is not None:
            if self.sampler not in ("poisson", "cyclic-poisson"):
                raise ValueError(f"rate = {self.rate}: a sampling rate is for Poisson and cyclic Poisson samples")
            if check.positive_number("rate", self.rate) > 1:
                raise ValueError(f"rate = {self.rate:g} must be at most 1")
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
        """The chance of a record to be in a sampled batch; unless given, for batches as large as in the fixed order."""
        return 1 / len(self.participation.classes(self.steps)) if self.rate is None else self.rate

    def describe(self) -> str:
        words = [f"{self.steps:,} step{'s' * (self.steps > 1)}", self.participation.describe()]
        if self.workload.describe() != "sgd":
            words.append(self.workload.describe())
        if self.epsilon is not None:
            words.append(f"ε = {self.epsilon:g}, δ = {self.delta:g} ({self.adjacency})")
        if self.sampler in AMPLIFIED:
            rate = "" if self.sampler == "balls-in-bins" else f" at rate {self.sampling_rate:.4g}"
            words.append(f"{SAMPLED[self.sampler]}{rate}")
        return ", ".join(words)


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
            "sampler": self.mechanism.sampler,
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
            e.to_dict(self.base) | {"memory_frontier": e in memory, "time_frontier": e in time_} for e in self.entries
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
            "sampler": s.sampler,
            "sampling_rate": s.sampling_rate if s.sampler in ("poisson", "cyclic-poisson") else None,
            "optimum": self.optimum,
            "mechanisms": self.rows(),
            "refused": dict(self.refused),
            "stopped": self.stopped,
        }


def _can_be_hidden(setting: Setting) -> bool:
    """Whether batches by chance are an alternative: at an ε, and where nobody has to stay away between two of them."""
    together = not isinstance(setting.participation, MinSeparation)
    return setting.epsilon is not None and setting.sampling_rate < 1 and together


def usual_candidates(setting: Setting, family: bool = False) -> list[Candidate]:
    """Those that people compare; DP-SGD also with the amplification that sampled batches would bring, and with cyclic
    Poisson samples what has few bands. ``family`` adds those that take a search of their own."""
    sampled = "balls-in-bins" if setting.sampler == "balls-in-bins" else "poisson"
    hidden = [Candidate("dp-sgd", sampler=sampled)] if _can_be_hidden(setting) else []
    several = len(setting.participation.classes(setting.steps)) < setting.steps
    few = [Candidate("toeplitz"), Candidate("dp-mf+")] if setting.sampler == "cyclic-poisson" else []
    searched = [Candidate(name) for name in ("toeplitz", "banded", "blt")]
    return [
        Candidate("dp-sgd", sampler="fixed-order"),
        *hidden,
        Candidate("lambda-cgd"),
        Candidate("tree"),
        Candidate("sqrt-toeplitz"),
        Candidate("bisr"),
        *few,
        *([Candidate("epoch-restarts")] if several else []),
        *([*searched, *([Candidate("dp-mf", {"buffers": 4})] if several else [])] if family else []),
        Candidate("dp-mf"),
        Candidate("dp-mf+", {"tau": setting.steps}),
    ]


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
    candidates = list({(c.label, c.sampler or setting.sampler): c for c in candidates}.values())
    if not candidates:
        raise ValueError("candidates = []: there is nothing to compare")
    made: list[tuple[Candidate, Mechanism, str, float, int]] = []
    refused: dict[str, str] = {}
    stopped = False
    for i, candidate in enumerate(candidates):
        report = _reporter(progress, candidate.label, i, len(candidates))
        report(0, None)
        began = time.perf_counter()
        try:
            done, mechanism, reason = _made(setting, candidate, tolerance, report)
            seconds = time.perf_counter() - began
            made.append((done, mechanism, reason, seconds, kept_bytes(mechanism, setting.parameters)))
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
            row = seconds_a_row(mechanism, setting.parameters, memory) if measure and not stopped else row
        except KeyboardInterrupt:
            stopped = True
        entries.append(_entry(setting, candidate, mechanism, optimum, (seconds, memory, row), reason))
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


def _made(setting: Setting, candidate: Candidate, tolerance: float, report: Any) -> tuple[Candidate, Mechanism, str]:
    """The mechanism, of which candidate in full, and why it is not amplified where the setting has a sampler."""
    sampler = candidate.sampler or setting.sampler
    if sampler not in AMPLIFIED:
        return candidate, _plain(setting, candidate, tolerance, report), ""
    try:
        if sampler == "cyclic-poisson" and candidate.name == "dp-sgd":
            sampler = "poisson"  # which is the same with one group
        return *_amplified(setting, replace(candidate, sampler=sampler), tolerance, report), ""
    except REFUSALS as error:
        if candidate.sampler is not None:
            raise
        plain = replace(candidate, sampler="fixed-order")
        return plain, _plain(setting, plain, tolerance, report), str(error) or type(error).__name__


def _plain(setting: Setting, candidate: Candidate, tolerance: float, report: Any) -> Mechanism:
    f = _design(setting, candidate, tolerance, report)
    if setting.epsilon is None:
        return calibrate(f, noise_multiplier=1.0, delta=setting.delta, adjacency=setting.adjacency)
    return calibrate(f, epsilon=setting.epsilon, delta=setting.delta, adjacency=setting.adjacency)


def _amplified(setting: Setting, candidate: Candidate, tolerance: float, report: Any) -> tuple[Candidate, Mechanism]:
    if setting.epsilon is None or setting.delta is None:
        raise ValueError(f"epsilon = None: what {candidate.label} brings depends on ε and δ; give both")
    promise: dict[str, Any] = {"epsilon": setting.epsilon, "delta": setting.delta, "adjacency": setting.adjacency}
    sampled: dict[str, Any] = {"sampler": candidate.sampler, "sampling_rate": setting.sampling_rate}
    if candidate.sampler == "cyclic-poisson":
        width = WIDTHS[candidate.name]
        if set(candidate.options) - {width}:
            raise ValueError(f"{candidate.label}: with cyclic Poisson samples {width} is the only option")
        if width in candidate.options:
            f = cyclic(candidate.name, candidate.options[width], setting.workload)
            return candidate, calibrate(f, **promise, **sampled)
        found = best_bands(
            candidate.name,
            workload=setting.workload,
            sampling_rate=setting.sampling_rate,
            progress=lambda tried: report(tried.bands, None),
            **promise,
        )
        return replace(candidate, options={width: found.bands}), found.mechanism
    f = _design(setting, candidate, tolerance, report)
    if candidate.sampler == "balls-in-bins":
        del sampled["sampling_rate"]
    return candidate, calibrate(f, **promise, **sampled)


def _design(setting: Setting, candidate: Candidate, tolerance: float, report: Any) -> Factorization:
    options = dict(candidate.options)
    if candidate.name in ("dp-mf", "dp-mf+", "damped", "curvature", "optimal"):
        options.setdefault("tolerance", tolerance)
    return design(
        candidate.name, workload=setting.workload, participation=setting.participation, progress=report, **options
    )


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
    return Entry(candidate, mechanism, deviation, over, *cost, unamplified, 4 * padded(setting.parameters))
