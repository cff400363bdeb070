"""What `compare` compares: training settings and candidate mechanisms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.progress import Progress
from antiphase.accounting.gaussian import required_delta
from antiphase.band_selection import BAND_OPTIONS, design_for_cyclic_poisson, select_bands
from antiphase.design import design, designs
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
OPTION_SYMBOLS = {"tau": "τ", "rho": "ρ", "final_weight": "final weight", "correlation": "λ"}
TOLERANT_DESIGNS = ("dp-mf", "dp-mf+", "damped", "curvature", "optimal")  # take a tolerance
DESIGN_ERRORS = (AntiphaseError, ValueError, TypeError, MemoryError)  # by which a design is refused


@dataclass(frozen=True)
class Candidate:
    """A mechanism to compare: a design, its options and its sampling scheme.

    Attributes:
        name: a name that `antiphase.design` knows.
        options: keyword arguments of the design. With cyclic Poisson sampling the best number of
            bands is searched for, unless it is given here.
        sampling: the sampling scheme. By default that of the setting where it is analysed for this
            design, and a fixed order elsewhere.

    Raises:
        ValueError: amplification by this scheme is not analysed for the design.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        check.choice("name", self.name, tuple(designs()))
        if self.sampling is not None:
            check.instance("sampling", self.sampling, Sampling)
        if isinstance(self.sampling, Poisson) and self.name != "dp-sgd":
            raise ValueError(
                f"{self.name} with Poisson sampling: amplification is analysed for dp-sgd alone"
            )
        if isinstance(self.sampling, CyclicPoisson) and self.name not in BAND_OPTIONS:
            raise ValueError(
                f"{self.name} with cyclic Poisson sampling: amplification is analysed for few "
                f"bands, so for {', '.join(BAND_OPTIONS)}"
            )

    @property
    def amplified(self) -> bool:
        """Whether the candidate's own sampling scheme amplifies."""
        return self.sampling is not None and self.sampling.amplifies

    @property
    def label(self) -> str:
        """Name, options and sampling, for tables and legends.

        Batches in a fixed order are named for DP-SGD only, which has Poisson batches elsewhere.

        Example:
            >>> Candidate("dp-sgd", sampling=FIXED_ORDER).label
            'DP-SGD, fixed order'
            >>> Candidate("dp-mf+", {"tau": 64}).label
            'DP-MF⁺, τ = 64'
            >>> Candidate("tree", {"estimator": "online"}).label
            'tree, online'
            >>> Candidate("damped", {"rho": 1 - 2e-5, "final_weight": 45.4863}).label
            'damped, ρ = 0.99998, final weight = 45.49'
        """
        sampling = self.sampling
        if sampling is None or not (sampling.amplifies or self.name == "dp-sgd"):
            return self.design_label
        return f"{self.design_label}, {sampling.label}"

    @property
    def design_label(self) -> str:
        """Name and options."""
        options = dict(self.options)
        words = [LABELS.get(self.name, self.name)]
        if self.name == "tree" and "estimator" in options:
            words = ["tree", str(options.pop("estimator"))]
        words += [
            f"{OPTION_SYMBOLS.get(key, key)} = {_short(value)}"
            for key, value in options.items()
            if np.ndim(value) == 0
        ]
        return ", ".join(words)


