"""Flower strategy: user-level privacy with correlated noise, around FedAvg.

Install with ``pip install 'antiphase[federated]'``. It replaces Flower's
``DifferentialPrivacyServerSideFixedClipping``: the first arguments are the same.
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
from antiphase._util.extras import optional
from antiphase.design import design
from antiphase.errors import HorizonError, ParticipationError
from antiphase.factorizations.base import Factorization
from antiphase.federated.server import Server
from antiphase.mechanism import calibrate
from antiphase.participation import MinSeparation, Once, Participation
from antiphase.statement import PrivacyStatement
from antiphase.workload import Workload

with optional("federated", "antiphase.federated.flower", "Flower"):
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
    from flwr.serverapp import Grid, PrivacySpent
    from flwr.serverapp.strategy import FedAvg, FedAvgM, Result, Strategy
    from flwr.serverapp.strategy.strategy_utils import sample_nodes
    from flwr.supercore import log

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
UNREADABLE = (TypeError, ValueError, KeyError, AttributeError, EOFError, OSError)  # of bad arrays


class DifferentialPrivacyCorrelatedNoise(Strategy):
    """Central user-level privacy with correlated noise, around a FedAvg-like strategy.

    The server clips each client's update, sums the updates, adds a row of noise that is planned for
    all ``rounds`` together, divides by ``num_sampled_clients`` (clients have equal weights,
    whatever they report), and applies FedAvgM's momentum and learning rate, for which the noise is
    designed. Clients are selected so that none takes part more often than ``max_participations``
    times, or again within ``min_separation`` rounds. Metrics that clients report of training are
    dropped; those of evaluation are not private.

    A client is identified by the public key of its SuperNode. A SuperNode that restarts without its
    key (``--auth-supernode-private-key``) is another client to Flower, and so to this strategy.

    Args:
        strategy: a FedAvg, FedAvgM or FedProx strategy: its configuration, evaluation and server
            momentum are used.
        noise_multiplier: as in Flower; or give ``target_epsilon``.
        clipping_norm: the norm that each client's update is clipped to, over all arrays together.
        num_sampled_clients: number of clients to select in each round.
        rounds: number of rounds of the plan. ``start(num_rounds=…)`` may run fewer, never more.
        min_separation: least number of rounds from one participation of a client to its next: 1
            allows every round, ``rounds`` means once.
        target_delta: δ, well below one over the number of users.
        target_epsilon: ε of each user, from which the noise multiplier follows.
        max_participations: how often a client takes part at most; by default as often as the
            separation allows.
        mechanism: a name that `antiphase.design` knows, or a design for these rounds.
        server_learning_rates: for each round, instead of the strategy's; the noise is designed for
            them, too.
        folder: where key, ledger and checkpoint are kept. With it, ``start`` resumes the training
            of a server that was killed.
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
        self.strategy = _checked_strategy(strategy)
        self.rounds = check.whole_number("rounds", rounds)
        self.num_sampled_clients = check.whole_number("num_sampled_clients", num_sampled_clients)
        participation = _participation(self.rounds, min_separation, max_participations)
        workload = _workload(strategy, self.rounds, server_learning_rates)
        if isinstance(mechanism, str):
            mechanism = design(mechanism, workload=workload, participation=participation)
        _check_plan(mechanism, participation, noise_multiplier, target_epsilon)
        self.mechanism = calibrate(
            mechanism,
            noise_multiplier=noise_multiplier,
            epsilon=target_epsilon,
            delta=target_delta,
            clip_norm=check.positive_number("clipping_norm", clipping_norm),
            unit="user",
        )
        self._workload, self._folder = workload, folder
        self._server: Server | None = None
        self._messenger = _without_sampling(self.strategy)
        self._users: dict[int, str] = {}  # selected in this round, by node
        self._resumed = 0  # rounds that were finished before `start`

    def privacy_spent(self) -> PrivacySpent:
        """ε of each user for the rounds released so far, rounded up.

        Guarantee: never below the true value.   [G7]
        """
        done = 0 if self._server is None else self._server.position
        delta = cast(float, self.mechanism.target_delta)
        return PrivacySpent(self.mechanism.epsilon(rows=done), delta, done, "antiphase")

    def statement(self) -> PrivacyStatement:
        """The privacy statement for each user: of the plan, and of the rounds released so far."""
        if self._server is None:
            return self.mechanism.statement(released=0)
        return self._server.statement()

    @property
    def server(self) -> Server:
        """The server behind the strategy, with its counts; it exists once ``start`` was called."""
        if self._server is None:
            raise ValueError("there is no server before start(…)")
        return self._server

    def summary(self) -> None:
        """Log the configuration of the strategy."""
        m, f = self.mechanism, self.mechanism.factorization
        log(INFO, "\t├──> DP settings (antiphase):")
        log(INFO, "\t│\t├── Mechanism: %s, %s", f.name, f.workload.describe())
        log(INFO, "\t│\t├── Noise multiplier: %s", m.noise_multiplier)
        log(INFO, "\t│\t├── Clipping norm: %s", m.clip_norm)
        log(INFO, "\t│\t├── Each user: %s", f.participation.describe())
        log(INFO, "\t│\t├── Population: at least %d users", self.server.min_population)
        text = "\t│\t└── ε = %.4f at δ = %g after all %d rounds"
        log(INFO, text, m.epsilon(), m.target_delta, self.rounds)
        self.strategy.summary()

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
        """Flower's ``start``: train until ``num_rounds`` rounds are finished.

        With a folder, the rounds of a server that was killed count, and numbers continue.
        """
        self._check_start(num_rounds)
        self._server = Server(
            self.mechanism,
            {name: array.numpy() for name, array in initial_arrays.items()},
            clients_per_round=self.num_sampled_clients,
            workload=self._workload,
            folder=self._folder,
        )
        self._resumed = done = self._server.position
        if done:
            log(INFO, "Resuming after round %d of %d", done, self.rounds)
        evaluate = (
            None
            if evaluate_fn is None
            else lambda number, arrays: evaluate_fn(number + done, arrays)
        )
        arrays, left = _record(self._server.model), max(num_rounds - done, 0)
        with self._server:
            result = super().start(
                grid, arrays, left, timeout, train_config, evaluate_config, evaluate
            )
        for metrics in (
            result.train_metrics_clientapp,
            result.evaluate_metrics_clientapp,
            result.evaluate_metrics_serverapp,
        ):
            renumbered = {number + done: record for number, record in metrics.items()}
            metrics.clear()
            metrics.update(renumbered)
        result.arrays = result.arrays or arrays
        return result

    def _check_start(self, num_rounds: int) -> None:
        if num_rounds > self.rounds:
            # PRIVACY: past the plan there is no noise that is accounted for.   [G13]
            raise HorizonError(
                f"num_rounds = {num_rounds} is more than the plan's rounds = {self.rounds}. "
                "Nothing was released. Plan for as many rounds as training takes"
            )
        if self._folder is None and self.privacy_spent().num_releases:
            # PRIVACY: a second training on the same users is a second release, which this plan does
            # not cover.   [G13]
            raise HorizonError(
                f"{self.privacy_spent().num_releases} rounds of this plan were released, and the "
                "state of the training was not kept. Nothing was released now. Give folder=… to "
                "resume"
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select clients that may take part, and return the inner strategy's messages to them."""
        sample_nodes(grid, self.strategy.min_available_nodes, 0)  # waits for them, as Flower does
        nodes = {_user(node): node.node_id for node in grid.get_nodes()}
        self._check_identities(nodes)
        selected = self.server.begin_round(nodes)
        self._warn_of_shortage(len(nodes), len(selected))
        self._users = {nodes[user]: user for user in selected}
        text = "configure_train: %s of %s connected clients are selected"
        log(INFO, text, len(selected), len(nodes))
        view = cast(Grid, _GridView(grid, list(self._users)))
        return self._messenger.configure_train(server_round + self._resumed, arrays, config, view)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, sum, add noise and step. Metrics of clients' training are not passed on."""
        sent = self.server.model
        for reply in replies:
            if not reply.has_error():
                node = reply.metadata.src_node_id
                self.server.receive(self._users.get(node, f"node {node}"), _update(reply, sent))
        arrays = _record(self.server.finish_round())
        spent = self.privacy_spent()
        text = "Privacy spent: ε = %.6f at δ = %g after %d rounds"
        log(INFO, text, spent.epsilon, spent.delta, spent.num_releases)
        return arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The inner strategy's messages; what clients report of evaluation is not private."""
        return self.strategy.configure_evaluate(server_round + self._resumed, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """The inner strategy's metrics, which are not private."""
        return self.strategy.aggregate_evaluate(server_round + self._resumed, replies)

    def _check_identities(self, nodes: dict[str, int]) -> None:
        """Refuse to resume among unknown clients only: their identities were most likely lost."""
        starting = self._resumed and self.server.position == self._resumed
        if starting and nodes and not self.server.has_selected(nodes):
            # PRIVACY: a user under a new name would take part as if never asked.   [G18]
            raise ParticipationError(
                f"none of the {len(nodes)} clients took part in the {self._resumed} rounds before. "
                "SuperNodes without a key of their own, and those of a simulation, have new names "
                "after a restart, and would take part too often. Nothing was released. Start them "
                "with --auth-supernode-private-key"
            )

    def _warn_of_shortage(self, connected: int, selected: int) -> None:
        server = self.server
        first = server.position == self._resumed
        if selected == self.num_sampled_clients and not (
            first and connected < server.min_population
        ):
            return
        plan = self.mechanism.factorization.participation.describe()
        text = (
            f"{selected} of {self.num_sampled_clients} clients selected: {connected} are "
            f"connected, and this plan ({plan}; {self.rounds} rounds of "
            f"{self.num_sampled_clients}) needs at least {server.min_population}. The noise stays "
            "as planned. Use fewer clients a round, fewer rounds, or a smaller min_separation"
        )
        log(WARNING, text)


class _GridView:
    """A grid restricted to these nodes."""

    def __init__(self, grid: Grid, node_ids: list[int]) -> None:
        self._grid, self._node_ids = grid, node_ids

    def get_node_ids(self) -> list[int]:
        return self._node_ids

    def get_nodes(self) -> list[Any]:
        return [node for node in self._grid.get_nodes() if node.node_id in self._node_ids]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _checked_strategy(strategy: Any) -> FedAvg:
    """The strategy, if its server computes a linear function of the mean update."""
    known = (FedAvg.aggregate_train, FedAvgM.aggregate_train)
    if not isinstance(strategy, FedAvg) or type(strategy).aggregate_train not in known:
        raise ValueError(
            f"strategy = {type(strategy).__name__}: correlated noise needs a server that adds up "
            "updates: FedAvg, FedAvgM, FedProx, or a subclass that does not override "
            "aggregate_train"
        )
    return strategy


def _without_sampling(strategy: FedAvg) -> FedAvg:
    """The same strategy, sending messages to every node of the grid that it is given."""
    messenger = copy.copy(strategy)
    messenger.fraction_train = 1.0
    messenger.min_train_nodes = messenger.min_available_nodes = 0
    return messenger


def _participation(rounds: int, separation: int, limit: int | None) -> Participation:
    separation = check.whole_number("min_separation", separation)
    count = -(-rounds // separation)
    if limit is not None:
        count = min(check.whole_number("max_participations", limit), count)
    return Once() if count == 1 else MinSeparation(count, separation)


def _workload(strategy: Any, rounds: int, rates: float | Sequence[float] | None) -> Workload:
    """What the server does with the mean update: FedAvgM's step, with these learning rates."""
    rate, momentum = 1.0, 0.0
    if isinstance(strategy, FedAvgM):
        rate, momentum = strategy.server_learning_rate, strategy.server_momentum
    return Workload.sgd(rounds, learning_rates=rate if rates is None else rates, momentum=momentum)


def _check_plan(
    factorization: Factorization, participation: Participation, multiplier: Any, epsilon: Any
) -> None:
    if factorization.participation != participation:
        raise ValueError(
            "mechanism is designed for users who take part "
            f"{factorization.participation.describe()}, and rounds, min_separation and "
            f"max_participations say {participation.describe()}"
        )
    if (multiplier is None) == (epsilon is None):
        raise TypeError(
            f"noise_multiplier = {multiplier}, target_epsilon = {epsilon}: give one of the two; "
            "the other follows"
        )


def _user(node: Any) -> str:
    """Identity of a node: its public key, which survives a restart if the node has its own key."""
    if node.public_key:
        return hashlib.sha256(node.public_key).hexdigest()[:32]
    return f"node {node.node_id}"


def _record(model: dict[str, np.ndarray[Any, Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in model.items()})


def _update(reply: Message, sent: dict[str, np.ndarray[Any, Any]]) -> Any:
    """The client's model minus the one it was sent; None if the reply is malformed."""
    try:
        (record,) = reply.content.array_records.values()
        trained = {name: array.numpy() for name, array in record.items()}
        floats = {name: a for name, a in sent.items() if a.dtype.kind == "f" and a.size}
        if trained.keys() != sent.keys() or any(
            trained[name].shape != a.shape for name, a in floats.items()
        ):
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # the server refuses what is not finite
            return {name: trained[name].astype(np.float64) - a for name, a in floats.items()}
    except UNREADABLE:
        return None
