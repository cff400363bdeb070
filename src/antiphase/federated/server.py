"""The server of a federated training: asks users, checks and clips what they answer, adds the planned noise, steps."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Self

import numpy as np

from antiphase._util import checks as check
from antiphase._util.checks import Array
from antiphase._util.values import digest
from antiphase.errors import FileFormatError, HorizonError, ReplayError, StateError
from antiphase.factorizations.base import MALFORMED
from antiphase.federated import roster
from antiphase.federated.clipping import MisshapenError, NotFiniteError, clipped
from antiphase.federated.server_optimizer import ServerOptimizer, Tensors
from antiphase.federated.storage import Folder
from antiphase.ledger.write_ahead import WriteAheadLedger
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.noise.stream import NoiseStream
from antiphase.sampling import FixedOrder
from antiphase.statement import PrivacyStatement
from antiphase.workload import Workload

CAVEATS = (
    "A user is whoever the server was told it is: one on several devices counts as several.",
    "Who is there to be asked, and when, is taken to be public; the server itself sees every update.",
)


class Verdict(StrEnum):
    """What became of an answer, or of a place in a round. How many there were is as private as the answers."""

    SUMMED = "summed as it was"
    CLIPPED = "clipped and summed"
    NOT_FINITE = "refused: not finite"
    MISSHAPEN = "refused: another shape than the model"
    DUPLICATE = "refused: answered before"
    LATE = "refused: for another round"
    EARLY = "refused: not asked, may not take part yet"
    UNINVITED = "refused: not asked"
    DROPPED_OUT = "asked, no answer"
    VACANT = "nobody left to ask"


class Server:
    """A private federated training, round by round: `ask`, `receive` each answer, `finish`.

    ``model`` maps names to arrays; those of floating-point numbers are trained, others stay as they are. What users
    answer is an *update*, their model minus the one they were sent. ``clients_per_round`` is the number that sums are
    divided by, whoever answers. ``workload`` is what the server does with the noisy means (`Workload.sgd`: learning
    rates, momentum); unless given, what the mechanism was designed for.

    With a ``folder`` all that going on needs is kept there, the key included; making the same server again goes on
    where the last round was finished. Without one, everything is forgotten with the process. An insecure ``key``, for
    tests and studies, makes the noise a function of its seed.

    Guarantee: the noise of a round is the plan's row and the divisor the plan's number, whoever answers.   [G18]
    Guarantee: what a user adds to a round is finite and clipped, and comes once, from those asked.   [G19]
    Guarantee: no row of noise is released with two different sums, whenever the server dies.   [G20]
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
        _refuse_other_promises(mechanism)
        self._roster = roster.Roster(mechanism.factorization.participation)
        self._optimizer = ServerOptimizer(
            mechanism.factorization.workload if workload is None else workload
        )
        if self._optimizer.workload.steps != mechanism.steps:
            raise ValueError(
                f"workload has {self._optimizer.workload.steps} steps, the mechanism {mechanism.steps}"
            )
        check.instance("model", model, Mapping)
        self._model = {name: _frozen(np.array(value)) for name, value in model.items()}
        self._shapes = {
            name: a.shape for name, a in self._model.items() if a.dtype.kind == "f" and a.size
        }
        self._counts: Counter[Verdict] = Counter()
        self._position = 0
        self._sums: dict[str, Array] | None = None  # of the round at hand, if one is
        self._waiting: set[str] = set()  # asked in this round, and not yet heard of
        self._asked: set[str] = set()
        self._setting = digest(
            {
                "mechanism": mechanism.digest,
                "workload": self._optimizer.workload,
                "clients": self.clients_per_round,
                "tensors": {name: [list(a.shape), a.dtype.str] for name, a in self._model.items()},
            }
        )
        if key is not None:
            check.instance("key", key, Key)
        if folder is not None and key is not None and not key.is_insecure:
            raise ValueError("key: a folder has a key of its own, made with it; leave key out")
        self._folder = None if folder is None else Folder(folder)
        self._key = key or (Key.generate() if self._folder is None else self._folder.key())
        self._memory = memory
        self._begin(None if self._folder is None else self._folder.read(self._key))

    # ---- where it stands -----------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How many rounds the plan has."""
        return self.mechanism.steps

    @property
    def position(self) -> int:
        """How many rounds are finished; also the number of the round at hand, counted from 0."""
        return self._position

    @property
    def remaining(self) -> int:
        return self.rounds - self._position

    @property
    def model(self) -> Tensors:
        """The tensors after the rounds finished so far; read-only arrays, which is all that may be published."""
        return dict(self._model)

    @property
    def counts(self) -> dict[Verdict, int]:
        """What became of all answers so far. Private: neither log nor publish it."""
        return {verdict: self._counts[verdict] for verdict in Verdict}

    @property
    def smallest_population(self) -> int:
        """How many users the plan needs at least: see `roster.smallest_population`."""
        participation = self.mechanism.factorization.participation
        return roster.smallest_population(participation, self.rounds, self.clients_per_round)

    def knows(self, users: Iterable[str]) -> bool:
        """Whether any of these has been asked before."""
        return any(user in self._roster for user in users)

    def epsilon(self, delta: float | None = None, *, spent: bool = False) -> float:
        """ε of each user, of the whole plan or of the rounds released so far; rounded up.   [G7]"""
        return self.mechanism.epsilon(delta, rows=self._position if spent else None)

    def statement(self, delta: float | None = None) -> PrivacyStatement:
        """What is promised to each user, in words and JSON."""
        made = self.mechanism.statement(
            delta, released=self._position, insecure=self._key.is_insecure
        )
        return dataclasses.replace(made, caveats=(*made.caveats, *CAVEATS))

    # ---- a round -------------------------------------------------------------------------------------------

    def ask(self, available: Iterable[str]) -> list[str]:
        """Begin a round: whom to ask, of the users that are there. They have then taken part, answer or not."""
        self._require(open_round=False)
        if not self.remaining:
            # PRIVACY: past the plan there is no noise that is accounted for.   [G13]
            raise HorizonError(
                f"all {self.rounds} rounds of the plan are done. Nothing was asked or released. Design a mechanism for "
                "as many rounds as training takes"
            )
        users = self._roster.choose(self._position, available, self.clients_per_round)
        self._roster.record(self._position, users)
        self._counts[Verdict.VACANT] += self.clients_per_round - len(users)
        self._sums = {name: np.zeros(shape) for name, shape in self._shapes.items()}
        self._asked, self._waiting = set(users), set(users)
        return users

    def receive(self, user: str, update: Any, number: int | None = None) -> Verdict:
        """Take one answer, to the round at hand or to round ``number``; what became of it.

        ``update`` maps the names of all tensors of floating-point numbers to arrays of their shape.
        """
        sums = self._require(open_round=True)
        verdict = self._judged(user, number)
        if verdict is None:
            self._waiting.discard(user)
            try:
                arrays, shortened = clipped(update, self._shapes, self.mechanism.clip_norm)
                verdict = Verdict.CLIPPED if shortened else Verdict.SUMMED
                for name, array in arrays.items():
                    sums[name] += array
            except NotFiniteError:
                verdict = Verdict.NOT_FINITE
            except MisshapenError:
                verdict = Verdict.MISSHAPEN
        self._counts[verdict] += 1
        return verdict

    def finish(self) -> Tensors:
        """End the round: noise, one step, all of it on the disk; then the new model, to be published."""
        sums, number = self._require(open_round=True), self._position
        self._counts[Verdict.DROPPED_OUT] += len(self._waiting)
        self._broken = True  # until all of it is done: a crash, a full disk or Ctrl-C must not leave half a round
        mark = None if self._ledger is None else self._ledger.mark(number, list(sums.values()))
        row = self._stream.next()
        # PRIVACY: the plan's row and the plan's divisor; who answered changes neither.   [G18]
        mean = {
            name: (sums[name] + row[name].reshape(sums[name].shape)) / self.clients_per_round
            for name in sums
        }
        moved = self._optimizer.step(number, self._model, mean)
        model = self._model | {name: _frozen(array) for name, array in moved.items()}
        if self._folder is not None and self._ledger is not None and mark is not None:
            # PRIVACY: on the disk before anyone sees it. A server that dies earlier has released nothing under this
            # row, and one that dies later goes on after it.   [G20]
            self._folder.write(self._state(number + 1, model, mark))
            self._ledger.enter(number, mark)
            self._ledger.sync()
        self._model, self._position, self._sums = model, number + 1, None
        self._broken = False
        return self.model

    def close(self) -> None:
        """Let another server work in the folder."""
        self._broken = True
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- details -------------------------------------------------------------------------------------------

    def _judged(self, user: str, number: int | None) -> Verdict | None:
        """Why the answer is not even looked at, if so."""
        if number is not None and number != self._position:
            return Verdict.LATE
        # PRIVACY: whoever was not asked is not in the ledger of who takes part, and may be here too early.   [G19]
        if user not in self._asked:
            early = not self._roster.may_take_part(user, self._position)
            return Verdict.EARLY if early else Verdict.UNINVITED
        # PRIVACY: two answers of one user would move the sum twice as far as planned.   [G19]
        return None if user in self._waiting else Verdict.DUPLICATE

    def _require(self, *, open_round: bool) -> dict[str, Array]:
        if self._broken:
            raise RuntimeError(
                "this server was closed, or a round was interrupted; make it again from its folder"
            )
        if open_round != (self._sums is not None):
            raise RuntimeError(
                "ask for a round's clients first"
                if open_round
                else f"round {self._position} is not finished"
            )
        return self._sums or {}

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

    def _begin(self, content: dict[str, Any] | None) -> None:
        """A new run, or the one that the checkpoint was written by."""
        key, run, mark = self._key, None, b""
        if content is not None:
            try:
                run, mark = self._restored(content)
            except MALFORMED as error:
                if isinstance(error, StateError | FileFormatError):
                    raise
                raise FileFormatError(
                    f"not a valid checkpoint of a federated training ({error})"
                ) from error
        if run is None:
            run = (
                f"{key.subkey('run'):032x}"
                if key.is_insecure
                else key.start_run(self.mechanism.digest)
            )
        self._ledger = None
        if self._folder is not None:
            first = max(self._position - 1, 0) if key.path is None else 0
            self._ledger = WriteAheadLedger(key, run, first=first)
            self._check_ledger(mark)
        shapes = {name: shape or (1,) for name, shape in self._shapes.items()}
        self._stream: NoiseStream = self.mechanism.noise(
            key=key, run=run, shapes=shapes, memory=self._memory
        )
        self._stream.skip(self._position)
        self._broken = False
        if content is None and self._folder is not None:
            self._folder.write(self._state(0, self._model, b""))

    def _restored(self, content: dict[str, Any]) -> tuple[str, bytes]:
        assert self._folder is not None
        if content["setting"] != self._setting:
            raise StateError(
                f"{self._folder.checkpoint}: was written by a training with another mechanism, workload, model or "
                "number of clients. Nothing was changed. Go on with the same, or begin in another folder"
            )
        if content["key"] != self._key.fingerprint():
            raise StateError(
                f"{self._folder.checkpoint}: was written with another key, or by an antiphase whose noise is another. "
                "Nothing was changed"
            )
        self._position = int(content["position"])
        like = self._model
        self._model = {
            name: _frozen(content["model"][name].reshape(a.shape)) for name, a in like.items()
        }
        self._optimizer.velocity = {
            name: a.reshape(like[name].shape) for name, a in content["velocity"].items()
        }
        self._roster.restore(content["roster"])
        self._counts.update(
            {Verdict[name]: int(count) for name, count in content["counts"].items()}
        )
        return self._key.check_run(content["run"]), bytes.fromhex(content["mark"])

    def _check_ledger(self, mark: bytes) -> None:
        """The checkpoint must be the newest: what was released after it would be released again, differently."""
        assert self._ledger is not None
        assert self._folder is not None
        try:
            if len(self._ledger) > self._position:
                raise ReplayError(
                    f"{len(self._ledger)} rounds were released, and it holds {self._position}"
                )
            if self._position:
                self._ledger.enter(
                    self._position - 1, mark
                )  # the server may have died just before doing so
        except ReplayError as error:
            # PRIVACY: two sums under one row of noise give away their difference.   [G20]
            raise ReplayError(
                f"{self._folder.checkpoint}: is not the newest checkpoint of this training ({error}). Nothing was "
                "released. Put the newest one back; or begin anew in another folder, which is a second release on "
                "the same users"
            ) from error


def _refuse_other_promises(mechanism: Mechanism) -> None:
    # PRIVACY: a promise to each example is no promise to a user, who has many.   [G18]
    if mechanism.unit != "user":
        raise ValueError(
            f'unit = {mechanism.unit!r}: a federated training protects users; calibrate(…, unit="user")'
        )
    # PRIVACY: users come when they can; there is no sampling that could amplify.   [G9]
    if mechanism.amplified:
        raise ValueError(
            f"sampling = {mechanism.sampling}: users are not sampled at random, and no amplification is claimed; "
            "use FixedOrder()"
        )
    # PRIVACY: users are asked in turn, so one user more or less moves all later ones to other rounds.   [G18]
    if mechanism.sampling != FixedOrder() or mechanism.adjacency == "add-remove":
        raise ValueError(
            f"sampling = {mechanism.sampling}, adjacency = {mechanism.adjacency!r}: the server asks users in turn "
            "and not in slots by a hash, so that one user more or less changes who is asked in every later round. "
            'Nothing was released. Use FixedOrder(), and adjacency="zero-out" or "replace-one"'
        )


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A model that was handed out is not changed by those who got it."""
    array.setflags(write=False)
    return array