@dataclass(frozen=True, eq=False, repr=False)
class Setting:
    """A training run and its privacy budget, for which mechanisms are compared.

    Attributes:
        workload: what the optimizer computes from gradients.
        participation: which steps a record may take part in.
        epsilon: the ε. Without it every noise multiplier is 1: noise is then relative, and there is
            nothing to amplify.
        delta: the δ, needed with ``epsilon``.
        adjacency: how neighbouring datasets differ.
        parameters: number of parameters of the model, for memory and time of the noise.
        sampling: how batches can be formed. Candidates for which amplification is proven have its
            noise multiplier; all others that of batches in a fixed order.

    Raises:
        ValueError: the sampling scheme does not fit the participation or the budget.

    Example:
        >>> import antiphase as ap
        >>> ap.Setting(ap.Workload.sgd(64, momentum=0.9), ap.epochs(4, every=16))
        <Setting 64 steps, 4 epochs of 16 steps, sgd, momentum 0.9>
    """

    workload: Workload
    participation: Participation
    epsilon: float | None = None
    delta: float | None = None
    adjacency: str = "zero-out"
    parameters: int = 100_000
    sampling: Sampling = FIXED_ORDER

    def __post_init__(self) -> None:
        check.instance("workload", self.workload, Workload)
        check.instance("participation", self.participation, Participation)
        sampling = check.instance("sampling", self.sampling, Sampling)
        if not sampling.amplifies and sampling != FIXED_ORDER:
            raise ValueError(
                f"sampling = {sampling}: compare for FixedOrder() or a scheme that amplifies"
            )
        if sampling.amplifies and self.epsilon is None:
            raise ValueError(f"sampling = {sampling}: amplification depends on ε and δ; give both")
        if sampling.amplifies and not self.participation.fixed_order:
            raise ValueError(
                f"sampling = {sampling} with a minimum separation: random batches keep none. "
                "Compare for epochs, or for batches in a fixed order"
            )
        if self.epsilon is not None:
            check.positive_number("epsilon", self.epsilon)
            required_delta(self.delta)
        check.whole_number("parameters", self.parameters)

    @classmethod
    def of(
        cls, steps: int, epochs: int = 1, *, optimizer: Mapping[str, Any] | None = None, **rest: Any
    ) -> Setting:
        """The setting of SGD on batches in a fixed order.

        Args:
            steps: number of steps of the whole training.
            epochs: number of epochs of equal length.
            optimizer: keyword arguments of `Workload.sgd`.
            rest: other attributes of the setting.

        Raises:
            TypeError: an argument is not known.

        Example:
            >>> Setting.of(64, epochs=4, optimizer={"momentum": 0.9}, epsilon=8.0, delta=1e-5)
            <Setting 64 steps, 4 epochs of 16 steps, sgd, momentum 0.9, ε = 8, δ = 1e-05 (zero-out)>
        """
        if unknown := sorted(set(rest) - {field.name for field in fields(cls)}):
            raise TypeError(
                f"{unknown[0]}: Setting.of has no such argument. Those of the optimizer are given "
                'as a dictionary, such as optimizer={"momentum": 0.9}'
            )
        workload = Workload.sgd(steps, **(optimizer or {}))
        return cls(workload, from_epochs(workload.steps, epochs), **rest)

    @property
    def steps(self) -> int:
        """Number of steps of the training."""
        return self.workload.steps

    @property
    def sampling_rate(self) -> float:
        """Probability that a record is in a sampled batch; by default that of the fixed order."""
        return self.sampling.rate or fixed_order_rate(self.participation, self.steps)

    def __repr__(self) -> str:
        return f"<Setting {self.describe()}>"

    def describe(self) -> str:
        """A short description, for titles."""
        words = [f"{self.steps:,} step{'s' * (self.steps > 1)}", self.participation.describe()]
        if self.workload.describe() != "sgd":
            words.append(self.workload.describe())
        if self.epsilon is not None:
            words.append(f"ε = {self.epsilon:g}, δ = {self.delta:g} ({self.adjacency})")
        if self.sampling.amplifies:
            rate = "" if self.sampling.rate is None else f" at rate {self.sampling.rate:.4g}"
            words.append(f"{self.sampling.label}{rate}")
        return ", ".join(words)


def require_setting(setting: Any) -> None:
    """Raise TypeError if ``setting`` is not a `Setting`."""
    if not isinstance(setting, Setting):
        raise TypeError(
            f"setting = {setting!r} must be a Setting, such as "
            "Setting.of(steps=1000, epochs=10, epsilon=8.0, delta=1e-5)"
        )


def fixed_order_rate(participation: Participation, steps: int) -> float:
    """The sampling rate with which batches are on average as large as in the fixed order."""
    return 1 / len(participation.patterns(steps))


def default_candidates(setting: Setting, family: bool = False) -> list[Candidate]:
    """The candidates that are compared by default.

    With cyclic Poisson sampling, mechanisms with few bands are among them.

    Args:
        setting: what is trained.
        family: whether to add designs that need a search of their own.
    """
    has_epochs = len(setting.participation.patterns(setting.steps)) < setting.steps
    candidates = dp_sgd_candidates(setting)
    candidates += map(Candidate, ("lambda-cgd", "tree", "sqrt-toeplitz", "bisr"))
    if isinstance(setting.sampling, CyclicPoisson):
        candidates += map(Candidate, ("toeplitz", "dp-mf+"))
    if has_epochs:
        candidates.append(Candidate("epoch-restarts"))
    if family:
        candidates += map(Candidate, ("toeplitz", "banded", "blt"))
        if has_epochs:
            candidates.append(Candidate("dp-mf", {"buffers": 4}))
    return [*candidates, Candidate("dp-mf"), Candidate("dp-mf+", {"tau": setting.steps})]


def dp_sgd_candidates(setting: Setting) -> list[Candidate]:
    """DP-SGD as it is compared with: on Poisson batches, where possible, and in a fixed order.

    Under balls-in-bins sampling, DP-SGD on such batches is between the two.
    """
    candidates = []
    if not no_poisson_reason(setting):
        candidates.append(Candidate("dp-sgd", sampling=Poisson(setting.sampling_rate)))
    if isinstance(setting.sampling, BallsInBins):
        candidates.append(Candidate("dp-sgd", sampling=setting.sampling))
    return [*candidates, Candidate("dp-sgd", sampling=FIXED_ORDER)]


