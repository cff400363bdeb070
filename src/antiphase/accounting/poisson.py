"""Poisson subsampling: ε, δ and noise multipliers of DP-SGD by privacy loss distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from antiphase._util import checks as check
from antiphase.accounting.accountant import Accountant, refuse_replace_one
from antiphase.accounting.gaussian import checked_delta
from antiphase.factorizations.base import Factorization
from antiphase.participation import Once
from antiphase.sensitivity import sensitivity

# Intervals at which a privacy loss distribution is tabulated, always pessimistically.
FINE, COARSE = 1e-4, 1e-3
MIN_POISSON_NOISE_MULTIPLIER = 0.125  # below it, tables of the privacy loss become very long
MAX_POISSON_NOISE_MULTIPLIER = 1e6
MAX_SECANT_STEPS = 6  # after which the search bisects

Excess = Callable[..., float]


def checked_rate(name: str, rate: float) -> float:
    """``rate`` as a float if it is above 0 and at most 1; ValueError otherwise."""
    rate = check.positive_number(name, rate)
    if rate > 1:
        raise ValueError(
            f"{name} = {rate} must be at most 1: it is the probability that a record is in a batch"
        )
    return rate


def poisson_epsilon(
    noise_multiplier: float, delta: float, *, sampling_rate: float, steps: int
) -> float:
    """ε of DP-SGD with Poisson samples, for adding, removing or zeroing out one record [G7].

    An upper bound, by dp-accounting's privacy loss distributions with pessimistic discretisation.

    Args:
        noise_multiplier: standard deviation of the noise, in units of the clip norm.
        delta: the δ, between 0 and 1.
        sampling_rate: probability that a record is in a batch.
        steps: number of batches.

    Example:
        >>> round(poisson_epsilon(2.0, 1e-5, sampling_rate=0.01, steps=10), 3)
        0.066
    """
    arguments = _checked(noise_multiplier, sampling_rate, steps)
    return float(_loss_distribution(*arguments)[0](checked_delta("delta", delta)))


def poisson_delta(
    noise_multiplier: float, epsilon: float, *, sampling_rate: float, steps: int
) -> float:
    """δ of DP-SGD with Poisson samples at ε, rounded up; see `poisson_epsilon` [G7]."""
    arguments = _checked(noise_multiplier, sampling_rate, steps)
    epsilon = check.real_number("epsilon", epsilon, minimum=0.0)
    return float(_loss_distribution(*arguments)[1](epsilon))


def poisson_noise_multiplier(
    epsilon: float, delta: float, *, sampling_rate: float, steps: int
) -> float:
    """A noise multiplier with which DP-SGD with Poisson samples is (ε, δ)-DP [G7].

    Args:
        epsilon: the ε, above 0.
        delta: the δ, between 0 and 1.
        sampling_rate: probability that a record is in a batch.
        steps: number of batches.

    Returns:
        A multiplier within 1e-4 of the smallest, and at least `MIN_POISSON_NOISE_MULTIPLIER`.

    Raises:
        ValueError: no multiplier up to `MAX_POISSON_NOISE_MULTIPLIER` is large enough.
    """
    epsilon = check.positive_number("epsilon", epsilon)
    checked_delta("delta", delta)
    _, rate, steps = _checked(1.0, sampling_rate, steps)

    def excess(s: float, interval: float = FINE) -> float:
        """``ln(ε(s)/ε)``, rounded up: at most 0 if s is large enough."""
        value = float(_loss_distribution(s, rate, steps, interval)[0](delta))
        return math.log(max(value, 1e-12) / epsilon)

    low = high = 1.0
    while excess(low, COARSE) <= 0:
        if low <= MIN_POISSON_NOISE_MULTIPLIER and excess(low) <= 0:
            return low
        low /= 2
    while excess(high, COARSE) > 0:
        high *= 2
        if high > MAX_POISSON_NOISE_MULTIPLIER:
            raise ValueError(
                f"epsilon = {epsilon:g} at delta = {delta:g} is out of reach of a PLD with {steps} "
                "steps; increase epsilon or delta"
            )
    return _refined(excess, low, high)


def _refined(excess: Excess, low: float, high: float) -> float:
    """The end of ``low < s <= high`` at which ``excess`` is at most 0, after narrowing to 1e-4.

    Tables at the coarse interval are quick to make and show where to use the fine one.
    """
    while high / low > 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle, COARSE) <= 0 else (middle, high)
    low *= 0.998
    at_high, at_low = excess(high), excess(low)
    while at_low <= 0:
        high, at_high = low, at_low
        low *= 0.98
        at_low = excess(low)
    side, evaluations = 1.0, 0
    while high / low > 1 + 1e-4:
        evaluations += 1
        # The excess is nearly linear in log s. Aim a little to the side of the secant's root, so
        # that the bracket shrinks from both ends.
        middle = low * (high / low) ** (at_low / (at_low - at_high)) * (1 + 3e-5 * side)
        if evaluations > MAX_SECANT_STEPS or not low < middle < high:
            middle = math.sqrt(low * high)
        value = excess(middle)
        if value <= 0:
            high, at_high, side = middle, value, -1.0
        else:
            low, at_low, side = middle, value, 1.0
    # PRIVACY: the end of the bracket that was checked to be private.   [G7]
    return high


def _checked(noise_multiplier: float, sampling_rate: float, steps: int) -> tuple[float, float, int]:
    return (
        check.positive_number("noise_multiplier", noise_multiplier),
        checked_rate("sampling_rate", sampling_rate),
        check.whole_number("steps", steps),
    )


@lru_cache(maxsize=64)
def _loss_distribution(
    s: float, rate: float, steps: int, interval: float = FINE
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """ε as a function of δ, and δ as a function of ε."""
    import dp_accounting  # slow to import
    from dp_accounting import pld

    accountant = pld.PLDAccountant(value_discretization_interval=interval)
    sampled = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(s))
    accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, steps))
    return accountant.get_epsilon, accountant.get_delta


class PoissonAccountant(Accountant):
    """DP-SGD: independent noise, every record in every batch by an independent coin."""

    def __init__(
        self, factorization: Factorization, adjacency: str = "zero-out", *, rate: float
    ) -> None:
        super().__init__(factorization, adjacency)
        refuse_replace_one(self._adjacency)
        self._rate = checked_rate("sampling_rate", rate)
        self._refuse_unanalysed()

    def _refuse_unanalysed(self) -> None:
        """Raise ValueError if the analysis does not cover the factorization."""
        if not self._factorization.is_identity:
            # PRIVACY: the analysis composes independent steps; correlated noise is not that.   [G9]
            raise ValueError(
                "sampling = Poisson is analysed only for independent noise (dp-sgd), not for "
                f"{self._factorization.name}; use FixedOrder(), or CyclicPoisson(rate) for an "
                "encoder with few bands"
            )

    @property
    def groups(self) -> int:
        """Number of groups that batches are drawn from in turn."""
        return 1

    @property
    def sensitivity(self) -> float:
        """The largest column norm of the encoder."""
        # PRIVACY: of one step alone: the largest column.   [G1]
        return sensitivity(self._factorization.encoder_columns(), Once())

    def epsilon(self, noise_multiplier: float, delta: float, rows: int) -> float:
        """ε of as many rounds of DP-SGD as one record sees."""
        return poisson_epsilon(noise_multiplier, delta, **self._rounds([rows]))

    def delta(self, noise_multiplier: float, epsilon: float, rows: int) -> float:
        """δ of as many rounds of DP-SGD as one record sees."""
        return poisson_delta(noise_multiplier, epsilon, **self._rounds([rows]))

    def noise_multiplier(self, epsilon: float, delta: float) -> float:
        """A noise multiplier for all rounds; see `poisson_noise_multiplier`."""
        return poisson_noise_multiplier(epsilon, delta, **self._rounds([self._factorization.steps]))

    def epsilon_of_runs(self, noise_multiplier: float, delta: float, runs: Sequence[int]) -> float:
        """ε of all rounds together: steps are independent, whichever run they belong to."""
        return poisson_epsilon(noise_multiplier, delta, **self._rounds(runs))

    def _rounds(self, runs: Sequence[int]) -> dict[str, Any]:
        """Rate and number of the rounds of DP-SGD that one record sees."""
        rate = min(self.groups * self._rate, 1.0)
        # PRIVACY: rounded up, for the groups that come once more than others.   [G9]
        return {"sampling_rate": rate, "steps": sum(-(-rows // self.groups) for rows in runs)}
