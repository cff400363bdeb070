"""Checkpoints: safetensors and JSON with a digest, written whole or not at all; nothing in them runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from antiphase._util import files
from antiphase.errors import (
    AntiphaseWarning,
    FileFormatError,
    KeyFileError,
    ParticipationError,
    StateError,
)
from antiphase.factorizations.base import MALFORMED
from antiphase.torch import distributed
from antiphase.torch.release import Release


def save(
    path: Any,
    module: Any,
    optimizer: Any,
    scheduler: Any,
    release: Release,
    order: Any,
    more: dict[str, Any],
) -> None:
    """Everything that going on needs but the key, and ``more`` of the user's: plain values and tensors."""
    tensors: dict[str, Any] = {}
    content = {
        "what": "checkpoint",
        "module": _packed(module.state_dict(), tensors),
        "optimizer": None if optimizer is None else _packed(optimizer.state_dict(), tensors),
        "scheduler": None if scheduler is None else _packed(scheduler.state_dict(), tensors),
        "random": _packed(torch.get_rng_state(), tensors),
        "release": _packed(release.state(), tensors),
        "order": _packed(order, tensors),
        "more": _packed(more, tensors),
        "tensors": tensors,
    }
    # PRIVACY: it says who took part, and with sampled batches who will.   [G11]
    files.write(_own_file(path, release), content, secret=True)


def load(
    path: Any,
    module: Any,
    optimizer: Any,
    scheduler: Any,
    release: Release,
    go_on: Callable[[Any, Any], None],
) -> dict[str, Any]:
    """Put everything back; ``go_on`` is called with the state of the release and the order of the batches first.

    Returns what `save` was given as ``more``.

    Guarantee: the file is checked against its digest before anything is changed, and nothing in it is executed.   [G6]
    """
    path = _own_file(path, release)
    content = files.read(path)
    try:
        if content["what"] != "checkpoint":
            raise FileFormatError(f"{path}: holds a {content['what']!r}, not a checkpoint")
        tensors = content["tensors"] | {
            "like": next(filter(distributed.is_shard, module.parameters()), None)
        }
        more: dict[str, Any] = _unpacked(content["more"], tensors)
        go_on(_unpacked(content["release"], tensors), _unpacked(content["order"], tensors))
        try:
            module.load_state_dict(_unpacked(content["module"], tensors))
        except RuntimeError as error:  # torch's, for names and shapes that are not the model's
            raise FileFormatError(f"{path}: is of another model ({error})") from error
        if optimizer is not None and content["optimizer"] is not None:
            optimizer.load_state_dict(_unpacked(content["optimizer"], tensors))
        if scheduler is not None and content["scheduler"] is not None:
            scheduler.load_state_dict(_unpacked(content["scheduler"], tensors))
        torch.set_rng_state(_unpacked(content["random"], tensors))
        return more
    except (FileFormatError, KeyFileError, StateError, ParticipationError):
        raise
    except MALFORMED as error:
        raise FileFormatError(f"{path}: not a valid checkpoint ({error})") from error


def with_tensors(item: Any) -> Any:
    """``item`` with tensors for arrays, which ``torch.load(…, weights_only=True)`` takes; `with_arrays` undoes it."""
    if isinstance(item, dict):
        return {name: with_tensors(part) for name, part in item.items()}
    return torch.from_numpy(item.copy()) if isinstance(item, np.ndarray) else item


def with_arrays(item: Any) -> Any:
    if isinstance(item, dict):
        return {name: with_arrays(part) for name, part in item.items()}
    return item.numpy().copy() if isinstance(item, torch.Tensor) else item


def _own_file(path: Any, release: Release) -> Any:
    """Each process has a ledger and random state of its own, and so a file of its own."""
    return f"{path}.{release.group.rank}" if release.group.rank else path


def only_scheduler(more: dict[str, Any]) -> Any:
    """The one further argument there is; Opacus' others do not apply."""
    scheduler = more.pop("scheduler", None)
    given = sorted(name for name, value in more.items() if value is not None)
    if given:
        raise TypeError(
            f"{given}: a checkpoint of a planned mechanism takes module, optimizer, scheduler and checkpoint_dict"
        )
    return scheduler


def warn_of_lost_key(release: Release) -> None:
    """Say at save time that the checkpoint is of no use once the process has ended, and how to keep the key."""
    if release.key.path is None and not release.key.is_insecure:
        warnings.warn(
            "save_checkpoint: the key of this run is in memory alone, so that no other process can go on from this "
            'checkpoint. Keep the key in a file from the start: PrivacyEngine(key="path") creates or loads it',
            AntiphaseWarning,
            stacklevel=3,
        )


def _packed(item: Any, tensors: dict[str, Any]) -> Any:
    """``item`` as JSON, with arrays and tensors set aside under a number."""
    if distributed.is_shard(item):
        return {"$": "shard", "shape": list(item.shape), "part": _packed(item.to_local(), tensors)}
    if isinstance(item, torch.Tensor | np.ndarray):
        name = str(len(tensors))
        kind = "numpy"
        if isinstance(item, torch.Tensor):
            kind = str(item.dtype).removeprefix("torch.")
            item = item.detach().cpu()
            item = (item.view(torch.int16) if item.dtype is torch.bfloat16 else item).numpy()
        tensors[name] = item
        return {"$": "tensor", "name": name, "type": kind, "shape": list(item.shape)}
    if isinstance(item, dict):
        return {
            "$": "dict",
            "items": [[_packed(k, tensors), _packed(v, tensors)] for k, v in item.items()],
        }
    if isinstance(item, list | tuple | set):
        kind = type(item).__name__ if type(item) in (list, tuple, set) else "tuple"
        return {"$": kind, "items": [_packed(part, tensors) for part in item]}
    if isinstance(item, np.generic):
        return item.item()
    if item is None or isinstance(item, bool | int | float | str):
        return _json_number(item)
    raise TypeError(
        f"a {type(item).__name__} cannot be kept in a checkpoint that runs nothing: {item!r}"
    )


def _json_number(item: Any) -> Any:
    """JSON has no infinities."""
    if isinstance(item, float) and not np.isfinite(item):
        return {"$": "float", "value": str(item)}
    return item


def _unpacked(item: Any, tensors: dict[str, Any]) -> Any:
    if not isinstance(item, dict):
        return item
    kind = item["$"]
    if kind == "tensor":
        # Each was given a name of its own; a second use could make many copies of one tensor.
        array = tensors.pop(item["name"]).reshape(item["shape"])
        if item["type"] == "numpy":
            return array
        tensor = torch.from_numpy(np.array(array))
        return tensor.view(torch.bfloat16) if item["type"] == "bfloat16" else tensor
    if kind == "shard":
        return distributed.as_shard(
            _unpacked(item["part"], tensors), tensors["like"], item["shape"]
        )
    if kind == "float":
        return float(item["value"])
    if kind == "dict":
        return {_unpacked(k, tensors): _unpacked(v, tensors) for k, v in item["items"]}
    return {"list": list, "tuple": tuple, "set": set}[kind](
        _unpacked(part, tensors) for part in item["items"]
    )
