"""`NoiseStream`: the rows of ``σ·C⁻¹Z``, one for each step."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NoReturn, Protocol

import numpy as np

from antiphase._util import checks as check
from antiphase.errors import HorizonError, ReplayError, StateError
from antiphase.factorizations.base import Factorization
from antiphase.noise.generators import Piece, engine_for
from antiphase.noise.key import NOISE_VERSION, Key
from antiphase.noise.normals import CHUNK, Normals, Row

MIN_THREADED_WIDTH = 64 * CHUNK  # numbers; one thread makes a shorter row faster than several
MAX_THREADS = 4  # unless more are asked for


class CalibratedMechanism(Protocol):
    """What a stream needs of a mechanism: the encoder, the scale, and words about both."""

    @property
    def factorization(self) -> Factorization:
        """The factorization with encoder ``C``."""

    @property
    def noise_scale(self) -> float:
        """σ, the standard deviation of ``Z``."""

    @property
    def digest(self) -> str:
        """The hash of the mechanism, from which subkeys are derived."""

    def statement(
        self, delta: float | None = None, *, released: int | None = None, insecure: bool = False
    ) -> Any:
        """Return the privacy statement."""


class NoiseStream:
    """What to add to the sum of clipped gradients in each step: float32 rows.

    Created by `Mechanism.noise`, and after a restart by `Mechanism.resume`.

    Guarantee: the rows together have the law of ``noise_scale·C⁻¹Z`` with independent standard
    normal ``Z``.   [G8]
    Guarantee: a row depends only on the key, the run, the mechanism, the step and the tensor's
    name.
    No global generator is read or written; threads, memory and restarts change no bit.   [G12]
    Guarantee: after the last step of the plan `HorizonError` is raised, and nothing is drawn.
    [G13]

    Args:
        mechanism: the calibrated mechanism.
        dimension: the length of a row, if rows are arrays.
        key: the secret that the noise is a function of.
        shapes: the shapes of tensors by name, if rows are dictionaries of arrays.
        run: the id of a run of this key; a new run unless given.
        memory: what the stream may keep from row to row, in bytes or as ``"512MB"``.
        threads: the number of threads; chosen by the length of a row unless given.
        first_chunks: for parts of tensors: the number of chunks of the whole tensor before the
            part.

    Raises:
        ValueError: the noise needs more memory, or an argument is out of range.

    Example:
        >>> import antiphase as ap
        >>> mechanism = ap.calibrate(ap.design("dp-sgd", steps=2), noise_multiplier=1.0)
        >>> stream = mechanism.noise(3, key=ap.Key.insecure(0))
        >>> stream.next().shape, stream.position, stream.remaining
        ((3,), 1, 1)
    """

    def __init__(
        self,
        mechanism: CalibratedMechanism,
        dimension: int | None = None,
        *,
        key: Key,
        shapes: Mapping[str, Any] | None = None,
        run: str | None = None,
        memory: str | int = "512MB",
        threads: int | None = None,
        first_chunks: Mapping[str, int] | None = None,
    ) -> None:
        self._mechanism = mechanism
        check.instance("key", key, Key)
        self._insecure = key.is_insecure
        self._shapes, self._flat = _checked_shapes(dimension, shapes)
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        starts = [0, *np.cumsum([-(-size // CHUNK) * CHUNK for size in sizes]).tolist()]
        self._width = starts[-1]
        self._slices = [
            slice(start, start + size) for start, size in zip(starts, sizes, strict=False)
        ]
        self._engine = engine_for(
            mechanism.factorization, mechanism.noise_scale, self._width, check.parse_memory(memory)
        )
        self._run = key.start_run(mechanism.digest) if run is None else key.check_run(run)
        self._pieces = self._split(key, starts, first_chunks)
        most = 1 if self._width < MIN_THREADED_WIDTH else min(os.cpu_count() or 1, MAX_THREADS)
        self._threads = most if threads is None else check.whole_number("threads", threads)
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: tuple[Row, Future[None]] | None = None  # the next row, made in the background
        self._position = 0
        self._broken = False  # True while a row is being made, and for good if that was interrupted
        self._lock = threading.Lock()
        self._process = os.getpid()

    def _split(
        self, key: Key, starts: list[int], first_chunks: Mapping[str, int] | None
    ) -> list[Piece]:
        """The pieces that threads share out; none of them spans two tensors."""
        length = self._engine.piece_chunks * CHUNK
        pieces = []
        for name, start, stop in zip(self._shapes, starts, starts[1:], strict=False):
            # PRIVACY: a subkey for each (run, mechanism, tensor); step and place count up.   [G12]
            normals = Normals(key.subkey("noise", self._run, self._mechanism.digest, name))
            offset = 0 if first_chunks is None else first_chunks[name]
            for first in range(start, stop, length):
                chunk = offset + (first - start) // CHUNK
                pieces.append(Piece(normals, chunk, first, min(first + length, stop)))
        return pieces

    def __repr__(self) -> str:
        numbers = sum(math.prod(shape) for shape in self._shapes.values())
        insecure = ", INSECURE" if self._insecure else ""
        return (
            f"<NoiseStream {self._mechanism.factorization.name}: {self._position} of {self.steps} "
            f"rows drawn, {numbers:,} numbers each, {self.memory / 1e6:.3g} MB kept{insecure}>"
        )

    @property
    def steps(self) -> int:
        """Number of rows in total."""
        return self._mechanism.factorization.steps

    @property
    def position(self) -> int:
        """Number of rows that were returned or skipped."""
        return self._position

    @property
    def remaining(self) -> int:
        """Number of rows that are left."""
        return self.steps - self._position

    @property
    def run(self) -> str:
        """The id of the run: public, and needed to resume."""
        return self._run

    @property
    def memory(self) -> int:
        """Bytes kept from row to row."""
        return self._engine.memory

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs in addition to the mechanism and the key.

        It contains no secret and no noise.
        """
        shapes = {name: list(shape) for name, shape in self._shapes.items()}
        return {
            "version": NOISE_VERSION,
            "mechanism": self._mechanism.digest,
            "run": self._run,
            "position": self._position,
            "shapes": shapes,
            "flat": self._flat,
        }

    @classmethod
    def restore(
        cls,
        mechanism: CalibratedMechanism,
        state: Any,
        *,
        key: Key,
        memory: str | int = "512MB",
        threads: int | None = None,
    ) -> NoiseStream:
        """Return the stream that continues where `state` was taken, bit for bit.

        Also in another process. Noise that depends on earlier rows is made again from the last
        restart on, since a checkpoint must not contain it.

        Args:
            mechanism: the mechanism of the stream whose state it is.
            state: what `state` returned.
            key: the key of that stream.
            memory: as for a new stream.
            threads: as for a new stream.

        Raises:
            StateError: this is not a state, or that of another mechanism.
        """
        try:
            version, digest, position = state["version"], state["mechanism"], state["position"]
            shapes = {str(name): tuple(shape) for name, shape in state["shapes"].items()}
            flat, run = bool(state["flat"]), str(state["run"])
            # PRIVACY: another version would subtract noise that was never added.   [G12]
            if version != NOISE_VERSION or type(position) is not int or position < 0:
                raise ValueError(f"version {version!r}, position {position!r}")
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"this is not the state of a noise stream ({error})") from error
        if digest != mechanism.digest:
            # PRIVACY: the same normals under another encoder make two releases comparable.   [G12]
            raise StateError(
                f"the state belongs to mechanism {str(digest)[:16]}…, not to "
                f"{mechanism.digest[:16]}…: no noise was drawn. Use the mechanism it was taken with"
            )
        size: Any = {"shapes": shapes}
        if flat and list(shapes) == [""]:
            size = {"dimension": math.prod(shapes[""])}
        stream = cls(mechanism, key=key, run=run, memory=memory, threads=threads, **size)
        stream.skip(position)
        return stream

    def statement(self, delta: float | None = None) -> Any:
        """Return the privacy statement of the rows released so far.

        It says whether the key is secret.

        Args:
            delta: the δ to state ε for; the mechanism's unless given.
        """
        return self._mechanism.statement(delta, released=self._position, insecure=self._insecure)

    def next(self, out: Any = None) -> Any:
        """Return the next row: a float32 array, or a dictionary of arrays.

        Args:
            out: what to write to and return instead: float32 arrays, or torch tensors on the CPU,
                whose memory is written in place.

        Raises:
            HorizonError: the plan has no more rows.
            ReplayError: this process was forked from the one that made the stream.
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
        """Start to make the next row in a background thread; `next` waits for it.

        This returns nothing and changes no bit. Short rows are made faster than a thread starts, so
        nothing is done for them.
        """
        self._refuse_in_a_fork()  # a forked process has none of the threads
        with self._lock:
            idle = self._ahead is None and not self._broken
            if idle and self.remaining and self._width >= MIN_THREADED_WIDTH:
                row = np.empty(self._width, np.float32)
                self._ahead = row, self._workers().submit(self._make, self._position, row, 1)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        # PRIVACY: a copy would return the same rows a second time.   [G12]
        raise TypeError(
            "a NoiseStream cannot be copied or pickled: keep its state(), and resume from it"
        )

    def __iter__(self) -> Iterator[Any]:
        while self.remaining:
            yield self.next()

    def skip(self, count: int) -> None:
        """Move on by ``count`` rows without returning them."""
        count = check.whole_number("count", count, minimum=0)
        self._refuse_in_a_fork()
        with self._lock:
            self._refuse_past_horizon(count)
            if not count:
                return
            target = self._position + count
            if self._ahead is not None:
                self._take()  # the engine must have finished this row before it restarts
            row = np.empty(self._width, np.float32)
            self._broken = True
            for step in range(self._engine.restart(target), target):
                self._make(step, row, self._threads)
            self._position = target
            self._broken = False

    def _refuse_in_a_fork(self) -> None:
        # PRIVACY: parent and child would release the same rows with different sums.   [G15]
        if os.getpid() != self._process:
            raise ReplayError(
                f"process {os.getpid()}: this stream was made by process {self._process}, and a "
                "forked process would release the same rows of noise. Nothing was drawn. Make the "
                "stream in the process that uses it"
            )

    def _refuse_past_horizon(self, count: int) -> None:
        if self._broken:
            raise RuntimeError("making a row was interrupted; restore the stream from its state()")
        if count > self.remaining:
            # PRIVACY: the accounting covers no rows past the plan.   [G13]
            raise HorizonError(
                f"{count} more row(s) after {self._position} of {self.steps}, and the plan has no "
                "more. Nothing was drawn. Design a mechanism for as many steps as training takes"
            )

    def _take(self) -> Row:
        """The next row, made now unless it was prepared. The caller must reset ``_broken``."""
        self._broken = True
        if self._ahead is None:
            row = np.empty(self._width, np.float32)
            self._make(self._position, row, self._threads)
            return row
        row, future = self._ahead
        future.result()
        self._ahead = None
        return row

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                max(self._threads - 1, 1), thread_name_prefix="antiphase-noise"
            )
        return self._pool

    def _make(self, step: int, row: Row, threads: int) -> None:
        """Make row ``step`` into ``row``, with this many threads."""
        task = self._engine.work if self._engine.begin(step) else self._engine.copy

        def share(first: int) -> None:
            for piece in self._pieces[first::threads]:
                task(step, piece, row[piece.start : piece.stop])

        threads = min(threads, len(self._pieces))
        futures = [self._workers().submit(share, first) for first in range(1, threads)]
        share(0)
        for future in futures:
            future.result()

    def _targets(self, out: Any) -> list[Any]:
        given = [out] if self._flat else [out[name] for name in self._shapes]
        targets: list[Any] = []
        for (name, shape), target in zip(self._shapes.items(), given, strict=True):
            # PRIVACY: noise in a copy, or one number in many places, protects nothing.   [G8]
            array = target if isinstance(target, np.ndarray) else _memory_of(target)
            if array is None or any(
                s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)
            ):
                raise ValueError(
                    f"out = {type(target).__name__}: give a float32 array or a CPU tensor that has "
                    "its own memory"
                )
            if any(np.may_share_memory(array, other) for other in targets):
                raise ValueError("out has two tensors that share memory; give each its own")
            if array.dtype != np.float32 or array.shape != shape or not array.flags.writeable:
                raise ValueError(
                    f"out{f'[{name!r}]' if name else ''} has shape {array.shape} and type "
                    f"{array.dtype}; a writable float32 array of shape {shape} is needed"
                )
            targets.append(array)
        return targets


def _memory_of(tensor: Any) -> Any:
    """The memory of a torch tensor on the CPU as an array; None if there is only a copy."""
    try:
        array = tensor.detach().numpy()
    except (AttributeError, TypeError, RuntimeError):
        return None
    return (
        array if isinstance(array, np.ndarray) and array.ctypes.data == tensor.data_ptr() else None
    )


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
