"""Several processes: shares of noise and batches, sums, agreement."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from opacus.grad_sample import AbstractGradSampleModule
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel as DDP

from antiphase.errors import StateError
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.torch.batch_selection import FixedOrderBatches
from antiphase.torch.sharding import (
    Shapes,
    ShardedNoise,
    as_shard,
    prepare_sharded_model,
    rows_of,
    share_of_memory,
)
from antiphase.torch.user_warnings import warn

if TYPE_CHECKING:
    from antiphase.noise.stream import NoiseStream


@dataclass(frozen=True)
class Group:
    """The processes that train together; one, unless the model is of a kind that several train.

    Replicated (DPDDP): each process has the whole model and sums the clipped gradients of its
    examples; each tensor's noise has one owner, which adds it before the sums are added up. Sharded
    (FSDP2): each process has some rows of every tensor, and of the sums of all examples; the owner
    of a row of noise is the process that has that row.

    Attributes:
        rank: of this process.
        world: number of processes.
        sharded: whether the model is sharded.
    """

    rank: int = 0
    world: int = 1
    sharded: bool = False

    @classmethod
    def of(cls, module: nn.Module, grad_sample_mode: str) -> Group:
        """The processes that train ``module`` together.

        Args:
            module: the model.
            grad_sample_mode: as of `make_private`.

        Raises:
            ValueError: if gradients would be summed before clipping and noise.
        """
        if isinstance(module, FSDPModule):
            if grad_sample_mode != "ghost_fsdp":
                raise ValueError(
                    f"grad_sample_mode = {grad_sample_mode!r}: no process has the whole gradient "
                    'of an example of a model of fully_shard. Use grad_sample_mode="ghost_fsdp"'
                )
            group = dataclasses.replace(cls.current(), sharded=True)
            prepare_sharded_model(module, group.rank, group.world)
            return group
        if grad_sample_mode == "ghost_fsdp":
            raise ValueError(
                'grad_sample_mode = "ghost_fsdp" is for models of torch\'s fully_shard; use "ghost"'
            )
        if any(isinstance(part, FSDPModule) for part in module.modules()):
            raise ValueError(
                "a part of the model is of fully_shard and the whole is not: call "
                "fully_shard(module) too"
            )
        wrapped = plain(module, until=(DPDDP, DDP))
        if isinstance(wrapped, DDP):
            # PRIVACY: DDP sums in the backward pass, before anything is clipped or checked.   [G17]
            raise ValueError(
                "the module is a torch DistributedDataParallel, which averages gradients in every "
                "backward pass, before they are clipped. Wrap the model in "
                "opacus.distributed.DifferentiallyPrivateDistributedDataParallel instead"
            )
        group = cls.current()
        if group.world > 1 and not isinstance(wrapped, DPDDP):
            warn(
                f"{group.world} processes run, but the module is no "
                "DifferentiallyPrivateDistributedDataParallel of opacus.distributed: this one "
                "trains alone, and ε is for what it releases"
            )
            return cls()
        return group

    @classmethod
    def current(cls) -> Group:
        """The processes of torch.distributed; one if it is not in use."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    # Noise

    def owned(self, shapes: Shapes) -> Shapes:
        """The tensors whose noise this process makes: about an equal share.

        Guarantee: the noise of all processes together is that of one process, bit for bit.   [G17]
        """
        # PRIVACY: each coordinate has one owner: no noise is added twice or missing.   [G17]
        loads = [0] * self.world
        owner = {}
        for name, shape in sorted(shapes.items(), key=lambda item: (-math.prod(item[1]), item[0])):
            owner[name] = loads.index(min(loads))
            loads[owner[name]] += math.prod(shape)
        return {name: shape for name, shape in shapes.items() if owner[name] == self.rank}

    def noise(
        self, mechanism: Mechanism, key: Key, run: str, shapes: Shapes, memory: str | int
    ) -> NoiseStream | ShardedNoise | None:
        """This process's share of the noise, or None if it has none.

        Args:
            mechanism: the calibrated mechanism.
            key: the secret that the noise is made from.
            run: the id of the run under the key.
            shapes: the shape of each tensor, by name.
            memory: for all processes together.
        """
        if self.sharded:
            rows = {
                name: rows_of(shape[0], self.rank, self.world) for name, shape in shapes.items()
            }
            return ShardedNoise(
                mechanism, key=key, run=run, shapes=shapes, rows=rows, memory=memory
            )
        own = self.owned(shapes)
        budget = share_of_memory(memory, own, shapes)
        return mechanism.noise(key=key, run=run, shapes=own, memory=budget) if own else None

    # Sums

    def summed(self, parts: list[torch.Tensor], like: list[torch.Tensor]) -> list[torch.Tensor]:
        """The sum of all processes' ``parts``; rows are made shards as those of ``like``."""
        if self.sharded:
            return [as_shard(part, shard) for part, shard in zip(parts, like, strict=True)]
        if self.world > 1:
            # PRIVACY: in float32 the rounding of the sum would grow with the processes.   [G17]
            wide = [part.double() for part in parts]
            for part in wide:
                self._communicate(lambda part=part: dist.all_reduce(part))
            return [part.float() for part in wide]
        return parts

    # Agreement

    def agreed(self, value: Any) -> Any:
        """Rank 0's value, in all processes."""
        if self.world == 1:
            return value
        values = [value]
        self._communicate(lambda: dist.broadcast_object_list(values, src=0))
        return values[0]

    def largest(self, value: int) -> int:
        """The largest of all processes' values, in all processes."""
        if self.world == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.int64)
        if dist.get_backend() == "nccl":
            tensor = tensor.cuda()
        self._communicate(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX))
        return int(tensor.item())

    def require_same(self, name: str, value: Any) -> None:
        """Raise in all processes unless they have the same value.

        Raises:
            StateError: with the values.
        """
        if self.world == 1:
            return
        values: list[Any] = [None] * self.world
        self._communicate(lambda: dist.all_gather_object(values, value))
        # PRIVACY: shares of two different noises are the noise of neither.   [G17]
        if any(other != values[0] for other in values):
            raise StateError(
                f"the processes disagree on the {name}: {values}. Nothing was drawn. Start all of "
                "them with the same arguments"
            )

    def agreed_key(self, key: Key | None) -> Key:
        """The key of all processes; a new one if there is one process and no key.

        Raises:
            ValueError: if several processes have no key.
            StateError: if they have different keys.
        """
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

        Raises:
            ValueError: if the batches are not ours.
        """
        if self.world == 1:
            return
        batches = loader.batch_sampler.sampler
        if not isinstance(batches, FixedOrderBatches):
            raise ValueError(
                "data_loader has a sampler of its own in a distributed run. Give a loader over the "
                "whole dataset with the batch size of all processes together: each batch is "
                "divided among them"
            )
        self.require_same("batches", (len(batches.order), batches.batch_size, batches.drop_last))
        # PRIVACY: parts of two orders may share an example, which would count twice.   [G17]
        order = self.agreed(batches.order)
        batches.share(order, self.rank, self.world)

    def _communicate(self, work: Any) -> None:
        try:
            work()
        except RuntimeError as error:
            raise RuntimeError(
                f"process {self.rank} of {self.world} lost another one, and none can go on alone. "
                "Start all of them again; they resume from the last checkpoint"
            ) from error


def plain(module: Any, until: tuple[type, ...] = ()) -> nn.Module:
    """The user's model inside of Opacus' wrappers.

    Noise belongs to a tensor's name in it, so that it is the same for one process and for several.

    Args:
        module: a model or wrapper.
        until: kinds of wrappers that are returned as they are.
    """
    while not isinstance(module, until):
        if isinstance(module, AbstractGradSampleModule):
            module = module._module
        elif isinstance(module, DPDDP | DDP):
            module = module.module
        elif hasattr(module, "_orig_mod"):  # of torch.compile
            module = module._orig_mod
        else:
            break
    plain_module: nn.Module = module
    return plain_module
