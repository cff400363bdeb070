"""Several processes: who owns which coordinate of the noise, which examples are whose, and what they must agree on."""

from __future__ import annotations

import dataclasses
import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.grad_sample import AbstractGradSampleModule
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel as DDP

from antiphase.errors import StateError
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.noise.normals import CHUNK
from antiphase.noise.stream import NoiseStream, parse_memory
from antiphase.torch.batch_selection import FixedOrderBatches

Shapes = dict[str, tuple[int, ...]]
Rows = tuple[
    int, int
]  # of a tensor, along its first dimension: from the first to before the second


@dataclass(frozen=True)
class Group:
    """The processes that train together; one, unless the model is of a kind that several train.

    Two ways to share the work. Replicated (DPDDP): each process has the whole model and sums the clipped gradients of
    its examples; each tensor's noise has one owner, which adds it before the sums meet. Sharded (FSDP2): each process
    has some rows of every tensor, and of the sums of all examples; the owner of a row of noise is who has that row.
    """

    rank: int = 0
    world: int = 1
    sharded: bool = False

    @classmethod
    def of(cls, module: nn.Module, grad_sample_mode: str) -> Group:
        """The processes that train ``module`` together; refuse what would sum gradients past clipping and noise."""
        if isinstance(module, FSDPModule):
            if grad_sample_mode != "ghost_fsdp":
                raise ValueError(
                    f"grad_sample_mode = {grad_sample_mode!r}: a model of fully_shard has gradients of single examples "
                    'on no process. Use grad_sample_mode="ghost_fsdp", which needs their norms alone'
                )
            return _sharded(module)
        if grad_sample_mode == "ghost_fsdp":
            raise ValueError(
                'grad_sample_mode = "ghost_fsdp" is for models of torch\'s fully_shard; use "ghost"'
            )
        if any(isinstance(part, FSDPModule) for part in module.modules()):
            raise ValueError(
                "a part of the model is of fully_shard and the whole is not: call fully_shard(module) too"
            )
        wrapped = plain(module, until=(DPDDP, DDP))
        if isinstance(wrapped, DDP):
            # PRIVACY: DDP sums in the backward pass, before anything is clipped or checked.   [G17]
            raise ValueError(
                "the module is a torch DistributedDataParallel, which averages gradients among the processes in every "
                "backward pass, before they are clipped, and waits for ever where one has fewer passes than another. "
                "Wrap the model in opacus.distributed.DifferentiallyPrivateDistributedDataParallel instead; its sums "
                "meet once a step, with noise"
            )
        current = cls.current()
        if isinstance(wrapped, DPDDP):
            return current
        if current.world > 1:
            warnings.warn(
                f"{current.world} processes run, but the module is not wrapped in opacus.distributed."
                "DifferentiallyPrivateDistributedDataParallel: this one trains alone, and ε is for what it releases",
                stacklevel=3,
            )
        return cls()

    @classmethod
    def current(cls) -> Group:
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    # ---- noise ---------------------------------------------------------------------------------------------

    def owned(self, shapes: Shapes) -> Shapes:
        """The tensors whose noise this process makes: each has one owner, and the shares are about equal.

        Guarantee: the noise of all processes together is that of one process, bit for bit.   [G17]
        """
        # PRIVACY: every coordinate has one owner: no noise is added twice, and none is missing.   [G17]
        loads = [0] * self.world
        owner = {}
        for name, shape in sorted(shapes.items(), key=lambda item: (-math.prod(item[1]), item[0])):
            owner[name] = loads.index(min(loads))
            loads[owner[name]] += math.prod(shape)
        return {name: shape for name, shape in shapes.items() if owner[name] == self.rank}

    def noise(
        self, mechanism: Mechanism, key: Key, run: str, shapes: Shapes, memory: str | int
    ) -> NoiseStream | ShardedNoise | None:
        """This process's share of the noise of one process, and of its ``memory``; None if it has none."""
        if self.sharded:
            rows = {
                name: rows_of(shape[0], self.rank, self.world) for name, shape in shapes.items()
            }
            return ShardedNoise(
                mechanism, key=key, run=run, shapes=shapes, rows=rows, memory=memory
            )
        own = self.owned(shapes)
        budget = _share_of_memory(memory, own, shapes)
        return NoiseStream(mechanism, key=key, run=run, shapes=own, memory=budget) if own else None

    # ---- sums ----------------------------------------------------------------------------------------------

    def part(self, total: torch.Tensor) -> torch.Tensor:
        """What this process has of ``total``: all of it, or its rows."""
        return total.to_local() if isinstance(total, DTensor) else total

    def summed(self, parts: list[torch.Tensor], like: list[torch.Tensor]) -> list[torch.Tensor]:
        """The sum over all processes, everywhere; of rows there is nothing to sum, they are made what ``like`` is."""
        if self.sharded:
            return [as_shard(part, model) for part, model in zip(parts, like, strict=True)]
        if self.world > 1:
            # PRIVACY: in float32 the rounding of the sum would grow with the number of processes.   [G17]
            wide = [part.double() for part in parts]
            for part in wide:
                self._guarded(lambda part=part: dist.all_reduce(part))
            return [part.float() for part in wide]
        return parts

    def any(self, here: bool) -> bool:
        """Whether ``here`` is true in any process, where backward passes are common; otherwise ``here``."""
        return bool(self.largest(int(here))) if self.sharded else here

    # ---- agreement -----------------------------------------------------------------------------------------

    def agreed(self, value: Any) -> Any:
        """Rank 0's value, everywhere."""
        if self.world == 1:
            return value
        box = [value]
        self._guarded(lambda: dist.broadcast_object_list(box, src=0))
        return box[0]

    def largest(self, value: int) -> int:
        """The largest of all processes' values, everywhere."""
        if self.world == 1:
            return value
        box = torch.tensor([value], dtype=torch.int64)
        if dist.get_backend() == "nccl":
            box = box.cuda()
        self._guarded(lambda: dist.all_reduce(box, dist.ReduceOp.MAX))
        return int(box.item())

    def require_same(self, what: str, value: Any) -> None:
        """Raise everywhere unless all processes have the same value."""
        if self.world == 1:
            return
        values: list[Any] = [None] * self.world
        self._guarded(lambda: dist.all_gather_object(values, value))
        # PRIVACY: shares of two different noises are the noise of neither.   [G17]
        if any(other != values[0] for other in values):
            raise StateError(
                f"the processes disagree on the {what}: {values}. Nothing was drawn. Start all of them with the same "
                "arguments"
            )

    def agreed_key(self, key: Key | None) -> Key:
        """The key of all processes; a new one if there is one process and no key."""
        if key is None:
            self.require_same("key", None)
            if self.world > 1:
                raise ValueError(
                    "key = None: several processes need the same key; give key=Key.load(path) to "
                    "each"
                )
            return Key.generate()
        self.require_same("key", key.fingerprint())
        return key

    def share(self, loader: Any) -> None:
        """Give each process its part of every batch of ``loader``, in rank 0's order.

        Guarantee: of every batch each example is with one process, once.   [G17]
        """
        if self.world == 1:
            return
        batches = loader.batch_sampler.sampler
        if not isinstance(batches, FixedOrderBatches):
            raise ValueError(
                "data_loader has a sampler of its own in a distributed run. Hand over an ordinary loader over the "
                "whole dataset with the batch size of all processes together: each batch is divided among them, "
                "without padding"
            )
        self.require_same("batches", (len(batches.order), batches.batch_size, batches.drop_last))
        # PRIVACY: parts of two different orders may share an example, which would then count twice in one sum.   [G17]
        batches.order = self.agreed(batches.order)
        batches._rank, batches._world = self.rank, self.world

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except RuntimeError as error:
            raise RuntimeError(
                f"process {self.rank} of {self.world} lost another one, and none can go on alone (their shares of the "
                "noise belong together). Start all of them again; they go on from the last checkpoint"
            ) from error


