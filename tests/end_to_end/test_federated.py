"""Federated training: dropouts, bad clients, a thousand rounds, a killed deployment."""

import gc
import hashlib
import resource
import sys
import time
import tracemalloc

import numpy as np
import pytest

import antiphase as ap
from antiphase._util import files
from antiphase.errors import FileFormatError
from antiphase.federated import Server, Verdict
from antiphase.ledger.write_ahead import RECORD_SIZE
from tests.federated import setting

pytestmark = [pytest.mark.issue(10), pytest.mark.slow]


@pytest.mark.parametrize("dropping", ["nobody", "one", "half", "all"])
def test_dropping_out_changes_neither_noise_nor_epsilon(shown, dropping):
    m = setting.mechanism(rounds=6)
    gone = {"nobody": 0, "one": 1, "half": 2, "all": 4}[dropping]
    s = setting.server(m)
    setting.train(s, until=3)
    users, before = s.begin_round(setting.USERS), s.model
    setting.answer_all(s, users[gone:])
    after = s.finish_round()
    sums = {
        name: sum((setting.update(i)[name] for i in range(4 - gone)), 0.0)
        for name in setting.TRAINED
    }
    noise = {
        n: (after[n].astype(float) - before[n]) * s.clients_per_round - sums[n]
        for n in setting.TRAINED
    }
    planned = setting.row(m, 3)
    error = max(np.abs(noise[name] - planned[name]).max() for name in setting.TRAINED)
    setting.train(s)
    shown(
        f"{dropping} dropping out: noise off the plan's by; ε",
        f"{error:.0e}; {s.epsilon(spent=True):.6f}",
        f"0 (float32); {m.epsilon():.6f}",
    )
    assert error < 1e-6
    assert s.epsilon(spent=True) == m.epsilon()
    assert s.counts[Verdict.DROPPED_OUT] == gone


