"""Flower: a strategy wrapper that trains with user-level privacy and correlated noise.

``pip install antiphase[federated]``. In the place of Flower's ``DifferentialPrivacyServerSideFixedClipping``: the same
arguments first, then what a plan needs.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING
from typing import Any, cast

import numpy as np

from antiphase._util import checks as check
from antiphase.design import design
from antiphase.errors import HorizonError, ParticipationError
from antiphase.factorizations.base import Factorization
from antiphase.federated.server import Server
from antiphase.mechanism import Mechanism, calibrate
from antiphase.participation import Participation, once
from antiphase.participation import min_separation as at_least_apart
from antiphase.statement import PrivacyStatement
from antiphase.workload import Workload

try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid, PrivacySpent
    from flwr.serverapp.strategy import FedAvg, FedAvgM, Result, Strategy
    from flwr.serverapp.strategy.strategy_utils import sample_nodes
    from flwr.supercore import log
except ImportError as error:
    raise ImportError(
        "antiphase.federated.flower needs Flower: pip install 'antiphase[federated]'"
    ) from error

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class DifferentialPrivacyCorrelatedNoise(Strategy):
    """Central user-level privacy with correlated noise, around a FedAvg, FedAvgM or FedProx strategy.

    The server clips each client's update, sums, adds a row of noise planned for all ``rounds`` together, divides by
    ``num_sampled_clients`` (clients weigh the same, whatever they say of themselves) and applies FedAvgM's momentum and
    learning rate, for which the noise is designed. Clients are chosen so that none takes part more often than
    ``max_participations`` times, or within ``min_separation`` rounds. What clients report of their training is dropped;
    what they report of evaluation is not private.

    A client is a SuperNode's public key. One that is restarted without its key (``--auth-supernode-private-key``) is
    another client to Flower, and so to us.

    Parameters
    ----------
    strategy : Strategy
        A FedAvg, FedAvgM or FedProx strategy, for its configuration, evaluation and server momentum.
    noise_multiplier : float, optional
        As in Flower; or give ``target_epsilon``, from which it follows.
    clipping_norm : float
        The norm that each client's update is clipped to, over all arrays together.
    num_sampled_clients : int
        How many clients are asked in each round.
    rounds : int
        How many rounds the plan has; ``start(num_rounds=…)`` may do fewer, never more.
    min_separation : int
        At least so many rounds lie between two participations of a client: 1 allows every round, ``rounds`` means once.
    target_delta : float
        δ, well below one over the number of users.
    max_participations : int, optional
        At most how often a client takes part; unless given, as often as the separation allows.
    mechanism : str or Factorization (default: "dp-mf+")
        A name that ``antiphase.design`` knows, or a design for these rounds.
    server_learning_rates : float or Sequence[float], optional
        For each round, in the place of the strategy's; the noise is designed for them too.
    folder : path, optional
        Where key, ledger and checkpoint are kept. With it, ``start`` goes on where a killed server was.
    """

    def __init__(
        self,
        strategy: Strategy,
        noise_multiplier: float | None = None,
        clipping_norm: float | None = None,
        num_sampled_clients: int | None = None,
        *,
        rounds: int,
        min_separation: int,
        target_delta: float,
        target_epsilon: float | None = None,
        max_participations: int | None = None,
        mechanism: str | Factorization = "dp-mf+",
        server_learning_rates: float | Sequence[float] | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.strategy = _linear(strategy)
        self.rounds = check.whole_number("rounds", rounds)
        self.num_sampled_clients = check.whole_number("num_sampled_clients", num_sampled_clients)
        participation = _participation(self.rounds, min_separation, max_participations)
        workload = _workload(strategy, self.rounds, server_learning_rates)
        if isinstance(mechanism, str):
            mechanism = design(mechanism, workload=workload, participation=participation)
        self.mechanism = _calibrated(
            mechanism, participation, noise_multiplier, target_epsilon, target_delta, clipping_norm
        )
        self._workload, self._folder = workload, folder
        self._server: Server | None = None
        self._asking = _asks_all(self.strategy)
        self._names: dict[int, str] = {}  # of the clients asked in this round, by node
        self._done = 0  # rounds of earlier starts

    # ---- what it comes to ----------------------------------------------------------------------------------

    def privacy_spent(self) -> PrivacySpent:
        """ε of each user, of the rounds released so far; rounded up.   [G7]"""
        done = 0 if self._server is None else self._server.position
        delta = cast(float, self.mechanism.target_delta)
        return PrivacySpent(self.mechanism.epsilon(rows=done), delta, done, "antiphase")

    def statement(self) -> PrivacyStatement:
        """What is promised to each user, in words and JSON: of the plan, and of the rounds released so far."""
        return (
            self.mechanism.statement(released=0)
            if self._server is None
            else self._server.statement()
        )

    @property
    def server(self) -> Server:
        """The server behind the strategy, with its counts; there is one from ``start`` on."""
        if self._server is None:
            raise ValueError("there is no server before start(…)")
        return self._server

    def summary(self) -> None:
        """Log summary configuration of the strategy."""
        m = self.mechanism
        log(INFO, "\t├──> DP settings (antiphase):")
        log(
            INFO,
            "\t│\t├── Mechanism: %s, %s",
            m.factorization.name,
            m.factorization.workload.describe(),
        )
        log(INFO, "\t│\t├── Noise multiplier: %s", m.noise_multiplier)
        log(INFO, "\t│\t├── Clipping norm: %s", m.clip_norm)
        log(INFO, "\t│\t├── Each user: %s", m.factorization.participation.describe())
        log(INFO, "\t│\t├── Population: at least %d users", self.server.smallest_population)
        log(
            INFO,
            "\t│\t└── ε = %.4f at δ = %g after all %d rounds",
            m.epsilon(),
            m.target_delta,
            self.rounds,
        )
        self.strategy.summary()

    # ---- a training ----------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Flower's ``start``: trains until ``num_rounds`` rounds are done, those of a killed server included."""
        if num_rounds > self.rounds:
            # PRIVACY: past the plan there is no noise that is accounted for.   [G13]
            raise HorizonError(
                f"num_rounds = {num_rounds} is more than the plan's rounds = {self.rounds}. Nothing was asked or "
                "released. Plan for as many rounds as training takes"
            )
        if self._folder is None and self.privacy_spent().num_releases:
            # PRIVACY: a second training on the same users is a second release, which this plan does not cover.   [G13]
            raise HorizonError(
                f"{self.privacy_spent().num_releases} rounds of this plan were released, and where it stood is "
                "forgotten. Nothing was asked or released. Give folder=… to go on"
            )
        model = {name: array.numpy() for name, array in initial_arrays.items()}
        self._server = Server(
            self.mechanism, model, clients_per_round=self.num_sampled_clients, workload=self._workload,
            folder=self._folder,
        )  # fmt: skip
        self._done = done = self._server.position
        if done:
            log(INFO, "Going on after round %d of %d", done, self.rounds)
        arrays = _record(self._server.model)
        shifted = (
            None
            if evaluate_fn is None
            else lambda number, record: evaluate_fn(number + done, record)
        )
        with self._server:
            left = max(num_rounds - done, 0)
            result = super().start(
                grid, arrays, left, timeout, train_config, evaluate_config, shifted
            )
        for metrics in (
            result.train_metrics_clientapp, result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp
        ):  # fmt: skip
            counted = {number + done: record for number, record in metrics.items()}
            metrics.clear()
            metrics.update(counted)
        result.arrays = result.arrays or arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask clients who may take part, by the inner strategy's messages."""
        sample_nodes(grid, self.strategy.min_available_nodes, 0)  # waits for them, as Flower does
        nodes = {_name(node): node.node_id for node in grid.get_nodes()}
        self._refuse_strangers(nodes)
        asked = self.server.ask(nodes)
        self._report_shortage(len(nodes), len(asked))
        self._names = {nodes[user]: user for user in asked}
        log(
            INFO,
            "configure_train: %s of %s connected clients may take part, and are asked",
            len(asked),
            len(nodes),
        )
        only = cast(Grid, _Only(grid, list(self._names)))
        return self._asking.configure_train(server_round + self._done, arrays, config, only)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum, add the planned row of noise, step. Metrics of the clients' training are not passed on."""
        before = self.server.model
        for reply in replies:
            if not reply.has_error():
                node = reply.metadata.src_node_id
                self.server.receive(self._names.get(node, f"node {node}"), _update(reply, before))
        arrays = _record(self.server.finish())
        spent = self.privacy_spent()
        log(
            INFO,
            "Privacy spent: ε = %.6f at δ = %g after %d rounds",
            spent.epsilon,
            spent.delta,
            spent.num_releases,
        )
        return arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's; what clients report of it is not private."""
        return self.strategy.configure_evaluate(server_round + self._done, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The inner strategy's; what comes of it is not private."""
        return self.strategy.aggregate_evaluate(server_round + self._done, replies)

    # ---- details -------------------------------------------------------------------------------------------

    def _refuse_strangers(self, nodes: dict[str, int]) -> None:
        """A training that goes on without anyone who took part before has most likely lost track of who is who."""
        if (
            self._done
            and self.server.position == self._done
            and nodes
            and not self.server.knows(nodes)
        ):
            # PRIVACY: a user under a new name would take part as if never asked.   [G18]
            raise ParticipationError(
                f"none of the {len(nodes)} clients here took part in the {self._done} rounds before. SuperNodes "
                "without a key of their own, and those of a simulation, have new names after a restart, and would take "
                "part too often. Nothing was asked or released. Start them with --auth-supernode-private-key"
            )

    def _report_shortage(self, connected: int, asked: int) -> None:
        server = self.server
        if asked < self.num_sampled_clients or (
            server.position == self._done and connected < server.smallest_population
        ):
            log(
                WARNING,
                "%d of %d clients asked: %d are connected, and this plan (%s; %d rounds of %d) needs at least %d. The "
                "noise stays as planned. Use fewer clients a round, fewer rounds, or a smaller min_separation",
                asked, self.num_sampled_clients, connected, self.mechanism.factorization.participation.describe(),
                self.rounds, self.num_sampled_clients, server.smallest_population,
            )  # fmt: skip


class _Only:
    """A grid on which there are no nodes but these."""

    def __init__(self, grid: Grid, node_ids: list[int]) -> None:
        self._grid, self._node_ids = grid, node_ids

    def get_node_ids(self) -> list[int]:
        return self._node_ids

    def get_nodes(self) -> list[Any]:
        return [node for node in self._grid.get_nodes() if node.node_id in self._node_ids]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _linear(strategy: Any) -> FedAvg:
    """The strategy, if its server computes a linear function of the mean of the updates."""
    known = (FedAvg.aggregate_train, FedAvgM.aggregate_train)
    if not isinstance(strategy, FedAvg) or type(strategy).aggregate_train not in known:
        raise ValueError(
            f"strategy = {type(strategy).__name__}: correlated noise is for servers that add up updates: FedAvg, "
            "FedAvgM, FedProx, or a subclass that leaves aggregate_train as it is"
        )
    return strategy


def _asks_all(strategy: FedAvg) -> FedAvg:
    """The same strategy, but one that asks every node there is: which nodes these are is ours to choose."""
    asking = copy.copy(strategy)
    asking.fraction_train, asking.min_train_nodes, asking.min_available_nodes = 1.0, 0, 0
    return asking


def _participation(rounds: int, apart: int, most: int | None) -> Participation:
    apart = check.whole_number("min_separation", apart)
    possible = -(-rounds // apart)
    count = (
        possible if most is None else min(check.whole_number("max_participations", most), possible)
    )
    return once() if count == 1 else at_least_apart(count, apart)


def _workload(strategy: Any, rounds: int, rates: float | Sequence[float] | None) -> Workload:
    """What the server does with the mean update: that of FedAvgM, with other learning rates if given."""
    server = isinstance(strategy, FedAvgM)
    rate = strategy.server_learning_rate if server else 1.0
    momentum = strategy.server_momentum if server else 0.0
    return Workload.sgd(rounds, learning_rates=rate if rates is None else rates, momentum=momentum)


def _calibrated(
    made: Factorization,
    participation: Participation,
    multiplier: Any,
    epsilon: Any,
    delta: float,
    clip_norm: Any,
) -> Mechanism:
    if made.participation != participation:
        raise ValueError(
            f"mechanism is designed for users who take part {made.participation.describe()}, and rounds, "
            f"min_separation and max_participations say {participation.describe()}"
        )
    if (multiplier is None) == (epsilon is None):
        raise TypeError(
            f"noise_multiplier = {multiplier}, target_epsilon = {epsilon}: give one of the two, the other follows"
        )
    clip = check.positive_number("clipping_norm", clip_norm)
    return calibrate(
        made, noise_multiplier=multiplier, epsilon=epsilon, delta=delta, clip_norm=clip, unit="user"
    )


def _name(node: Any) -> str:
    """Who a node is: its public key, which a restart does not change if the node has a key of its own."""
    return (
        hashlib.sha256(node.public_key).hexdigest()[:32]
        if node.public_key
        else f"node {node.node_id}"
    )


def _record(model: dict[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def _update(reply: Message, before: dict[str, np.ndarray[Any, Any]]) -> Any:
    """The client's model minus the one it was sent; None if there is no telling."""
    try:
        (record,) = reply.content.array_records.values()
        after = {name: array.numpy() for name, array in record.items()}
        moved = {
            name: array for name, array in before.items() if array.dtype.kind == "f" and array.size
        }
        if after.keys() != before.keys() or any(
            after[name].shape != a.shape for name, a in moved.items()
        ):
            return None
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what is not finite is refused by the server
            return {name: after[name].astype(np.float64) - array for name, array in moved.items()}
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        EOFError,
        OSError,
    ):  # NumPy's, of bytes that are no array
        return None
