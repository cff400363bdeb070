"""Participation ledger: which examples took part in which steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.errors import ParticipationError
from antiphase.participation import Participation


class ParticipationLedger:
    """Number and time of each example's participations, in 8 bytes an example.

    Guarantee: a step that the participation does not allow is refused before anything is recorded
    or released. [G14]

    Args:
        participation: what the sensitivity was computed for.
        examples: number of examples in the dataset.
    """

    def __init__(self, participation: Participation, examples: int) -> None:
        self.participation = participation
        # Last step of each example; in a fixed order its position within the epoch.
        self.when = np.full(examples, -1, np.int32)
        self.count = np.zeros(examples, np.int32)

    def check(self, step: int, indices: NDArray[np.int64]) -> None:
        """Check that these examples may take part in a step.

        Args:
            step: number of the step, counted from 0.
            indices: positions of the examples in the dataset.

        Raises:
            ParticipationError: some of them may not. Nothing was recorded.
        """
        plan = self.participation
        if len(indices) and not (indices.min() >= 0 and indices.max() < len(self.count)):
            raise ParticipationError(
                f"step {step}: an index out of range for a dataset of {len(self.count)} examples"
            )
        if len(np.unique(indices)) < len(indices):
            raise ParticipationError(
                f"step {step}: an example occurs twice. One record may contribute one clipped "
                "gradient a step: use a sampler without replacement, and no padding"
            )
        count = self.count[indices]
        # PRIVACY: the sensitivity was computed for these participations and no others.   [G14]
        if (count >= plan.max_participations).any():
            raise ParticipationError(
                f"step {step}: an example would take part more than {plan.max_participations} "
                f"time(s), which the plan ({plan.describe()}) does not allow. Nothing was "
                "released; plan for more epochs"
            )
        seen = count > 0
        when = self.when[indices[seen]]
        if plan.fixed_order and (when != self._position(step)).any():
            raise ParticipationError(
                f"step {step}: an example is at another position within the epoch than before, and "
                f"the plan ({plan.describe()}) assumes a fixed order. Nothing was released. "
                "Shuffling again in every epoch is another participation, with more noise: keep "
                "the order (antiphase's loader does), or plan for "
                f"participation=antiphase.min_separation({plan.max_participations}, apart=…)"
            )
        if not plan.fixed_order and (step - when < plan.separation).any():
            raise ParticipationError(
                f"step {step}: an example would take part less than {plan.separation} steps after "
                f"the last time, which the plan ({plan.describe()}) does not allow. Nothing was "
                "released; use a sampler that keeps this distance, or plan for a smaller one"
            )

    def record(self, step: int, indices: NDArray[np.int64]) -> None:
        """Record that these examples take part in the step; `check` first."""
        self.count[indices] += 1
        self.when[indices] = self._position(step)

    def _position(self, step: int) -> int:
        every = self.participation.steps_per_epoch
        return step if every is None else step % every

    def state(self) -> dict[str, Any]:
        """A copy of the records, for a checkpoint."""
        return {"when": self.when.copy(), "count": self.count.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned.

        Raises:
            ParticipationError: it belongs to a dataset of another size.
        """
        when, count = (np.array(state[name], dtype=np.int32) for name in ("when", "count"))
        for stored in (when, count):
            if stored.shape != self.count.shape:
                raise ParticipationError(
                    f"the ledger has {stored.size} examples, and the dataset has {len(self.count)}"
                )
        self.when, self.count = when, count
