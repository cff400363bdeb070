"""Loaders that record which examples a training step has."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from antiphase.errors import ParticipationError
from antiphase.mechanism import Mechanism
from antiphase.torch.batch_selection import FixedOrderBatches, ResumableBatches, batch_sampler_for


@dataclass
class StepCounter:
    """The number of steps released so far, shared by the release and the batch sampler."""

    position: int = 0


class Drawn(NamedTuple):
    """A batch that was drawn.

    Attributes:
        step: the step that it was drawn for; None if it may be in any.
        number: its place in the pass over the data.
        examples: their indices.
    """

    step: int | None
    number: int
    examples: list[int]


class RecordedBatches(BatchSampler):
    """A batch sampler that remembers what it drew until the training step takes it.

    The sampler runs in the main process, also if workers load the data. `PrivateLoader` reports
    which batches it has handed over, and no others are taken; behind any other loader (a
    `BatchMemoryManager`'s) batches are taken in the order drawn. Batches that were drawn for one
    step are released in no other.

    Args:
        sampler: draws the batches.
        batch_size: the expected number of examples.
        steps: the steps released so far, if batches are sampled for amplification, one for each
            step.
    """

    def __init__(self, sampler: Any, batch_size: int, steps: StepCounter | None = None) -> None:
        self.sampler: Any = sampler
        self.batch_size, self.steps = batch_size, steps
        self.drop_last = bool(getattr(sampler, "drop_last", False))
        self._drawn: deque[Drawn] = deque()
        self._handed_over: list[Drawn] = []
        self._taken: list[Drawn] = []  # by the last step
        self._loader_reports = False  # whether the loader of this pass hands over

    @property
    def resumable(self) -> ResumableBatches | None:
        """The sampler, if its order can be saved and resumed."""
        return self.sampler if isinstance(self.sampler, ResumableBatches) else None

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        self._drawn.clear()
        self._loader_reports = False
        # Batches of an earlier pass that no step used: an evaluation, or a loop that was left.
        self._handed_over.clear()
        step = None if self.steps is None else self.steps.position
        if step is not None:
            self.sampler.begin(step)  # draws again what was drawn and not used
        # A pass after a resume begins in the middle of the epoch.
        first = self.sampler.first if isinstance(self.sampler, FixedOrderBatches) else 0
        for number, batch in enumerate(self.sampler, first):
            self._drawn.append(Drawn(step, number, [int(index) for index in batch]))
            step = None if step is None else step + 1
            yield batch

    def hand_over(self) -> None:
        """Report that the loader has handed over the next batch."""
        self._loader_reports = True
        if self._drawn:
            self._handed_over.append(self._drawn.popleft())

    def take(self, count: int) -> NDArray[np.int64] | None:
        """The examples of the step: all that were handed over since the last step.

        Args:
            count: number of rows of gradients. If batches were handed over and skipped, it may be
                that of the last ones alone; those skipped count as having taken part.

        Returns:
            The indices; None if they are not those of ``count`` examples.

        Raises:
            ParticipationError: if a batch was drawn for another step.
        """
        taken, self._handed_over = self._handed_over, []
        # PRIVACY: what workers have read ahead is in no step before it was handed over.   [G14]
        while (
            not self._loader_reports
            and self._drawn
            and sum(len(batch.examples) for batch in taken) < count
        ):
            taken.append(self._drawn.popleft())
        if self.steps is not None and any(
            batch.examples and batch.step != self.steps.position for batch in taken
        ):
            # PRIVACY: amplification is proven for a sample of its own in each step.   [G9]
            raise ParticipationError(
                f"step {self.steps.position}: the batch was drawn for another step. Nothing was "
                "released. Take every batch of the returned loader in one step, in its order"
            )
        self._taken = taken
        indices = np.array([index for batch in taken for index in batch.examples], dtype=np.int64)
        sizes = [len(batch.examples) for batch in taken]
        allowed = {len(indices)}
        if self._loader_reports:
            allowed |= {sum(sizes[k:]) for k in range(len(sizes))}
        # PRIVACY: more rows are unknown examples; fewer are not rows of single examples.   [G14]
        return indices if count in allowed else None

    def departure(self, step: int, accumulation: int, every: int | None) -> str:
        """How the batches of a refused step depart from the plan, and how to declare them.

        Args:
            step: the step, whose batches `take` returned.
            accumulation: batches of one step, as planned.
            every: steps of one epoch in a fixed order; None if the plan has no fixed order.

        Returns:
            Sentences for the error; none if the batches come in an order of the user's.
        """
        taken, planned = self._taken, f"{accumulation} planned"
        if len(taken) > accumulation:
            return (
                f"gradients of {len(taken)} batches in one step, {planned}. To accumulate, declare "
                f"it: make_private(…, gradient_accumulation_steps={len(taken)}). Else take a step "
                "for every batch, and skip none"
            )
        if not taken or every is None or not isinstance(self.sampler, FixedOrderBatches):
            return ""
        if len(taken) < accumulation and taken[-1].number + 1 < len(self):
            return (
                f"gradients of {len(taken)} batch(es) in one step, {planned} by "
                "gradient_accumulation_steps. Accumulate so many, or declare another number"
            )
        expected = step % every * accumulation
        if taken[0].number == expected:
            return ""
        return (
            f"batch {taken[0].number} of the epoch, where batch {expected} is planned: a pass over "
            "the loader was broken off before its end. Take all of its "
            f"{len(self)} batches in every epoch, or declare the short epochs: make_private(…, "
            "steps=…, participation=antiphase.epochs(passes, every=n)) if each has n steps, "
            "antiphase.min_separation(passes, apart=1) if they end anywhere"
        )


class PrivateLoader(DataLoader[Any]):
    """The user's loader with its batches recorded."""

    def __iter__(self) -> Any:
        recorded = self.batch_sampler
        for batch in super().__iter__():
            if isinstance(recorded, RecordedBatches):
                recorded.hand_over()
            yield batch


def sampled_loader(
    loader: DataLoader[Any], mechanism: Mechanism, steps: StepCounter
) -> PrivateLoader:
    """``loader`` with its batches recorded, if they are sampled as the mechanism requires.

    Args:
        loader: of the user.
        mechanism: whose ε is amplified by sampling.
        steps: the steps released so far.

    Raises:
        ValueError: if batches are formed in another way.
    """
    sampler = _unrecorded(loader)
    dataset: Any = loader.dataset
    # PRIVACY: an amplified ε holds for the sampler that was analysed, with its parameters.   [G9]
    if not batch_sampler_for(mechanism, len(dataset)).is_distributed_as(sampler):
        raise ValueError(
            f"data_loader: ε holds for sampling = {mechanism.sampling}, and these batches are "
            "formed in another way. Use batch_sampler=antiphase.torch.batch_sampler_for(mechanism, "
            "len(dataset)); or calibrate for sampling=FixedOrder()"
        )
    return _recorded(loader, sampler, sampler.batch_size, steps)


def fixed_order_loader(loader: DataLoader[Any]) -> PrivateLoader:
    """``loader`` with its batches recorded, in the same order in every epoch.

    A sampler of the user's is kept, and the ledger watches it; a shuffling loader is shuffled once.

    Raises:
        ValueError: if the data set has no indices.
    """
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "data_loader: an IterableDataset has no indices, so participation cannot be checked. "
            'Use a dataset with indices, or vouch for it: participation="trusted"'
        )
    batch_size = public_batch_size(loader)
    sampler = _unrecorded(loader)
    examples: Any = sampler.sampler if type(sampler) is BatchSampler else None
    shuffles = isinstance(examples, RandomSampler) and not examples.replacement
    ordered = shuffles or isinstance(examples, SequentialSampler)
    if ordered and len(examples) == len(dataset):
        sampler = FixedOrderBatches(
            len(dataset),
            batch_size,
            shuffle=shuffles,
            drop_last=sampler.drop_last,
            generator=getattr(examples, "generator", None) or loader.generator,
        )
    return _recorded(loader, sampler, batch_size)


