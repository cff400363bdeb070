"""Record Opacus' Poisson samples, and refuse steps on other examples.

Opacus' ε holds for batches of the loader that make_private returned. Its optimizer does not check
where examples come from, so that a loop over another loader (the user's own, by mistake) would be
accounted for as Poisson samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opacus.data_loader import DPDataLoader

from antiphase.errors import ParticipationError
from antiphase.torch.recorded_loader import RecordedBatches


class RecordedPoisson(RecordedBatches):
    """Opacus' Poisson sampler, recorded.

    Attributes:
        stands_in: whether one made-up example takes the place of an empty batch.
    """

    stands_in = False

    def __getattr__(self, name: str) -> Any:
        # Opacus' tools read attributes of their own sampler.
        if name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)

    def samples_of(self, count: int) -> int:
        """How many samples that are not empty the last ``count`` examples are from."""
        if self._loader_reports:
            batches = [batch.examples for batch in reversed(self._handed_over)]
        else:
            batches = [batch.examples for batch in self._drawn]
        sizes = [len(batch) for batch in batches]
        used = next((k for k in range(1, len(sizes) + 1) if sum(sizes[:k]) >= count), 1)
        return max(1, sum(size > 0 for size in sizes[:used]))

    def take(self, count: int) -> NDArray[np.int64] | None:
        """The examples of the step, as of `RecordedBatches`; the made-up example is none."""
        pending = self._handed_over if self._loader_reports else list(self._drawn)[:1]
        if (
            self.stands_in
            and count == 1
            and pending
            and not any(batch.examples for batch in pending)
        ):
            count = 0
        return super().take(count)


class PoissonLoader(DPDataLoader):
    """Opacus' loader of Poisson samples, which records what it hands over."""

    @classmethod
    def recording(cls, loader: Any, rand_on_empty: bool) -> PoissonLoader:
        """Let a `DPDataLoader`, which nobody else has, record.

        Args:
            loader: is changed and returned.
            rand_on_empty: whether one made-up example takes the place of an empty batch.
        """
        expected = max(1, round(loader.sample_rate * len(loader.dataset)))
        recorded = RecordedPoisson(loader.batch_sampler, expected)
        recorded.stands_in = rand_on_empty
        vars(loader)["batch_sampler"] = recorded  # torch refuses to assign it
        loader.__class__ = cls
        recording: PoissonLoader = loader
        return recording

    def __iter__(self) -> Any:
        recorded: Any = self.batch_sampler
        for batch in super().__iter__():
            recorded.hand_over()
            yield batch


def refuse_other_examples(optimizer: Any, loader: Any, guards: list[Callable[[], None]]) -> None:
    """Let ``optimizer`` step only on examples that ``loader`` handed over since the last step.

    Args:
        optimizer: of Opacus, whose ``pre_step`` is wrapped.
        loader: a `PoissonLoader`; with another one only the guards are called.
        guards: called before each step; a guard raises to refuse it.
    """
    recorded = loader.batch_sampler if isinstance(loader, PoissonLoader) else None
    check = _CheckedExamples(optimizer, recorded, guards)
    optimizer.pre_step = partial(check.pre_step, optimizer.pre_step)


class _CheckedExamples:
    """Compares the examples of a logical step with those that the loader drew, before the noise."""

    def __init__(self, optimizer: Any, recorded: Any, guards: list[Callable[[], None]]) -> None:
        self._optimizer, self._recorded, self._guards = optimizer, recorded, guards
        self._examples = 0  # of the logical step so far
        self._counted = 0  # of those that ghost clipping has summed

    def pre_step(self, inner: Any, *args: Any, **options: Any) -> Any:
        """Check, then call the optimizer's own ``pre_step``."""
        for guard in self._guards:
            guard()
        if self._recorded is not None:
            self._examples += self._new_rows()
            if not self._optimizer._check_skip_next_step(pop_next=False):
                count, self._examples, self._counted = self._examples, 0, 0
                self._refuse_others(count)
        return inner(*args, **options)

    def _refuse_others(self, count: int) -> None:
        samples = self._recorded.samples_of(count)
        # PRIVACY: ε is that of Poisson samples; for other examples it is too small.   [G9]
        if self._recorded.take(count) is None:
            raise ParticipationError(
                f"{count} gradients of examples that the returned loader did not hand over for "
                "this step. Nothing was released. Take batches from the loader that make_private "
                "returned, not from the one given to it"
            )
        # PRIVACY: Opacus accounts for one sample for each backward pass, and no others.   [G9]
        if samples > 1 and samples != self._accounted_samples():
            raise ParticipationError(
                f"{samples} samples in one step, of which {self._accounted_samples()} would be "
                "accounted for. Nothing was released. Take one step for each batch"
            )
        limit = getattr(self._optimizer, "max_batch_size", count)
        if count > limit:
            raise ParticipationError(
                f"{count} examples in one step, and the rounding of sums is covered for {limit}. "
                "Nothing was released"
            )

    def _accounted_samples(self) -> int:
        try:
            return int(self._optimizer.accumulated_iterations)
        except ValueError:  # gradients of some parameters only
            return 1

    def _new_rows(self) -> int:
        """Rows of gradients since the last call; with ghost clipping, examples that were summed."""
        parts = getattr(self._optimizer, "_parts", None)
        params = self._optimizer.params
        if parts is not None and any(p.grad_sample is not None for p in params):
            return sum(len(part.rows) for part in parts()[0])
        for p in params:
            rows = getattr(p, "grad_sample", None)
            if rows is not None:
                return sum(map(len, rows)) if isinstance(rows, list) else len(rows)
        summed: int = getattr(self._optimizer, "examples", 0)
        new = summed - self._counted if summed >= self._counted else summed
        self._counted = summed
        return new
