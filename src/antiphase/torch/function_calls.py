"""Calls of torch functions, for the recorder: names, tensors in arguments, in-place writes."""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor
_LEAVES = (int, float, bool, str, slice, torch.dtype, torch.device, type(None))  # without tensors
# __iadd__ of __add__, and so on; not __init__ or __iter__
_IN_PLACE_OPERATORS = frozenset(
    f"__i{name[2:]}" for name in dir(Tensor) if hasattr(Tensor, f"__i{name[2:]}")
) - {"__init__"}


def function_name(func: Any) -> str:
    """Name of a function of torch; for the getter of an attribute (``x.T``), the attribute's."""
    name: str = getattr(func, "__name__", "")
    return getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name


def writes_in_place(name: str) -> bool:
    """Whether the function of this name writes into its first argument."""
    is_method = name[-1:] == "_" and name[-2:] != "__"
    return is_method or name == "__setitem__" or name in _IN_PLACE_OPERATORS


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors in nested lists, tuples and mappings."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, _LEAVES):
        return []
    if not isinstance(tree, list | tuple):
        if not hasattr(tree, "items"):
            return []
        tree = list(dict(tree).values())
    tensors: list[Tensor] = []
    for part in tree:  # the most frequent kinds without a further call
        if isinstance(part, Tensor):
            tensors.append(part)
        elif not isinstance(part, _LEAVES):
            tensors += tensors_in(part)
    return tensors


def padding_index(weight: Tensor, args: Any, kwargs: Any) -> int | None:
    """The row that a call of ``F.embedding`` does not train."""
    index = args[2] if len(args) > 2 else kwargs.get("padding_idx")
    return None if index is None else int(index) % weight.shape[0]
