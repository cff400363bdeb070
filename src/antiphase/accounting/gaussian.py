r"""Gaussian mechanism: ε, δ, noise multipliers and the unamplified accountant.

With noise multiplier s, in units of the sensitivity, the Gaussian mechanism is (ε, δ(ε; s))-DP for

    δ(ε; s) = Φ(1/(2s) − εs) − e^ε Φ(−1/(2s) − εs)

(Balle and Wang 2018, theorem 8). Since ``e^ε φ(x + 1/s) = φ(x)`` at ``x = εs − 1/(2s)``, this is
``φ(x)·[m(x) − m(x + 1/s)]`` with Mills' ratio ``m = Φ(−·)/φ``. This form has no large exponential
and cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import scipy

from antiphase._util import checks as check
from antiphase.accounting.accountant import Accountant, adjacency_factor

NOISE_MARGIN = 1e-9  # relative; a sensitivity in float64 is off by far less
LOSS_MARGIN = 1e-10  # relative rounding of ε and δ; less than that of the noise multiplier
MAX_SEARCHED = 1e150  # end of every search: the squares of larger floats overflow


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The smallest δ for which the Gaussian mechanism is (ε, δ)-DP, rounded up [G7].

    Args:
        noise_multiplier: standard deviation of the noise, in units of the L2 sensitivity.
        epsilon: the ε, at least 0.

    Example:
        >>> gaussian_delta(1.0, epsilon=1.0)
        0.1269367375...
    """
    s = check.positive_number("noise_multiplier", noise_multiplier)
    epsilon = check.real_number("epsilon", epsilon, minimum=0.0)
    return min(math.exp(_log_delta(s, epsilon)) * (1 + LOSS_MARGIN), 1.0)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The smallest ε for which the Gaussian mechanism is (ε, δ)-DP, rounded up [G7].

    Args:
        noise_multiplier: standard deviation of the noise, in units of the L2 sensitivity.
        delta: the δ, between 0 and 1.

    Returns:
        ε; 0 if the mechanism is (0, δ)-DP.

    Raises:
        ValueError: ε overflows.

    Example:
        >>> gaussian_epsilon(1.0, delta=1e-5)
        4.3771...
    """
    s = check.positive_number("noise_multiplier", noise_multiplier)
    target = math.log(checked_delta("delta", delta))
    if _log_delta(s, 0.0) <= target:
        return 0.0
    high = 1.0
    while _log_delta(s, high) > target:
        high *= 2
        if high > MAX_SEARCHED:
            raise ValueError(
                f"noise_multiplier = {s:g} is too small: ε overflows float64; increase it"
            )
    smallest = _smallest(lambda e: _log_delta(s, e) <= target, 0.0, high)
    # PRIVACY: rounded up, by more than the formula can be off.   [G7]
    return smallest * (1 + LOSS_MARGIN)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier for which the Gaussian mechanism is (ε, δ)-DP [G7].

    Guarantee: ``gaussian_epsilon(gaussian_noise_multiplier(ε, δ), δ) <= ε``.

    Args:
        epsilon: the ε, above 0.
        delta: the δ, between 0 and 1.

    Returns:
        The noise multiplier, rounded up.

    Raises:
        ValueError: no float64 is large enough.

    Example:
        >>> gaussian_noise_multiplier(epsilon=1.0, delta=1e-6)
        4.22467889...
    """
    epsilon = check.positive_number("epsilon", epsilon)
    target = math.log(checked_delta("delta", delta))
    low = high = 1.0
    while _log_delta(low, epsilon) <= target:
        low /= 2
    while _log_delta(high, epsilon) > target:
        high *= 2
        if high > MAX_SEARCHED:
            raise ValueError(
                f"epsilon = {epsilon:g} at delta = {delta:g} is out of reach: the noise multiplier "
                "overflows float64; increase epsilon or delta"
            )
    smallest = _smallest(lambda s: _log_delta(s, epsilon) <= target, low, high)
    # PRIVACY: rounded up, by more than ε is.   [G7]
    return smallest * (1 + NOISE_MARGIN)


def gdp(noise_multiplier: float) -> float:
    """μ of Gaussian differential privacy: ``1/s``, rounded up."""
    return (1 + LOSS_MARGIN) / check.positive_number("noise_multiplier", noise_multiplier)


