"""What may be compared, for which setting; and the mechanism that a candidate comes to there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase.accounting.gaussian import checked_delta
from antiphase.band_selection import WIDTHS, best_bands, cyclic
from antiphase.design import design, names
from antiphase.errors import AntiphaseError
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism, calibrate
from antiphase.participation import Participation, from_epochs
from antiphase.sampling import FIXED_ORDER, BallsInBins, CyclicPoisson, Poisson, Sampling
from antiphase.workload import Workload

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
REFUSALS = (AntiphaseError, ValueError, TypeError, MemoryError)


@dataclass(frozen=True)
class Candidate:
    """A mechanism to compare: a name that `design` knows, its options, and how batches are drawn for it (None: as the
    setting says, where that is analysed for it).

    With cyclic Poisson samples it has the best number of bands, unless its options say another.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check.choice("name", self.name, tuple(names()))
        if self.sampling is not None:
            check.instance("sampling", self.sampling, Sampling)
        if isinstance(self.sampling, Poisson) and self.name != "dp-sgd":
            raise ValueError(
                f"{self.name} with Poisson samples: amplification is analysed for dp-sgd alone"
            )
        if isinstance(self.sampling, CyclicPoisson) and self.name not in WIDTHS:
            raise ValueError(
                f"{self.name} with cyclic Poisson samples: amplification is analysed for few bands, so for "
                f"{', '.join(WIDTHS)}"
            )

    @property
    def amplified(self) -> bool:
        return self.sampling is not None and self.sampling.amplifies

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
        words += [
            f"{SYMBOLS.get(k, k)} = {_short(v)}" for k, v in options.items() if np.ndim(v) == 0
        ]
        if self.sampling is not None and self.sampling.amplifies:
            words.append(self.sampling.label)
        return ", ".join(words)


@dataclass(frozen=True, eq=False)
class Setting:
    """What is trained, for how long, and what is to be promised.

    Without ``epsilon`` the noise multiplier is 1 for all: the noise is then relative, and there is nothing to amplify.
    ``sampling`` says how batches can be drawn: what it is known to amplify has its noise multiplier, all else that of
    batches in a fixed order.
    """

    workload: Workload
    participation: Participation
    epsilon: float | None = None
    delta: float | None = None
    adjacency: str = "zero-out"
    parameters: int = (
        100_000  # how many numbers the model has: for the memory and the time of the noise
    )
    sampling: Sampling = FIXED_ORDER

    def __post_init__(self) -> None:
        sampling = check.instance("sampling", self.sampling, Sampling)
        if not sampling.amplifies and sampling != FIXED_ORDER:
            raise ValueError(
                f"sampling = {sampling}: compare for FixedOrder() or a scheme that amplifies"
            )
        if sampling.amplifies and self.epsilon is None:
            raise ValueError(f"sampling = {sampling}: amplification depends on ε and δ; give both")
        if sampling.amplifies and not self.participation.fixed_order:
            raise ValueError(
                f"sampling = {sampling} with a minimum separation: random batches keep none. Compare for epochs, or "
                "for batches that are not sampled"
            )
        if self.epsilon is not None:
            check.positive_number("epsilon", self.epsilon)
            if self.delta is None:
                raise ValueError(
                    "delta = None: δ is yours to choose, well below one over the number of records"
                )
            checked_delta("delta", self.delta)
        check.whole_number("parameters", self.parameters)

    @classmethod
    def of(
        cls, steps: int, epochs: int = 1, *, optimizer: Mapping[str, Any] | None = None, **rest: Any
    ) -> Setting:
        """So many steps of SGD with these options, in so many epochs of a fixed order."""
        workload = Workload.sgd(steps, **(optimizer or {}))
        return cls(workload, from_epochs(workload.steps, epochs), **rest)

    @property
    def steps(self) -> int:
        return self.workload.steps

    @property
    def sampling_rate(self) -> float:
        """The probability that a record is in a sampled batch; that of the fixed order if `sampling` has none."""
        return self.sampling.rate or fixed_order_rate(self.participation, self.steps)

    def describe(self) -> str:
        words = [f"{self.steps:,} step{'s' * (self.steps > 1)}", self.participation.describe()]
        if self.workload.describe() != "sgd":
            words.append(self.workload.describe())
        if self.epsilon is not None:
            words.append(f"ε = {self.epsilon:g}, δ = {self.delta:g} ({self.adjacency})")
        if self.sampling.amplifies:
            rate = "" if self.sampling.rate is None else f" at rate {self.sampling.rate:.4g}"
            words.append(f"{self.sampling.label}{rate}")
        return ", ".join(words)


def fixed_order_rate(participation: Participation, steps: int) -> float:
    """The sampling rate with which batches are as large as in the fixed order, on average."""
    return 1 / len(participation.patterns(steps))


