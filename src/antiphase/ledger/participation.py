"""The participation ledger: which examples took part in which step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase.errors import ParticipationError
from antiphase.participation import Epochs, MinSeparation, Participation


class ParticipationLedger:
    """Who took part how often, and when: 8 bytes an example.

    Guarantee: a step that the participation does not allow is refused before anything is recorded or released.   [G14]
    """

    def __init__(self, participation: Participation, examples: int) -> None:
        self.participation = participation
        self.when = np.full(examples, -1, np.int32)  # position within the epoch, or the last step
        self.count = np.zeros(examples, np.int32)

    def check(self, step: int, indices: NDArray[np.int64]) -> None:
        """Raise `ParticipationError` if these examples may not all take part in ``step`` (counted from 0)."""
        if len(indices) and not (indices.min() >= 0 and indices.max() < len(self.count)):
            raise ParticipationError(
                f"step {step}: an example that the dataset of {len(self.count)} does not have"
            )
        if len(np.unique(indices)) < len(indices):
            raise ParticipationError(
                f"step {step}: an example comes twice. One record may contribute one clipped gradient a step: use a "
                "sampler without replacement, and no padding"
            )
        most, count = self._most, self.count[indices]
        # PRIVACY: the sensitivity was computed for these participations and no others.   [G14]
        if (count >= most).any():
            raise ParticipationError(
                f"step {step}: an example would take part more than {most} time(s), which the plan "
                f"({self.participation.describe()}) does not allow. Nothing was released; plan for more epochs"
            )
        seen = count > 0
        when = self.when[indices[seen]]
        if (
            isinstance(self.participation, Epochs)
            and (when != step % self.participation.every).any()
        ):
            raise ParticipationError(
                f"step {step}: an example comes at another place within the epoch than before, and the plan "
                f"({self.participation.describe()}) rests on a fixed order. Nothing was released. Reshuffling every "
                "epoch is another participation, with more noise: keep the order (antiphase's loader does), or plan "
                f"for participation=antiphase.min_separation({self._most}, apart=…)"
            )
        if (
            isinstance(self.participation, MinSeparation)
            and (step - when < self.participation.apart).any()
        ):
            raise ParticipationError(
                f"step {step}: an example comes back before the {self.participation.apart} steps that the plan "
                f"({self.participation.describe()}) keeps between two participations. Nothing was released"
            )

    def record(self, step: int, indices: NDArray[np.int64]) -> None:
        self.count[indices] += 1
        self.when[indices] = (
            step % self.participation.every if isinstance(self.participation, Epochs) else step
        )

    @property
    def _most(self) -> int:
        count: int = getattr(self.participation, "count", 1)
        return count

    def state(self) -> dict[str, Any]:
        return {"when": self.when.copy(), "count": self.count.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        when, count = (np.array(state[name], dtype=np.int32) for name in ("when", "count"))
        for found in (when, count):
            if found.shape != self.count.shape:
                raise ParticipationError(
                    f"the ledger is one of {found.size} examples, and the dataset has {len(self.count)}"
                )
        self.when, self.count = when, count
