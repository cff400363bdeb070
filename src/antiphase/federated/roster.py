"""Who was asked to take part how often, and when: the separation that the sensitivity rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from antiphase._util import checks as check
from antiphase.participation import Participation


class Roster:
    """How often each user was asked, and when last: two numbers a user, however many rounds there are.

    A user has taken part once asked, whether or not an answer comes. Otherwise who is asked later, in the place of
    whom, would depend on what users answered, and zeroing one user's answers would change those of others.

    Guarantee: `choose` returns users who may take part, each once.   [G18]
    """

    def __init__(self, participation: Participation) -> None:
        _require_any_order(participation)
        self._count, self._apart = participation.max_participations, participation.separation
        self._asked: dict[
            str, tuple[int, int]
        ] = {}  # how often, and in which round last: a queue, newest last

    def __len__(self) -> int:
        """How many users have been asked at least once."""
        return len(self._asked)

    def __contains__(self, user: str) -> bool:
        return user in self._asked

    def may_take_part(self, user: str, number: int) -> bool:
        """Whether ``user`` may be asked in round ``number``, counted from 0."""
        count, last = self._asked.get(user, (0, 0))
        # PRIVACY: the sensitivity was computed for so many participations, so far apart, and no others.   [G18]
        return not count or (count < self._count and number - last >= self._apart)

    def choose(self, number: int, available: Iterable[str], wanted: int) -> list[str]:
        """Up to ``wanted`` of the available users: those who may take part, the longest not asked first.

        Those never asked come before all others, in the order given. With everybody there at all times no other
        choice needs fewer users: see `smallest_population`.
        """
        there = dict.fromkeys(available)
        queue = chain(
            (u for u in there if u not in self._asked), (u for u in self._asked if u in there)
        )
        return list(islice((user for user in queue if self.may_take_part(user, number)), wanted))

    def record(self, number: int, users: Iterable[str]) -> None:
        """Write down that these were asked in round ``number``."""
        for user in users:
            count, _ = self._asked.pop(user, (0, 0))
            self._asked[user] = (count + 1, number)  # now the last in the queue

    def state(self) -> dict[str, Any]:
        """For a checkpoint. Who was asked when is as private as the users are."""
        return {
            "users": list(self._asked),
            "count": np.array([count for count, _ in self._asked.values()], dtype=np.int32),
            "last": np.array([last for _, last in self._asked.values()], dtype=np.int32),
        }

    def restore(self, state: dict[str, Any]) -> None:
        users: Sequence[str] = state["users"]
        pairs = zip(state["count"].tolist(), state["last"].tolist(), strict=True)
        self._asked = dict(zip(users, pairs, strict=True))


def smallest_population(participation: Participation, rounds: int, clients_per_round: int) -> int:
    """How many users a plan needs at least, so that every round can have its clients; as many suffice, if always there.

    No two of the rounds that lie closer together than the separation share a user, and nobody takes part more often
    than planned. In a queue that users leave for a round and join again at its end, so many are enough.

    >>> from antiphase import min_separation
    >>> smallest_population(min_separation(4, apart=10), rounds=40, clients_per_round=100)
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
    """Raise ValueError if a user's rounds would follow from the first of them."""
    check.instance("participation", participation, Participation)
    if participation.fixed_order and participation.max_participations > 1:
        raise ValueError(
            f"participation = {participation.describe()}: users take part when they are available, not in a fixed "
            "order; design for once() or min_separation(count, apart)"
        )
