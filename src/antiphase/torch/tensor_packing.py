"""Nested values as JSON with tensors set aside, loaded without running code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from antiphase.torch.sharding import as_shard, is_shard


def pack(item: Any, tensors: dict[str, Any]) -> Any:
    """``item`` as JSON; arrays and tensors are put into ``tensors`` under a number.

    Raises:
        TypeError: if a value is of a type that only running code could restore.
    """
    if is_shard(item):
        return {"$": "shard", "shape": list(item.shape), "part": pack(item.to_local(), tensors)}
    if isinstance(item, torch.Tensor | np.ndarray):
        return _pack_tensor(item, tensors)
    if isinstance(item, dict):
        pairs = [[pack(key, tensors), pack(value, tensors)] for key, value in item.items()]
        return {"$": "dict", "items": pairs}
    if isinstance(item, list | tuple | set):
        kind = type(item).__name__ if type(item) in (list, tuple, set) else "tuple"
        return {"$": kind, "items": [pack(part, tensors) for part in item]}
    if isinstance(item, np.generic):
        return item.item()
    if isinstance(item, float) and not np.isfinite(item):  # JSON has no infinities
        return {"$": "float", "value": str(item)}
    if item is None or isinstance(item, bool | int | float | str):
        return item
    raise TypeError(
        f"a {type(item).__name__} cannot be kept in a checkpoint that runs no code: {item!r}"
    )


def _pack_tensor(item: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    name, kind = str(len(tensors)), "numpy"
    if isinstance(item, torch.Tensor):
        kind = str(item.dtype).removeprefix("torch.")
        item = item.detach().cpu()
        item = (item.view(torch.int16) if item.dtype is torch.bfloat16 else item).numpy()
    tensors[name] = item
    return {"$": "tensor", "name": name, "type": kind, "shape": list(item.shape)}


def unpack(item: Any, tensors: dict[str, Any], like: Any = None) -> Any:
    """Undo `pack`; each tensor is taken out of ``tensors``.

    Args:
        item: what `pack` returned.
        tensors: what `pack` put the tensors into.
        like: a tensor of fully_shard, whose mesh and placements shards get.
    """
    if not isinstance(item, dict):
        return item
    kind = item["$"]
    if kind == "tensor":
        # Each has a name of its own; a second use could make many copies of one tensor.
        array = tensors.pop(item["name"]).reshape(item["shape"])
        if item["type"] == "numpy":
            return array
        tensor = torch.from_numpy(np.array(array))
        return tensor.view(torch.bfloat16) if item["type"] == "bfloat16" else tensor
    if kind == "shard":
        return as_shard(unpack(item["part"], tensors, like), like, item["shape"])
    if kind == "float":
        return float(item["value"])
    if kind == "dict":
        return {unpack(k, tensors, like): unpack(v, tensors, like) for k, v in item["items"]}
    return {"list": list, "tuple": tuple, "set": set}[kind](
        unpack(part, tensors, like) for part in item["items"]
    )


def with_tensors(item: Any) -> Any:
    """``item`` with tensors for arrays, which ``torch.load(…, weights_only=True)`` takes."""
    if isinstance(item, dict):
        return {name: with_tensors(part) for name, part in item.items()}
    return torch.from_numpy(item.copy()) if isinstance(item, np.ndarray) else item


def with_arrays(item: Any) -> Any:
    """Undo `with_tensors`."""
    if isinstance(item, dict):
        return {name: with_arrays(part) for name, part in item.items()}
    return item.numpy().copy() if isinstance(item, torch.Tensor) else item
