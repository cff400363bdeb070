"""Federated server: selects users, sums clipped updates, adds noise, steps."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.values import digest
from antiphase.errors import FileFormatError, HorizonError, ReplayError, StateError
from antiphase.factorizations.base import MALFORMED
from antiphase.federated.clipping import NotFiniteError, ShapeError, clip
from antiphase.federated.roster import Roster, min_population
from antiphase.federated.server_optimizer import ServerOptimizer, Tensors
from antiphase.federated.storage import TrainingFolder
from antiphase.ledger.write_ahead import WriteAheadLedger
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.noise.stream import NoiseStream
from antiphase.sampling import FixedOrder
from antiphase.statement import PrivacyStatement
from antiphase.workload import Workload

CAVEATS = (
    "A user is a name given to the server: a person with several devices counts as several users.",
    "Which users are available, and when, counts as public; the server itself sees every update.",
)


class Verdict(StrEnum):
    """What became of an update, or of a place in a round. Counts are as private as the updates."""

    SUMMED = "summed unchanged"
    CLIPPED = "clipped and summed"
    NOT_FINITE = "refused: not finite"
    MISSHAPEN = "refused: not of the model's shape"
    DUPLICATE = "refused: second update of a user"
    LATE = "refused: for another round"
    EARLY = "refused: not selected, and may not take part yet"
    UNINVITED = "refused: not selected"
    DROPPED_OUT = "selected, but sent no update"
    VACANT = "no user available"


class Server:
    """Private federated training, round by round: `begin_round`, `receive`, `finish_round`.

    Without a ``folder`` the training is forgotten with the process. With one, everything that is
    needed to resume is kept there, including the key: a server with the same arguments resumes
    after the last finished round.

    Guarantee: the noise of a round is the plan's row, and the divisor is the plan's number of
    clients, whoever sends an update.   [G18]
    Guarantee: a user adds at most one update to a round, finite and clipped, and only if the user
    was selected.   [G19]
    Guarantee: no row of noise is released with two different sums, whenever the server is
    killed.   [G20]

    Args:
        mechanism: calibrated for users (``unit="user"``), with a step for each round.
        model: arrays by name. Floating-point arrays are trained, others stay as they are.
        clients_per_round: number of users to select in each round. Sums are divided by it, however
            many updates arrive.
        workload: what the server does with the noisy means (`Workload.sgd`: learning rates,
            momentum). By default the workload that the mechanism was designed for.
        folder: where key, ledger and checkpoint are kept.
        key: a key for the noise, without a folder. An insecure key, for tests and studies, makes
            the noise a function of its seed.
        memory: limit on the memory of the noise buffers, as in ``"2GB"`` or in bytes.

    Example:
        >>> import antiphase as ap, numpy as np
        >>> design = ap.design("dp-mf", steps=2, participation=ap.once())
        >>> mechanism = ap.calibrate(design, noise_multiplier=1.0, delta=1e-5, unit="user")
        >>> server = Server(mechanism, {"w": np.zeros(3)}, clients_per_round=2)
        >>> server.begin_round(["anna", "ben", "cleo"])
        ['anna', 'ben']
        >>> server.receive("anna", {"w": np.ones(3)})
        <Verdict.CLIPPED: 'clipped and summed'>
        >>> server.finish_round()["w"].shape, server.position
        ((3,), 1)
    """

    def __init__(
        self,
        mechanism: Mechanism,
        model: Mapping[str, Any],
        *,
        clients_per_round: int,
        workload: Workload | None = None,
        folder: str | os.PathLike[str] | None = None,
        key: Key | None = None,
        memory: str | int = "2GB",
    ) -> None:
        self.mechanism: Mechanism = check.instance("mechanism", mechanism, Mechanism)
        self.clients_per_round = check.whole_number("clients_per_round", clients_per_round)
        _check_promise(mechanism)
        self._roster = Roster(mechanism.factorization.participation)
        if workload is None:
            workload = mechanism.factorization.workload
        self._optimizer = ServerOptimizer(workload)
        if workload.steps != mechanism.steps:
            raise ValueError(
                f"workload has {workload.steps} steps, and the mechanism {mechanism.steps}; they "
                "must be equal"
            )
        check.instance("model", model, Mapping)
        self._model = {name: _read_only(np.array(value)) for name, value in model.items()}
        self._shapes = {
            name: a.shape for name, a in self._model.items() if a.dtype.kind == "f" and a.size
        }
        self._counts: Counter[Verdict] = Counter()
        self._position = 0
        self._sums: dict[str, Array] | None = None  # of the current round; None between rounds
        self._selected: set[str] = set()  # users of the current round
        self._pending: set[str] = set()  # those of them that sent nothing yet
        if key is not None:
            check.instance("key", key, Key)
            if folder is not None and not key.is_insecure:
                raise ValueError("key: a folder has its own key; leave key out")
        self._folder = None if folder is None else TrainingFolder(folder)
        self._key = key or (Key.generate() if self._folder is None else self._folder.key())
        self._start(memory)

    # ---- state ---------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """Number of rounds of the plan."""
        return self.mechanism.steps

    @property
    def position(self) -> int:
        """Number of finished rounds; also the number of the current round, counted from 0."""
        return self._position

    @property
    def remaining(self) -> int:
        """Number of rounds that are left."""
        return self.rounds - self._position

    @property
    def model(self) -> Tensors:
        """The model after the finished rounds: read-only arrays. Nothing else may be published."""
        return dict(self._model)

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of updates with each verdict. Private: neither log nor publish it."""
        return {verdict: self._counts[verdict] for verdict in Verdict}

    @property
    def min_population(self) -> int:
        """Least number of users for the plan: see `roster.min_population`."""
        participation = self.mechanism.factorization.participation
        return min_population(participation, self.rounds, self.clients_per_round)

    def has_selected(self, users: Iterable[str]) -> bool:
        """Whether any of these users was ever selected."""
        return any(user in self._roster for user in users)

    def epsilon(self, delta: float | None = None, *, spent: bool = False) -> float:
        """ε of each user, rounded up.

        Guarantee: never below the true value.   [G7]

        Args:
            delta: δ; by default the mechanism's.
            spent: of the finished rounds only, instead of the whole plan.
        """
        return self.mechanism.epsilon(delta, rows=self._position if spent else None)

    def statement(self, delta: float | None = None) -> PrivacyStatement:
        """The privacy statement for each user: of the plan, and of the finished rounds."""
        statement = self.mechanism.statement(
            delta, released=self._position, insecure=self._key.is_insecure
        )
        return dataclasses.replace(statement, caveats=(*statement.caveats, *CAVEATS))

    # ---- a round -------------------------------------------------------------------------------

    def begin_round(self, available: Iterable[str]) -> list[str]:
        """Begin a round and select its users.

        Selected users have taken part, whether they send an update or not.

        Args:
            available: names of the users that are available.

        Returns:
            The selected users: at most ``clients_per_round`` of those that may take part.

        Raises:
            HorizonError: all rounds of the plan are finished.
        """
        self._require(open_round=False)
        if not self.remaining:
            # PRIVACY: past the plan there is no noise that is accounted for.   [G13]
            raise HorizonError(
                f"all {self.rounds} rounds of the plan are finished. Nothing was released. Design "
                "a mechanism for as many rounds as training takes"
            )
        users = self._roster.choose(self._position, available, self.clients_per_round)
        self._roster.record(self._position, users)
        self._counts[Verdict.VACANT] += self.clients_per_round - len(users)
        self._sums = {name: np.zeros(shape) for name, shape in self._shapes.items()}
        self._selected, self._pending = set(users), set(users)
        return users

    def receive(self, user: str, update: Any, number: int | None = None) -> Verdict:
        """Take the update of a user.

        Args:
            user: name of the user.
            update: the user's model minus the model that was sent: arrays by name, for all
                floating-point arrays of the model.
            number: the round that the update is for, by default the current one.

        Returns:
            What became of the update.
        """
        sums = self._require(open_round=True)
        verdict = self._refusal(user, number)
        if verdict is None:
            self._pending.discard(user)
            try:
                arrays, shortened = clip(update, self._shapes, self.mechanism.clip_norm)
                verdict = Verdict.CLIPPED if shortened else Verdict.SUMMED
                for name, array in arrays.items():
                    sums[name] += array
            except NotFiniteError:
                verdict = Verdict.NOT_FINITE
            except ShapeError:
                verdict = Verdict.MISSHAPEN
        self._counts[verdict] += 1
        return verdict

    def finish_round(self) -> Tensors:
        """Finish the round: add noise, divide, step, and store the outcome.

        Returns:
            The new model, which may be published.
        """
        sums, number = self._require(open_round=True), self._position
        self._counts[Verdict.DROPPED_OUT] += len(self._pending)
        self._unusable = True  # until all is done: an interrupted round must not be continued
        mark = b"" if self._ledger is None else self._ledger.mark(number, list(sums.values()))
        row = self._stream.next()
        # PRIVACY: the plan's row and the plan's divisor; who sent updates changes neither.   [G18]
        mean = {
            name: (sums[name] + row[name].reshape(sums[name].shape)) / self.clients_per_round
            for name in sums
        }
        moved = self._optimizer.step(number, self._model, mean)
        model = self._model | {name: _read_only(array) for name, array in moved.items()}
        if self._folder is not None and self._ledger is not None:
            # PRIVACY: on the disk before anyone sees it. A server that is killed earlier has
            # released nothing under this row; one that is killed later resumes after it.   [G20]
            self._folder.write(self._state(number + 1, model, mark))
            self._ledger.enter(number, mark)
            self._ledger.sync()
        self._model, self._position, self._sums = model, number + 1, None
        self._unusable = False
        return self.model

    def close(self) -> None:
        """Release the folder, so that another server can use it."""
        self._unusable = True
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refusal(self, user: str, number: int | None) -> Verdict | None:
        """Why an update is refused before it is read, or None."""
        if number is not None and number != self._position:
            return Verdict.LATE
        # PRIVACY: whoever was not selected is not in the roster, and may be here too early.   [G19]
        if user not in self._selected:
            early = not self._roster.may_take_part(user, self._position)
            return Verdict.EARLY if early else Verdict.UNINVITED
        # PRIVACY: two updates of one user would move the sum twice as far as planned.   [G19]
        return None if user in self._pending else Verdict.DUPLICATE

    def _require(self, *, open_round: bool) -> dict[str, Array]:
        if self._unusable:
            raise RuntimeError(
                "this server was closed, or a round was interrupted; create it again with its "
                "folder"
            )
        if open_round and self._sums is None:
            raise RuntimeError("there is no round; call begin_round first")
        if not open_round and self._sums is not None:
            raise RuntimeError(f"round {self._position} is not finished; call finish_round first")
        return self._sums or {}

    # ---- storage -------------------------------------------------------------------------------

    def _start(self, memory: str | int) -> None:
        """Start a new run, or resume the one whose checkpoint is in the folder."""
        key, mark = self._key, b""
        content = None if self._folder is None else self._folder.read(key)
        if content is not None:
            run, mark = self._restore(content)
        elif key.is_insecure:
            run = f"{key.subkey('run'):032x}"
        else:
            run = key.start_run(self.mechanism.digest)
        self._ledger: WriteAheadLedger | None = None
        if self._folder is not None:
            first = max(self._position - 1, 0) if key.path is None else 0
            self._ledger = WriteAheadLedger(key, run, first=first)
            self._check_ledger(self._ledger, mark)
        shapes = {name: shape or (1,) for name, shape in self._shapes.items()}
        self._stream: NoiseStream = self.mechanism.noise(
            key=key, run=run, shapes=shapes, memory=memory
        )
        self._stream.skip(self._position)
        self._unusable = False
        if content is None and self._folder is not None:
            self._folder.write(self._state(0, self._model, b""))

    @cached_property
    def _setting(self) -> str:
        """Digest of everything that must not change between a checkpoint and its continuation."""
        tensors = {name: [list(a.shape), a.dtype.str] for name, a in self._model.items()}
        return digest(
            {
                "mechanism": self.mechanism.digest,
                "workload": self._optimizer.workload,
                "clients": self.clients_per_round,
                "tensors": tensors,
            }
        )

    def _state(self, position: int, model: Tensors, mark: bytes) -> dict[str, Any]:
        return {
            "setting": self._setting,
            "key": self._key.fingerprint(),
            "run": self._stream.run,
            "position": position,
            "mark": mark.hex(),
            "model": model,
            "velocity": self._optimizer.velocity,
            "roster": self._roster.state(),
            "counts": {verdict.name: count for verdict, count in self._counts.items()},
        }

    def _restore(self, content: dict[str, Any]) -> tuple[str, bytes]:
        """Restore the state from a checkpoint; returns its run and its mark in the ledger."""
        try:
            self._check_checkpoint(content)
            self._position, model = int(content["position"]), self._model
            self._model = {
                name: _read_only(content["model"][name].reshape(a.shape))
                for name, a in model.items()
            }
            self._optimizer.velocity = {
                name: a.reshape(model[name].shape) for name, a in content["velocity"].items()
            }
            self._roster.restore(content["roster"])
            counts = {Verdict[name]: int(count) for name, count in content["counts"].items()}
            self._counts.update(counts)
            return self._key.check_run(content["run"]), bytes.fromhex(content["mark"])
        except (StateError, FileFormatError):
            raise
        except MALFORMED as error:
            raise FileFormatError(
                f"not a valid checkpoint of a federated training ({error})"
            ) from error

    def _check_checkpoint(self, content: dict[str, Any]) -> None:
        assert self._folder is not None
        if content["setting"] != self._setting:
            raise StateError(
                f"{self._folder.checkpoint}: was written by a training with another mechanism, "
                "workload, model or number of clients. Nothing was changed. Resume with the same, "
                "or use another folder"
            )
        if content["key"] != self._key.fingerprint():
            raise StateError(
                f"{self._folder.checkpoint}: was written with another key, or by a version of "
                "antiphase with an incompatible noise format. Nothing was changed"
            )

    def _check_ledger(self, ledger: WriteAheadLedger, mark: bytes) -> None:
        """Check that the checkpoint is the newest.

        Rounds after it would otherwise be released again, with other sums.
        """
        assert self._folder is not None
        try:
            if len(ledger) > self._position:
                raise ReplayError(
                    f"{len(ledger)} rounds were released, and it has {self._position}"
                )
            if self._position:
                # The server may have been killed before it entered the mark.
                ledger.enter(self._position - 1, mark)
        except ReplayError as error:
            # PRIVACY: two sums under one row of noise give away their difference.   [G20]
            raise ReplayError(
                f"{self._folder.checkpoint}: is not the newest checkpoint of this training "
                f"({error}). Nothing was released. Put the newest one back; or start again in "
                "another folder, which is a second release on the same users"
            ) from error


def _check_promise(mechanism: Mechanism) -> None:
    """Refuse mechanisms whose promise a federated training does not keep."""
    # PRIVACY: a guarantee for each example is none for a user, who has many.   [G18]
    if mechanism.unit != "user":
        raise ValueError(
            f"unit = {mechanism.unit!r}: a federated training protects users; use "
            'calibrate(…, unit="user")'
        )
    # PRIVACY: users take part when they are available; no sampling could amplify.   [G9]
    if mechanism.amplified:
        raise ValueError(
            f"sampling = {mechanism.sampling}: users are not sampled at random, and no "
            "amplification is claimed; use FixedOrder()"
        )
    # PRIVACY: users are selected in turn, so one user more or less moves all later ones to other
    # rounds.   [G18]
    if mechanism.sampling != FixedOrder() or mechanism.adjacency == "add-remove":
        raise ValueError(
            f"sampling = {mechanism.sampling}, adjacency = {mechanism.adjacency!r}: users are "
            "selected in turn and not in slots by a hash, so that one user more or less changes "
            "the selection in every later round. Nothing was released. Use FixedOrder(), and "
            'adjacency="zero-out" or "replace-one"'
        )


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, which users of `Server.model` then cannot change."""
    array.setflags(write=False)
    return array
