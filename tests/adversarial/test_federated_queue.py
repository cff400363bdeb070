"""Attacks on user selection: a guarantee for hash slots, and a server that asks users in turn."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.federated import Server
from antiphase.federated.roster import Roster
from tests.federated.setting import MODEL, mechanism, server, train

pytestmark = pytest.mark.issue(21)

ROUNDS, CLIENTS = 32, 4
HASH_SLOTS = ap.sampling.HashSlots()


def slotted(adjacency, sampling=HASH_SLOTS, rounds=ROUNDS):
    f = ap.design("dp-mf", steps=rounds, participation=ap.min_separation(2, rounds // 2))
    return ap.calibrate(
        f, noise_multiplier=1.0, unit="user", sampling=sampling, adjacency=adjacency
    )


def sums_of_rounds(m, updates):
    """The sum of each round, if users are asked in turn and all answer."""
    roster, sums = Roster(m.factorization.participation), []
    for number in range(m.steps):
        chosen = roster.choose(number, updates, CLIENTS)
        roster.record(number, chosen)
        sums.append(sum(updates[user] for user in chosen))
    return np.array(sums)


def true_mu(m, updates, others):
    """μ of the noise between two populations, each a number in [−1, 1] for every user."""
    moved = sums_of_rounds(m, updates) - sums_of_rounds(m, others)
    return np.linalg.norm(m.factorization.encoder() @ moved) / m.noise_scale


def mu_of_a_removal(m):
    """The true μ for removing the first user, where rounds of +1 and −1 alternate."""
    population = range(CLIENTS * ROUNDS // 2)
    updates = {f"user {i}": 1.0 - 2.0 * (i // CLIENTS % 2) for i in population}
    return true_mu(m, updates, {user: u for user, u in updates.items() if user != "user 0"})


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
def test_hash_slots_are_refused_where_users_are_asked_in_turn(adjacency, shown):
    """Row 42: removing a user moves all later ones to other rounds; μ is several times larger."""
    m = slotted(adjacency)
    ratio = mu_of_a_removal(m) / m.mu()
    shown("true μ of a queue over the μ of hash slots", f"{ratio:.1f}", "refused above 1")
    assert ratio > 3, "there is something to refuse"
    with pytest.raises(
        ValueError, match=r"sampling = HashSlots\(\).*in turn.*Nothing was released.*zero-out"
    ):
        Server(m, MODEL, clients_per_round=CLIENTS, key=ap.Key.insecure(1))


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
def test_a_refused_server_leaves_its_folder_empty(adjacency, tmp_path):
    """Row 42: refused before a key or a run is created."""
    with pytest.raises(ValueError, match="in turn"):
        Server(slotted(adjacency), MODEL, clients_per_round=CLIENTS, folder=tmp_path / "training")
    assert not (tmp_path / "training").exists()


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_guarantees_that_hold_for_a_queue_are_accepted(adjacency, shown):
    """Row 42: zeroing or replacing a user leaves all others in their rounds."""
    f = mechanism().factorization
    m = ap.calibrate(f, noise_multiplier=1.0, delta=1e-6, unit="user", adjacency=adjacency)
    train(server(m))
    updates = {f"user {i}": 1.0 for i in range(12)}
    mu = true_mu(m, updates, updates | {"user 0": 0.0 if adjacency == "zero-out" else -1.0})
    shown(f"true μ over the claimed, {adjacency}", f"{mu / m.mu():.2f}", "<= 1")
    assert mu <= m.mu() * (1 + 1e-9)
