"""Several processes: who owns which coordinate of the noise, and what they must agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

import torch
from antiphase.errors import StateError

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Group:
    """The processes that train together; one, unless ``torch.distributed`` runs."""

    rank: int = 0
    world: int = 1

    @classmethod
    def current(cls) -> Group:
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    def owned(self, shapes: Shapes) -> Shapes:
        """The tensors whose noise this process makes: each has one owner, and the shares are about equal.

        Guarantee: the noise of all processes together is that of one process, bit for bit.   [G17]
        """
        # PRIVACY: every coordinate has one owner: no noise is added twice, and none is missing.   [G17]
        loads = [0] * self.world
        owner = {}
        for name, shape in sorted(shapes.items(), key=lambda item: (-_size(item[1]), item[0])):
            owner[name] = loads.index(min(loads))
            loads[owner[name]] += _size(shape)
        return {name: shape for name, shape in shapes.items() if owner[name] == self.rank}

    def agreed(self, value: Any) -> Any:
        """Rank 0's value, everywhere."""
        if self.world == 1:
            return value
        box = [value]
        self._guarded(lambda: dist.broadcast_object_list(box, src=0))
        return box[0]

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

    def summed(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The sum over all processes, everywhere."""
        if self.world > 1:
            for tensor in tensors:
                self._guarded(lambda tensor=tensor: dist.all_reduce(tensor))
        return tensors

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except RuntimeError as error:
            raise RuntimeError(
                f"process {self.rank} of {self.world} lost another one, and none can go on alone (their shares of the "
                "noise belong together). Start all of them again; they go on from the last checkpoint"
            ) from error


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
