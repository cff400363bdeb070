"""Claims that an audit tests: μ-Gaussian and (ε, δ) differential privacy.

A claim is a trade-off curve. An adversary guesses by a threshold on a score whether the canary was
in the training data. Under the claim, no adversary with a given false positive rate has a lower
false negative rate than the curve.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase.accounting.gaussian import checked_delta
from antiphase.mechanism import Mechanism

MAX_EPSILON = 700.0  # e^−ε is still a normal float


class Claim(abc.ABC):
    """A claimed level of privacy: `GaussianClaim` or `ApproximateClaim`."""

    name: ClassVar[str]  # of the parameter that an audit bounds

    @property
    @abc.abstractmethod
    def value(self) -> float:
        """The claimed value of the parameter that an audit bounds."""

    @abc.abstractmethod
    def with_value(self, value: float) -> Claim:
        """The same kind of claim with another value of that parameter."""

    @abc.abstractmethod
    def min_false_negatives(self, false_positives: Array) -> Array:
        """Trade-off curve: the lowest false negative rate at each false positive rate."""

    @abc.abstractmethod
    def min_false_positives(self, true_positives: float) -> float:
        """The lowest false positive rate at a true positive rate: the inverse of the curve."""

    @abc.abstractmethod
    def lower_bound(self, false_positives: Array, false_negatives: Array) -> Array:
        """The largest value of the parameter at which these error rates are still impossible."""


@dataclass(frozen=True)
class GaussianClaim(Claim):
    """μ-Gaussian differential privacy.

    No test distinguishes training with and without a record better than N(0, 1) from N(μ, 1).

    Args:
        mu: the claimed μ, above 0.

    Example:
        >>> print(GaussianClaim(1.5))
        1.5-Gaussian privacy
    """

    mu: float
    name = "μ"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", check.positive_number("mu", self.mu))

    @property
    def value(self) -> float:
        """The claimed μ."""
        return self.mu

    def with_value(self, value: float) -> GaussianClaim:
        """The claim of another μ."""
        return GaussianClaim(value)

    def min_false_negatives(self, false_positives: Array) -> Array:
        """Φ(Φ⁻¹(1 − α) − μ)."""
        return np.asarray(scipy.special.ndtr(-scipy.special.ndtri(false_positives) - self.mu))

    def min_false_positives(self, true_positives: float) -> float:
        """Φ(Φ⁻¹(1 − β) − μ)."""
        return float(scipy.special.ndtr(scipy.special.ndtri(true_positives) - self.mu))

    def lower_bound(self, false_positives: Array, false_negatives: Array) -> Array:
        """Φ⁻¹(1 − α) − Φ⁻¹(β)."""
        return np.asarray(
            -scipy.special.ndtri(false_positives) - scipy.special.ndtri(false_negatives)
        )

    def __str__(self) -> str:
        return f"{self.mu:.4g}-Gaussian privacy"


@dataclass(frozen=True)
class ApproximateClaim(Claim):
    """(ε, δ) differential privacy.

    Args:
        epsilon: the claimed ε, above 0.
        delta: the claimed δ, which an audit takes as given.

    Example:
        >>> print(ApproximateClaim(8.0, 1e-5))
        (8, 1e-05)-privacy
    """

    epsilon: float
    delta: float
    name = "ε"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check.positive_number("epsilon", self.epsilon))
        object.__setattr__(self, "delta", checked_delta("delta", self.delta))

    @property
    def value(self) -> float:
        """The claimed ε."""
        return self.epsilon

    def with_value(self, value: float) -> ApproximateClaim:
        """The claim of another ε at the same δ."""
        return ApproximateClaim(value, self.delta)

    @property
    def _ratio(self) -> float:
        """e^−ε."""
        return math.exp(-min(self.epsilon, MAX_EPSILON))

    def min_false_negatives(self, false_positives: Array) -> Array:
        """max(0, 1 − δ − e^ε·α, e^−ε·(1 − δ − α))."""
        ratio = self._ratio
        steep = 1 - self.delta - false_positives / ratio
        flat = ratio * (1 - self.delta - false_positives)
        return np.maximum(np.maximum(steep, flat), 0.0)

    def min_false_positives(self, true_positives: float) -> float:
        """max(0, e^−ε·(1 − β − δ), 1 − δ − e^ε·β)."""
        ratio = self._ratio
        return max(
            (true_positives - self.delta) * ratio,
            1 - self.delta - (1 - true_positives) / ratio,
            0.0,
        )

    def lower_bound(self, false_positives: Array, false_negatives: Array) -> Array:
        """Log of max((1 − δ − β) / α, (1 − δ − α) / β)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = [
                (1 - self.delta - b) / a
                for a, b in ((false_positives, false_negatives), (false_negatives, false_positives))
            ]
            epsilon: Array = np.log(np.maximum(np.max(ratios, axis=0), 1e-300))
        return epsilon

    def __str__(self) -> str:
        return f"({self.epsilon:.4g}, {self.delta:g})-privacy"


def claim_of(promise: Mechanism | Mapping[str, Any]) -> Claim:
    """The claim of a mechanism or of a privacy statement.

    Args:
        promise: a mechanism, or the content of `PrivacyStatement.to_json` as a dictionary.

    Returns:
        A `GaussianClaim` where μ is known, an `ApproximateClaim` otherwise.

    Example:
        >>> claim_of({"mu": 1.0})
        GaussianClaim(mu=1.0)
    """
    if isinstance(promise, Mechanism):
        mu = promise.mu()
        if mu is None:
            return ApproximateClaim(promise.epsilon(), promise._delta(None))
        return GaussianClaim(mu)
    check.instance("promise", promise, Mapping)
    if promise.get("mu") is not None:
        return GaussianClaim(promise["mu"])
    return ApproximateClaim(promise.get("epsilon", math.nan), promise.get("delta", math.nan))
