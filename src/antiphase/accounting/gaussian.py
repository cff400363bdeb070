r"""ε ↔ noise multiplier, rounded to the safe side.

Without amplification a whole run is one Gaussian mechanism with ``s = noise multiplier`` (in units of the sensitivity):

    δ(ε; s) = Φ(1/(2s) − εs) − e^ε Φ(−1/(2s) − εs)

Since ``e^ε φ(x + 1/s) = φ(x)`` at ``x = εs − 1/(2s)``, this is ``φ(x)·[m(x) − m(x + 1/s)]`` with Mills' ratio ``m =
Φ(−·)/φ``: nothing overflows, and the exponential is gone. Poisson-sampled DP-SGD goes through dp-accounting's privacy
loss distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import scipy

from antiphase._util import checks as check

MARGIN = 1e-9  # noise multipliers are rounded up by this, relatively; a float64 sensitivity is wrong by far less
FARTHEST = 1e150  # where a search ends; squares of more are none
ROUNDING = 1e-10  # ε and δ are rounded up by this, relatively


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The smallest δ for which the Gaussian mechanism is (ε, δ)-private, rounded up.   [G7]

    >>> gaussian_delta(1.0, epsilon=1.0)
    0.1269367375...
    """
    s = check.positive_number("noise_multiplier", noise_multiplier)
    epsilon = check.real_number("epsilon", epsilon, minimum=0.0)
    return min(math.exp(_log_delta(s, epsilon)) * (1 + ROUNDING), 1.0)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """The smallest ε for which the Gaussian mechanism is (ε, δ)-private, rounded up; 0 if none is needed.   [G7]

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
        if high > FARTHEST:
            raise ValueError(
                f"noise_multiplier = {s:g} is too small: its ε has no end among floats"
            )
    least = _smallest(lambda e: _log_delta(s, e) <= target, 0.0, high)
    # PRIVACY: rounded up, by more than the formula can be off.   [G7]
    return least * (1 + ROUNDING)


def gaussian_noise_multiplier(epsilon: float, delta: float) -> float:
    """The smallest noise multiplier for which the Gaussian mechanism is (ε, δ)-private, rounded up.   [G7]

    Guarantee: ``gaussian_epsilon(gaussian_noise_multiplier(ε, δ), δ) <= ε``.

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
        if high > FARTHEST:
            raise ValueError(
                f"epsilon = {epsilon:g} at delta = {delta:g} is out of reach of floats; ask for more"
            )
    least = _smallest(lambda s: _log_delta(s, epsilon) <= target, low, high)
    # PRIVACY: rounded up, by more than ε is.   [G7]
    return least * (1 + MARGIN)


def gdp(noise_multiplier: float) -> float:
    """μ of Gaussian differential privacy: ``1/s``, rounded up."""
    return (1 + ROUNDING) / check.positive_number("noise_multiplier", noise_multiplier)


def zcdp(noise_multiplier: float) -> float:
    """ρ of zero-concentrated differential privacy: ``1/(2s²)``, rounded up."""
    return (1 + ROUNDING) / (2 * check.positive_number("noise_multiplier", noise_multiplier) ** 2)


# ---- inside ------------------------------------------------------------------------------------------------


def _log_delta(s: float, epsilon: float) -> float:
    """``ln δ(ε; s)``, without cancellation where δ is small and without overflow where ε is large."""
    x, scale = epsilon * s - 0.5 / s, math.sqrt(0.5)
    if x > FARTHEST:
        return -math.inf
    if x < -5:  # δ is near 1
        far = 0.5 * math.exp(-0.5 * x * x) * float(scipy.special.erfcx((x + 1 / s) * scale))
        return math.log(float(scipy.special.ndtr(-x)) - far)
    near = float(scipy.special.erfcx(x * scale))
    # PRIVACY: what the subtraction may have lost is added back.   [G7]
    difference = near - float(scipy.special.erfcx((x + 1 / s) * scale)) + 1e-15 * near
    return -0.5 * x * x + math.log(0.5 * difference)


def _smallest(private: Callable[[float], bool], low: float, high: float) -> float:
    """The least float in (low, high] for which ``private`` holds, which it does from somewhere on.

    By bisection, so that the answer is one that was seen to be private.
    """
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return high
        low, high = (low, middle) if private(middle) else (middle, high)


def checked_delta(name: str, delta: float) -> float:
    """``delta`` if it is one: above 0 and below 1."""
    delta = check.positive_number(name, delta)
    if delta >= 1:
        raise ValueError(
            f"{name} = {delta:g} must be below 1; usually it is well below one over the number of records"
        )
    return delta
