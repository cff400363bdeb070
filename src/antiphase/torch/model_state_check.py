"""Check that forward and backward passes change no parameters or buffers.

A layer that writes into the model (`nn.Embedding` with max_norm, running statistics, observers)
carries data past clipping and noise. Such a step is refused. Changes between steps, by the user's
own code, are allowed and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from antiphase.errors import ModelChangedError
from antiphase.torch.compilation import uncompiled

Tensor = torch.Tensor
ALWAYS_HASHED_STEPS = 5  # the first steps, in which values are hashed
HASH_INTERVAL = 100  # steps from one later step in which values are hashed to the next
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Snapshot(NamedTuple):
    """The tensors of a model by name, their version counters, and hashes of their values."""

    tensors: dict[str, Tensor]
    versions: list[int]
    hashes: list[int] | None  # None in steps whose values are not hashed


class UnchangedModel:
    """Guard that compares parameters and buffers before a forward pass and before the release.

    Guarantee: a forward or backward pass that writes into parameters or buffers releases nothing.
    Writes past PyTorch's version counters (``p.data.add_``) are found in the first steps and in
    every hundredth.   [G16]

    Args:
        module: the user's model.
        optimizer: the private optimizer.

    Attributes:
        changes_between_steps: how often parameters or buffers were changed between steps.
    """

    def __init__(self, module: nn.Module, optimizer: Any) -> None:
        self.changes_between_steps = 0
        self._module, self._optimizer = module, optimizer
        self._steps = 0  # steps done since the guard was attached
        self._before: _Snapshot | None = None  # at the first forward pass of the step
        self._after: _Snapshot | None = None  # at the end of the last step

    def attach(self) -> None:
        """Look at the model before each forward pass and after each step."""
        inner = self._optimizer.original_optimizer
        self._hooks = [
            self._module.register_forward_pre_hook(_BeforeForward(self)),
            inner.register_step_post_hook(lambda *_: self.end_step()),
        ]

    def detach(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def begin_forward(self) -> None:
        """Take a snapshot of the model; compare with it if the step has gradients already."""
        if self._before is not None and self._optimizer.has_gradients():
            self._compare(self._before)
            return
        hashed = self._steps < ALWAYS_HASHED_STEPS or self._steps % HASH_INTERVAL == 0
        self._before = _snapshot(self._module, hashed)
        if self._after is not None:
            self.changes_between_steps += _difference(self._after, self._before) is not None
            self._after = None

    def __call__(self) -> None:
        """Refuse a release if the model has changed since the forward pass.

        Raises:
            ModelChangedError: with the name of the parameter or buffer.
        """
        if self._before is not None:
            self._compare(self._before)

    def end_step(self) -> None:
        """Take the state of the model after the inner optimizer's step."""
        self._steps += 1
        self._before, self._after = None, _snapshot(self._module, hashed=False)

    def _compare(self, before: _Snapshot) -> None:
        name = _difference(before, _snapshot(self._module, before.hashes is not None))
        # PRIVACY: what a pass writes into the model is neither clipped nor noised.   [G16]
        if name is not None:
            raise ModelChangedError(
                f"{name}: it was changed in a forward or backward pass, or before step() by other "
                "code, past clipping and noise. Nothing was released. Use a layer without running "
                "statistics or max_norm, and change weights after step() only"
            )


class _BeforeForward:
    """Forward pre-hook of the model; copies of the model have one that does nothing."""

    def __init__(self, unchanged: UnchangedModel | None = None) -> None:
        self._unchanged = unchanged

    def __reduce__(self) -> Any:
        return type(self), ()

    @uncompiled
    def __call__(self, module: nn.Module, _: Any) -> None:
        if self._unchanged is not None and module.training and torch.is_grad_enabled():
            self._unchanged.begin_forward()


def changed_by(module: nn.Module, passes: Callable[[], None]) -> str | None:
    """The name of a parameter or buffer that ``passes()`` changes, or None."""
    before = _snapshot(module, hashed=True)
    passes()
    return _difference(before, _snapshot(module, hashed=True))


def value_hash(tensor: Tensor) -> int:
    """A hash of a tensor's values: sums of its words with odd weights, on the tensor's device."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    words = flat.view(_WORDS[flat.element_size()]).to(torch.int64)
    weights = torch.arange(1, 2 * len(words), 2, device=words.device) * 0x9E3779B97F4A7C1
    mixed = (words + 0x632BE59B) * weights
    return int((mixed ^ (mixed >> 29)).sum())


def _snapshot(module: nn.Module, hashed: bool) -> _Snapshot:
    tensors = {}
    for prefix, part in module.named_modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None and not _is_sharded(tensor):
                tensors[f"{prefix}.{name}" if prefix else name] = tensor
    hashes = [value_hash(tensor) for tensor in tensors.values()] if hashed else None
    return _Snapshot(tensors, [tensor._version for tensor in tensors.values()], hashes)


def _is_sharded(tensor: Tensor) -> bool:
    """Whether fully_shard replaces the tensor by a whole one for each pass."""
    return hasattr(tensor, "placements") or tensor.is_meta


def _difference(before: _Snapshot, after: _Snapshot) -> str | None:
    """The name of the first tensor that was replaced, or has another version or other values."""
    for name in before.tensors.keys() ^ after.tensors.keys():
        return name
    hashed = before.hashes is not None and after.hashes is not None
    for place, (name, tensor) in enumerate(before.tensors.items()):
        if (
            after.tensors[name] is not tensor
            or before.versions[place] != after.versions[place]
            or (hashed and before.hashes[place] != after.hashes[place])  # type: ignore[index]
        ):
            return name
    return None