def plain(module: nn.Module, until: tuple[type, ...] = ()) -> nn.Module:
    """The user's model inside of Opacus' wrappers, or the first wrapper of a kind in ``until``.

    Noise belongs to a tensor's name in it, so that it is the same noise for one process and for several.
    """
    while not isinstance(module, until):
        if isinstance(module, AbstractGradSampleModule):
            module = module._module
        elif isinstance(module, DPDDP | DDP):
            module = module.module
        else:
            break
    return module


# ---- rows of tensors ---------------------------------------------------------------------------------------


def rows_of(length: int, rank: int, world: int) -> Rows:
    """Which of ``length`` rows are with process ``rank``, as ``fully_shard`` divides them; the last may have none.

    >>> [rows_of(7, rank, 4) for rank in range(4)], rows_of(3, 3, 4)
    ([(0, 2), (2, 4), (4, 6), (6, 7)], (3, 3))
    """
    each = -(-length // world)
    return min(rank * each, length), min((rank + 1) * each, length)


class ShardedNoise:
    """The rows ``rows[name]`` of the noise of each tensor in ``shapes``; like a `NoiseStream` of these rows alone.

    Guarantee: bit for bit the rows that one process would add; so shards that cover a tensor once have its noise,
    whatever their sizes.   [G17]

    Normals are drawn for the chunks that the rows lie in, and these alone: a process makes and keeps about its share.
    ``memory`` is for all shards together, as if there were one process.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        key: Key,
        run: str,
        shapes: Shapes,
        rows: dict[str, Rows],
        memory: str | int = "2GB",
        threads: int | None = None,
    ) -> None:
        self._spans: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        chunks, covers = {}, Shapes()
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
                chunks[name] = chunk
            self._spans[name] = (
                first * width - chunk * CHUNK,
                (stop - first) * width,
                (stop - first, *shape[1:]),
            )
        budget = _share_of_memory(memory, covers, shapes)
        # PRIVACY: the place in the whole tensor is in the counter, so no two shards have the same normals.   [G17]
        where: dict[str, Any] = {"shapes": covers, "first_chunks": chunks}
        self._stream = (
            NoiseStream(mechanism, key=key, run=run, memory=budget, threads=threads, **where)
            if covers
            else None
        )

    def skip(self, count: int) -> None:
        if self._stream is not None:
            self._stream.skip(count)

    def prepare(self) -> None:
        if self._stream is not None:
            self._stream.prepare()

    def next(self) -> dict[str, NDArray[np.float32]]:
        """The next row of the noise, as arrays of the shapes of the shards; empty ones where there are no rows."""
        made = {} if self._stream is None else self._stream.next()
        nothing = np.empty(0, np.float32)
        return {
            name: made.get(name, nothing)[start : start + size].reshape(shape)
            if size
            else nothing.reshape(shape)
            for name, (start, size, shape) in self._spans.items()
        }


def _share_of_memory(memory: str | int, own: Shapes, all_shapes: Shapes) -> int:
    """The part of ``memory``, which is for all processes together, that goes with the part of the numbers.

    So a memory that is too small for one process is too small for each of several: all of them refuse, and none waits
    for one that has.
    """

    def padded(shapes: Shapes) -> int:
        return sum(-(-math.prod(shape) // CHUNK) for shape in shapes.values())

    return parse_memory(memory) * padded(own) // padded(all_shapes)


def is_shard(item: Any) -> bool:
    return isinstance(item, DTensor)


def as_shard(part: torch.Tensor, like: Any, shape: Any = None) -> torch.Tensor:
    """``part`` as this process's rows of a tensor of ``shape`` (by default that of ``like``)."""
    if like is None:
        raise ValueError(
            "a part of a tensor was saved by fully_shard, and this model is not of that kind"
        )
    shape = torch.Size(like.shape if shape is None else shape)
    stride = torch.empty(shape, device="meta").stride()
    made: torch.Tensor = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=shape, stride=stride
    )
    return made


def _sharded(module: nn.Module) -> Group:
    """The group of an FSDP2 model, whose sums are made sums; refuse layouts whose rows would not be what we think."""
    current = Group.current()
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        rows = rows_of(p.shape[0], current.rank, current.world) if p.ndim else (0, 0)
        if (
            not isinstance(p, DTensor)
            or p.device_mesh.size() != current.world
            or tuple(p.placements) != (Shard(0),)
            or len(p.to_local()) != rows[1] - rows[0]
        ):
            # PRIVACY: a row with two owners would get its noise in one place and not in the other.   [G17]
            raise ValueError(
                f"{name}: every trained tensor must be divided along its first dimension among all processes, as "
                "fully_shard(module) with a mesh of one dimension does"
            )
    for part in module.modules():
        if isinstance(part, FSDPModule):
            if not hasattr(part, "set_force_sum_reduction_for_comms"):
                raise ValueError(
                    f"torch {torch.__version__} averages shards in fully_shard; a newer one is needed"
                )
            part.set_force_sum_reduction_for_comms(True)
            part.set_gradient_divide_factor(1.0)
    return dataclasses.replace(current, sharded=True)
