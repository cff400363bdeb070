"""Who takes part when: in which steps one record (or one user) may contribute a gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._util import checks as check
from antiphase._util.values import Value

Indices = NDArray[np.intp]


class Participation(Value, ABC):
    """A promise about the data loader, on which the sensitivity rests."""

    @abstractmethod
    def classes(self, steps: int) -> list[Indices]:
        """A partition of the steps into patterns that one record may take part in at once, as 0-based indices."""

    def require_cover(self, steps: int) -> None:
        """Raise ValueError if the steps are more than this participation allows."""

    @abstractmethod
    def describe(self) -> str:
        """A few words, as in ``16 epochs of 128 steps``."""

    def __repr__(self) -> str:
        return f"<Participation {self.describe()}>"


@dataclass(frozen=True, eq=False, repr=False)
class Once(Participation):
    """Each record takes part in one step."""

    def classes(self, steps: int) -> list[Indices]:
        return list(np.arange(check.whole_number("steps", steps))[:, None])

    def describe(self) -> str:
        return "once"


@dataclass(frozen=True, eq=False, repr=False)
class Epochs(Participation):
    """Fixed order: a record takes part in steps ``j, j + every, j + 2·every, …``, at most ``count`` times.

    The last epoch may be short: records whose step would come after the last one take part once less.

    >>> [list(map(int, pattern)) for pattern in Epochs(2, every=3).classes(5)]
    [[0, 3], [1, 4], [2]]
    """

    count: int
    every: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", check.whole_number("count", self.count))
        object.__setattr__(self, "every", check.whole_number("every", self.every))

    def require_cover(self, steps: int) -> None:
        if self.count * self.every < steps:
            raise ValueError(
                f"participation = {self.count} epochs of {self.every} steps covers {self.count * self.every} of "
                f"{steps} steps; some records would take part more often than {self.count} times"
            )

    def classes(self, steps: int) -> list[Indices]:
        steps = check.whole_number("steps", steps)
        self.require_cover(steps)
        return [np.arange(j, steps, self.every) for j in range(min(self.every, steps))]

    def describe(self) -> str:
        return f"{self.count} epochs of {self.every} steps"


@dataclass(frozen=True, eq=False, repr=False)
class MinSeparation(Participation):
    """A record takes part at most ``count`` times, any two of them at least ``apart`` steps apart, in any order."""

    count: int
    apart: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", check.whole_number("count", self.count))
        object.__setattr__(self, "apart", check.whole_number("apart", self.apart))

    def classes(self, steps: int) -> list[Indices]:
        """Evenly spaced patterns, all of them allowed here: what these cost, this participation costs at least."""
        return self.evenly(steps).classes(steps)

    def require_cover(self, steps: int) -> None:
        self.evenly(steps).require_cover(steps)

    def evenly(self, steps: int) -> Epochs:
        """The fixed order with the most participations that is a special case of this one."""
        every = max(self.apart, -(-check.whole_number("steps", steps) // self.count))
        return Epochs(self.count, every)

    def describe(self) -> str:
        return f"at most {self.count} times, at least {self.apart} steps apart"


def once() -> Once:
    """Each record takes part in one step."""
    return Once()


def epochs(count: int, every: int) -> Epochs:
    """``count`` passes over the data in the same order, ``every`` steps each."""
    return Epochs(count, every)


def min_separation(count: int, apart: int) -> MinSeparation:
    """At most ``count`` participations, any two at least ``apart`` steps apart."""
    return MinSeparation(count, apart)


def from_epochs(steps: int, count: Any) -> Participation:
    """What ``steps`` and ``epochs`` alone say: once, or fixed order with equal epochs, the last of which may be
    short."""
    count = check.whole_number("epochs", count)
    if count == 1:
        return Once()
    every = -(-steps // count)
    if (count - 1) * every >= steps:
        raise ValueError(
            f"epochs = {count} does not fit steps = {steps}: with {every} steps an epoch there are only "
            f"{-(-steps // every)}. Say participation=epochs(count, every=steps_per_epoch)"
        )
    return Epochs(count, every)
