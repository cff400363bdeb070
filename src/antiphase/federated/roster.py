"""Roster of users: their participations, and who may be selected next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase.participation import Participation


class Roster:
    """Participations of each user: two numbers a user, however many rounds there are.

    A user has taken part once selected, whether or not an update arrives. Otherwise later
    selections would depend on the updates of users, and zeroing one user's updates would change
    who takes part.

    Guarantee: `choose` returns users who may take part, each once.   [G18]

    Args:
        participation: `once` or `min_separation`.
    """

    def __init__(self, participation: Participation) -> None:
        _require_any_order(participation)
        self._participation = participation
        # User → (participations, last round), in the order of last rounds.
        self._selected: dict[str, tuple[int, int]] = {}

    def __contains__(self, user: str) -> bool:
        return user in self._selected

    def may_take_part(self, user: str, number: int) -> bool:
        """Whether ``user`` may be selected in round ``number``, counted from 0."""
        count, last = self._selected.get(user, (0, 0))
        limits = self._participation
        # PRIVACY: the sensitivity was computed for so many participations, so far apart, and no
        # others.   [G18]
        return not count or (
            count < limits.max_participations and number - last >= limits.separation
        )

    def choose(self, number: int, available: Iterable[str], count: int) -> list[str]:
        """Up to ``count`` of the available users that may take part in round ``number``.

        New users come first, in the order given; then those that were selected longest ago. If all
        users are always available, no other choice needs fewer users: see `min_population`.
        """
        candidates = dict.fromkeys(available)
        queue = chain(
            (user for user in candidates if user not in self._selected),
            (user for user in self._selected if user in candidates),
        )
        return list(islice((user for user in queue if self.may_take_part(user, number)), count))

    def record(self, number: int, users: Iterable[str]) -> None:
        """Record that these users were selected in round ``number``."""
        for user in users:
            count, _ = self._selected.pop(user, (0, 0))
            self._selected[user] = (count + 1, number)  # moves the user to the end

    def state(self) -> dict[str, Any]:
        """Content for a checkpoint. It is as private as the participation of users."""
        return {
            "users": list(self._selected),
            "count": np.array([count for count, _ in self._selected.values()], dtype=np.int32),
            "last": np.array([last for _, last in self._selected.values()], dtype=np.int32),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        users: Sequence[str] = state["users"]
        pairs = zip(state["count"].tolist(), state["last"].tolist(), strict=True)
        self._selected = dict(zip(users, pairs, strict=True))


def min_population(participation: Participation, rounds: int, clients_per_round: int) -> int:
    """Least number of users with which every round can have its clients.

    Necessary: rounds that are closer together than the separation share no user, and nobody takes
    part more often than planned. Sufficient if users are always available, in the order in which
    `Roster` selects them.

    Args:
        participation: `once` or `min_separation`.
        rounds: number of rounds.
        clients_per_round: number of clients in each round.

    Example:
        >>> from antiphase import min_separation
        >>> min_population(min_separation(4, apart=10), rounds=40, clients_per_round=100)
        1000
    """
    rounds = check.whole_number("rounds", rounds)
    clients = check.whole_number("clients_per_round", clients_per_round)
    _require_any_order(participation)
    return max(
        clients * min(participation.separation, rounds),
        -(-clients * rounds // participation.max_participations),
    )


def _require_any_order(participation: Participation) -> None:
    """Raise ValueError if a user's first round determines all others."""
    check.instance("participation", participation, Participation)
    if participation.fixed_order and participation.max_participations > 1:
        raise ValueError(
            f"participation = {participation.describe()}: users take part when they are available, "
            "not in a fixed order; design for once() or min_separation(count, apart)"
        )
