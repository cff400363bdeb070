"""The Flower strategy on a grid in this process: Flower's own messages and loop, no network."""

import logging

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import HorizonError, ParticipationError
from antiphase.federated import Verdict

flwr = pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, MetricRecord  # noqa: E402
from flwr.serverapp import PrivacySpent  # noqa: E402
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from antiphase.federated.flower import DifferentialPrivacyCorrelatedNoise  # noqa: E402
from tests.federated.grid import MODEL, LocalGrid, record, shifted  # noqa: E402

NAMES = [f"client {i}" for i in range(6)]


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Messages carry the ids of a run, which Flower sets in a ServerApp's process."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def private(inner=None, noise_multiplier=0.5, clipping_norm=1.0, num_sampled_clients=2, **options):
    inner = FedAvg(fraction_evaluate=0.0) if inner is None else inner
    options = {"rounds": 5, "min_separation": 3, "target_delta": 1e-6} | options
    return DifferentialPrivacyCorrelatedNoise(
        inner, noise_multiplier, clipping_norm, num_sampled_clients, **options
    )


def test_a_training_from_end_to_end():
    strategy, grid = private(), LocalGrid(NAMES)
    assert strategy.privacy_spent() == PrivacySpent(0.0, 1e-6, 0, "antiphase")
    result = strategy.start(grid, record(MODEL), num_rounds=5)
    trained = grid.asked[::2]  # the others are for evaluation, which is off
    assert [len(asked) for asked in trained] == [2] * 5
    assert set(trained[0]) == set(trained[3]), "each again after three rounds"
    assert [rounds for rounds in grid.rounds if rounds] == [{1}, {2}, {3}, {4}, {5}]
    assert result.train_metrics_clientapp == {}, "clients' metrics of training are dropped"
    assert result.arrays["seen"].numpy() == 7
    assert not (result.arrays["weight"].numpy() == MODEL["weight"]).any()
    assert strategy.privacy_spent().epsilon == strategy.mechanism.epsilon()
    assert strategy.statement().unit == "user"


def test_what_is_released_is_the_mean_of_clipped_updates_with_little_noise():
    """Almost without noise, it is FedAvg's mean, with equal weights whatever clients report."""
    answers = {"client 0": 0.1, "client 1": 0.3}
    grid = LocalGrid(
        NAMES[:2], lambda name, message: shifted(message.content["arrays"], answers[name])
    )
    strategy = private(noise_multiplier=1e-6, clipping_norm=100.0, rounds=1, min_separation=1)
    result = strategy.start(grid, record(MODEL), num_rounds=1)
    assert np.allclose(result.arrays["weight"].numpy(), 0.2, atol=1e-3)
    clipped = private(noise_multiplier=1e-6, clipping_norm=0.3, rounds=1, min_separation=1)
    result = clipped.start(grid, record(MODEL), num_rounds=1)
    # nine coordinates: 0.1 has norm 0.3, and 0.3 is shortened to it
    assert np.allclose(result.arrays["weight"].numpy(), 0.1, atol=1e-3)


def test_the_noise_is_designed_for_what_the_server_does():
    rates = [1.0, 0.8, 0.6, 0.4, 0.2]
    strategy = private(
        FedAvgM(server_momentum=0.9, server_learning_rate=0.5), server_learning_rates=rates
    )
    workload = strategy.mechanism.factorization.workload
    assert (workload.momentum, list(workload.learning_rates)) == (0.9, rates)
    strategy = private(FedAvgM(server_momentum=0.9, server_learning_rate=0.5))
    assert set(strategy.mechanism.factorization.workload.learning_rates) == {0.5}
    own = ap.design("dp-sgd", steps=5, participation=ap.min_separation(2, 3))
    assert private(mechanism=own).mechanism.factorization is own


