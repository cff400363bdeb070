"""The batch dimension of a tensor, and a call of a torch function seen from one argument."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


class BatchDim(NamedTuple):
    """The dimension of the examples: each has ``rows`` consecutive rows along ``dim``."""

    dim: int = 0
    rows: int = 1


class Call(NamedTuple):
    """A call ``out = function(*args, **kwargs)``, seen from ``source``, one of its arguments."""

    args: Any
    kwargs: Any
    source: Tensor
    batch_dim: BatchDim
    out: Tensor
    batch_size: int

    def option(self, name: str, position: int, default: Any = None) -> Any:
        """The argument ``name``, which is at ``position`` if it is not given by name."""
        return self.kwargs.get(name, self.args[position] if len(self.args) > position else default)

    def at(self, dim: int) -> BatchDim:
        """The batch dimension of the source, moved to ``dim``."""
        return BatchDim(dim, self.batch_dim.rows)


def can_have(batch_dim: BatchDim, tensor: Tensor, batch_size: int) -> bool:
    """Whether the shape of the tensor agrees with this batch dimension."""
    dim = batch_dim.dim
    return 0 <= dim < tensor.ndim and tensor.shape[dim] == batch_dim.rows * batch_size
