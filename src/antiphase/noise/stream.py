"""`NoiseStream`: the rows of ``σ·C⁻¹Z``, one a step, each a pure function of key, run, mechanism and step."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, Protocol

import numpy as np

from antiphase._util import checks as check
from antiphase.errors import HorizonError, ReplayError, StateError
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.blt import Blt
from antiphase.factorizations.inverse_toeplitz import InverseToeplitz
from antiphase.factorizations.streaming import Streaming
from antiphase.factorizations.tree import Tree, full_estimator_stream
from antiphase.noise.generators import (
    DRAWN_AGAIN,
    Engine,
    Moving,
    Nodes,
    Piece,
    Regenerated,
    Ring,
    States,
    state_type,
)
from antiphase.noise.key import NOISE, Key
from antiphase.noise.normals import CHUNK, Normals, Row

LONGEST_RING = 64  # diagonals; beyond, drawing normals again is cheaper than reading so many rows
WORTH_A_THREAD = 64 * CHUNK  # numbers; a shorter row is made faster by one thread


class Plan(Protocol):
    """What a stream needs of a mechanism."""

    @property
    def factorization(self) -> Factorization: ...
    @property
    def noise_scale(self) -> float: ...
    @property
    def digest(self) -> str: ...
    def statement(
        self, delta: float | None = None, *, released: int | None = None, insecure: bool = False
    ) -> Any: ...


class NoiseStream:
    """What to add to the sum of clipped gradients, step by step: float32 rows, or dictionaries of tensors.

    Guarantee: the rows together have the law of ``noise_scale·C⁻¹Z`` with independent standard normal ``Z``.   [G8]
    Guarantee: a row depends on the key, the run, the mechanism, the step and the tensor's name alone: no global
    generator is read or written, and threads, memory and restarts change no bit.   [G12]
    Guarantee: after the last step of the plan, `HorizonError`, and nothing is drawn.   [G13]

    ``memory`` bounds what the stream may keep (``"512MB"``); ``threads`` is chosen by the length of the row unless
    given. ``first_chunks`` is for a part of a tensor: how many chunks of the whole one come before it. A stream that
    goes on after a restart is made by `restore`.
    """

    def __init__(
        self,
        plan: Plan,
        dimension: int | None = None,
        *,
        key: Key,
        shapes: Mapping[str, Any] | None = None,
        run: str | None = None,
        memory: str | int = "512MB",
        threads: int | None = None,
        first_chunks: Mapping[str, int] | None = None,
    ) -> None:
        self._plan = plan
        check.instance("key", key, Key)
        self._insecure = key.is_insecure
        self._shapes, self._flat = _checked_shapes(dimension, shapes)
        budget = parse_memory(memory)
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        starts = [0, *np.cumsum([-(-size // CHUNK) * CHUNK for size in sizes]).tolist()]
        self._width = starts[-1]
        self._slices = [
            slice(start, start + size) for start, size in zip(starts, sizes, strict=False)
        ]
        self._engine = engine_for(plan.factorization, plan.noise_scale, self._width, budget)
        self._run = key.start_run(plan.digest) if run is None else key.check_run(run)
        # PRIVACY: one subkey for each (run, mechanism, tensor); the step and the place are in the counter.   [G12]
        normals = [
            Normals(key.subkey("noise", self._run, plan.digest, name)) for name in self._shapes
        ]
        offsets = [0 if first_chunks is None else first_chunks[name] for name in self._shapes]
        length = self._engine.piece_chunks * CHUNK
        self._pieces = [
            Piece(source, offset + (first - start) // CHUNK, first, min(first + length, stop))
            for source, offset, start, stop in zip(
                normals, offsets, starts, starts[1:], strict=False
            )
            for first in range(start, stop, length)
        ]
        most = 1 if self._width < WORTH_A_THREAD else min(os.cpu_count() or 1, 4)
        self._threads = most if threads is None else check.whole_number("threads", threads)
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: tuple[Row, Future[None]] | None = None  # the next row, made in the background
        self._position = 0
        self._broken = False  # True while a row is being made, and for good if that was interrupted
        self._lock = threading.Lock()
        self._process = os.getpid()

    # ---- where it stands -----------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """How many rows there are in all."""
        return self._plan.factorization.steps

    @property
    def position(self) -> int:
        """How many rows have been given out or skipped."""
        return self._position

    @property
    def remaining(self) -> int:
        return self.steps - self._position

    @property
    def run(self) -> str:
        """The id of the run: public, and needed to go on after a restart."""
        return self._run

    @property
    def memory(self) -> int:
        """Bytes that the stream keeps between rows."""
        return self._engine.memory

    def state(self) -> dict[str, Any]:
        """All that `restore` needs besides the mechanism and the key. No secret is in it, nor any noise."""
        shapes = {name: list(shape) for name, shape in self._shapes.items()}
        return {
            "version": NOISE,
            "mechanism": self._plan.digest,
            "run": self._run,
            "position": self._position,
            "shapes": shapes,
            "flat": self._flat,
        }

    @classmethod
    def restore(
        cls,
        plan: Plan,
        state: Any,
        *,
        key: Key,
        memory: str | int = "512MB",
        threads: int | None = None,
    ) -> NoiseStream:
        """The stream that goes on where `state` was taken, bit for bit; in another process too.

        Noise that depends on all the past is made again from the last restart on, since a checkpoint must not hold it.
        """
        try:
            version, mechanism, position = state["version"], state["mechanism"], state["position"]
            shapes = {str(name): tuple(shape) for name, shape in state["shapes"].items()}
            flat, run = bool(state["flat"]), str(state["run"])
            # PRIVACY: another version draws other normals, and would take back noise that was never added.   [G12]
            if (
                version != NOISE
                or isinstance(position, bool)
                or not isinstance(position, int)
                or position < 0
            ):
                raise ValueError(f"version {version!r}, position {position!r}")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"this is not the state of a noise stream ({error})") from error
        if mechanism != plan.digest:
            # PRIVACY: the same normals under another encoder would let the two releases be compared.   [G12]
            raise StateError(
                f"the state belongs to mechanism {str(mechanism)[:16]}…, not to {plan.digest[:16]}…: no noise was "
                "drawn. Use the mechanism it was taken with"
            )
        size: Any = (
            {"dimension": math.prod(shapes[""])}
            if flat and list(shapes) == [""]
            else {"shapes": shapes}
        )
        stream = cls(plan, key=key, run=run, memory=memory, threads=threads, **size)
        stream.skip(position)
        return stream

    def statement(self, delta: float | None = None) -> Any:
        """The mechanism's statement, with what has been released so far and whether the key is a secret."""
        return self._plan.statement(delta, released=self._position, insecure=self._insecure)

    # ---- rows ----------------------------------------------------------------------------------------------

    def next(self, out: Any = None) -> Any:
        """The next row: a float32 array of the dimension, or a dictionary of arrays of the shapes.

        ``out``, if given, is written to and returned: float32 arrays, or torch tensors on the CPU, whose memory is
        used as it is.
        """
        self._refuse_in_a_fork()
        targets = None if out is None else self._targets(out)
        with self._lock:
            self._refuse_past_horizon(1)
            row = self._take()
            self._position += 1
            self._broken = False
        views = [
            row[part].reshape(shape)
            for part, shape in zip(self._slices, self._shapes.values(), strict=True)
        ]
        if targets is not None:
            for target, view in zip(targets, views, strict=True):
                target[...] = view
            return out
        return views[0] if self._flat else dict(zip(self._shapes, views, strict=True))

    def prepare(self) -> None:
        """Begin to make the next row in the background, by one thread; `next` waits for it.

        Nothing is given out by that, and no bit changes. For a short row, which is made sooner than a thread wakes up,
        nothing is done.
        """
        self._refuse_in_a_fork()  # whose threads are gone
        with self._lock:
            if (
                self._ahead is None
                and not self._broken
                and self.remaining
                and self._width >= WORTH_A_THREAD
            ):
                row = np.empty(self._width, np.float32)
                self._ahead = row, self._others().submit(self._make, self._position, row, 1)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        # PRIVACY: a copy would give out the same rows a second time.   [G12]
        raise TypeError(
            "a NoiseStream is not copied or pickled: keep its state(), and resume from it"
        )

    def __iter__(self) -> Iterator[Any]:
        while self.remaining:
            yield self.next()

    def skip(self, count: int) -> None:
        """Go on ``count`` rows without giving them out."""
        count = check.whole_number("count", count, minimum=0)
        self._refuse_in_a_fork()
        with self._lock:
            self._refuse_past_horizon(count)
            if not count:
                return
            target = self._position + count
            if self._ahead is not None:
                self._take()  # the engine is done with it, and may start anew
            row = np.empty(self._width, np.float32)
            self._broken = True
            for step in range(self._engine.restart(target), target):
                self._make(step, row, self._threads)
            self._position = target
            self._broken = False

    def _refuse_in_a_fork(self) -> None:
        # PRIVACY: parent and child would both give out the same rows, for sums of their own.   [G15]
        if os.getpid() != self._process:
            raise ReplayError(
                f"process {os.getpid()}: this stream was made by process {self._process}, and a forked process would "
                "give out the same rows of noise. Nothing was drawn. Make the stream in the process that uses it"
            )

    def _refuse_past_horizon(self, count: int) -> None:
        if self._broken:
            raise RuntimeError(
                "a row was interrupted half-way; restore the stream from its state()"
            )
        if count > self.remaining:
            # PRIVACY: past the plan there is no noise that is accounted for.   [G13]
            raise HorizonError(
                f"{count} more row(s) after {self._position} of {self.steps}, and the plan has no more. "
                "Nothing was drawn. Design one for as many steps as training takes"
            )

    def _take(self) -> Row:
        """The row at hand, made now unless it was begun; the stream is broken until the caller says otherwise."""
        self._broken = True
        if self._ahead is None:
            row = np.empty(self._width, np.float32)
            self._make(self._position, row, self._threads)
            return row
        row, made = self._ahead
        made.result()
        self._ahead = None
        return row

    def _others(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                max(self._threads - 1, 1), thread_name_prefix="antiphase-noise"
            )
        return self._pool

    def _make(self, step: int, row: Row, threads: int) -> None:
        """Row ``step`` into ``row``, by so many threads."""
        task = self._engine.work if self._engine.begin(step) else self._engine.copy

        def share(which: int) -> None:
            for piece in self._pieces[which::threads]:
                task(step, piece, row[piece.start : piece.stop])

        threads = min(threads, len(self._pieces))
        others = [self._others().submit(share, which) for which in range(1, threads)]
        share(0)
        for other in others:
            other.result()

    def _targets(self, out: Any) -> list[Any]:
        given = [out] if self._flat else [out[name] for name in self._shapes]
        targets: list[Any] = []
        for (name, shape), target in zip(self._shapes.items(), given, strict=True):
            # PRIVACY: noise written to a copy, or one number for many places, protects nothing.   [G8]
            array = target if isinstance(target, np.ndarray) else _memory_of(target)
            if array is None or any(
                s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)
            ):
                raise ValueError(
                    f"out = {type(target).__name__}: a float32 array or a CPU tensor of its own memory is needed"
                )
            if any(np.may_share_memory(array, other) for other in targets):
                raise ValueError("out has two names for the same memory")
            if array.dtype != np.float32 or array.shape != shape or not array.flags.writeable:
                raise ValueError(
                    f"out{f'[{name!r}]' if name else ''} has shape {array.shape} and type {array.dtype}; a float32 "
                    f"array of shape {shape} that can be written to is needed"
                )
            targets.append(array)
        return targets


