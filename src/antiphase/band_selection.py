r"""The best number of bands under cyclic Poisson sampling, by search.

An encoder of ``p`` bands lets a record be sampled from every ``p``-th step on, at ``p`` times the rate: so the more
bands it has, the less it is amplified and the more it cancels. What is compared is the expected squared noise at the
promise, ``s(p)²·e(p)``: the noise multiplier that ``⌈T/p⌉`` rounds at ``p`` times the sampling rate need, and the error
of the best encoder of ``p`` bands whose columns have norm 1.

Both are smooth in p but for ``⌈T/p⌉``, which falls at the corners ``⌈T/r⌉``. So the search looks at powers of two, then
halves the gaps around the best, and ends where neither the neighbours nor the next corners are better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
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

WIDTHS = {
    "toeplitz": "bands",
    "banded": "bands",
    "sqrt-toeplitz": "bands",
    "dp-mf+": "tau",
}  # the option that is p
RISES = 2  # powers of two in a row that are worse than the one before, after which larger ones are not tried
AROUND = 2  # neighbours and corners to either side that must be worse than the best
CELLS = 1 << 15  # of a table of the privacy loss, in an estimate


@dataclass(frozen=True)
class Tried:
    """One number of bands: ``error`` is that of the encoder at noise multiplier 1, its columns having norm 1 at most.
    The noise multiplier is an estimate that promises nothing, but for the best, where it is the mechanism's."""

    bands: int
    error: float
    noise_multiplier: float

    @property
    def expected(self) -> float:
        """Squared noise at the promise, summed over what the objective counts."""
        return self.noise_multiplier**2 * self.error


@dataclass(frozen=True, eq=False)
class BestBands:
    """The mechanism of least expected noise, and what was tried for it, by number of bands."""

    mechanism: Mechanism
    tried: tuple[Tried, ...]

    @property
    def bands(self) -> int:
        return self.mechanism.factorization.bands

    @property
    def expected(self) -> float:
        """The least expected squared noise: what the mechanism has."""
        return next(t.expected for t in self.tried if t.bands == self.bands)


def best_bands(
    name: str = "toeplitz",
    *,
    steps: int | None = None,
    workload: Workload | None = None,
    sampling: CyclicPoisson,
    epsilon: float,
    delta: float,
    objective: Objective | None = None,
    most: int | None = None,
    clip_norm: float = 1.0,
    adjacency: str = "zero-out",
    progress: Progress | None = None,
) -> BestBands:
    """The number of bands that leaves least noise at (ε, δ) with cyclic Poisson samples, as a calibrated mechanism.

    ``name`` is ``toeplitz``, ``banded``, ``sqrt-toeplitz``, or ``dp-mf+``, whose τ is the number of bands. ``most`` is
    how many may be tried (default: as many as the sampling rate allows); the noise keeps one vector less than there are
    bands. Noise is what ``objective`` counts (default: every iterate alike). One band is DP-SGD on Poisson samples.
    ``progress`` is called after every number of bands that was tried, which its report names.

    Guarantee: the mechanism is certified for (ε, δ) like any other; what was estimated only chose it.
    """
    if workload is None:
        if steps is None:
            raise TypeError("steps = None: say how many steps training takes, or give a workload")
        workload = Workload.sgd(steps)
    check.choice("name", name, tuple(WIDTHS))
    epsilon, delta = (
        check.positive_number("epsilon", epsilon),
        checked_delta("delta", delta),
    )
    judge = Average() if objective is None else check.instance("objective", objective, Objective)
    rate = check.instance("sampling", sampling, CyclicPoisson).rate
    search = _Search(name, workload, judge, rate, epsilon, delta, progress)
    best = search.least(_most(workload.steps, rate, most))
    promise: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "clip_norm": clip_norm,
        "adjacency": adjacency,
    }
    made = calibrate(
        cyclic(name, best.bands, workload),
        sampling=sampling if best.bands > 1 else Poisson(rate),
        **promise,
    )
    known = search.tried | {best.bands: replace(best, noise_multiplier=made.noise_multiplier)}
    return BestBands(made, tuple(known[bands] for bands in sorted(known)))