def test_the_server_steps_like_flowers_fedavgm():
    """Almost without noise, and with nothing to clip."""
    grid = LocalGrid(NAMES[:2], lambda name, message: shifted(message.content["arrays"], 0.1))
    options = {"server_momentum": 0.9, "server_learning_rate": 0.5, "fraction_evaluate": 0.0}
    ours = private(FedAvgM(**options), 1e-6, 100.0, rounds=4, min_separation=1).start(
        grid, record(MODEL), num_rounds=4
    )
    theirs = FedAvgM(**options).start(grid, record(MODEL), num_rounds=4)
    assert np.allclose(ours.arrays["weight"].numpy(), theirs.arrays["weight"].numpy(), atol=1e-2)
    assert np.isclose(theirs.arrays["weight"].numpy()[0, 0], 0.05 * (1 + 1.9 + 2.71 + 3.439))


@pytest.mark.parametrize("inner", [FedAdam(), FedMedian(), object()])
def test_strategies_that_do_not_add_up_updates_are_refused(inner):
    with pytest.raises(ValueError, match="FedAvg"):
        private(inner)


def test_fedprox_sends_its_mu_to_clients():
    seen = []
    grid = LocalGrid(
        NAMES, lambda name, message: seen.append(message.content["config"]["proximal-mu"])
    )
    private(FedProx(proximal_mu=0.25, fraction_evaluate=0.0)).start(
        grid, record(MODEL), num_rounds=1
    )
    assert seen == [0.25, 0.25]


def test_bad_replies_are_refused_counted_and_training_continues():
    broken = ArrayRecord(
        {name: Array("float32", (1,), "numpy.ndarray", b"no array") for name in MODEL}
    )
    answers = {
        "client 0": lambda a: None,
        "client 1": lambda a: shifted(a, np.nan),
        "client 2": lambda a: shifted(a, 1e30),
        "client 3": lambda a: {"weight": np.zeros((3, 2))},
        "client 4": lambda a: shifted(a, 0) | {"bias": np.zeros(4)},
        "client 5": lambda a: broken,
    }
    grid = LocalGrid(NAMES, lambda name, message: answers[name](message.content["arrays"]))
    strategy = private(num_sampled_clients=6, rounds=2, min_separation=1)
    result = strategy.start(grid, record(MODEL), num_rounds=2)
    counts = strategy.server.counts
    assert counts[Verdict.DROPPED_OUT] == counts[Verdict.NOT_FINITE] == counts[Verdict.CLIPPED] == 2
    assert counts[Verdict.MISSHAPEN] == 6
    assert np.isfinite(result.arrays["weight"].numpy()).all()
    assert strategy.privacy_spent().epsilon == strategy.mechanism.epsilon()