def usual_candidates(setting: Setting, family: bool = False) -> list[Candidate]:
    """Those that people compare; DP-SGD also with the amplification that sampled batches would bring, and with cyclic
    Poisson samples what has few bands. ``family`` adds those that take a search of their own."""
    in_bins = isinstance(setting.sampling, BallsInBins)
    sampled = setting.sampling if in_bins else Poisson(setting.sampling_rate)
    hidden = [Candidate("dp-sgd", sampling=sampled)] if _can_be_hidden(setting) else []
    several = len(setting.participation.patterns(setting.steps)) < setting.steps
    few = (
        [Candidate("toeplitz"), Candidate("dp-mf+")]
        if isinstance(setting.sampling, CyclicPoisson)
        else []
    )
    searched = [Candidate(name) for name in ("toeplitz", "banded", "blt")]
    return [
        Candidate("dp-sgd", sampling=FIXED_ORDER),
        *hidden,
        Candidate("lambda-cgd"),
        Candidate("tree"),
        Candidate("sqrt-toeplitz"),
        Candidate("bisr"),
        *few,
        *([Candidate("epoch-restarts")] if several else []),
        *(
            [*searched, *([Candidate("dp-mf", {"buffers": 4})] if several else [])]
            if family
            else []
        ),
        Candidate("dp-mf"),
        Candidate("dp-mf+", {"tau": setting.steps}),
    ]


def made_for(
    setting: Setting, candidate: Candidate, tolerance: float, report: Any
) -> tuple[Candidate, Mechanism, str]:
    """The mechanism, of which candidate in full, and why it is not amplified where the setting has a sampler."""
    sampling = candidate.sampling or setting.sampling
    if not sampling.amplifies:
        return candidate, _plain(setting, candidate, tolerance, report), ""
    try:
        if isinstance(sampling, CyclicPoisson) and candidate.name == "dp-sgd":
            sampling = Poisson(sampling.rate)  # which is the same with one group
        return *_amplified(setting, replace(candidate, sampling=sampling), tolerance, report), ""
    except REFUSALS as error:
        if candidate.sampling is not None:
            raise
        plain = replace(candidate, sampling=FIXED_ORDER)
        return plain, _plain(setting, plain, tolerance, report), str(error) or type(error).__name__


def _plain(setting: Setting, candidate: Candidate, tolerance: float, report: Any) -> Mechanism:
    f = _design(setting, candidate, tolerance, report)
    if setting.epsilon is None:
        return calibrate(f, noise_multiplier=1.0, delta=setting.delta, adjacency=setting.adjacency)
    return calibrate(f, epsilon=setting.epsilon, delta=setting.delta, adjacency=setting.adjacency)


def _amplified(
    setting: Setting, candidate: Candidate, tolerance: float, report: Any
) -> tuple[Candidate, Mechanism]:
    sampling = candidate.sampling
    assert sampling is not None
    if setting.epsilon is None or setting.delta is None:
        raise ValueError(
            f"epsilon = None: the amplification of {candidate.label} depends on ε and δ; give both"
        )
    promise: dict[str, Any] = {
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "adjacency": setting.adjacency,
    }
    if isinstance(sampling, CyclicPoisson):
        width = WIDTHS[candidate.name]
        if set(candidate.options) - {width}:
            raise ValueError(
                f"{candidate.label}: with cyclic Poisson samples {width} is the only option"
            )
        if width in candidate.options:
            f = cyclic(candidate.name, candidate.options[width], setting.workload)
            return candidate, calibrate(f, sampling=sampling, **promise)
        found = best_bands(
            candidate.name,
            workload=setting.workload,
            sampling=sampling,
            progress=report,
            **promise,
        )
        return replace(candidate, options={width: found.bands}), found.mechanism
    f = _design(setting, candidate, tolerance, report)
    return candidate, calibrate(f, sampling=sampling, **promise)


def _design(setting: Setting, candidate: Candidate, tolerance: float, report: Any) -> Factorization:
    options = dict(candidate.options)
    if candidate.name in ("dp-mf", "dp-mf+", "damped", "curvature", "optimal"):
        options.setdefault("tolerance", tolerance)
    return design(
        candidate.name,
        workload=setting.workload,
        participation=setting.participation,
        progress=report,
        **options,
    )


def _can_be_hidden(setting: Setting) -> bool:
    """Whether batches by chance are an alternative: at an ε, and where nobody has to stay away between two of them."""
    together = setting.participation.fixed_order
    return setting.epsilon is not None and setting.sampling_rate < 1 and together


def _short(value: Any) -> str:
    """Four digits, and more where a damping is near 1: what it is less by is what counts."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.7g}" if 0.999 < value < 1 else f"{value:.4g}"
