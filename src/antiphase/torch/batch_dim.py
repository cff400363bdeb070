"""The batch dimension of a tensor, and calls of torch functions for which it is followed."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


class BatchDim(NamedTuple):
    """The dimension of the examples: each has ``rows`` consecutive rows along ``dim``."""

    dim: int = 0
    rows: int = 1


class Call(NamedTuple):
    """A call ``out = function(*args, **kwargs)`` with the batch dimension of one argument."""

    args: Any
    kwargs: Any
    source: Tensor
    batch_dim: BatchDim
    out: Tensor
    batch_size: int

    def option(self, name: str, position: int, default: Any = None) -> Any:
        """The argument ``name``: by keyword, or else by position."""
        return self.kwargs.get(name, self.args[position] if len(self.args) > position else default)

    def at(self, dim: int) -> BatchDim:
        """The batch dimension of the source, moved to ``dim``."""
        return BatchDim(dim, self.batch_dim.rows)


def can_have(batch_dim: BatchDim, tensor: Tensor, batch_size: int) -> bool:
    """Whether the shape of the tensor agrees with this batch dimension."""
    dim = batch_dim.dim
    return 0 <= dim < tensor.ndim and tensor.shape[dim] == batch_dim.rows * batch_size