def cyclic(name: str, bands: int, workload: Workload) -> Factorization:
    """The factorization called ``name`` with so many bands, for records that are sampled from every so many steps.

    A record counts by one column at a time, so it is designed for one participation, and then said to be for as many as
    there can be: as far apart as it has bands. The bound, which is one for a single participation, is left behind.
    """
    f = _for_one_column(name, bands, workload)
    who = min_separation(-(-workload.steps // f.bands), apart=f.bands)
    return replace(f, participation=who, bound=None)


# ---- inside ------------------------------------------------------------------------------------------------


def _for_one_column(name: str, bands: int, workload: Workload) -> Factorization:
    if bands == 1:
        return design("dp-sgd", workload=workload)
    option: dict[str, Any] = {WIDTHS[name]: bands}
    f = design(name, workload=workload, **option)
    if f.bands > bands:  # restarts do not cut what momentum couples
        raise ValueError(
            f"{name} with {WIDTHS[name]} = {bands} has {f.bands} bands for {workload.describe()}; use toeplitz"
        )
    return f


def _most(steps: int, rate: float, most: int | None) -> int:
    """Bands with which no group is asked for more records than it has."""
    allowed = min(
        steps,
        max(p for p in (math.floor(1 / rate), math.floor(1 / rate) + 1) if p * rate <= 1 or p == 1),
    )
    return allowed if most is None else min(allowed, check.whole_number("most", most))


class _Search:
    def __init__(
        self,
        name: str,
        workload: Workload,
        judge: Objective,
        rate: float,
        epsilon: float,
        delta: float,
        progress: Progress | None,
    ) -> None:
        self._name, self._workload, self._judge, self._progress = name, workload, judge, progress
        self._rate, self._epsilon, self._delta = rate, epsilon, delta
        self.tried: dict[int, Tried] = {}

    def least(self, most: int) -> Tried:
        """The best of 1 … ``most``, as far as the search sees."""
        rises, before = 0, math.inf
        for power in _powers_of_two(most):
            expected = self.attempt(power).expected
            rises, before = (rises + 1 if expected > before else 0), expected
            if rises == RISES:
                break
        while True:
            best = min(self.tried.values(), key=lambda t: t.expected)
            near = _near(best.bands, self._workload.steps, sorted(self.tried))
            new = [p for p in sorted(near) if 1 <= p <= most and p not in self.tried]
            if not new:
                return best
            for p in new:
                self.attempt(p)

    def attempt(self, bands: int) -> Tried:
        f = _for_one_column(self._name, bands, self._workload)
        rounds = -(-self._workload.steps // bands)
        s = likely_noise_multiplier(
            self._epsilon, self._delta, min(bands * self._rate, 1.0), rounds
        )
        self.tried[bands] = Tried(bands, f.error_under(self._judge), s)
        if self._progress is not None:
            self._progress(ProgressReport(len(self.tried), task=f"{bands} bands"))
        return self.tried[bands]


def _powers_of_two(most: int) -> Iterator[int]:
    """
    >>> list(_powers_of_two(20))
    [1, 2, 4, 8, 16, 20]
    """
    p = 1
    while p < most:
        yield p
        p *= 2
    yield most


def _near(best: int, steps: int, tried: list[int]) -> set[int]:
    """The middles of the gaps around ``best``, its neighbours, and the corners of ``⌈steps/p⌉`` below and above; two of
    each, since errors waver a little, too (blocks fit better where they divide the steps)."""
    rounds, i = -(-steps // best), tried.index(best)
    corners = {-(-steps // r) for r in range(max(rounds - AROUND, 1), rounds + AROUND + 1)}
    middles = {
        (best + other) // 2 for other in (tried[max(i - 1, 0)], tried[min(i + 1, len(tried) - 1)])
    }
    return corners | middles | set(range(best - AROUND, best + AROUND + 1))


def likely_noise_multiplier(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """About what `accounting.poisson_noise_multiplier` will come to: an estimate that promises nothing, in a moment."""

    def excess(log_s: float) -> float:
        return math.log(max(_likely_delta(math.exp(log_s), epsilon, rate, rounds), 1e-300) / delta)

    low = high = 0.0
    while excess(low) <= 0:
        low -= 0.5
        if low < math.log(MIN_POISSON_NOISE_MULTIPLIER):
            return MIN_POISSON_NOISE_MULTIPLIER
    while excess(high) > 0:
        high += 0.5
        if high > math.log(1e6):
            raise ValueError(
                f"epsilon = {epsilon:g} at delta = {delta:g} is out of reach with {rounds} rounds"
            )
    return math.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-6))


def _likely_delta(s: float, epsilon: float, rate: float, rounds: int) -> float:
    r"""δ of so many rounds for one record less: ``L = log(1 − q + q e^{(x − 1/2)/s²})`` is tabulated for ``x`` from the
    mixture ``(1 − q)N(0, s²) + q N(1, s²)``, and the table raised to the power of the rounds by a Fourier transform."""

    def share(x: Any) -> Any:
        """Of the mixture below x."""
        return (1 - rate) * scipy.special.ndtr(x / s) + rate * scipy.special.ndtr((x - 1) / s)

    def loss(x: Any) -> Any:
        return np.logaddexp(
            math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + (x - 0.5) / s**2
        )

    x = np.linspace(-10 * s, 1 + 10 * s, 4001)
    mass, L = np.diff(share(x)), loss((x[1:] + x[:-1]) / 2)
    mean = float(mass @ L)
    spread = math.sqrt(rounds * float(mass @ (L - mean) ** 2))
    low, high = (
        rounds * mean - 12 * spread,
        rounds * mean + 20 * spread + max(float(L[-1]), epsilon),
    )
    width = (high - low) / CELLS
    # Where the composed loss is counted from ``low``, that of a round is counted from ``low/rounds``: around its mean.
    start = mean - (rounds * mean - low) / rounds
    cells = np.arange(-CELLS // 2, CELLS // 2) * width + start
    edges = cells + width / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        reached = np.where(
            edges > L[0], 0.5 + s**2 * np.log(np.maximum(np.expm1(edges) + rate, 0) / rate), -np.inf
        )
    pmf = np.diff(share(reached), prepend=0.0)
    composed = np.fft.irfft(np.fft.rfft(np.roll(pmf, -(CELLS // 2))) ** rounds, CELLS)
    # Cells are as fine as they are; that they are off by the same in every round is put right at the end.
    losses = low + width * np.arange(CELLS) + rounds * (mean - float(pmf @ cells))
    over = losses > epsilon
    return float(composed[over] @ -np.expm1(epsilon - losses[over]))
