"""DP-SGD by Opacus, with its Poisson samples recorded: a step on other examples is refused.

Opacus' ε holds for batches of the loader that make_private returned. Its optimizer does not look where examples come
from, so that a loop over another loader (the user's own, by mistake) would be accounted for as Poisson samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from opacus.data_loader import DPDataLoader

from antiphase.errors import ParticipationError
from antiphase.torch.batch_selection import Recorded


class RecordedPoisson(Recorded):
    """Opacus' sampler, recorded; if it ``stands_in``, one made-up example takes the place of an empty batch."""

    stands_in = False

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)  # what Opacus' tools ask of theirs

    def samples_of(self, count: int) -> int:
        """How many samples ``count`` examples are made of, the last ones handed over; empty ones do not count."""
        batches = [batch for _, batch in (self._handed if self._hands_over else self._drawn)]
        sizes = [len(batch) for batch in (batches[::-1] if self._hands_over else batches)]
        used = next((k for k in range(1, len(sizes) + 1) if sum(sizes[:k]) >= count), 1)
        return max(1, sum(size > 0 for size in sizes[:used]))

    def take(self, count: int) -> NDArray[np.int64] | None:
        pending = self._handed if self._hands_over else list(self._drawn)[:1]
        if self.stands_in and count == 1 and pending and not any(batch for _, batch in pending):
            count = 0
        return super().take(count)


class PoissonLoader(DPDataLoader):
    """Opacus' loader of Poisson samples, which records what it hands over."""

    @classmethod
    def recording(cls, loader: Any, rand_on_empty: bool) -> PoissonLoader:
        """``loader``, a `DPDataLoader` that nobody else has, as one that records."""
        expected = max(1, round(loader.sample_rate * len(loader.dataset)))
        recorded = RecordedPoisson(loader.batch_sampler, expected)
        recorded.stands_in = rand_on_empty
        vars(loader)["batch_sampler"] = recorded  # torch refuses to assign it
        loader.__class__ = cls
        made: PoissonLoader = loader
        return made

    def __iter__(self) -> Any:
        recorded: Any = self.batch_sampler
        for batch in super().__iter__():
            recorded.hand_over()
            yield batch


def refuse_other_examples(optimizer: Any, loader: Any, guards: list[Callable[[], None]]) -> None:
    """Let ``optimizer`` step on examples alone that ``loader`` handed over since the last step.

    ``guards`` are called before each step, and raise to refuse it. A loader that does not record has guards alone.
    """
    recorded = loader.batch_sampler if isinstance(loader, PoissonLoader) else None
    guard = _Counted(optimizer, recorded, guards)
    optimizer.pre_step = partial(guard.pre_step, optimizer.pre_step)


class _Counted:
    """Counts the examples of a logical step, and compares with what the loader drew, before noise is drawn."""

    def __init__(self, optimizer: Any, recorded: Any, guards: list[Callable[[], None]]) -> None:
        self._optimizer, self._recorded, self._guards = optimizer, recorded, guards
        self._examples = self._seen = 0

    def pre_step(self, inner: Any, *args: Any, **options: Any) -> Any:
        for guard in self._guards:
            guard()
        if self._recorded is not None:
            self._examples += self._rows()
            if not self._optimizer._check_skip_next_step(pop_next=False):
                count, self._examples, self._seen = self._examples, 0, 0
                self._refuse_others(count)
        return inner(*args, **options)

    def _refuse_others(self, count: int) -> None:
        samples = self._recorded.samples_of(count)
        # PRIVACY: ε is that of Poisson samples; for examples of another loader it would be too small.   [G9]
        if self._recorded.take(count) is None:
            raise ParticipationError(
                f"{count} gradients of examples that the returned loader did not hand over for this step. Nothing was "
                "released. Take every batch from the loader that make_private returned, not from the one given to it"
            )
        # PRIVACY: Opacus accounts for as many samples as backward passes; more at one time would be free.   [G9]
        if samples > 1 and samples != self._accounted():
            raise ParticipationError(
                f"{samples} samples in one step, of which {self._accounted()} would be accounted for. Nothing was "
                "released. Take a step for each batch, or give make_private a loader with larger batches"
            )
        most = getattr(self._optimizer, "most_examples", count)
        if count > most:
            raise ParticipationError(
                f"{count} examples in one step, and the rounding of sums is covered for {most}. Nothing was released"
            )

    def _accounted(self) -> int:
        try:
            return int(self._optimizer.accumulated_iterations)
        except ValueError:  # gradients of some parameters only
            return 1

    def _rows(self) -> int:
        """Rows of gradients at hand; with ghost clipping, examples that were added to the sum since the last look."""
        parts = getattr(self._optimizer, "_parts", None)
        if parts is not None and any(p.grad_sample is not None for p in self._optimizer.params):
            return sum(len(part.rows) for part in parts()[0])
        for p in self._optimizer.params:
            rows = getattr(p, "grad_sample", None)
            if rows is not None:
                return sum(map(len, rows)) if isinstance(rows, list) else len(rows)
        added: int = getattr(self._optimizer, "examples", 0)
        new, self._seen = added - self._seen if added >= self._seen else added, added
        return new