def no_poisson_reason(setting: Setting) -> str:
    """Why DP-SGD on Poisson batches cannot be compared with; empty if it can be."""
    if setting.epsilon is None:
        return "its noise depends on ε and δ, which were not given"
    if not setting.participation.fixed_order:
        return "random batches keep no minimum separation"
    return "every batch has all records" if setting.sampling_rate == 1 else ""


@dataclass(frozen=True, eq=False)
class CalibratedCandidate:
    """A candidate with its mechanism.

    Attributes:
        candidate: the candidate, with its final options and sampling scheme.
        mechanism: the calibrated mechanism.
        unamplified: why the setting's sampling scheme does not amplify it; empty if it does.
    """

    candidate: Candidate
    mechanism: Mechanism
    unamplified: str = ""


def calibrate_candidate(
    setting: Setting, candidate: Candidate, tolerance: float, progress: Progress
) -> CalibratedCandidate:
    """Design and calibrate a candidate for a setting.

    A candidate without a sampling scheme of its own falls back to a fixed order where the setting's
    scheme is not analysed for it.

    Args:
        setting: what is trained.
        candidate: what is designed.
        tolerance: certified gap at which an optimal design stops.
        progress: called during searches.

    Raises:
        DESIGN_ERRORS: the candidate does not exist in this setting.
    """
    sampling = candidate.sampling or setting.sampling
    if not sampling.amplifies:
        return _unamplified(setting, replace(candidate, sampling=sampling), tolerance, progress)
    if isinstance(sampling, CyclicPoisson) and candidate.name == "dp-sgd":
        sampling = Poisson(sampling.rate)  # cyclic Poisson sampling with one group
    try:
        return _amplified(setting, replace(candidate, sampling=sampling), tolerance, progress)
    except DESIGN_ERRORS as error:
        if candidate.sampling is not None:
            raise
        reason = str(error) or type(error).__name__
    fallback = _unamplified(setting, replace(candidate, sampling=FIXED_ORDER), tolerance, progress)
    return replace(fallback, unamplified=reason)


def _unamplified(
    setting: Setting, candidate: Candidate, tolerance: float, progress: Progress
) -> CalibratedCandidate:
    f = _design(setting, candidate, tolerance, progress)
    mechanism = calibrate(
        f,
        epsilon=setting.epsilon,
        noise_multiplier=1.0 if setting.epsilon is None else None,
        delta=setting.delta,
        adjacency=setting.adjacency,
    )
    return CalibratedCandidate(candidate, mechanism)


def _amplified(
    setting: Setting, candidate: Candidate, tolerance: float, progress: Progress
) -> CalibratedCandidate:
    sampling = candidate.sampling
    assert sampling is not None
    if setting.epsilon is None or setting.delta is None:
        raise ValueError(
            f"epsilon = None: the amplification of {candidate.label} depends on ε and δ; give both"
        )
    budget: dict[str, Any] = {
        "epsilon": setting.epsilon,
        "delta": setting.delta,
        "adjacency": setting.adjacency,
        "sampling": sampling,
    }
    if not isinstance(sampling, CyclicPoisson):
        f = _design(setting, candidate, tolerance, progress)
        return CalibratedCandidate(candidate, calibrate(f, **budget))
    option = BAND_OPTIONS[candidate.name]
    if set(candidate.options) - {option}:
        raise ValueError(
            f"{candidate.label}: with cyclic Poisson sampling {option} is the only option"
        )
    if option in candidate.options:
        bands = candidate.options[option]
        f = design_for_cyclic_poisson(candidate.name, bands, setting.workload)
        return CalibratedCandidate(candidate, calibrate(f, **budget))
    best = select_bands(candidate.name, workload=setting.workload, progress=progress, **budget)
    return CalibratedCandidate(replace(candidate, options={option: best.bands}), best.mechanism)


def _design(
    setting: Setting, candidate: Candidate, tolerance: float, progress: Progress
) -> Factorization:
    options = dict(candidate.options)
    if candidate.name in TOLERANT_DESIGNS:
        options.setdefault("tolerance", tolerance)
    return design_for(setting, candidate.name, progress=progress, **options)


def design_for(setting: Setting, name: str, **options: Any) -> Factorization:
    """Design a mechanism for the workload and participation of a setting."""
    return design(name, workload=setting.workload, participation=setting.participation, **options)


def _short(value: Any) -> str:
    """A value with four significant digits, and more for a damping factor near 1."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.7g}" if 0.999 < value < 1 else f"{value:.4g}"