BAD = {
    "answers twice": (
        lambda s, u: [s.receive(u, setting.update(1)), s.receive(u, setting.update(2))],
        Verdict.DUPLICATE,
    ),
    "answers too early": (lambda s, u: [s.receive("user 0", setting.update(1))], Verdict.EARLY),
    "NaN": (
        lambda s, u: [s.receive(u, setting.update(1) | {"bias": np.full(3, np.nan)})],
        Verdict.NOT_FINITE,
    ),
    "wrong shape": (
        lambda s, u: [s.receive(u, setting.update(1) | {"bias": np.zeros((3, 1))})],
        Verdict.MISSHAPEN,
    ),
    "1e30": (
        lambda s, u: [
            s.receive(
                u, {n: np.full(setting.MODEL[n].shape, 1e30, np.float32) for n in setting.TRAINED}
            )
        ],
        Verdict.CLIPPED,
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_clients(shown, kind):
    s = setting.server(setting.mechanism(rounds=6, count=3, apart=2))
    setting.train(s, until=1)  # user 0 took part
    users, before = s.begin_round(setting.USERS), s.model
    verdicts = BAD[kind][0](s, users[0])
    after = s.finish_round()
    moved = {
        n: (after[n].astype(float) - before[n]) * 4 - setting.row(s.mechanism, 1)[n]
        for n in setting.TRAINED
    }
    length = np.sqrt(sum((a**2).sum() for a in moved.values()))
    setting.train(s)
    shown(
        f"a client: {kind}",
        f"{verdicts[-1]}; adds at most {length:.4f}; counted {s.counts[BAD[kind][1]]}; "
        f"{s.position} of 6 rounds done",
        "refused or clipped (norm ≤ 1), counted, goes on",
    )
    assert verdicts[-1] is BAD[kind][1]
    assert length <= 1 + 1e-5
    assert s.counts[BAD[kind][1]] == 1
    assert s.epsilon(spent=True) == s.mechanism.epsilon()


@pytest.mark.long
def test_a_thousand_rounds_with_5000_users(shown):
    """Fifty clients a round, a hundred rounds apart, momentum; the design included."""
    began = time.perf_counter()
    workload = ap.Workload.sgd(1000, momentum=0.9, learning_rates=np.linspace(1, 0.05, 1000))
    f = ap.design("dp-mf", workload=workload, participation=ap.min_separation(10, 100))
    m = ap.calibrate(f, epsilon=8.0, delta=1e-6, unit="user")
    designed = time.perf_counter() - began
    rng = np.random.default_rng(0)
    users, centre = [f"user {i}" for i in range(5000)], rng.normal(size=(5000, 100)) + 3
    s = Server(m, {"w": np.zeros(100, np.float32)}, clients_per_round=50)
    assert s.min_population == 5000
    used = {}
    tracemalloc.start()
    while s.remaining:
        model = s.model["w"].astype(float)
        for user in s.begin_round(users):
            s.receive(user, {"w": 0.01 * (centre[int(user.split()[1])] - model)})
        s.finish_round()
        if s.position % 300 == 0:
            gc.collect()
            used[s.position] = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    took = time.perf_counter() - began
    grown = (used[900] - used[300]) / 600
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    shown(
        "1,000 rounds, 5,000 users", f"{took:.0f} s, {designed:.0f} s of it the design", "< 600 s"
    )
    shown(
        "memory",
        f"{grown:+.0f} bytes a round from round 300 to 900; {peak:.0f} MiB at most",
        "does not grow",
    )
    assert took < 600
    assert grown < 100
    assert s.counts[Verdict.VACANT] == 0
    assert s.counts[Verdict.SUMMED] + s.counts[Verdict.CLIPPED] == 50_000
    assert s.epsilon(spent=True) == m.epsilon() <= 8.0


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_killed_deployment_continues(shown, tmp_path):
    """One SuperLink and three SuperNodes; a node is killed and restarted, then the server."""
    from tests.federated.deployment import Deployment

    state, rounds, config = tmp_path / "state", 10, {"clients": 3, "min-separation": 1}
    config |= {
        "num-server-rounds": rounds,
        "min-available-nodes": 2,
        "timeout": 60.0,
        "folder": str(state),
    }
    outcomes: dict[int, set[str]] = {}

    def released():
        """How many rounds are in the ledger; and what each checkpoint seen on the way holds."""
        try:
            content = files.read(state / "checkpoint")
        except (FileNotFoundError, FileFormatError):
            return 0
        mark = hashlib.sha256(content["model"]["weight"].tobytes()).hexdigest()
        outcomes.setdefault(content["position"], set()).add(mark)
        return sum(path.stat().st_size // RECORD_SIZE for path in state.glob("key.*.ledger"))

    def busy(node):
        log = deployment.log(f"node{node}")
        return log.count("Receiving: train message") > log.count("Sent successfully")

    def back():
        if (
            deployment.nodes[0].poll() is not None
        ):  # refused: the SuperLink has not noticed yet that the old one is dead
            deployment.start_node(0)
        return deployment.log("node0").count("SuperNode ID") >= 2

    with Deployment(tmp_path / "flower", nodes=3) as deployment:
        deployment.run(**config)
        deployment.wait(lambda: released() >= 2 and busy(0), 400, "no round after the second")
        deployment.kill(deployment.nodes[0])
        killed_node = released()
        deployment.start_node(0)
        deployment.wait(
            lambda: released() is not None and back(), 300, "the node does not come back"
        )
        answered = deployment.log("node0").count("Sent successfully")
        deployment.wait(
            lambda: (
                released() > killed_node
                and deployment.log("node0").count("Sent successfully") > answered
            ),
            400,
            "the node does not take part any more",
        )
        deployment.wait(
            lambda: released() < rounds and (busy(0) or busy(1)),
            100,
            "no round to kill the server in",
        )
        deployment.kill(deployment.link)
        killed_server = released()
        assert killed_server < rounds, "killed within the training"
        deployment.start_link()
        deployment.run(**config)
        deployment.wait(
            lambda: released() >= rounds, 600, "does not go on after the server was killed"
        )
    ledger = next(state.glob("key.*.ledger")).read_bytes()
    marks = [ledger[i : i + RECORD_SIZE] for i in range(0, len(ledger), RECORD_SIZE)]
    participation = ap.min_separation(rounds, 1)
    f = ap.design(
        "dp-mf+", workload=ap.Workload.sgd(rounds, momentum=0.9), participation=participation
    )
    m = ap.calibrate(f, epsilon=8.0, delta=1e-5, clip_norm=0.5, unit="user")
    model = {"weight": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}
    with Server(m, model, clients_per_round=3, folder=state) as s:
        spent, done, counts = s.epsilon(spent=True), s.position, s.counts
    shown(
        "node killed, then server",
        f"in rounds {killed_node + 1} and {killed_server + 1}; {done} rounds, {len(set(marks))} "
        "rows used, each with "
        f"{max(map(len, outcomes.values()))} outcome; ε = {spent:.6f}; "
        f"{counts[Verdict.DROPPED_OUT]} answers missing",
        f"10 rounds, 10 rows, one outcome each, ε = {m.epsilon():.6f} as planned",
    )
    assert done == len(marks) == len(set(marks)) == rounds
    assert all(len(seen) == 1 for seen in outcomes.values())
    assert spent == m.epsilon() <= 8.0
