"""Poisson subsampling: ε, δ and noise multipliers by privacy loss distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from antiphase._util import checks as check
from antiphase.accounting.gaussian import checked_delta

FINE, COARSE = (
    1e-4,
    1e-3,
)  # steps in which a privacy loss distribution is tabulated, always to the pessimistic side
MIN_POISSON_NOISE_MULTIPLIER = 0.125  # noise multiplier that is looked for with Poisson samples


def poisson_epsilon(
    noise_multiplier: float, delta: float, *, sampling_rate: float, steps: int
) -> float:
    """ε of DP-SGD whose batches are Poisson samples, for adding, removing or zeroing out one record.   [G7]

    By dp-accounting's privacy loss distributions with pessimistic discretisation: an upper bound.
    """
    s, rate, steps = _poisson(noise_multiplier, sampling_rate, steps)
    return float(_poisson_account(s, rate, steps)[0](checked_delta("delta", delta)))


def poisson_delta(
    noise_multiplier: float, epsilon: float, *, sampling_rate: float, steps: int
) -> float:
    """δ of Poisson-sampled DP-SGD at ε; see `poisson_epsilon`."""
    s, rate, steps = _poisson(noise_multiplier, sampling_rate, steps)
    return float(
        _poisson_account(s, rate, steps)[1](check.real_number("epsilon", epsilon, minimum=0.0))
    )


def poisson_noise_multiplier(
    epsilon: float, delta: float, *, sampling_rate: float, steps: int
) -> float:
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
        if low <= MIN_POISSON_NOISE_MULTIPLIER and excess(low) <= 0:
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


def _poisson(noise_multiplier: float, sampling_rate: float, steps: int) -> tuple[float, float, int]:
    s = check.positive_number("noise_multiplier", noise_multiplier)
    rate = check.positive_number("sampling_rate", sampling_rate)
    if rate > 1:
        raise ValueError(
            f"sampling_rate = {rate:g} must be at most 1: it is the chance of a record to be in a batch"
        )
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
