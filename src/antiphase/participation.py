"""Participation: the steps in which one record or one user may take part."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Indices
from antiphase._util.values import Value


class Participation(Value, ABC):
    """The steps that one record may take part in: the assumption that the sensitivity rests on.

    Build one with `once`, `epochs` or `min_separation`. Steps are counted from 0.
    """

    fixed_order: bool
    """Whether the first participation determines all others, so that `patterns` lists every one."""

    @property
    @abstractmethod
    def max_participations(self) -> int:
        """How many steps one record takes part in, at most."""

    @property
    @abstractmethod
    def separation(self) -> int:
        """Least number of steps from one participation of a record to its next.

        It is `sys.maxsize` if there is no next one.
        """

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps in an epoch; None if training is not divided into epochs."""
        return None

    @abstractmethod
    def patterns(self, steps: int) -> list[Indices]:
        """A partition of the steps into sets of steps that one record may take part in.

        In a fixed order these are all maximal sets; otherwise they are the evenly spaced ones.
        """

    def evenly_spaced(self, steps: int) -> Participation:
        """The special case whose participations are evenly spaced, with as many as possible."""
        return self

    def require_cover(self, steps: int) -> None:
        """Raise ValueError if this participation cannot cover so many steps."""
        check.whole_number("steps", steps)

    @abstractmethod
    def describe(self) -> str:
        """A short description, such as ``16 epochs of 128 steps``."""

    def __repr__(self) -> str:
        return f"<Participation {self.describe()}>"


@dataclass(frozen=True, eq=False, repr=False)
class Once(Participation):
    """Each record takes part in one step."""

    fixed_order = True
    max_participations = 1
    separation = sys.maxsize

    def patterns(self, steps: int) -> list[Indices]:
        """Each step on its own."""
        return list(np.arange(check.whole_number("steps", steps))[:, None])

    def describe(self) -> str:
        """``once``."""
        return "once"


@dataclass(frozen=True, eq=False, repr=False)
class Epochs(Participation):
    """Fixed order: a record takes part in steps ``j, j + every, j + 2·every, …``.

    The last epoch may be short: records whose step would come after the last one take part once
    less.

    Attributes:
        count: number of epochs.
        every: number of steps in an epoch.

    Example:
        >>> [list(map(int, pattern)) for pattern in Epochs(2, every=3).patterns(5)]
        [[0, 3], [1, 4], [2]]
    """

    count: int
    every: int
    fixed_order = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", check.whole_number("count", self.count))
        object.__setattr__(self, "every", check.whole_number("every", self.every))

    @property
    def max_participations(self) -> int:
        """Once in every epoch."""
        return self.count

    @property
    def separation(self) -> int:
        """The length of an epoch."""
        return self.every

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch."""
        return self.every

    def require_cover(self, steps: int) -> None:
        """Raise ValueError if the epochs have fewer than ``steps`` steps together."""
        if self.count * self.every < check.whole_number("steps", steps):
            raise ValueError(
                f"participation = {self.count} epochs of {self.every} steps covers "
                f"{self.count * self.every} of {steps} steps; some records would take part more "
                f"often than {self.count} times"
            )

    def patterns(self, steps: int) -> list[Indices]:
        """One pattern for each step of the first epoch."""
        self.require_cover(steps)
        return [np.arange(j, steps, self.every) for j in range(min(self.every, steps))]

    def describe(self) -> str:
        """``k epochs of b steps``."""
        return f"{self.count} epochs of {self.every} steps"


@dataclass(frozen=True, eq=False, repr=False)
class MinSeparation(Participation):
    """At most ``count`` participations, any two at least ``apart`` steps apart, in any order.

    Attributes:
        count: the maximum number of participations.
        apart: the least number of steps between two participations.
    """

    count: int
    apart: int
    fixed_order = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", check.whole_number("count", self.count))
        object.__setattr__(self, "apart", check.whole_number("apart", self.apart))

    @property
    def max_participations(self) -> int:
        """``count``."""
        return self.count

    @property
    def separation(self) -> int:
        """``apart``."""
        return self.apart

    def patterns(self, steps: int) -> list[Indices]:
        """Those of `evenly_spaced`, all of them allowed here; so they give a lower bound."""
        return self.evenly_spaced(steps).patterns(steps)

    def evenly_spaced(self, steps: int) -> Epochs:
        """The fixed order with the most participations among those allowed here."""
        every = max(self.apart, -(-check.whole_number("steps", steps) // self.count))
        return Epochs(self.count, every)

    def describe(self) -> str:
        """``at most k times, at least b steps apart``."""
        return f"at most {self.count} times, at least {self.apart} steps apart"


def once() -> Once:
    """Each record takes part in one step."""
    return Once()


def epochs(count: int, every: int) -> Epochs:
    """Passes over the data in a fixed order.

    Args:
        count: number of epochs.
        every: number of steps in an epoch.

    Example:
        >>> epochs(16, every=128)
        <Participation 16 epochs of 128 steps>
    """
    return Epochs(count, every)


def min_separation(count: int, apart: int) -> MinSeparation:
    """Participation in any order, limited in number and frequency.

    Args:
        count: the maximum number of participations of a record.
        apart: the least number of steps between two participations.

    Example:
        >>> min_separation(4, apart=10)
        <Participation at most 4 times, at least 10 steps apart>
    """
    return MinSeparation(count, apart)


def from_epochs(steps: int, count: Any) -> Participation:
    """The participation that a number of steps and of epochs imply.

    Args:
        steps: number of steps of the whole training.
        count: number of epochs of equal length; the last one may be short.

    Returns:
        `Once` for one epoch, else `Epochs`.

    Raises:
        ValueError: some epoch would have no steps.
    """
    count = check.whole_number("epochs", count)
    if count == 1:
        return Once()
    every = -(-steps // count)
    if (count - 1) * every >= steps:
        raise ValueError(
            f"epochs = {count} does not fit steps = {steps}: with {every} steps in an epoch there "
            f"are only {-(-steps // every)}; use participation=epochs(count, every=…)"
        )
    return Epochs(count, every)
