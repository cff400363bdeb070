"""Sampling schemes: how batches are formed, and the accountant of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from antiphase._util import checks as check
from antiphase.accounting.accountant import Accountant
from antiphase.accounting.balls_in_bins import BallsInBinsAccountant
from antiphase.accounting.cyclic_poisson import CyclicPoissonAccountant
from antiphase.accounting.gaussian import GaussianAccountant
from antiphase.accounting.poisson import PoissonAccountant, checked_rate
from antiphase.factorizations.base import Factorization


class Sampling(ABC):
    """How batches are formed: `FixedOrder`, `HashSlots`, `Poisson`, `CyclicPoisson`, `BallsInBins`.

    Attributes:
        name: the scheme on the command line, in JSON and in stored files.
        label: the scheme in tables and legends.
        description: the scheme as an assumption, in a privacy statement.
        amplifies: whether it amplifies privacy.
        rate: probability that a record is in a batch; None unless the scheme has one.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    description: ClassVar[str]
    amplifies: ClassVar[bool] = False
    rate: float | None = None

    @abstractmethod
    def accountant(self, factorization: Factorization, adjacency: str = "zero-out") -> Accountant:
        """The accountant of a factorization under this scheme.

        Args:
            factorization: the encoder and its participation.
            adjacency: ``zero-out``, ``replace-one`` or ``add-remove``.

        Raises:
            ValueError: the combination is not known to be private. [G9]
        """


@dataclass(frozen=True)
class FixedOrder(Sampling):
    """Batches in a fixed order, the same in every epoch. No amplification."""

    name = "fixed-order"
    label = "fixed order"
    description = (
        "batches in a fixed order; the order itself need not be random, and no amplification is "
        "claimed"
    )

    def accountant(self, factorization: Factorization, adjacency: str = "zero-out") -> Accountant:
        """A `GaussianAccountant`; add-remove adjacency is refused."""
        if adjacency == "add-remove":
            raise ValueError(
                'adjacency = "add-remove" with batches in a fixed order: an added record would '
                'shift every later batch. Use "zero-out", or sampling=HashSlots(), or a scheme '
                "that samples"
            )
        return GaussianAccountant(factorization, adjacency)


@dataclass(frozen=True)
class HashSlots(Sampling):
    """Batches assigned by a hash of each record. No amplification."""

    name = "hash-slots"
    label = "hash slots"
    description = (
        "batches assigned by a hash of each record, so that one more record moves no other; no "
        "amplification is claimed"
    )

    def accountant(self, factorization: Factorization, adjacency: str = "zero-out") -> Accountant:
        """A `GaussianAccountant`."""
        return GaussianAccountant(factorization, adjacency)


@dataclass(frozen=True)
class _RateSampling(Sampling):
    """A scheme with a sampling rate."""

    rate: float = field()
    amplifies = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checked_rate("sampling_rate", self.rate))


@dataclass(frozen=True)
class Poisson(_RateSampling):
    """Poisson sampling: each record is in each batch with probability ``rate``, independently.

    For independent noise only (DP-SGD).

    Attributes:
        rate: probability that a record is in a batch.

    Example:
        >>> from antiphase import calibrate, design
        >>> f = design("dp-sgd", steps=100)
        >>> calibrate(f, epsilon=1.0, delta=1e-5, sampling=Poisson(0.01))
        <Mechanism dp-sgd, 100 steps, once: noise multiplier 0.902..., clip norm 1, ...>
    """

    name = "poisson"
    label = "Poisson batches"
    description = (
        "Poisson samples, each record in each batch by an independent coin; the amplification "
        "claimed here holds for this sampler and no other"
    )

    def accountant(self, factorization: Factorization, adjacency: str = "zero-out") -> Accountant:
        """A `PoissonAccountant`."""
        return PoissonAccountant(factorization, adjacency, rate=self.rate)


@dataclass(frozen=True)
class CyclicPoisson(_RateSampling):
    """Cyclic Poisson sampling: step t samples from group ``t mod p`` of the records.

    For p-banded encoders: records are assigned to p groups once. Within its group a record is
    sampled with probability ``p·rate``.

    Attributes:
        rate: probability that a record is in a batch, over a random assignment to groups.
    """

    name = "cyclic-poisson"
    label = "cyclic Poisson"
    description = (
        "cyclic Poisson samples, in step t from group t mod p of the records, each by an "
        "independent coin; the amplification claimed here holds for this sampler and no other"
    )

    def accountant(self, factorization: Factorization, adjacency: str = "zero-out") -> Accountant:
        """A `CyclicPoissonAccountant`."""
        return CyclicPoissonAccountant(factorization, adjacency, rate=self.rate)


@dataclass(frozen=True)
class BallsInBins(Sampling):
    """Balls-in-bins sampling: each record in one batch of every epoch, drawn at random once.

    For encoders without negative entries. The bins are the steps of an epoch.
    """

    name = "balls-in-bins"
    label = "balls in bins"
    description = (
        "each record in one batch of every epoch, always the same, drawn at random and kept "
        "secret; the amplification claimed here holds for this sampler and no other"
    )
    amplifies = True

    def accountant(self, factorization: Factorization, adjacency: str = "zero-out") -> Accountant:
        """A `BallsInBinsAccountant`."""
        return BallsInBinsAccountant(factorization, adjacency)


FIXED_ORDER = FixedOrder()  # the default
KINDS: dict[str, type[Sampling]] = {
    kind.name: kind for kind in (FixedOrder, HashSlots, Poisson, CyclicPoisson, BallsInBins)
}
AMPLIFYING = tuple(name for name, kind in KINDS.items() if kind.amplifies)


def has_rate(name: str) -> bool:
    """Whether the scheme of that name has a sampling rate."""
    return issubclass(KINDS[name], _RateSampling)


def parse(name: str, rate: float | None = None) -> Sampling:
    """The sampling scheme of that name.

    Args:
        name: one of ``fixed-order``, ``hash-slots``, ``poisson``, ``cyclic-poisson`` and
            ``balls-in-bins``.
        rate: the sampling rate of ``poisson`` and ``cyclic-poisson``; None for all others.

    Raises:
        ValueError: the name is not known, or the rate is missing, superfluous or out of range.

    Example:
        >>> parse("cyclic-poisson", 0.01)
        CyclicPoisson(rate=0.01)
    """
    kind = KINDS[check.choice("sampler", name, tuple(KINDS))]
    if has_rate(name):
        if rate is None:
            raise ValueError(
                f"sampling_rate = None: {name} needs the probability that a record is in a batch"
            )
        return kind(rate)  # type: ignore[call-arg]
    if rate is not None:
        # PRIVACY: no amplification without the sampling that was analysed.   [G9]
        raise ValueError(
            f"sampling_rate = {rate}: {name} has no sampling rate; amplification by a rate needs "
            "batches drawn by poisson or cyclic-poisson sampling"
        )
    return kind()
