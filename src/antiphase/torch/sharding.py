"""Tensors divided among processes by fully_shard, and their noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from antiphase._util.checks import parse_memory
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key

Shapes = dict[str, tuple[int, ...]]
RowRange = tuple[int, int]  # of a tensor's first dimension: the first row, and the end


def rows_of(length: int, rank: int, world: int) -> RowRange:
    """The rows of process ``rank``, as ``fully_shard`` divides them; the last may have none.

    Args:
        length: rows of the tensor.
        rank: of the process.
        world: number of processes.

    Example:
        >>> [rows_of(7, rank, 4) for rank in range(4)], rows_of(3, 3, 4)
        ([(0, 2), (2, 4), (4, 6), (6, 7)], (3, 3))
    """
    rows = -(-length // world)
    return min(rank * rows, length), min((rank + 1) * rows, length)


def share_of_memory(memory: str | int, own: Shapes, all_shapes: Shapes) -> int:
    """The part of ``memory`` for the tensors ``own`` of ``all_shapes``, in bytes.

    A memory that is too small for one process is too small for each of several, so that all of
    them refuse and none waits for another.
    """
    from antiphase.noise.normals import CHUNK

    def chunks(shapes: Shapes) -> int:
        return sum(-(-math.prod(shape) // CHUNK) for shape in shapes.values())

    return parse_memory(memory) * chunks(own) // chunks(all_shapes)


class ShardedNoise:
    """The rows of one process of the noise of each tensor; like a `NoiseStream` of these rows.

    Normals are drawn only for the chunks that the rows lie in: a process makes and keeps about its
    share.

    Guarantee: bit for bit the rows that one process would add; shards that cover a tensor once have
    its noise, whatever their sizes.   [G17]

    Args:
        mechanism: the calibrated mechanism.
        key: the secret that the noise is made from.
        run: the id of the run under the key.
        shapes: the shape of each whole tensor, by name.
        rows: the rows of this process of each tensor.
        memory: for all processes together.
        threads: as of `NoiseStream`.

    Raises:
        ValueError: if a tensor does not have the rows.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        key: Key,
        run: str,
        shapes: Shapes,
        rows: dict[str, RowRange],
        memory: str | int = "2GB",
        threads: int | None = None,
    ) -> None:
        from antiphase.noise.normals import CHUNK
        from antiphase.noise.stream import NoiseStream

        # Where the shard begins in its chunks, how many numbers it has, and its shape.
        self._spans: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        first_chunks, covers = {}, Shapes()
        for name, shape in shapes.items():
            first, stop = rows[name]
            if not 0 <= first <= stop <= shape[0]:
                raise ValueError(
                    f"rows[{name!r}] = {first}, {stop}: the tensor has {shape[0]} rows"
                )
            width = math.prod(shape[1:])
            chunk, end = first * width // CHUNK, -(-stop * width // CHUNK)
            if first < stop:
                covers[name] = ((end - chunk) * CHUNK,)
                first_chunks[name] = chunk
            self._spans[name] = (
                first * width - chunk * CHUNK,
                (stop - first) * width,
                (stop - first, *shape[1:]),
            )
        self._stream: NoiseStream | None = None
        if covers:
            # PRIVACY: the counter has the place in the whole tensor: no normals twice.   [G17]
            place: dict[str, Any] = {"shapes": covers, "first_chunks": first_chunks}
            budget = share_of_memory(memory, covers, shapes)
            self._stream = NoiseStream(
                mechanism, key=key, run=run, memory=budget, threads=threads, **place
            )

    def skip(self, count: int) -> None:
        """Pass over ``count`` rows of noise."""
        if self._stream is not None:
            self._stream.skip(count)

    def prepare(self) -> None:
        """Begin to make the next row of noise."""
        if self._stream is not None:
            self._stream.prepare()

    def next(self) -> dict[str, NDArray[np.float32]]:
        """The next row of noise, as arrays of the shapes of the shards, which may be empty."""
        noise = {} if self._stream is None else self._stream.next()
        empty = np.empty(0, np.float32)
        return {
            name: noise.get(name, empty)[start : start + size].reshape(shape)
            if size
            else empty.reshape(shape)
            for name, (start, size, shape) in self._spans.items()
        }


def is_shard(item: Any) -> bool:
    """Whether a tensor is divided among processes."""
    return isinstance(item, DTensor)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of a tensor: all of it, or its rows."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def as_shard(part: torch.Tensor, like: Any, shape: Any = None) -> torch.Tensor:
    """``part`` as this process's rows of a sharded tensor.

    Args:
        part: the rows.
        like: a sharded tensor with the mesh and placements.
        shape: of the whole tensor; default: that of ``like``.

    Raises:
        ValueError: if the model is not sharded.
    """
    if like is None:
        raise ValueError(
            "a part of a tensor was saved by fully_shard, and this model is not of that kind"
        )
    shape = torch.Size(like.shape if shape is None else shape)
    stride = torch.empty(shape, device="meta").stride()
    shard: torch.Tensor = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=shape, stride=stride
    )
    return shard


def prepare_sharded_model(module: nn.Module, rank: int, world: int) -> None:
    """Refuse layouts whose rows are not those of `rows_of`; let shards be sums, not averages.

    Raises:
        ValueError: with the name of a parameter that is divided in another way.
    """
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        first, end = rows_of(p.shape[0], rank, world) if p.ndim else (0, 0)
        if (
            not isinstance(p, DTensor)
            or p.device_mesh.size() != world
            or tuple(p.placements) != (Shard(0),)
            or len(p.to_local()) != end - first
        ):
            # PRIVACY: of a row with two owners only one copy would get its noise.   [G17]
            raise ValueError(
                f"{name}: every trained tensor must be divided along its first dimension among all "
                "processes, as fully_shard(module) with a mesh of one dimension does"
            )
    for part in module.modules():
        if isinstance(part, FSDPModule):
            if not hasattr(part, "set_force_sum_reduction_for_comms"):
                raise ValueError(
                    f"torch {torch.__version__} averages shards in fully_shard; a newer version is "
                    "needed"
                )
            part.set_force_sum_reduction_for_comms(True)
            part.set_gradient_divide_factor(1.0)
