"""One release: the sum of clipped gradients in, the same with its row of noise out, and both ledgers in between."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from antiphase.errors import (
    AntiphaseWarning,
    HorizonError,
    KeyFileError,
    ParticipationError,
    StateError,
)
from antiphase.ledger.participation import ParticipationLedger
from antiphase.ledger.write_ahead import WriteAheadLedger
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.noise.stream import NoiseStream
from antiphase.torch import distributed, earlier_runs
from antiphase.torch.batch_selection import Recorded

Tensor = torch.Tensor


class Release:
    """Turns the sums of a step into what may be released. The only place where noise meets gradients.

    In this order: every guard must agree, the plan must have a row left, the examples must be allowed to take part,
    the sum is written down; then the row is taken from the stream.

    ``guards`` are called first at every step, before anything is taken, recorded or drawn; a guard raises to refuse
    the step. ``after_step`` is called once the inner optimizer has stepped. ``data`` is the fingerprint of the data
    set, by which other runs on the same data are found. ``most_examples`` is the largest batch, all processes together.

    Guarantee: whatever is refused, is refused before a row is drawn or a ledger changed.   [G14]
    """

    def __init__(
        self,
        mechanism: Mechanism,
        key: Key,
        shapes: dict[str, tuple[int, ...]],
        divisor: float,
        *,
        batches: Recorded | None,
        ledger: ParticipationLedger | None,
        group: distributed.Group,
        most_examples: int,
        memory: str | int = "2GB",
        data: str | None = None,
    ) -> None:
        self.most_examples = most_examples
        self.guards: list[Callable[[], None]] = []
        self.after_step: list[Callable[[], None]] = []
        self.data = data
        self.mechanism, self.key, self.divisor = mechanism, key, divisor
        self.batches, self.ledger, self.group = batches, ledger, group
        self._shapes, self._memory = shapes, memory
        self._run: str | None = None
        self._releases = 0
        self._void = ""  # why nothing may be released any more
        self._stream: NoiseStream | distributed.ShardedNoise | None = None
        self._position = 0
        self._foreign = 0  # runs under other keys: all of them may have been released

    @property
    def run(self) -> str | None:
        """The id of the run under the key; None before the first step."""
        return self._run

    @property
    def releases(self) -> int:
        """How many rows this object has given out."""
        return self._releases

    @property
    def position(self) -> int:
        """How many steps have been released."""
        return self._position

    @property
    def remaining(self) -> int:
        return self.mechanism.steps - self._position

    def begin(self, run: str | None = None, position: int = 0, after: str | None = None) -> None:
        """Start a run (in the place of ``after``), or go on with one, at ``position``."""
        # A key without a file remembers nothing of other processes; insecure ones may go on all the same.
        first = position if run is None or self.key.path is None else 0
        if run is None:
            run = self.group.agreed(self._new_run(after) if self.group.rank == 0 else None)
        stream = self.group.noise(self.mechanism, self.key, run, self._shapes, self._memory)
        if stream is not None:
            stream.skip(position)
        self._wal = WriteAheadLedger(self.key, run, self.group.rank, first)
        self._drawn_before = self.group.largest(
            len(self._wal)
        )  # by any process: one may have died a step earlier
        self._run, self._position, self._stream = run, position, stream

    def _new_run(self, after: str | None) -> str:
        """Start a run under the key; warn if another training under this key used the same data."""
        run = self.key.start_run(
            self.mechanism.digest, after, self.data, earlier_runs.described(self.mechanism)
        )
        others = earlier_runs.on_same_data(self.key, self.data, run)
        if others:
            warnings.warn(
                f"{len(others)} other training(s) under this key used the same data set, so their releases add up"
                f"{self._combined(others)}. Each statement carries the combined ε as a caveat",
                AntiphaseWarning,
                stacklevel=2,
            )
        return run

    def _combined(self, others: list[earlier_runs.EarlierRun]) -> str:
        delta = self.mechanism.target_delta
        if delta is None:
            return ""
        epsilon = earlier_runs.combined_epsilon(
            self.mechanism, [self.mechanism.steps], others, delta
        )
        return f": {earlier_runs.in_words(epsilon, delta)}"

    def others_on_same_data(self) -> list[earlier_runs.EarlierRun]:
        """Other trainings under this key on the same data set that released something."""
        return [] if self.run is None else earlier_runs.on_same_data(self.key, self.data, self.run)

    def void(self, reason: str) -> None:
        """Refuse every step from now on."""
        self._void = reason

    @property
    def drawn(self) -> int:
        """How many rows of this run have been drawn, or were about to be: at least those released."""
        return 0 if self.run is None else max(len(self._wal), self._drawn_before, self._position)

    def earlier(self) -> list[int]:
        """How many rows were drawn in each of the runs that this one, or those it goes back to, took the place of."""
        if self.run is None:
            return []
        # PRIVACY: all of them, also those that the checkpoint at hand knows nothing of.   [G15]
        others = {
            run: WriteAheadLedger.drawn_in(self.key, run)
            for run in self.key.family(self.run) - {self.run}
        }
        known = [self.mechanism.steps if drawn is None else drawn for drawn in others.values()]
        return known + [self.mechanism.steps] * self._foreign

    def __call__(self, sums: list[Tensor], examples: int) -> list[Tensor]:
        """The sums of one logical step, with noise, divided by the public divisor; float32, whatever the sums are."""
        # PRIVACY: a plan that another one replaced is accounted for nowhere.   [G15]
        if self._void:
            raise StateError(f"this optimizer is void: {self._void}. Nothing was released")
        # PRIVACY: whatever the promise rests on is as it was, or nothing goes out.   [G16]
        for guard in self.guards:
            guard()
        if self.run is None:
            self.begin()
        if self.remaining <= 0:
            self._past_the_plan()
        step = self._position
        indices = self.batches.take(examples) if self.batches is not None else None
        if self.ledger is not None:
            if indices is None:
                raise ParticipationError(
                    f"step {step}: {examples} gradients of examples that are not known. Take the batches from the "
                    "loader that make_private returned, whole and one at a time; or vouch for who takes part: "
                    'participation="trusted". Nothing was released'
                )
            self.ledger.check(step, indices)
        # PRIVACY: the rounding of sums is covered for so many examples, and no more.   [G16]
        if examples > self.most_examples:
            raise ParticipationError(
                f"step {step}: {examples} examples, and the rounding of sums is covered for {self.most_examples}. "
                "Nothing was released. Give make_private a loader with the batch size in use"
            )
        parts = [self.group.part(t.detach()) for t in sums]
        # PRIVACY: noise is float32; digits of a float64 sum below that would go out without noise.   [G16]
        parts = [t.to(torch.float32) for t in parts]
        own = [(t if t.device.type == "cpu" else t.cpu()).contiguous().numpy() for t in parts]
        # PRIVACY: written down before the row is taken, so that no row goes out twice with different sums.   [G15]
        self._wal.record(step, own)
        row = self._stream.next() if self._stream is not None else {}
        self._position += 1
        self._releases += 1
        if self.ledger is not None and indices is not None:
            self.ledger.record(step, indices)
        noisy = []
        for name, total, array in zip(self._shapes, parts, own, strict=True):
            # PRIVACY: added in float32; in bfloat16 small noise would vanish.   [G16]
            # By NumPy, since torch would wake all its threads to add two rows.
            out = (
                np.asarray(array + row[name].reshape(array.shape)) if name in row else array.copy()
            )
            noisy.append(torch.from_numpy(out).to(total.device))
        return [_divided(t, self.divisor) for t in self.group.summed(noisy, sums)]

    def prepare(self) -> None:
        """Begin to make the next row, while the model computes gradients; it is given out by the next call alone."""
        if self._stream is not None and self.remaining:
            self._stream.prepare()

    def _past_the_plan(self) -> None:
        # PRIVACY: past the plan there is no noise that is accounted for.   [G13]
        raise HorizonError(
            f"all {self.mechanism.steps} steps of the plan are done. Nothing was released. Plan for as many steps as "
            "training takes: make_private(…, epochs=…) or steps=…"
        )

    # ---- going on ------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """For a checkpoint; neither key nor noise is in it."""
        if self.run is None:
            self.begin()
        self._wal.sync()
        return {
            "run": self.run,
            "position": self._position,
            "mechanism": self.mechanism.digest,
            "world": self.group.world,
            "rank": self.group.rank,
            "key": self.key.fingerprint(),
            "foreign": self._foreign,
            "ledger": {} if self.ledger is None else self.ledger.state(),
        }

    def restore(self, state: dict[str, Any], fresh_noise: bool = False) -> None:
        """Go on where `state` was taken; with noise of a new run if asked. Nothing is changed by what is refused."""
        if state["mechanism"] != self.mechanism.digest:
            raise StateError(
                f"the checkpoint was saved with mechanism {state['mechanism'][:16]}…, and this one is "
                f"{self.mechanism.digest[:16]}…. Nothing was changed. Call make_private with the same arguments"
            )
        if state["world"] != self.group.world:
            raise StateError(
                f"the checkpoint was saved by {state['world']} process(es), and here are {self.group.world}"
            )
        same_key = state["key"] == self.key.fingerprint()
        if not same_key and not fresh_noise:
            # PRIVACY: rows of another key do not cancel those before; together they are two releases.   [G15]
            raise KeyFileError(
                "the checkpoint was saved with another key, or by an antiphase whose noise is another. Nothing was "
                "changed. Go on with that, or with fresh noise, accounted as a second release: "
                "load_checkpoint(…, fresh_noise=True)"
            )
        # PRIVACY: rows of different steps, or runs, are together no row of the noise.   [G17]
        whose = "its own" if state["rank"] == self.group.rank else "that of another process"
        self.group.require_same(
            "checkpoint", f"run {state['run']}, step {state['position']}, {whose}"
        )
        if state["rank"] != self.group.rank:
            # PRIVACY: who took part is counted by each process for itself.   [G14]
            raise StateError(
                f"the checkpoint is that of process {state['rank']}, and this is process {self.group.rank}. Nothing "
                "was changed. Each has its own"
            )
        position, run, foreign = int(state["position"]), str(state["run"]), int(state["foreign"])
        if not (0 <= position <= self.mechanism.steps and foreign >= 0):
            raise StateError(
                f"step {position} of {self.mechanism.steps}: not the state of a release"
            )
        if same_key:
            run = self.key.check_run(run)
        if self.drawn and not (same_key and run in self.key.family(str(self.run))):
            # PRIVACY: what was released here would be forgotten.   [G15]
            raise StateError(
                f"this engine has released {self.drawn} steps of another run. Nothing was changed. Go on with an "
                "engine of its own; on the same data the two add up"
            )
        kept = (
            self.key.path is not None
            or self.key.is_insecure
            or WriteAheadLedger.drawn_in(self.key, run) is not None
        )
        if same_key and not fresh_noise and not kept:
            # PRIVACY: nothing says here which rows went out with which sums.   [G15]
            raise KeyFileError(
                "the key has no file, so that there is no record of what was released. Nothing was changed. Keep keys "
                "in files (Key.save, Key.load), or go on with fresh noise, accounted as a second release"
            )
        if self.ledger is not None:
            self.ledger.restore(state["ledger"])
        if fresh_noise:
            self.begin(position=position, after=run if same_key else None)
        else:
            self.begin(run, position)
        self._foreign = foreign + (not same_key)


def _divided(total: Tensor, divisor: float) -> Tensor:
    if total.device.type != "cpu" or distributed.is_shard(total):
        return total.div_(divisor)
    array = total.numpy()
    array /= array.dtype.type(divisor)
    return total


def row_of(release: Release, step: int) -> dict[str, np.ndarray[Any, Any]]:
    """Row ``step`` of the noise again, for tests and studies; whoever has the key can do so."""
    stream = NoiseStream(
        release.mechanism, key=release.key, run=release.run, shapes=release._shapes, memory="2GB"
    )
    stream.skip(step)
    row: dict[str, np.ndarray[Any, Any]] = stream.next()
    return row