def test_duplicate_and_foreign_replies_are_refused():
    class Twice(LocalGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            for reply in replies[:1]:
                reply.metadata.__dict__["_src_node_id"] = (
                    105  # the last client, which was not selected
                )
            return replies + replies

    strategy = private(rounds=1, min_separation=1)
    strategy.start(Twice(NAMES), record(MODEL), num_rounds=1)
    counts = strategy.server.counts
    assert counts[Verdict.UNINVITED] == 2
    assert (
        counts[Verdict.SUMMED] + counts[Verdict.CLIPPED]
        == counts[Verdict.DUPLICATE]
        == counts[Verdict.DROPPED_OUT]
        == 1
    )


def test_a_killed_server_resumes(tmp_path):
    class KilledError(Exception):
        pass

    def until(last):
        def answer(name, message):
            if message.content["config"]["server-round"] > last:
                raise KilledError
            return shifted(message.content["arrays"], 0.1)

        return LocalGrid(NAMES, answer)

    with pytest.raises(KilledError):
        private(folder=tmp_path).start(until(2), record(MODEL), num_rounds=5)
    seen = {}
    strategy, grid = private(folder=tmp_path), LocalGrid(NAMES)
    result = strategy.start(
        grid,
        record(MODEL),
        num_rounds=5,
        evaluate_fn=lambda n, arrays: seen.setdefault(n, MetricRecord({"n": n})),
    )
    assert [rounds for rounds in grid.rounds if rounds] == [{3}, {4}, {5}]
    assert list(seen) == list(result.evaluate_metrics_serverapp) == [2, 3, 4, 5]
    assert strategy.privacy_spent().num_releases == 5
    assert strategy.privacy_spent().epsilon == strategy.mechanism.epsilon()
    again = private(folder=tmp_path).start(grid, record(MODEL), num_rounds=5)
    assert (again.arrays["weight"].numpy() == result.arrays["weight"].numpy()).all(), (
        "nothing is left"
    )


def test_clients_with_new_names_after_a_restart_are_refused(tmp_path):
    """As of SuperNodes without keys and of simulations: each would count as a new client."""
    private(folder=tmp_path).start(LocalGrid(NAMES), record(MODEL), num_rounds=2)
    with pytest.raises(
        ParticipationError, match=r"none of the 6 clients.*--auth-supernode-private-key"
    ):
        private(folder=tmp_path).start(
            LocalGrid([f"new {i}" for i in range(6)]), record(MODEL), num_rounds=5
        )
    private(folder=tmp_path).start(LocalGrid([*NAMES, "new"]), record(MODEL), num_rounds=5)


def test_a_population_that_is_too_small_is_reported_with_the_minimum(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    strategy = private()
    strategy.start(LocalGrid(NAMES[:5]), record(MODEL), num_rounds=5)
    assert "needs at least 6" in caplog.text
    assert strategy.server.counts[Verdict.VACANT] > 0
    caplog.clear()
    private().start(LocalGrid(NAMES), record(MODEL), num_rounds=5)
    assert "needs at least" not in caplog.text


def test_past_the_plan_no_client_is_asked():
    grid = LocalGrid(NAMES)
    with pytest.raises(HorizonError, match="num_rounds = 6"):
        private().start(grid, record(MODEL), num_rounds=6)
    assert grid.asked == []


def test_a_second_training_is_not_part_of_the_plan(tmp_path):
    """Without a folder, a second start would be a second release that nobody accounts for."""
    strategy, grid = private(), LocalGrid(NAMES)
    strategy.start(grid, record(MODEL), num_rounds=2)
    asked = list(grid.asked)
    with pytest.raises(HorizonError, match="2 rounds of this plan were released"):
        strategy.start(grid, record(MODEL), num_rounds=5)
    assert grid.asked == asked
    stored = private(folder=tmp_path)
    stored.start(grid, record(MODEL), num_rounds=2)
    stored.start(grid, record(MODEL), num_rounds=5)
    assert stored.privacy_spent().num_releases == 5


def test_missing_and_conflicting_arguments_are_named():
    with pytest.raises(TypeError, match=r"noise_multiplier = 0.5, target_epsilon = 2"):
        private(target_epsilon=2.0)
    with pytest.raises(TypeError, match="clipping_norm = None"):
        private(clipping_norm=None)
    with pytest.raises(TypeError, match="num_sampled_clients = None"):
        private(num_sampled_clients=None)
    with pytest.raises(ValueError, match="min_separation = 0"):
        private(min_separation=0)
    with pytest.raises(ValueError, match="at most 2 times"):
        private(mechanism=ap.design("dp-sgd", steps=5))
    with pytest.raises(ValueError, match="no server before start"):
        _ = private().server


def test_epsilon_is_the_target():
    strategy = private(noise_multiplier=None, target_epsilon=2.0)
    assert 1.999 < strategy.mechanism.epsilon() <= 2.0
    assert strategy.mechanism.factorization.participation == ap.min_separation(2, 3)
    assert private(min_separation=5).mechanism.factorization.participation == ap.once()
    assert private(max_participations=1).mechanism.factorization.participation == ap.once()