def _memory_of(tensor: Any) -> Any:
    """The memory of a torch tensor on the CPU as an array, or None: not a copy of it."""
    try:
        array = tensor.detach().numpy()
    except (AttributeError, TypeError, RuntimeError):
        return None
    return (
        array if isinstance(array, np.ndarray) and array.ctypes.data == tensor.data_ptr() else None
    )


def engine_for(factorization: Factorization, scale: float, width: int, memory: int) -> Engine:
    """The cheapest way to make the noise within ``memory`` bytes."""
    if isinstance(factorization, Tree):
        needed = 4 * width * factorization.steps.bit_length()
        if needed > memory:
            raise ValueError(
                f"memory = {memory} bytes: a tree over {factorization.steps} steps keeps {needed} bytes"
            )
        if factorization.estimator == "full":
            return States(full_estimator_stream(factorization), scale, width)
        return Nodes(factorization.steps, factorization.estimator == "online", scale, width)
    if isinstance(factorization, InverseToeplitz):
        past = len(factorization.inverse) - 1
        needed = 4 * width * past * (past > DRAWN_AGAIN)
        if needed > memory:
            raise ValueError(
                f"memory = {memory} bytes: an inverse of {past + 1} diagonals keeps {needed} bytes of rows"
            )
        return Moving(factorization, scale, width)
    if isinstance(factorization, Blt):
        factorization = factorization.stream
    if isinstance(factorization, Streaming):
        vector = width * np.dtype(state_type(factorization)).itemsize
        needed = vector * factorization.buffers
        if needed > memory:
            raise ValueError(
                f"memory = {memory} bytes: {factorization.buffers} buffers of {vector} bytes need {needed}. "
                "Give more, or design with fewer buffers"
            )
        return States(factorization, scale, width)
    bands = factorization.bands
    if bands <= LONGEST_RING:
        needed = 4 * width * (bands - 1)
        if needed > memory:
            # PRIVACY: the other engine rounds otherwise, and a run that goes on must not change a bit.   [G12]
            raise ValueError(
                f"memory = {memory} bytes: an encoder of {bands} diagonals keeps {needed} bytes of rows"
            )
        return Ring(factorization, scale, width)
    return Regenerated(factorization, scale, width, memory)


def parse_memory(memory: str | int) -> int:
    """Bytes, from a number or from words like ``"512MB"``.

    >>> parse_memory("1.5 GB")
    1500000000
    """
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", memory, re.IGNORECASE)
        if not match:
            raise ValueError(f"memory = {memory!r} must be a size such as '512MB' or '2GiB'")
        power = " KMGT".index(match[2].upper() or " ")
        return int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    return check.whole_number("memory", memory)


def _checked_shapes(dimension: Any, shapes: Any) -> tuple[dict[str, tuple[int, ...]], bool]:
    if (dimension is None) == (shapes is None):
        raise TypeError(f"dimension = {dimension}, shapes = {shapes}: give one of the two")
    if dimension is not None:
        return {"": (check.whole_number("dimension", dimension),)}, True
    check.instance("shapes", shapes, Mapping)
    if not shapes:
        raise ValueError("shapes = {}: there is nothing to add noise to")
    clean = {}
    for name, shape in shapes.items():
        check.instance("a name in shapes", name, str)
        sizes = shape if isinstance(shape, tuple | list) else (shape,)
        clean[name] = tuple(check.whole_number(f"shapes[{name!r}]", size) for size in sizes)
    return clean, False
