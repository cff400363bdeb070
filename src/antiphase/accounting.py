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
from functools import lru_cache

import scipy

from antiphase import _checks as check

MARGIN = 1e-9  # noise multipliers are rounded up by this, relatively; a float64 sensitivity is wrong by far less
FINE, COARSE = 1e-4, 1e-3  # steps in which a privacy loss distribution is tabulated, always to the pessimistic side
LEAST = 0.125  # noise multiplier that is looked for with Poisson samples
FARTHEST = 1e150  # where a search ends; squares of more are none
ROUNDING = 1e-10  # ε and δ are rounded up by this, relatively


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """The smallest δ for which the Gaussian mechanism is (ε, δ)-private, rounded up.   [G7]

    >>> gaussian_delta(1.0, epsilon=1.0)
    0.1269367375...
    """
    s = check.positive_number("noise_multiplier", noise_multiplier)
    epsilon = check.real_number("epsilon", epsilon, least=0.0)
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
            raise ValueError(f"noise_multiplier = {s:g} is too small: its ε has no end among floats")
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
            raise ValueError(f"epsilon = {epsilon:g} at delta = {delta:g} is out of reach of floats; ask for more")
    least = _smallest(lambda s: _log_delta(s, epsilon) <= target, low, high)
    # PRIVACY: rounded up, by more than ε is.   [G7]
    return least * (1 + MARGIN)


def gdp(noise_multiplier: float) -> float:
    """μ of Gaussian differential privacy: ``1/s``, rounded up."""
    return (1 + ROUNDING) / check.positive_number("noise_multiplier", noise_multiplier)


def zcdp(noise_multiplier: float) -> float:
    """ρ of zero-concentrated differential privacy: ``1/(2s²)``, rounded up."""
    return (1 + ROUNDING) / (2 * check.positive_number("noise_multiplier", noise_multiplier) ** 2)


def poisson_epsilon(noise_multiplier: float, delta: float, *, sampling_rate: float, steps: int) -> float:
    """ε of DP-SGD whose batches are Poisson samples, for adding, removing or zeroing out one record.   [G7]

    By dp-accounting's privacy loss distributions with pessimistic discretisation: an upper bound.
    """
    s, rate, steps = _poisson(noise_multiplier, sampling_rate, steps)
    return float(_poisson_account(s, rate, steps)[0](checked_delta("delta", delta)))


def poisson_delta(noise_multiplier: float, epsilon: float, *, sampling_rate: float, steps: int) -> float:
    """δ of Poisson-sampled DP-SGD at ε; see `poisson_epsilon`."""
    s, rate, steps = _poisson(noise_multiplier, sampling_rate, steps)
    return float(_poisson_account(s, rate, steps)[1](check.real_number("epsilon", epsilon, least=0.0)))


def poisson_noise_multiplier(epsilon: float, delta: float, *, sampling_rate: float, steps: int) -> float:
    """A noise multiplier with which Poisson-sampled DP-SGD is (ε, δ)-private, to within 1e-4 of the smallest.   [G7]

    It is never below 0.125: for less noise, tables of the privacy loss get very long.
    """
    epsilon = check.positive_number("epsilon", epsilon)
    checked_delta("delta", delta)
    _, rate, steps = _poisson(1.0, sampling_rate, steps)

    def excess(s: float, interval: float = FINE) -> float:
        """At most 0 if ``s`` is enough. Every interval errs on the safe side; the coarse one is quick, and tells where
        to look."""
        found = float(_poisson_account(s, rate, steps, interval)[0](delta))
        return math.log(max(found, 1e-12) / epsilon)

    low = high = 1.0
    while excess(low, COARSE) <= 0:
        if low <= LEAST and excess(low) <= 0:
            return low
        low /= 2
    while excess(high, COARSE) > 0:
        high *= 2
        if high > 1e6:
            raise ValueError(
                f"epsilon = {epsilon:g} at delta = {delta:g} is out of reach of a PLD with {steps} steps; ask for more"
            )
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle, COARSE) <= 0 else (middle, high)
    low *= 0.998
    under, over = excess(high), excess(low)
    while over <= 0:
        high, under = low, over
        low *= 0.98
        over = excess(low)
    side, tries = 1.0, 0
    while high / low > 1 + 1e-4:
        tries += 1
        # Nearly a straight line in logarithms; a little to the side, so that the bracket closes from both ends.
        share = over / (over - under)
        middle = low * (high / low) ** share * (1 + 3e-5 * side)
        if tries > 6 or not low < middle < high:
            middle = math.sqrt(low * high)
        found = excess(middle)
        if found <= 0:
            high, under, side = middle, found, -1.0
        else:
            low, over, side = middle, found, 1.0
    # PRIVACY: the end of the bracket that was seen to be private.   [G7]
    return high


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
        raise ValueError(f"{name} = {delta:g} must be below 1; usually it is well below one over the number of records")
    return delta


def _poisson(noise_multiplier: float, sampling_rate: float, steps: int) -> tuple[float, float, int]:
    s = check.positive_number("noise_multiplier", noise_multiplier)
    rate = check.positive_number("sampling_rate", sampling_rate)
    if rate > 1:
        raise ValueError(f"sampling_rate = {rate:g} must be at most 1: it is the chance of a record to be in a batch")
    return s, rate, check.whole_number("steps", steps)


@lru_cache(maxsize=64)
def _poisson_account(
    s: float, rate: float, steps: int, interval: float = FINE
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(s))
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, steps))
    return accountant.get_epsilon, accountant.get_delta