def zcdp(noise_multiplier: float) -> float:
    """ρ of zero-concentrated differential privacy: ``1/(2s²)``, rounded up."""
    s = check.positive_number("noise_multiplier", noise_multiplier)
    return (1 + LOSS_MARGIN) / (2 * s**2)


def checked_delta(name: str, delta: float) -> float:
    """``delta`` as a float if it is above 0 and below 1; ValueError otherwise."""
    delta = check.positive_number(name, delta)
    if delta >= 1:
        raise ValueError(
            f"{name} = {delta:g} must be below 1; usually it is well below one over the number of "
            "records"
        )
    return delta


def required_delta(delta: float | None) -> float:
    """``delta`` if it is given and between 0 and 1; ValueError otherwise."""
    if delta is None:
        raise ValueError("delta = None: give δ, well below one over the number of records")
    return checked_delta("delta", delta)


def _log_delta(s: float, epsilon: float) -> float:
    """``ln δ(ε; s)``, without cancellation for small δ and without overflow for large ε."""
    x, scale = epsilon * s - 0.5 / s, math.sqrt(0.5)
    if x > MAX_SEARCHED:
        return -math.inf
    if x < -5:  # δ is near 1
        far = 0.5 * math.exp(-0.5 * x * x) * float(scipy.special.erfcx((x + 1 / s) * scale))
        return math.log(float(scipy.special.ndtr(-x)) - far)
    near = float(scipy.special.erfcx(x * scale))
    # PRIVACY: what the subtraction may have lost is added back.   [G7]
    difference = near - float(scipy.special.erfcx((x + 1 / s) * scale)) + 1e-15 * near
    return -0.5 * x * x + math.log(0.5 * difference)


def _smallest(private: Callable[[float], bool], low: float, high: float) -> float:
    """The smallest float in (low, high] at which a monotone condition holds, by bisection.

    The returned value was itself checked.
    """
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return high
        low, high = (low, middle) if private(middle) else (middle, high)


class GaussianAccountant(Accountant):
    """The whole run as one Gaussian mechanism: no amplification by sampling."""

    @property
    def sensitivity(self) -> float:
        """That of the encoder under its participation."""
        return self._factorization.sensitivity

    @property
    def is_exact(self) -> bool:
        """Whether the encoder's sensitivity is known exactly."""
        return self._factorization.sensitivity_is_exact

    def gaussian_noise_multiplier(self, noise_multiplier: float, rows: int) -> float:
        """Noise multiplier of the Gaussian mechanism that releases the first rows."""
        encoder = self._factorization
        spent = encoder.sensitivity
        if rows < encoder.steps:
            spent = min(encoder.sensitivity_of(rows), spent)
        factor = adjacency_factor(self._adjacency)
        # PRIVACY: noise is scaled by the sensitivity of all rows; fewer rows only cost less.   [G8]
        return noise_multiplier / factor * (encoder.sensitivity / spent)

    def epsilon(self, noise_multiplier: float, delta: float, rows: int) -> float:
        """ε of one Gaussian mechanism, rounded up."""
        return gaussian_epsilon(self.gaussian_noise_multiplier(noise_multiplier, rows), delta)

    def delta(self, noise_multiplier: float, epsilon: float, rows: int) -> float:
        """δ of one Gaussian mechanism, rounded up."""
        return gaussian_delta(self.gaussian_noise_multiplier(noise_multiplier, rows), epsilon)

    def noise_multiplier(self, epsilon: float, delta: float) -> float:
        """The smallest noise multiplier for (ε, δ), rounded up."""
        # PRIVACY: a record that is replaced moves the output twice as far as one zeroed out.   [G7]
        return adjacency_factor(self._adjacency) * gaussian_noise_multiplier(epsilon, delta)

    def epsilon_of_runs(self, noise_multiplier: float, delta: float, runs: Sequence[int]) -> float:
        """ε of the composition of Gaussian mechanisms, rounded up."""
        ratios = [self.gaussian_noise_multiplier(noise_multiplier, rows) for rows in runs]
        # PRIVACY: runs with fresh noise are separate Gaussian mechanisms; their μ² add up.   [G15]
        combined = 1 / math.sqrt(sum(ratio**-2 for ratio in ratios))
        return gaussian_epsilon(combined * (1 - 1e-12), delta)
