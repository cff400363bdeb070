r"""What it is worth that nobody knows who is in which batch: one account for each way that batches come about.

- *No amplification*: the whole run is one Gaussian mechanism, at the sensitivity of the encoder under its
  participation. So it is for batches in a fixed order, or in slots by a hash.
- *Poisson samples*, independent noise: DP-SGD, ``T`` rounds at the sampling rate.
- *Cyclic Poisson samples*, ``p``-banded encoders: records are dealt to ``p`` groups once and for all, and step ``t``
  samples from group ``t mod p`` at ``p`` times the rate. A record's columns then share no row, so it sees ``⌈T/p⌉``
  rounds of DP-SGD at the largest column norm (Choquette-Choo et al. 2023).
- *Balls in bins*, encoders without negative entries: see `antiphase.balls`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from antiphase import accounting
from antiphase._util import checks as check
from antiphase.accounting import balls_in_bins
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.identity import Identity
from antiphase.participation import Once
from antiphase.sensitivity import sensitivity

UNAMPLIFIED = ("fixed-order", "hash-slots")
AMPLIFIED = ("poisson", "cyclic-poisson", "balls-in-bins")
SAMPLERS = (*UNAMPLIFIED, *AMPLIFIED)
TRIES = 16  # noise multipliers that a calibration for balls in bins may look at
ADJACENCIES = ("zero-out", "replace-one", "add-remove")


class Account(ABC):
    """What a factorization promises with batches that come about in one way; ``s`` is the noise multiplier."""

    def __init__(
        self, factorization: Factorization, adjacency: str, sampling_rate: float | None
    ) -> None:
        self._f, self._adjacency, self._rate = factorization, adjacency, sampling_rate
        self._refuse()

    def _refuse(self) -> None:
        """What would promise more than is known to hold."""
        # PRIVACY: a replaced record is not what sampling was analysed for.   [G9]
        if self._adjacency == "replace-one":
            raise ValueError(
                'adjacency = "replace-one" is not offered with amplification by sampling; use "add-remove" or '
                '"zero-out"'
            )

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """What the noise multiplier is in units of: by how much a zeroed-out record moves what is sampled at once."""

    @property
    def is_exact(self) -> bool:
        """Whether that is attained, not only an upper bound."""
        return True

    @abstractmethod
    def epsilon(self, s: float, delta: float, rows: int) -> float:
        """ε of the first ``rows`` rows, from above."""

    @abstractmethod
    def delta(self, s: float, epsilon: float, rows: int) -> float:
        """δ of the first ``rows`` rows, from above."""

    @abstractmethod
    def noise_multiplier(self, epsilon: float, delta: float) -> float:
        """Enough for (ε, δ) over the whole plan."""

    @abstractmethod
    def epsilon_of_runs(self, s: float, delta: float, runs: list[int]) -> float:
        """ε of the first rows of several runs over the same records, each with noise of its own."""

    def ratio(self, s: float, rows: int) -> float | None:
        """The noise multiplier of the one Gaussian mechanism that the first rows are; None where they are none."""
        return None

    def caveat(self) -> str:
        """What the promise rests on beside the sampler, for the statement."""
        return ""


class Plain(Account):
    """No amplification."""

    def _refuse(self) -> None:
        if self._rate is not None:
            # PRIVACY: no amplification without the sampling that was analysed.   [G9]
            raise ValueError(
                f"sampling_rate = {self._rate}: amplification needs batches drawn by Poisson sampling; say "
                'sampler="poisson" or "cyclic-poisson" and draw them so, or leave sampling_rate out'
            )

    @property
    def sensitivity(self) -> float:
        return self._f.sensitivity

    @property
    def is_exact(self) -> bool:
        return self._f.sensitivity_is_exact

    def ratio(self, s: float, rows: int) -> float:
        encoder = self._f
        spent = (
            encoder.sensitivity
            if rows == encoder.steps
            else min(encoder.sensitivity_of(rows), encoder.sensitivity)
        )
        # PRIVACY: the noise is scaled by the whole plan's sensitivity; fewer rows can only cost less.   [G8]
        return s / adjacency_factor(self._adjacency) * (encoder.sensitivity / spent)

    def epsilon(self, s: float, delta: float, rows: int) -> float:
        return accounting.gaussian_epsilon(self.ratio(s, rows), delta)

    def delta(self, s: float, epsilon: float, rows: int) -> float:
        return accounting.gaussian_delta(self.ratio(s, rows), epsilon)

    def noise_multiplier(self, epsilon: float, delta: float) -> float:
        # PRIVACY: a record that is replaced moves the output twice as far as one that is zeroed out.   [G7]
        return adjacency_factor(self._adjacency) * accounting.gaussian_noise_multiplier(
            epsilon, delta
        )

    def epsilon_of_runs(self, s: float, delta: float, runs: list[int]) -> float:
        # PRIVACY: runs with fresh noise are separate Gaussian mechanisms; their μ² add up.   [G15]
        together = 1 / math.sqrt(sum(self.ratio(s, rows) ** -2 for rows in runs))
        return accounting.gaussian_epsilon(together * (1 - 1e-12), delta)


class FixedOrder(Plain):
    def _refuse(self) -> None:
        super()._refuse()
        if self._adjacency == "add-remove":
            raise ValueError(
                'adjacency = "add-remove" with batches in a fixed order: one record more would shift every later '
                'batch. Use "zero-out", or sampler="hash-slots", or one that samples'
            )


class Poisson(Account):
    """DP-SGD: every record in every batch by an independent coin."""

    def _refuse(self) -> None:
        super()._refuse()
        if self._rate is None:
            raise ValueError(
                "sampling_rate = None: Poisson samples need the chance of a record to be in a batch"
            )
        self._rate = check.positive_number("sampling_rate", self._rate)
        if self._rate > 1:
            raise ValueError(f"sampling_rate = {self._rate} must be at most 1")
        self._refuse_encoder()

    def _refuse_encoder(self) -> None:
        if not isinstance(self._f, Identity):
            # PRIVACY: the Poisson analysis composes independent steps; correlated noise is not that.   [G9]
            raise ValueError(
                f'sampler = "poisson" is analysed for independent noise (dp-sgd) alone, not for {self._f.name}; use '
                'batches in a fixed order, or sampler="cyclic-poisson" for an encoder of few bands'
            )

    @property
    def groups(self) -> int:
        return 1

    @property
    def sensitivity(self) -> float:
        # PRIVACY: of one step alone: the largest column.   [G1]
        return sensitivity(self._f._columns(), Once())

    def epsilon(self, s: float, delta: float, rows: int) -> float:
        return accounting.poisson_epsilon(s, delta, **self._rounds(rows))

    def delta(self, s: float, epsilon: float, rows: int) -> float:
        return accounting.poisson_delta(s, epsilon, **self._rounds(rows))

    def noise_multiplier(self, epsilon: float, delta: float) -> float:
        return accounting.poisson_noise_multiplier(epsilon, delta, **self._rounds(self._f.steps))

    def epsilon_of_runs(self, s: float, delta: float, runs: list[int]) -> float:
        """Steps are independent, of whichever run."""
        rounds = [self._rounds(rows) for rows in runs]
        together = sum(each["steps"] for each in rounds)
        return accounting.poisson_epsilon(s, delta, **(rounds[0] | {"steps": together}))

    def _rounds(self, rows: int) -> dict[str, Any]:
        """Of DP-SGD, as one record sees them."""
        assert self._rate is not None
        # PRIVACY: rounded up, for the groups that come once more than others.   [G9]
        return {
            "sampling_rate": min(self.groups * self._rate, 1.0),
            "steps": -(-rows // self.groups),
        }


class CyclicPoisson(Poisson):
    """Banded encoders; as many groups as bands."""

    def _refuse_encoder(self) -> None:
        assert self._rate is not None
        rounds, who = -(-self._f.steps // self.groups), self._f.participation
        if who.fixed_order or who.max_participations < rounds or who.separation > self.groups:
            raise ValueError(
                f"participation = {who!r}: cyclic Poisson samples may take a record in every {self.groups}-th step; "
                f"design for participation=min_separation({rounds}, apart={self.groups})"
            )
        # PRIVACY: a group that is asked for more records than it has is no Poisson sample.   [G9]
        if self.groups * self._rate > 1:
            raise ValueError(
                f"sampling_rate = {self._rate:g}: with {self.groups} bands each group has 1/{self.groups} of the "
                f"records, so at most {1 / self.groups:g} can be asked for; use fewer bands"
            )

    @cached_property
    def groups(self) -> int:
        # PRIVACY: columns of one group must share no row: as many groups as the encoder has bands.   [G9]
        return self._f.bands

    def caveat(self) -> str:
        return f"records were dealt to {self.groups} groups without looking at them, and never change their group"


class BallsInBins(Plain):
    """One random slot for every record; the batches of an epoch are the bins. Never worse than no amplification."""

    def _refuse(self) -> None:
        Account._refuse(self)
        if self._rate is not None:
            raise ValueError(
                f"sampling_rate = {self._rate}: balls in bins has none; it follows from the epochs"
            )
        if not self._f.participation.fixed_order:
            raise ValueError(
                f"participation = {self._f.participation!r}: balls in bins needs one slot in every epoch, so "
                "epochs(…) or once()"
            )
        # PRIVACY: with negative entries the mixture is not known to be the worst case.   [G9]
        if self._f.encoder().min() < 0:
            raise ValueError(
                f"{self._f.name} has negative entries: balls in bins is analysed for encoders without any"
            )

    @cached_property
    def _gram(self) -> Any:
        sums = [
            self._f.encoder()[:, pattern].sum(axis=1)
            for pattern in self._f.participation.patterns(self._f.steps)
        ]
        return np.array(sums) @ np.array(sums).T

    @property
    def sensitivity(self) -> float:
        # PRIVACY: that of a record whose bin is known, rounded as everywhere else.   [G1]
        return self._f.sensitivity

    def epsilon(self, s: float, delta: float, rows: int) -> float:
        # PRIVACY: fewer rows can only cost less than all of them, and hiding can only help.   [G7]
        return min(
            super().epsilon(s, delta, rows), _epsilon_of_bins(self._gram.tobytes(), s, delta)
        )

    def delta(self, s: float, epsilon: float, rows: int) -> float:
        bound = balls_in_bins.delta_bound(self._gram, s, epsilon, samples=1 << 22).value
        return min(super().delta(s, epsilon, rows), bound)

    def noise_multiplier(self, epsilon: float, delta: float) -> float:
        """Estimates say where to look; what is returned is one whose ε was certified, and is what `epsilon` says."""
        plain = super().noise_multiplier(epsilon, delta)
        low, high = plain / 64, plain
        while high / low > 1.002:
            middle = math.sqrt(low * high)
            enough = (
                balls_in_bins.likely_epsilon(
                    self._gram, middle, delta, failure=balls_in_bins.FAILURE / TRIES
                )
                <= epsilon
            )
            low, high = (low, middle) if enough else (middle, high)
        # PRIVACY: one that was seen to be private; the chances to fail of all that were looked at add up.   [G7]
        for _ in range(TRIES):
            if high >= plain or _epsilon_of_bins(self._gram.tobytes(), high, delta) <= epsilon:
                return min(high, plain)
            high *= 1.005
        return plain

    def caveat(self) -> str:
        return f"the ε of balls in bins was bounded by sampling; the bound is none with a chance of {balls_in_bins.FAILURE:g}"


@lru_cache(maxsize=256)
def _epsilon_of_bins(gram: bytes, s: float, delta: float) -> float:
    """Certified once, whichever account asks."""
    G = np.frombuffer(gram)
    return balls_in_bins.epsilon_bound(
        G.reshape(math.isqrt(G.size), -1), s, delta, failure=balls_in_bins.FAILURE / TRIES
    ).value


def account(
    factorization: Factorization, adjacency: str, sampler: str, sampling_rate: float | None
) -> Account:
    """The account for batches of this ``sampler``; refuses what would promise more than is known to hold.   [G9]"""
    check.choice("adjacency", adjacency, ADJACENCIES)
    kinds: dict[str, type[Account]] = {
        "fixed-order": FixedOrder,
        "hash-slots": Plain,
        "poisson": Poisson,
        "cyclic-poisson": CyclicPoisson,
        "balls-in-bins": BallsInBins,
    }
    return kinds[check.choice("sampler", sampler, SAMPLERS)](
        factorization, adjacency, sampling_rate
    )


def adjacency_factor(adjacency: str) -> float:
    """By how much further than a zeroed-out record one moves the output that changes as ``adjacency`` says."""
    return 2.0 if adjacency == "replace-one" else 1.0
