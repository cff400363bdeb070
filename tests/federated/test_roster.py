"""Who may be selected, against the definition, and how many users a plan needs."""

import itertools

import numpy as np
import pytest

import antiphase as ap
from antiphase.federated import min_population
from antiphase.federated.roster import Roster


def allowed(history, count, apart):
    return len(history) <= count and all(b - a >= apart for a, b in itertools.pairwise(history))


def test_2000_trainings_against_an_oracle():
    """Random availability: only users that may take part are selected, and as many as there are."""
    rng = np.random.default_rng(3)
    vacancies = 0
    for _ in range(2000):
        count, apart, clients = (int(n) for n in rng.integers(1, 5, size=3))
        roster, users = (
            Roster(ap.min_separation(count, apart)),
            [f"u{i}" for i in range(rng.integers(1, 12))],
        )
        histories = {user: [] for user in users}
        for t in range(int(rng.integers(1, 12))):
            available = [user for user in users if rng.random() < 0.7]
            may = [user for user in available if allowed([*histories[user], t], count, apart)]
            assert [user for user in available if roster.may_take_part(user, t)] == may
            chosen = roster.choose(t, available + available, clients)
            assert len(set(chosen)) == len(chosen) == min(clients, len(may))
            assert set(chosen) <= set(may)
            vacancies += len(chosen) < clients
            roster.record(t, chosen)
            for user in chosen:
                histories[user].append(t)
            if rng.random() < 0.1:
                state, roster = roster.state(), Roster(ap.min_separation(count, apart))
                roster.restore(state)
    assert vacancies > 1000, "both cases occurred"


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("apart", [1, 2, 4, 9])
def test_the_minimum_population_suffices_and_one_less_does_not(count, apart):
    participation = ap.min_separation(count, apart)
    for rounds, clients in itertools.product((1, 3, 8, 10), (1, 2, 5)):
        enough = min_population(participation, rounds, clients)
        for population, vacant in ((enough, False), (enough - 1, True)):
            roster, short = Roster(participation), 0
            for t in range(rounds):
                chosen = roster.choose(t, map(str, range(population)), clients)
                roster.record(t, chosen)
                short += clients - len(chosen)
            assert (short > 0) == vacant, (rounds, clients, population)


def test_once_is_once():
    roster = Roster(ap.once())
    assert roster.choose(0, ["a", "b", "c"], 2) == ["a", "b"]
    roster.record(0, ["a", "b"])
    assert roster.choose(5, ["a", "b", "c"], 2) == ["c"]
    assert min_population(ap.once(), rounds=7, clients_per_round=3) == 21


def test_a_fixed_order_is_refused():
    with pytest.raises(ValueError, match=r"fixed order.*min_separation"):
        Roster(ap.epochs(2, 5))
