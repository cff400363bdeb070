"""Batches in a fixed order or sampled, and which examples are in the one at hand."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from randomgen import AESCounter
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from antiphase._util import checks as check
from antiphase.errors import ParticipationError, StateError
from antiphase.mechanism import Mechanism
from antiphase.sampling import BallsInBins, CyclicPoisson, Poisson

MAX_EXAMPLES = 2**31 - 1
OTHER = "the checkpoint was saved with another dataset, or with batches of another kind. Nothing was changed"


class FixedOrderBatches(BatchSampler):
    """Batches of ``batch_size`` examples in the same order in every epoch: shuffled once, or given as ``order``.

    Privacy does not rest on the shuffle. With several processes each takes its part of every batch; nothing is padded
    and no example comes twice.

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
        self._rank, self._world = (
            check.whole_number("rank", rank, minimum=0),
            check.whole_number("world", world),
        )
        self.first = 0  # where the next epoch begins: after a resume, in the middle

    def __len__(self) -> int:
        whole, rest = divmod(len(self.order), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        first, self.first = self.first, 0
        for i in range(first, len(self)):
            batch = self.order[i * self.batch_size : (i + 1) * self.batch_size]
            yield [int(index) for index in batch[self._rank :: self._world]]

    def state(self) -> NDArray[np.int64]:
        return self.order

    def restore(self, state: Any, batch: int) -> None:
        """Go on with ``batch`` of the epoch."""
        if np.shape(state) != self.order.shape:
            raise StateError(OTHER)
        self.order, self.first = state, batch


class PoissonBatches(BatchSampler):
    """Step ``t`` has each example of group ``t mod groups`` by an independent coin; so is every example's group.

    What is drawn in a step depends on nothing but the secret and the step, so a run that goes on draws the same again.
    One pass has as many steps as it takes to draw, on average, every example once. PRIVACY rests on the coins being
    independent and unknown: the secret is to be kept like the noise key.

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
        # PRIVACY: coins that others can guess amplify nothing; with a ``secret`` of one's own, no ε is claimed.   [G9]
        self.secret, self.by_chance = (
            (secrets.randbits(128), True) if secret is None else (secret, False)
        )
        self.first = 0  # the step that the next pass begins with

    def __len__(self) -> int:
        return max(1, round(1 / self.rate))

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            step, self.first = self.first, self.first + 1
            yield self.drawn(step)

    def drawn(self, step: int) -> list[int]:
        members = np.flatnonzero(_dealt(self.secret, self.groups, self.size) == step % self.groups)
        source = np.random.Generator(AESCounter(key=self.secret, counter=step << 64))
        # PRIVACY: groups × rate for the members of one group, nobody else.   [G9]
        chosen: list[int] = members[source.random(len(members)) < self.rate * self.groups].tolist()
        return chosen

    def draws_like(self, other: Any) -> bool:
        mine = (self.size, self.groups, self.rate, True)
        return (
            type(other) is PoissonBatches
            and (other.size, other.groups, other.rate, other.by_chance) == mine
        )

    def begin(self, step: int) -> None:
        """Draw for ``step`` next."""
        self.first = step

    def state(self) -> dict[str, Any]:
        return {"kind": "cyclic-poisson", "secret": f"{self.secret:032x}", "size": self.size}

    def restore(self, state: dict[str, Any], step: int) -> None:
        if not isinstance(state, dict) or state.get("size") != self.size:
            raise StateError(OTHER)
        self.secret, self.first = int(state["secret"], 16), step


def _checked_size(size: int) -> int:
    size = check.whole_number("size", size)
    if size > MAX_EXAMPLES:
        raise ValueError(
            f"size = {size} must be at most {MAX_EXAMPLES}, the most examples of a data set"
        )
    return size


@lru_cache(maxsize=4)
def _dealt(secret: int, groups: int, size: int) -> NDArray[np.int64]:
    """The group of each example: a draw of its own, so that one example more or less changes nobody else's."""
    # PRIVACY: where no step draws from.   [G9]
    source = np.random.Generator(AESCounter(key=secret, counter=1 << 127))
    return source.integers(groups, size=size)


class BallsInBinsBatches(BatchSampler):
    """Every example is thrown into one of ``bins`` batches, once; every epoch has these batches in this order.

    PRIVACY rests on the bins being random and unknown: they are to be kept like the noise key.

    >>> sorted(sum(BallsInBinsBatches(5, 2), []))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, bins: int, *, thrown: Sequence[int] | None = None) -> None:
        self.size, self.bins = _checked_size(size), check.whole_number("bins", bins)
        self.batch_size, self.drop_last = max(1, round(self.size / self.bins)), False
        self.by_chance = thrown is None  # with bins of one's own, no ε is claimed
        if thrown is None:
            # PRIVACY: independent, and from the system's own randomness.   [G9]
            source = np.random.Generator(AESCounter(key=secrets.randbits(128)))
            thrown = source.integers(self.bins, size=self.size).tolist()
        self.thrown = self._checked(thrown)
        self.first = 0

    def _checked(self, thrown: Any) -> NDArray[np.int64]:
        found: NDArray[np.int64] = np.array(thrown, dtype=np.int64)
        if found.shape != (self.size,) or found.min() < 0 or found.max() >= self.bins:
            raise ValueError(
                f"thrown must have a bin below {self.bins} for each of {self.size} examples"
            )
        return found

    def __len__(self) -> int:
        return self.bins

    def __iter__(self) -> Iterator[list[int]]:
        first, self.first = self.first, 0
        for i in range(first, self.bins):
            yield np.flatnonzero(self.thrown == i).tolist()

    def draws_like(self, other: Any) -> bool:
        mine = (self.size, self.bins, True)
        return (
            type(other) is BallsInBinsBatches and (other.size, other.bins, other.by_chance) == mine
        )

    def begin(self, step: int) -> None:
        """Have the batch of ``step`` next."""
        self.first = step % self.bins

    def state(self) -> dict[str, Any]:
        return {"kind": "balls-in-bins", "thrown": self.thrown, "size": self.size}

    def restore(self, state: dict[str, Any], step: int) -> None:
        if not isinstance(state, dict) or state.get("size") != self.size:
            raise StateError(OTHER)
        self.thrown, self.first = self._checked(state["thrown"]), step % self.bins


OURS = (
    FixedOrderBatches,
    PoissonBatches,
    BallsInBinsBatches,
)  # which can be kept, and gone on with


@dataclass
class StepCounter:
    """The number of steps released so far, shared by the release and the batch sampler."""

    position: int = 0


class Recorded(BatchSampler):
    """A batch sampler that remembers what it drew, until the training step takes it.

    The sampler runs in the main process, also where workers load the data, so batches and workers are untouched.
    `PrivateLoader` says which batches were handed over, and no others are taken; behind any other loader (a
    BatchMemoryManager's) they are taken in the order drawn. Batches that were drawn for one step go out in no
    other: see `take`.
    """

    def __init__(self, sampler: Any, batch_size: int, steps: StepCounter | None = None) -> None:
        self.sampler: Any = sampler
        self.steps = steps  # given if batches are sampled for amplification, one for each step
        self.batch_size = batch_size
        self.drop_last = bool(getattr(sampler, "drop_last", False))
        self._drawn: deque[tuple[int | None, list[int]]] = (
            deque()
        )  # each with its step, if it was drawn for one
        self._handed: list[tuple[int | None, list[int]]] = []
        self._hands_over = False  # whether the loader of this pass does

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        self._drawn.clear()
        self._hands_over = False
        self._handed.clear()  # batches of an earlier pass that no step used: an evaluation, or a loop that was left
        step = None if self.steps is None else self.steps.position
        if step is not None:
            self.sampler.begin(step)  # whatever was drawn, and not used, since the last step
        for batch in self.sampler:
            self._drawn.append((step, [int(index) for index in batch]))
            step = None if step is None else step + 1
            yield batch

    def hand_over(self) -> None:
        self._hands_over = True
        if self._drawn:
            self._handed.append(self._drawn.popleft())

    def take(self, count: int) -> NDArray[np.int64] | None:
        """The examples of the step at hand, all that were handed over since the last; None if they are not known.

        ``count`` is how many rows of gradients there are: as many as examples. Where batches were handed over and
        then passed over, it may be that of the last ones alone; those passed over count as having taken part.
        """
        taken, self._handed = self._handed, []
        # PRIVACY: workers read ahead, and what they have read is in no step before it was handed over.   [G14]
        while (
            not self._hands_over and self._drawn and sum(len(batch) for _, batch in taken) < count
        ):
            taken.append(self._drawn.popleft())
        if self.steps is not None and any(
            batch and step != self.steps.position for step, batch in taken
        ):
            # PRIVACY: what was analysed is that step t has a sample of its own; no ε is known for another one.   [G9]
            raise ParticipationError(
                f"step {self.steps.position}: the batch was drawn for another step. Nothing was released. Take every batch "
                "of the loader that make_private returned in one step, in the order that it gives them"
            )
        found = np.array([index for _, batch in taken for index in batch], dtype=np.int64)
        sizes = [len(batch) for _, batch in taken]
        last = {sum(sizes[k:]) for k in range(len(sizes))} if self._hands_over else {len(found)}
        # PRIVACY: more rows are examples that the ledger does not see; fewer are no rows of single examples.   [G14]
        return found if count == len(found) or count in last else None


class PrivateLoader(DataLoader[Any]):
    """The user's loader with its batches recorded."""

    def __iter__(self) -> Any:
        recorded = self.batch_sampler
        for batch in super().__iter__():
            if isinstance(recorded, Recorded):
                recorded.hand_over()
            yield batch


def batch_sampler_for(mechanism: Mechanism, size: int) -> PoissonBatches | BallsInBinsBatches:
    """The batch sampler that the mechanism's amplification is for, over ``size`` examples:
    ``DataLoader(dataset, batch_sampler=batch_sampler_for(mechanism, len(dataset)))``."""
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


def sampled_loader(
    loader: DataLoader[Any], mechanism: Mechanism, steps: StepCounter
) -> PrivateLoader:
    """``loader`` with its batches recorded, if they are what the mechanism's amplification is for; refused if not."""
    sampler: Any = loader.batch_sampler
    if isinstance(sampler, Recorded):
        sampler = sampler.sampler
    dataset: Any = loader.dataset
    # PRIVACY: an amplified ε holds for the sampler that was analysed, with its own numbers, and no other.   [G9]
    if not batch_sampler_for(mechanism, len(dataset)).draws_like(sampler):
        raise ValueError(
            f"data_loader: the ε of this mechanism is that of sampling = {mechanism.sampling}, and these batches "
            "are formed in another way. Use DataLoader(dataset, batch_sampler=antiphase.torch.batch_sampler_for(mechanism, "
            "len(dataset))); or calibrate for sampling=FixedOrder()"
        )
    return _recorded(loader, sampler, sampler.batch_size, steps)


def fixed_order_loader(loader: DataLoader[Any]) -> PrivateLoader:
    """``loader`` with the same batches in every epoch, and recorded.

    A sampler of the user's is kept, and the ledger watches it; a shuffling loader is shuffled once.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "data_loader: an IterableDataset has no indices, so who takes part when cannot be checked. Use a dataset "
            'with indices, or vouch for it: participation="trusted"'
        )
    batch_size = public_batch_size(loader)
    sampler: Any = loader.batch_sampler
    plain = (
        isinstance(loader.sampler, RandomSampler | SequentialSampler)
        and type(sampler) is BatchSampler
    )
    if isinstance(sampler, Recorded):
        sampler = sampler.sampler
    elif plain and not (isinstance(loader.sampler, RandomSampler) and loader.sampler.replacement):
        sampler = FixedOrderBatches(
            len(dataset),
            batch_size,
            shuffle=isinstance(loader.sampler, RandomSampler),
            drop_last=loader.drop_last,
            generator=getattr(loader.sampler, "generator", None) or loader.generator,
        )
    return _recorded(loader, sampler, batch_size)


def _recorded(
    loader: DataLoader[Any], sampler: Any, batch_size: int, steps: StepCounter | None = None
) -> PrivateLoader:
    options: dict[str, Any] = (
        {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
    )
    return PrivateLoader(
        loader.dataset,
        batch_sampler=Recorded(sampler, batch_size, steps),
        num_workers=loader.num_workers,
        collate_fn=_Collate(loader),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator or _own_generator(),
        persistent_workers=loader.persistent_workers,
        **options,
    )


def _own_generator() -> torch.Generator:
    """For the seeds of workers. From the global generator they would shift dropout masks after a resume."""
    return torch.Generator().manual_seed(torch.initial_seed() & (2**63 - 1))


class _Collate:
    """The loader's own collation; an empty batch has the shapes of an empty selection of the first example's."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._collate, self._dataset = loader.collate_fn, loader.dataset

    def __call__(self, examples: list[Any]) -> Any:
        if examples:
            return self._collate(examples)
        return _emptied(self._collate([self._dataset[0]]))


def _emptied(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch[:0]
    if isinstance(batch, dict):
        return {name: _emptied(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_emptied(value) for value in batch)
    return batch


def public_batch_size(loader: DataLoader[Any]) -> int:
    """The number that sums are divided by: never the size of the batch at hand."""
    sampler: Any = loader.batch_sampler
    dataset: Any = loader.dataset
    size = (
        loader.batch_size if loader.batch_size is not None else getattr(sampler, "batch_size", None)
    )
    if size is None:
        size = max(1, len(dataset) // len(loader))
    return int(size)