def _unrecorded(loader: DataLoader[Any]) -> Any:
    sampler: Any = loader.batch_sampler
    return sampler.sampler if isinstance(sampler, RecordedBatches) else sampler


def _recorded(
    loader: DataLoader[Any], sampler: Any, batch_size: int, steps: StepCounter | None = None
) -> PrivateLoader:
    options: dict[str, Any] = (
        {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
    )
    return PrivateLoader(
        loader.dataset,
        batch_sampler=RecordedBatches(sampler, batch_size, steps),
        num_workers=loader.num_workers,
        collate_fn=_Collate(loader),
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator or _worker_generator(),
        persistent_workers=loader.persistent_workers,
        **options,
    )


def _worker_generator() -> torch.Generator:
    """For the seeds of workers: drawn globally, they would shift dropout masks after a resume."""
    return torch.Generator().manual_seed(torch.initial_seed() & (2**63 - 1))


class _Collate:
    """The loader's own collation; an empty batch has the shapes of the first example, emptied."""

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
    """The number that sums are divided by: never the size of a batch at hand."""
    if loader.batch_size is not None:
        return int(loader.batch_size)
    dataset: Any = loader.dataset
    sampler_size = getattr(loader.batch_sampler, "batch_size", None)
    return int(max(1, len(dataset) // len(loader)) if sampler_size is None else sampler_size)
