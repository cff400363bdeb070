"""Batching rules of indexing: ``source[index]`` and ``target[index] = value``."""

from __future__ import annotations

from typing import Any

import torch

from antiphase.torch.batch_dim import BatchDim, Call

Tensor = torch.Tensor


def getitem(call: Call) -> BatchDim | None:
    """``source[index]``: full slices keep the batch dimension, and so does ``arange(n)``."""
    index = _expanded(call.args[1], call.source.ndim)
    selecting: list[int] = []  # positions of tensors and integers, if there are tensors
    if _has_tensors(index):
        selecting = [k for k, part in enumerate(index) if isinstance(part, Tensor | list | int)]
        is_contiguous = selecting == list(range(selecting[0], selecting[-1] + 1))
        if not is_contiguous or any(part is None for part in index):
            return None  # their dimensions come first in the result
    width = max((_index_ndim(index[k]) for k in selecting), default=0)
    dim = result_dim = 0
    for k, part in enumerate(index):
        if part is not None and dim == call.batch_dim.dim:
            if isinstance(part, slice):
                keeps = part == slice(None)
            else:
                keeps = (
                    k in selecting[:1]
                    and call.batch_dim.rows == 1
                    and _is_every_example(part, width, call.batch_size)
                )
            return call.at(result_dim) if keeps else None
        dim += _consumed(part)
        if part is None or isinstance(part, slice):
            result_dim += 1
        elif k in selecting[-1:]:
            result_dim += width
    return None


def setitem(call: Call) -> BatchDim | None:
    """``target[index] = value``, where only the value holds examples."""
    target, index, value = call.args
    if call.source is not value or _has_tensors(_parts(index)):
        return None
    from_last = call.batch_dim.dim - value.ndim
    for dim in range(target.ndim):
        read = getitem(Call((target, index), {}, target, call.at(dim), target, call.batch_size))
        if read is not None and read.dim - target[index].ndim == from_last:
            return call.at(dim)
    return None


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _has_tensors(index: Any) -> bool:
    return any(isinstance(part, Tensor | list) for part in index)


def _expanded(index: Any, ndim: int) -> list[Any]:
    """The index with a part for every dimension: ``...`` and missing parts are full slices."""
    parts = list(_parts(index))
    missing = [slice(None)] * (ndim - sum(_consumed(part) for part in parts))
    ellipsis = next((k for k, part in enumerate(parts) if part is Ellipsis), None)
    if ellipsis is None:
        return parts + missing
    return parts[:ellipsis] + missing + parts[ellipsis + 1 :]


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)


def _consumed(part: Any) -> int:
    """How many dimensions of the source a part of an index selects from."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if _is_mask(part) else 1


def _index_ndim(part: Any) -> int:
    """How many dimensions of the result a tensor, list or integer in an index makes."""
    if isinstance(part, int):
        return 0
    return 1 if isinstance(part, list) or _is_mask(part) else part.ndim


def _is_every_example(part: Any, width: int, batch_size: int) -> bool:
    """Whether a part of an index, as in x[arange(n), last], takes every example in order."""
    if not isinstance(part, Tensor) or part.dtype is not torch.int64:
        return False
    if not width or part.ndim != width or len(part) != batch_size:
        return False
    order = torch.arange(batch_size, device=part.device).view(batch_size, *[1] * (width - 1))
    return bool((part == order).all())
