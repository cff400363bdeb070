"""The server: what is released, who takes part, and what is refused."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import HorizonError
from antiphase.federated import Server, Verdict
from tests.federated import setting
from tests.federated.setting import (
    MODEL,
    TRAINED,
    USERS,
    answer_all,
    mechanism,
    row,
    server,
    train,
    update,
)


def released(before, after, clients=4):
    """The noisy sum, from the models before and after a round of a server that only adds means."""
    return {name: (after[name].astype(float) - before[name]) * clients for name in TRAINED}


def test_what_is_released_is_the_sum_of_clipped_updates_and_a_row_of_noise():
    m = mechanism(noise_multiplier=0.5, clip_norm=2.0)
    s = server(m)
    for t in range(m.steps):
        users, before = s.begin_round(USERS), s.model
        answers = {
            user: update(10 * t + i, norm=4.0 if i == 1 else 0.5) for i, user in enumerate(users)
        }
        for user, given in answers.items():
            s.receive(user, given)
        noise = row(m, t)
        for name, total in released(before, s.finish_round()).items():
            expected = (
                sum(a[name] * (0.5 if i == 1 else 1.0) for i, a in enumerate(answers.values()))
                + noise[name]
            )
            assert np.allclose(total, expected, atol=1e-5)
    assert s.model["seen"] == 7, "arrays that are not floating-point stay unchanged"
    assert s.counts[Verdict.CLIPPED] == 6
    assert s.counts[Verdict.SUMMED] == 18


@pytest.mark.parametrize("options", [
    {}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 0.3},
    {"weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.05, "learning_rates": [1, 0.9, 0.5, 0.4, 0.1, 0]},
])  # fmt: skip
def test_the_server_computes_its_workload(options):
    """Against `Workload.apply`: all rows of sums and noise through A."""
    workload = ap.Workload.sgd(6, **options)
    m = mechanism(workload=workload)
    model = {name: np.zeros(MODEL[name].shape) for name in TRAINED}
    s = Server(m, model, clients_per_round=4, key=ap.Key.insecure(0))
    sums = []
    for t in range(6):
        users = s.begin_round(USERS)
        answer_all(s, users, seed=100 * t)
        sums.append(
            sum(update(100 * t + i)["weight"].ravel() for i in range(len(users)))
            + row(m, t)["weight"].ravel()
        )
        expected = -workload.apply(-np.array(sums + [sums[0]] * (5 - t)) / 4)[t]
        assert np.allclose(s.finish_round()["weight"].ravel(), expected, rtol=1e-6, atol=1e-7)


def test_workloads_that_are_no_optimizer_are_refused():
    m = mechanism()
    for workload in (
        ap.Workload.sgd(6).with_ema(0.9),
        ap.Workload.sgd(6, delay=1),
        ap.Workload.from_matrix(np.tri(6)),
    ):
        with pytest.raises(ValueError, match=r"Workload\.sgd"):
            server(m, workload=workload)
    with pytest.raises(ValueError, match="5 steps"):
        server(m, workload=ap.Workload.sgd(5))


@pytest.mark.parametrize("answering", [0, 1, 2, 3, 4])
def test_whoever_answers_the_noise_and_the_divisor_are_the_plans(answering):
    m = mechanism()
    s = server(m)
    train(s, until=2)
    users, before = s.begin_round(USERS), s.model
    answer_all(s, users[:answering])
    rest = released(before, s.finish_round())
    for name in TRAINED:
        left = rest[name] - sum(
            (update(i)[name] for i in range(answering)), np.zeros(MODEL[name].shape)
        )
        assert np.allclose(left, row(m, 2)[name], atol=1e-6)
    assert s.counts[Verdict.DROPPED_OUT] == 4 - answering
    assert s.epsilon() == m.epsilon()
    assert s.epsilon(spent=True) == m.epsilon(rows=3)


def test_bad_updates_are_refused_counted_and_add_nothing():
    """All kinds in one round: only valid updates are in the sum."""
    m = mechanism(count=2)
    s = server(m)
    first = s.begin_round(USERS)
    answer_all(s, first)
    s.finish_round()
    users, before = s.begin_round(USERS), s.model
    assert not set(users) & set(first), "users of the last round may not take part yet"
    assert s.receive(users[0], update(0), number=0) is Verdict.LATE
    assert s.receive(users[0], update(0), number=1) is Verdict.SUMMED
    assert s.receive(users[0], update(1)) is Verdict.DUPLICATE
    assert s.receive(first[0], update(2)) is Verdict.EARLY
    assert s.receive("stranger", update(3)) is Verdict.UNINVITED
    assert s.receive(users[1], update(4) | {"bias": np.full(3, np.nan)}) is Verdict.NOT_FINITE
    assert s.receive(users[1], update(4)) is Verdict.DUPLICATE, "one update each, good or bad"
    assert s.receive(users[2], update(5) | {"bias": np.zeros(4)}) is Verdict.MISSHAPEN
    huge = {name: np.full(MODEL[name].shape, 1e30) for name in TRAINED}
    assert s.receive(users[3], huge) is Verdict.CLIPPED
    rest = released(before, s.finish_round())
    for name in TRAINED:
        expected = update(0)[name] + huge[name] / (1e30 * 4) + row(m, 1)[name]  # 16 coordinates
        assert np.allclose(rest[name], expected, atol=1e-6)
    once = ("CLIPPED", "NOT_FINITE", "MISSHAPEN", "LATE", "EARLY", "UNINVITED")
    several = {"SUMMED": 5, "DUPLICATE": 2, "DROPPED_OUT": 0, "VACANT": 0}
    expected = dict.fromkeys(once, 1) | several
    assert {verdict.name: count for verdict, count in s.counts.items()} == expected
    train(s)
    assert s.epsilon(spent=True) == s.epsilon() == m.epsilon()


def test_with_too_few_users_places_stay_vacant():
    m = mechanism(rounds=6, count=3, apart=2)
    s = server(m, clients=4)
    assert s.min_population == 8
    train(s, USERS[:7])
    assert s.counts[Verdict.VACANT] == 3  # one in every other round
    assert s.counts[Verdict.SUMMED] == 21
    train(enough := server(m, clients=4), USERS[:8])
    assert enough.counts[Verdict.VACANT] == 0


def test_record_and_replay():
    """Whatever one user sends: only released rows change, and by no more than the sensitivity."""
    m = mechanism(rounds=8, count=4, apart=2)

    def run(theirs):
        s, rows, asked = server(m), [], []
        for t in range(8):
            users, before = s.begin_round(USERS), s.model
            asked.append(users)
            for i, user in enumerate(users):
                given = theirs(t) if user == "user 3" else update(100 * t + i)
                if given is not None:
                    s.receive(user, given)
            rows.append(
                np.concatenate([a.ravel() for a in released(before, s.finish_round()).values()])
            )
        return asked, np.array(rows), s

    asked, rows, s = run(lambda t: update(9 + t, norm=50.0))
    C = m.factorization.encoder()
    for theirs in [
        lambda t: None,
        lambda t: {name: np.zeros(MODEL[name].shape) for name in TRAINED},
        lambda t: {name: np.full(MODEL[name].shape, np.nan) for name in TRAINED},
        lambda t: "nonsense",
    ]:
        others, without, other = run(theirs)
        assert others == asked, "the selection depends on no update"
        distance = np.linalg.norm(C @ (rows - without))
        assert 0.5 < distance <= m.sensitivity * (1 + 1e-5)
        assert other.epsilon(spent=True) == s.epsilon(spent=True)
        assert other._roster.state()["users"] == s._roster.state()["users"]


def test_past_the_plan_nothing_is_released():
    s = train(server())
    before = s.model
    with pytest.raises(HorizonError, match="all 6 rounds"):
        s.begin_round(USERS)
    assert all((s.model[name] == before[name]).all() for name in before)


def test_rounds_are_begun_and_finished_in_turn():
    s = server()
    with pytest.raises(RuntimeError, match="begin_round"):
        s.finish_round()
    with pytest.raises(RuntimeError, match="begin_round"):
        s.receive("user 0", update())
    s.begin_round(USERS)
    with pytest.raises(RuntimeError, match="round 0 is not finished"):
        s.begin_round(USERS)


def test_the_model_cannot_be_changed_from_outside():
    s = server()
    with pytest.raises(ValueError, match="read-only"):
        s.model["weight"][0] = 1
    start = np.ones(3, np.float32)
    s = Server(mechanism(), {"w": start}, clients_per_round=1, key=ap.Key.insecure(0))
    start[:] = 5
    assert (s.model["w"] == 1).all()


def test_mechanisms_whose_promise_is_not_kept_are_refused():
    f = ap.design("dp-sgd", steps=6)
    with pytest.raises(ValueError, match="protects users"):
        server(ap.calibrate(f, noise_multiplier=1.0))
    with pytest.raises(ValueError, match="no amplification"):
        server(
            ap.calibrate(f, noise_multiplier=1.0, sampling=ap.sampling.Poisson(0.1), unit="user")
        )
    in_order = ap.design("dp-mf", steps=6, epochs=2)
    with pytest.raises(ValueError, match="fixed order"):
        server(ap.calibrate(in_order, noise_multiplier=1.0, unit="user"))


def test_the_statement_is_about_users():
    s = train(server(), until=2)
    statement = s.statement()
    assert statement.unit == "user"
    assert statement.released_rows == 2
    assert "private for each user" in " ".join(str(statement).split())
    assert statement.insecure
    assert "INSECURE" in statement.noise_source
    assert "several devices" in str(statement)
    assert "AES" in Server(mechanism(), MODEL, clients_per_round=1).statement().noise_source


def test_every_mechanism_that_allows_a_separation_works():
    for name in ("dp-sgd", "tree", "dp-mf+", "sqrt-toeplitz"):
        train(server(mechanism(name=name)))


def test_every_training_has_its_own_noise():
    rows = [
        train(Server(mechanism(), setting.MODEL, clients_per_round=4), until=1).model["weight"]
        for _ in range(2)
    ]
    assert (rows[0] != rows[1]).all()
