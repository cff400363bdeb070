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
from antiphase.torch.sampling import Recorded


class RecordedPoisson(Recorded):
    """Opacus' sampler, recorded; if it ``stands_in``, one made-up example takes the place of an empty batch."""

    stands_in = False

    def __getattr__(self, name: str) -> Any:
        if name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)  # what Opacus' tools ask of theirs

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

    ``guards`` are called before each step, and raise to refuse it.
    """
    guard = _Counted(optimizer, loader.batch_sampler, guards)
    optimizer.pre_step = partial(guard.pre_step, optimizer.pre_step)


class _Counted:
    """Counts the examples of a logical step, and compares with what the loader drew, before noise is drawn."""

    def __init__(self, optimizer: Any, recorded: Recorded, guards: list[Callable[[], None]]) -> None:
        self._optimizer, self._recorded, self._guards = optimizer, recorded, guards
        self._examples = self._seen = 0

    def pre_step(self, inner: Any, *args: Any, **options: Any) -> Any:
        for guard in self._guards:
            guard()
        self._examples += self._rows()
        if not self._optimizer._check_skip_next_step(pop_next=False):
            count, self._examples, self._seen = self._examples, 0, 0
            self._refuse_others(count)
        return inner(*args, **options)

    def _refuse_others(self, count: int) -> None:
        # PRIVACY: ε is that of Poisson samples; for examples of another loader it would be too small.   [G9]
        if self._recorded.take(count) is None:
            raise ParticipationError(
                f"{count} gradients of examples that the returned loader did not hand over for this step. Nothing was "
                "released. Take every batch from the loader that make_private returned, not from the one given to it"
            )

    def _rows(self) -> int:
        """Rows of gradients at hand; with ghost clipping, examples that were added to the sum since the last look."""
        for p in self._optimizer.params:
            rows = getattr(p, "grad_sample", None)
            if rows is not None:
                return sum(map(len, rows)) if isinstance(rows, list) else len(rows)
        added: int = self._optimizer.examples
        new, self._seen = added - self._seen, added
        return new
