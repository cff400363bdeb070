"""The noise rows of one training: start, write-ahead record, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from antiphase.errors import KeyFileError, StateError
from antiphase.ledger.write_ahead import WriteAheadLedger
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.torch import earlier_runs
from antiphase.torch.distributed import Group
from antiphase.torch.recorded_loader import StepCounter
from antiphase.torch.sharding import ShardedNoise
from antiphase.torch.user_warnings import warn

if TYPE_CHECKING:
    from antiphase.noise.stream import NoiseStream

Row = dict[str, np.ndarray[Any, Any]]


class NoiseRun:
    """The noise of one training, row by row; each row goes out with one sum of gradients.

    A run has an id under the key. It starts with the first step, and can be resumed where its
    state was saved, or replaced by a run with fresh noise.

    Args:
        mechanism: the calibrated mechanism.
        key: the secret that the noise is made from.
        shapes: the shape of each tensor, by name.
        group: the processes that train together.
        memory: for the noise of all processes together.
        data: the fingerprint of the data set, by which other runs on the same data are found.
        steps: counts the rows; a counter of its own if None.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        key: Key,
        shapes: dict[str, tuple[int, ...]],
        *,
        group: Group,
        memory: str | int = "2GB",
        data: str | None = None,
        steps: StepCounter | None = None,
    ) -> None:
        self.mechanism, self.key, self.group, self.data = mechanism, key, group, data
        self.shapes, self.steps = shapes, StepCounter() if steps is None else steps
        self._memory = memory
        self._run: str | None = None
        self._releases = 0
        self._stream: NoiseStream | ShardedNoise | None = None
        self._foreign_runs = 0  # runs under other keys: all of each may have been released

    @property
    def run(self) -> str | None:
        """The id of the run under the key; None before the first step."""
        return self._run

    @property
    def releases(self) -> int:
        """Number of rows that this object has given out."""
        return self._releases

    @property
    def position(self) -> int:
        """Number of steps that have been released."""
        return self.steps.position

    @property
    def remaining(self) -> int:
        """Number of steps that the plan has left."""
        return self.mechanism.steps - self.position

    @property
    def drawn(self) -> int:
        """Number of rows of this run that were drawn, or were about to be: at least `position`."""
        if self.run is None:
            return 0
        return max(len(self._wal), self._drawn_before, self.position)

    def begin(self, run: str | None = None, position: int = 0, after: str | None = None) -> None:
        """Start a run, or resume one.

        Args:
            run: the id of a run to resume; a new one if None.
            position: the step to go on with.
            after: the id of a run that a new run replaces.
        """
        # A key without a file remembers nothing of other processes; insecure ones may go on.
        first = position if run is None or self.key.path is None else 0
        if run is None:
            run = self.group.agreed(self._new_run(after) if self.group.rank == 0 else None)
        stream = self.group.noise(self.mechanism, self.key, run, self.shapes, self._memory)
        if stream is not None:
            stream.skip(position)
        self._wal = WriteAheadLedger(self.key, run, self.group.rank, first)
        # By any process: one may have stopped a step earlier.
        self._drawn_before = self.group.largest(len(self._wal))
        self._run, self._stream, self.steps.position = run, stream, position

    def _new_run(self, after: str | None) -> str:
        """Start a run under the key; warn if another training used the same data."""
        run = self.key.start_run(
            self.mechanism.digest, after, self.data, earlier_runs.composition_record(self.mechanism)
        )
        others = earlier_runs.on_same_data(self.key, self.data, run)
        if others:
            delta, combined = self.mechanism.target_delta, ""
            if delta is not None:
                epsilon = earlier_runs.combined_epsilon(
                    self.mechanism, [self.mechanism.steps], others, delta
                )
                combined = f": {earlier_runs.describe_combined(epsilon, delta)}"
            warn(
                f"{len(others)} other training(s) under this key used the same data set, so their "
                f"releases add up{combined}. Each statement carries the combined ε as a caveat"
            )
        return run

    def _next_row(self, sums: list[np.ndarray[Any, Any]]) -> Row:
        """The next row of noise, for ``sums``, which are written ahead."""
        # PRIVACY: recorded before the row is drawn, so no row goes out with two sums.   [G15]
        self._wal.record(self.position, sums)
        row = self._stream.next() if self._stream is not None else {}
        self.steps.position += 1
        self._releases += 1
        return row

    def prepare(self) -> None:
        """Begin to make the next row while the model computes gradients."""
        if self._stream is not None and self.remaining:
            self._stream.prepare()

    # Other runs on the same data

    def replaced_runs(self) -> list[int]:
        """Number of rows drawn in each run that this one replaced, directly or not."""
        if self.run is None:
            return []
        # PRIVACY: all of them, also those that the checkpoint at hand knows nothing of.   [G15]
        others = [
            WriteAheadLedger.released_steps(self.key, run)
            for run in self.key.family(self.run) - {self.run}
        ]
        rows = [self.mechanism.steps if drawn is None else drawn for drawn in others]
        return rows + [self.mechanism.steps] * self._foreign_runs

    def others_on_same_data(self) -> list[earlier_runs.EarlierRun]:
        """Other trainings under this key on the same data set that released something."""
        return [] if self.run is None else earlier_runs.on_same_data(self.key, self.data, self.run)

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """The state of the run for a checkpoint; neither key nor noise is in it."""
        if self.run is None:
            self.begin()
        self._wal.sync()
        return {
            "run": self.run,
            "position": self.position,
            "mechanism": self.mechanism.digest,
            "world": self.group.world,
            "rank": self.group.rank,
            "key": self.key.fingerprint(),
            "foreign": self._foreign_runs,
        }

    def _check_state(self, state: dict[str, Any], fresh_noise: bool) -> str:
        """Refuse a state that this run cannot go on from. Nothing is changed.

        Args:
            state: what `state` returned.
            fresh_noise: whether to go on with noise of a new run.

        Returns:
            The id of the run that the state is of.

        Raises:
            StateError: if the state is of another mechanism, process or run.
            KeyFileError: if the state is of another key, or there is no record of its releases.
        """
        self._check_plan(state)
        same_key = self._is_own_key(state)
        if not same_key and not fresh_noise:
            # PRIVACY: rows of two keys do not cancel; together they are two releases.   [G15]
            raise KeyFileError(
                "the checkpoint was saved with another key, or by a version of antiphase with an "
                "incompatible noise format. Nothing was changed. Use that key, or account for a "
                "second release: load_checkpoint(…, fresh_noise=True)"
            )
        self._check_process(state)
        run = str(state["run"])
        if same_key:
            run = self.key.check_run(run)
        if self.drawn and not (same_key and run in self.key.family(str(self.run))):
            # PRIVACY: what was released here would be forgotten.   [G15]
            raise StateError(
                f"this engine has released {self.drawn} steps of another run. Nothing was changed. "
                "Go on with an engine of its own; on the same data the two add up"
            )
        recorded = (
            self.key.path is not None
            or self.key.is_insecure
            or WriteAheadLedger.released_steps(self.key, run) is not None
        )
        if same_key and not fresh_noise and not recorded:
            # PRIVACY: nothing says here which rows went out with which sums.   [G15]
            raise KeyFileError(
                "the key has no file, so there is no record of what was released. Nothing was "
                "changed. Keep keys in files (Key.save), or account for a second release: "
                "load_checkpoint(…, fresh_noise=True)"
            )
        return run

    def _is_own_key(self, state: dict[str, Any]) -> bool:
        return bool(state["key"] == self.key.fingerprint())

    def _check_plan(self, state: dict[str, Any]) -> None:
        if state["mechanism"] != self.mechanism.digest:
            raise StateError(
                f"the checkpoint was saved with mechanism {state['mechanism'][:16]}…, not "
                f"{self.mechanism.digest[:16]}…. Nothing was changed. Call make_private with the "
                "same arguments"
            )
        if state["world"] != self.group.world:
            raise StateError(
                f"the checkpoint was saved by {state['world']} process(es), and here are "
                f"{self.group.world}"
            )

    def _check_process(self, state: dict[str, Any]) -> None:
        # PRIVACY: rows of different steps, or runs, are together no row of the noise.   [G17]
        owner = "its own" if state["rank"] == self.group.rank else "that of another process"
        self.group.require_same(
            "checkpoint", f"run {state['run']}, step {state['position']}, {owner}"
        )
        if state["rank"] != self.group.rank:
            # PRIVACY: who took part is counted by each process for itself.   [G14]
            raise StateError(
                f"the checkpoint is that of process {state['rank']}, and this is process "
                f"{self.group.rank}. Nothing was changed. Each has its own"
            )
        position, foreign_runs = int(state["position"]), int(state["foreign"])
        if not (0 <= position <= self.mechanism.steps and foreign_runs >= 0):
            raise StateError(
                f"step {position} of {self.mechanism.steps}: not the state of a release"
            )

    def _resume(self, state: dict[str, Any], run: str, fresh_noise: bool) -> None:
        """Go on where a checked ``state`` of ``run`` was taken, with fresh noise if asked."""
        position, same_key = int(state["position"]), self._is_own_key(state)
        if fresh_noise:
            self.begin(position=position, after=run if same_key else None)
        else:
            self.begin(run, position)
        self._foreign_runs = int(state["foreign"]) + (not same_key)


def row_of(run: NoiseRun, step: int) -> Row:
    """Row ``step`` of the noise again, for tests and studies; whoever has the key can do so."""
    stream = run.mechanism.noise(key=run.key, run=run.run, shapes=run.shapes, memory="2GB")
    stream.skip(step)
    row: Row = stream.next()
    return row
