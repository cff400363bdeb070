r"""Band selection: the best number of bands for cyclic Poisson sampling.

With p bands a record can be sampled in every p-th step at p times the rate: the more bands, the
less amplification, and the more noise cancels. The search minimises the expected squared noise at
given (ε, δ), ``s(p)²·e(p)``. Here s(p) is the noise multiplier that ``⌈T/p⌉`` rounds at p times the
sampling rate need, and e(p) the error of the best encoder with p bands and columns of norm at most
1.

Both are smooth in p except for ``⌈T/p⌉``, which drops at ``p = ⌈T/r⌉``. The search tries powers of
two, then halves the gaps around the best, and stops where neither neighbours nor the nearest such
corners are better.

This module is not in `antiphase.accounting` because it designs and calibrates mechanisms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util.progress import Progress, ProgressReport
from antiphase.accounting.gaussian import checked_delta
from antiphase.accounting.poisson import MIN_POISSON_NOISE_MULTIPLIER
from antiphase.design import design
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism, calibrate
from antiphase.objective import Average, Objective
from antiphase.participation import min_separation
from antiphase.sampling import CyclicPoisson, Poisson
from antiphase.workload import Workload

BAND_OPTIONS = {  # design: its option that is the number of bands
    "toeplitz": "bands",
    "banded": "bands",
    "sqrt-toeplitz": "bands",
    "dp-mf+": "tau",
}
MAX_RISES = 2  # consecutive powers of two worse than the one before, after which larger are skipped
NEIGHBOURS = 2  # on either side of the best, which must all be worse
TABLE_CELLS = 1 << 15  # of the privacy loss, in an estimate


@dataclass(frozen=True)
class BandTrial:
    """One number of bands that was tried.

    Attributes:
        bands: the number of bands.
        error: of the encoder at noise multiplier 1, with columns of norm at most 1.
        noise_multiplier: an estimate without guarantee; exact for the selected number.
    """

    bands: int
    error: float
    noise_multiplier: float

    @property
    def expected_noise(self) -> float:
        """Squared noise at (ε, δ), summed over the iterates as the objective weights them."""
        return self.noise_multiplier**2 * self.error


@dataclass(frozen=True, eq=False, repr=False)
class BandSelection:
    """The mechanism with the best number of bands.

    Attributes:
        mechanism: calibrated, with the least expected noise.
        trials: all that was tried, by number of bands.
    """

    mechanism: Mechanism
    trials: tuple[BandTrial, ...]

    def __repr__(self) -> str:
        return (
            f"<BandSelection {self.bands} bands, of {len(self.trials)} tried: {self.mechanism!r}>"
        )

    @property
    def bands(self) -> int:
        """The best number of bands."""
        return self.mechanism.factorization.bands

    @property
    def expected_noise(self) -> float:
        """Expected squared noise of the mechanism."""
        return next(t.expected_noise for t in self.trials if t.bands == self.bands)


def select_bands(
    name: str = "toeplitz",
    *,
    steps: int | None = None,
    workload: Workload | None = None,
    sampling: CyclicPoisson,
    epsilon: float,
    delta: float,
    objective: Objective | None = None,
    max_bands: int | None = None,
    clip_norm: float = 1.0,
    adjacency: str = "zero-out",
    progress: Progress | None = None,
) -> BandSelection:
    """Find the number of bands with the least noise at (ε, δ) under cyclic Poisson sampling.

    Guarantee: the mechanism is calibrated like any other; estimates only select it.

    Args:
        name: ``toeplitz``, ``banded``, ``sqrt-toeplitz``, or ``dp-mf+`` with τ = bands.
        steps: number of steps of SGD; give it or ``workload``.
        workload: what the optimizer computes from gradients.
        sampling: the sampling scheme, with its rate.
        epsilon: the ε.
        delta: the δ.
        objective: which iterates matter; by default all alike.
        max_bands: the largest number to try; by default what the sampling rate allows. The noise
            keeps one vector fewer than there are bands.
        clip_norm: maximum L2 norm of a record's gradient in a step.
        adjacency: how neighbouring datasets differ.
        progress: called after every number of bands, which its report names.

    Returns:
        The calibrated mechanism, and what was tried. One band is DP-SGD with Poisson sampling.

    Raises:
        TypeError: neither ``steps`` nor ``workload`` is given.
        ValueError: the design has no bands to choose, or a number is out of range.
    """
    if workload is None:
        if steps is None:
            raise TypeError("steps = None: give the number of steps, or a workload")
        workload = Workload.sgd(steps)
    check.choice("name", name, tuple(BAND_OPTIONS))
    check.instance("sampling", sampling, CyclicPoisson)
    epsilon, delta = check.positive_number("epsilon", epsilon), checked_delta("delta", delta)
    objective = Average() if objective is None else objective
    check.instance("objective", objective, Objective)
    search = _Search(name, workload, objective, sampling.rate, epsilon, delta, progress)
    best = search.best(_max_bands(workload.steps, sampling.rate, max_bands))
    mechanism = calibrate(
        design_for_cyclic_poisson(name, best.bands, workload),
        epsilon=epsilon,
        delta=delta,
        clip_norm=clip_norm,
        adjacency=adjacency,
        sampling=sampling if best.bands > 1 else Poisson(sampling.rate),
    )
    exact = replace(best, noise_multiplier=mechanism.noise_multiplier)
    trials = search.trials | {best.bands: exact}
    return BandSelection(mechanism, tuple(trials[bands] for bands in sorted(trials)))


def design_for_cyclic_poisson(name: str, bands: int, workload: Workload) -> Factorization:
    """A banded factorization, with the participation that cyclic Poisson sampling needs.

    A record contributes to one column at a time, so the encoder is designed for one participation.
    The result allows as many participations as there can be, ``bands`` steps apart; it has no
    bound, since that of the design is for a single participation.

    Args:
        name: a design of `BAND_OPTIONS`.
        bands: number of bands.
        workload: what the optimizer computes from gradients.

    Raises:
        ValueError: the workload couples steps so that there would be more bands.
    """
    f = _single_participation_design(name, bands, workload)
    participation = min_separation(-(-workload.steps // f.bands), apart=f.bands)
    return replace(f, participation=participation, bound=None)


def _single_participation_design(name: str, bands: int, workload: Workload) -> Factorization:
    if bands == 1:
        return design("dp-sgd", workload=workload)
    option: dict[str, Any] = {BAND_OPTIONS[name]: bands}
    f = design(name, workload=workload, **option)
    if f.bands > bands:  # with momentum, restarts do not separate blocks
        raise ValueError(
            f"{name} with {BAND_OPTIONS[name]} = {bands} has {f.bands} bands for "
            f"{workload.describe()}; use toeplitz"
        )
    return f


def _max_bands(steps: int, rate: float, max_bands: int | None) -> int:
    """The largest number with which no group is asked for more records than it has."""
    inverse = math.floor(1 / rate)
    allowed = min(steps, max(p for p in (inverse, inverse + 1) if p * rate <= 1 or p == 1))
    if max_bands is None:
        return allowed
    return min(allowed, check.whole_number("max_bands", max_bands))


@dataclass
class _Search:
    """Search for the number of bands with the least expected noise."""

    name: str
    workload: Workload
    objective: Objective
    rate: float
    epsilon: float
    delta: float
    progress: Progress | None
    trials: dict[int, BandTrial] = field(default_factory=dict)

    def best(self, max_bands: int) -> BandTrial:
        """The best number from 1 to ``max_bands`` that the search finds."""
        rises, before = 0, math.inf
        for power in _powers_of_two(max_bands):
            noise = self.attempt(power).expected_noise
            rises, before = (rises + 1 if noise > before else 0), noise
            if rises == MAX_RISES:
                break
        while True:
            best = min(self.trials.values(), key=lambda t: t.expected_noise)
            near = _near(best.bands, self.workload.steps, sorted(self.trials))
            new = [p for p in sorted(near) if 1 <= p <= max_bands and p not in self.trials]
            if not new:
                return best
            for p in new:
                self.attempt(p)

    def attempt(self, bands: int) -> BandTrial:
        """Design with this number of bands, and estimate its noise multiplier."""
        f = _single_participation_design(self.name, bands, self.workload)
        rounds = -(-self.workload.steps // bands)
        rate = min(bands * self.rate, 1.0)
        s = estimated_noise_multiplier(self.epsilon, self.delta, rate, rounds)
        trial = self.trials[bands] = BandTrial(bands, f.error_under(self.objective), s)
        if self.progress is not None:
            self.progress(ProgressReport(len(self.trials), task=f"{bands} bands"))
        return trial


def _powers_of_two(limit: int) -> Iterator[int]:
    """Powers of two below a limit, then the limit.

    >>> list(_powers_of_two(20))
    [1, 2, 4, 8, 16, 20]
    """
    p = 1
    while p < limit:
        yield p
        p *= 2
    yield limit


def _near(best: int, steps: int, tried: list[int]) -> set[int]:
    """Numbers to try next: middles of the gaps around ``best``, its neighbours, and corners.

    Corners are where ``⌈steps/p⌉`` changes. Two of each on either side, since errors vary a little
    from one p to the next (blocks fit better where p divides the steps).
    """
    rounds, i = -(-steps // best), tried.index(best)
    around = range(max(rounds - NEIGHBOURS, 1), rounds + NEIGHBOURS + 1)
    corners = {-(-steps // r) for r in around}
    adjacent = tried[max(i - 1, 0)], tried[min(i + 1, len(tried) - 1)]
    middles = {(best + other) // 2 for other in adjacent}
    return corners | middles | set(range(best - NEIGHBOURS, best + NEIGHBOURS + 1))


def estimated_noise_multiplier(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """Fast estimate of `accounting.poisson_noise_multiplier`, without any guarantee."""

    def excess(log_s: float) -> float:
        estimate = _estimated_delta(math.exp(log_s), epsilon, rate, rounds)
        return math.log(max(estimate, 1e-300) / delta)

    low = high = 0.0
    while excess(low) <= 0:
        low -= 0.5
        if low < math.log(MIN_POISSON_NOISE_MULTIPLIER):
            return MIN_POISSON_NOISE_MULTIPLIER
    while excess(high) > 0:
        high += 0.5
        if high > math.log(1e6):
            raise ValueError(
                f"epsilon = {epsilon:g} at delta = {delta:g} is out of reach with {rounds} rounds; "
                "increase epsilon or delta"
            )
    return math.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-6))


def _estimated_delta(s: float, epsilon: float, rate: float, rounds: int) -> float:
    r"""δ of so many rounds of the subsampled Gaussian mechanism, for removing a record.

    The loss ``L = log(1 − q + q e^{(x − 1/2)/s²})`` is tabulated for x from the mixture
    ``(1 − q)N(0, s²) + q N(1, s²)``; the table is convolved with itself by a Fourier transform.
    """

    def cdf(x: Any) -> Any:
        return (1 - rate) * scipy.special.ndtr(x / s) + rate * scipy.special.ndtr((x - 1) / s)

    def loss(x: Any) -> Any:
        log_rest = math.log1p(-rate) if rate < 1 else -np.inf
        return np.logaddexp(log_rest, math.log(rate) + (x - 0.5) / s**2)

    x = np.linspace(-10 * s, 1 + 10 * s, 4001)
    mass, L = np.diff(cdf(x)), loss((x[1:] + x[:-1]) / 2)
    mean = float(mass @ L)
    spread = math.sqrt(rounds * float(mass @ (L - mean) ** 2))
    low = rounds * mean - 12 * spread
    high = rounds * mean + 20 * spread + max(float(L[-1]), epsilon)
    width = (high - low) / TABLE_CELLS
    # If the composed loss is counted from ``low``, that of a round is counted from ``low/rounds``,
    # around its mean.
    start = mean - (rounds * mean - low) / rounds
    cells = np.arange(-TABLE_CELLS // 2, TABLE_CELLS // 2) * width + start
    edges = cells + width / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = 0.5 + s**2 * np.log(np.maximum(np.expm1(edges) + rate, 0) / rate)
        reached = np.where(edges > L[0], inverse, -np.inf)
    pmf = np.diff(cdf(reached), prepend=0.0)
    rolled = np.roll(pmf, -(TABLE_CELLS // 2))
    composed = np.fft.irfft(np.fft.rfft(rolled) ** rounds, TABLE_CELLS)
    # The discretisation shifts the mean loss of every round by the same amount; undo it here.
    losses = low + width * np.arange(TABLE_CELLS) + rounds * (mean - float(pmf @ cells))
    over = losses > epsilon
    return float(composed[over] @ -np.expm1(epsilon - losses[over]))
