"""Batch samplers: fixed order, (cyclic) Poisson samples, balls in bins."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from randomgen import AESCounter
from torch.utils.data import BatchSampler

from antiphase._util import checks as check
from antiphase.errors import StateError
from antiphase.mechanism import Mechanism
from antiphase.sampling import BallsInBins, CyclicPoisson, Poisson

MAX_EXAMPLES = 2**31 - 1  # of a data set
OTHER_DATA = (
    "the checkpoint was saved with another dataset, or with batches of another kind. Nothing was "
    "changed"
)


class ResumableBatches(BatchSampler):
    """A batch sampler whose order can be saved and resumed.

    Attributes:
        first: the batch or step that the next pass begins with.
    """

    first = 0

    @abstractmethod
    def state(self) -> Any:
        """What `restore` needs."""

    @abstractmethod
    def restore(self, state: Any, *, step: int, batch: int) -> None:
        """Go on where `state` was taken.

        Args:
            state: what `state` returned.
            step: the step to go on with.
            batch: the batch of the epoch to go on with.

        Raises:
            StateError: if the state is of another data set, or of batches of another kind.
        """

    def begin(self, step: int) -> None:
        """Have the batch of ``step`` next."""
        self.first = step


class FixedOrderBatches(ResumableBatches):
    """Batches in the same order in every epoch: shuffled once, or in a given order.

    Privacy does not rest on the shuffle. With several processes each takes its part of every batch;
    nothing is padded and no example comes twice.

    Args:
        size: number of examples.
        batch_size: examples of a batch, all processes together.
        shuffle: whether the order is random.
        drop_last: whether to leave out a last batch that is smaller.
        generator: of the order; default: torch's global generator.
        order: the indices in the order wanted, instead.
        rank: of this process.
        world: number of processes.

    Raises:
        ValueError: if ``order`` is not a permutation, or there is no batch.

    Example:
        >>> list(FixedOrderBatches(5, 2, shuffle=False))
        [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        order: Sequence[int] | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        size = check.whole_number("size", size)
        self.batch_size = check.whole_number("batch_size", batch_size)
        self.drop_last = check.flag("drop_last", drop_last)
        check.flag("shuffle", shuffle)
        if order is None:
            drawn = torch.randperm(size, generator=generator) if shuffle else torch.arange(size)
            order = drawn.tolist()
        try:
            self.order: NDArray[np.int64] = np.array(order, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):
            self.order = np.zeros(0, np.int64)
        if self.order.ndim != 1 or sorted(self.order.tolist()) != list(range(size)):
            raise ValueError(f"order is not an order of the {size} examples: each must come once")
        if len(self) == 0:
            raise ValueError(
                f"batch_size = {batch_size} with drop_last leaves no batch of {size} examples"
            )
        self._rank = check.whole_number("rank", rank, minimum=0)
        self._world = check.whole_number("world", world)

    def __len__(self) -> int:
        full, rest = divmod(len(self.order), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        first, self.first = self.first, 0
        for i in range(first, len(self)):
            batch = self.order[i * self.batch_size : (i + 1) * self.batch_size]
            yield [int(index) for index in batch[self._rank :: self._world]]

    def share(self, order: NDArray[np.int64], rank: int, world: int) -> None:
        """Take the part of one of several processes, which have a common order."""
        self.order, self._rank, self._world = order, rank, world

    def state(self) -> NDArray[np.int64]:
        """The order of the examples."""
        return self.order

    def restore(self, state: Any, *, step: int, batch: int) -> None:
        """Go on with ``batch`` of the epoch."""
        if np.shape(state) != self.order.shape:
            raise StateError(OTHER_DATA)
        self.order, self.first = state, batch


class PoissonBatches(ResumableBatches):
    """Poisson samples; with several groups cyclic: step ``t`` samples group ``t mod groups``.

    In its step each example of a group is drawn by an independent coin; which group an example is
    in is random too. A sample depends on nothing but the secret and the step, so a run that is
    resumed draws the same. One pass has as many steps as it takes to draw every example once on
    average.

    Privacy rests on the coins being independent and unknown: keep the secret like the noise key.

    Args:
        size: number of examples.
        rate: the probability that an example is in a batch, on average over the steps.
        groups: number of groups; 1 for plain Poisson samples.
        secret: an integer that all coins are made from; no ε is claimed with a secret of your own.
            By default drawn from the operating system.

    Raises:
        ValueError: if a group has fewer examples than are to be drawn.

    Example:
        >>> sorted(sum(PoissonBatches(8, 0.5, groups=2), []))
        [0, 1, 2, 3, 4, 5, 6, 7]
    """

    def __init__(
        self, size: int, rate: float, *, groups: int = 1, secret: int | None = None
    ) -> None:
        self.size, self.groups = _checked_size(size), check.whole_number("groups", groups)
        self.rate = check.positive_number("rate", rate)
        if self.rate * self.groups > 1 + 1e-12:
            raise ValueError(
                f"rate = {rate:g} of all examples is more than one group of {groups} has"
            )
        self.batch_size = max(1, round(self.size * self.rate))
        self.drop_last = False
        # PRIVACY: coins that others can guess amplify nothing.   [G9]
        self.secret, self.is_random = (
            (secrets.randbits(128), True) if secret is None else (secret, False)
        )

    def __len__(self) -> int:
        return max(1, round(1 / self.rate))

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            step, self.first = self.first, self.first + 1
            yield self.sample(step)

    def sample(self, step: int) -> list[int]:
        """The examples of ``step``."""
        groups = _group_of_each_example(self.secret, self.groups, self.size)
        members = np.flatnonzero(groups == step % self.groups)
        source = np.random.Generator(AESCounter(key=self.secret, counter=step << 64))
        # PRIVACY: groups × rate for the members of one group, nobody else.   [G9]
        drawn: list[int] = members[source.random(len(members)) < self.rate * self.groups].tolist()
        return drawn

    def is_distributed_as(self, other: Any) -> bool:
        """Whether ``other`` draws random samples of the same distribution."""
        expected = (self.size, self.groups, self.rate, True)
        return (
            type(other) is PoissonBatches
            and (other.size, other.groups, other.rate, other.is_random) == expected
        )

    def state(self) -> dict[str, Any]:
        """The secret, and the number of examples."""
        return {"kind": "cyclic-poisson", "secret": f"{self.secret:032x}", "size": self.size}

    def restore(self, state: Any, *, step: int, batch: int) -> None:
        """Go on with the sample of ``step``."""
        if not isinstance(state, dict) or state.get("size") != self.size:
            raise StateError(OTHER_DATA)
        self.secret, self.first = int(state["secret"], 16), step


class BallsInBinsBatches(ResumableBatches):
    """Each example is thrown into one of several batches, once; every epoch has these batches.

    Privacy rests on the bins being random and unknown: keep them like the noise key.

    Args:
        size: number of examples.
        bins: number of batches.
        thrown: the bin of each example; no ε is claimed with bins of your own. By default drawn
            from the operating system.

    Raises:
        ValueError: if ``thrown`` does not have a bin for each example.

    Example:
        >>> sorted(sum(BallsInBinsBatches(5, 2), []))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, bins: int, *, thrown: Sequence[int] | None = None) -> None:
        self.size, self.bins = _checked_size(size), check.whole_number("bins", bins)
        self.batch_size, self.drop_last = max(1, round(self.size / self.bins)), False
        self.is_random = thrown is None
        if thrown is None:
            # PRIVACY: independent, and from the system's own randomness.   [G9]
            source = np.random.Generator(AESCounter(key=secrets.randbits(128)))
            thrown = source.integers(self.bins, size=self.size).tolist()
        self.thrown = self._checked_bins(thrown)

    def _checked_bins(self, thrown: Any) -> NDArray[np.int64]:
        bins: NDArray[np.int64] = np.array(thrown, dtype=np.int64)
        if bins.shape != (self.size,) or bins.min() < 0 or bins.max() >= self.bins:
            raise ValueError(
                f"thrown must have a bin below {self.bins} for each of {self.size} examples"
            )
        return bins

    def __len__(self) -> int:
        return self.bins

    def __iter__(self) -> Iterator[list[int]]:
        first, self.first = self.first, 0
        for i in range(first, self.bins):
            yield np.flatnonzero(self.thrown == i).tolist()

    def is_distributed_as(self, other: Any) -> bool:
        """Whether ``other`` has random bins of the same distribution."""
        expected = (self.size, self.bins, True)
        return (
            type(other) is BallsInBinsBatches
            and (other.size, other.bins, other.is_random) == expected
        )

    def begin(self, step: int) -> None:
        """Have the batch of ``step`` next."""
        self.first = step % self.bins

    def state(self) -> dict[str, Any]:
        """The bin of each example."""
        return {"kind": "balls-in-bins", "thrown": self.thrown, "size": self.size}

    def restore(self, state: Any, *, step: int, batch: int) -> None:
        """Go on with the batch of ``step``."""
        if not isinstance(state, dict) or state.get("size") != self.size:
            raise StateError(OTHER_DATA)
        self.thrown = self._checked_bins(state["thrown"])
        self.begin(step)


def batch_sampler_for(mechanism: Mechanism, size: int) -> PoissonBatches | BallsInBinsBatches:
    """The batch sampler that the mechanism's amplification is proven for.

    Args:
        mechanism: calibrated for a sampling scheme.
        size: number of examples.

    Raises:
        ValueError: if the mechanism is not for sampled batches.

    Example:
        >>> import antiphase as ap
        >>> mechanism = ap.calibrate(
        ...     ap.design("dp-sgd", steps=16),
        ...     noise_multiplier=1.0,
        ...     sampling=ap.sampling.Poisson(0.125),
        ... )
        >>> len(batch_sampler_for(mechanism, 64))
        8
    """
    check.instance("mechanism", mechanism, Mechanism)
    sampling, f = mechanism.sampling, mechanism.factorization
    if isinstance(sampling, CyclicPoisson):
        return PoissonBatches(size, sampling.rate, groups=f.bands)
    if isinstance(sampling, BallsInBins):
        return BallsInBinsBatches(size, len(f.participation.patterns(f.steps)))
    if isinstance(sampling, Poisson):
        return PoissonBatches(size, sampling.rate)
    raise ValueError(
        f"the mechanism is for sampling = {sampling}: its batches need no sampler of their own"
    )


def _checked_size(size: int) -> int:
    size = check.whole_number("size", size)
    if size > MAX_EXAMPLES:
        raise ValueError(
            f"size = {size} must be at most {MAX_EXAMPLES}, the most examples of a data set"
        )
    return size


@lru_cache(maxsize=4)
def _group_of_each_example(secret: int, groups: int, size: int) -> NDArray[np.int64]:
    """Drawn for each example alone, so that one example more or less changes no other's group."""
    # PRIVACY: where no step draws from.   [G9]
    source = np.random.Generator(AESCounter(key=secret, counter=1 << 127))
    return source.integers(groups, size=size)
