"""Forward and backward passes must leave the model's parameters and buffers as they are.

A layer that writes into the model (`nn.Embedding` with max_norm, running statistics, observers) carries data past
clipping and noise. Such a step is refused. Changes between steps, by the user's own code, are allowed and counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from antiphase.errors import ModelChangedError

Tensor = torch.Tensor
FIRST_STEPS = 5  # whose values are hashed
EVERY = 100  # steps; the values of each such step are hashed too
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Seen(NamedTuple):
    """The tensors of a model by name, how often each was written to in place, and hashes of their values or None."""

    tensors: dict[str, Tensor]
    versions: list[int]
    hashes: list[int] | None


class UnchangedModel:
    """Compares parameters and buffers before a forward pass with those before the release of its gradients.

    Guarantee: a forward or backward pass that writes into parameters or buffers releases nothing. Writes past
    PyTorch's version counters (``p.data.add_``) are found in the first steps and in every hundredth.   [G16]

    Attributes:
        changes_between_steps: how often parameters or buffers were changed by something else than a step.
    """

    def __init__(
        self, module: nn.Module, steps: Callable[[], int], has_gradients: Callable[[], bool]
    ) -> None:
        self.changes_between_steps = 0
        self._module, self._steps, self._has_gradients = module, steps, has_gradients
        self._before: _Seen | None = None  # at the first forward pass of the step
        self._after: _Seen | None = None  # when the last step was done

    def attach(self) -> None:
        """Look at the model before each of its forward passes."""
        self._hook = self._module.register_forward_pre_hook(_BeforeForward(self))

    def detach(self) -> None:
        """Look no more."""
        self._hook.remove()

    def begin(self) -> None:
        """Before a forward pass: remember the model, or compare it if this step has gradients already."""
        if self._before is not None and self._has_gradients():
            self._compare(self._before)
            return
        hashed = self._is_hashed()
        self._before = _look(self._module, hashed)
        if self._after is not None:
            self.changes_between_steps += _difference(self._after, self._before) is not None
            self._after = None

    def __call__(self) -> None:
        """Before a release: raise if the model is another than before the forward pass."""
        if self._before is not None:
            self._compare(self._before)

    def done(self) -> None:
        """After the inner optimizer's step."""
        self._before, self._after = None, _look(self._module, hashed=False)

    def _is_hashed(self) -> bool:
        return self._steps() < FIRST_STEPS or self._steps() % EVERY == 0

    def _compare(self, before: _Seen) -> None:
        name = _difference(before, _look(self._module, before.hashes is not None))
        # PRIVACY: what a pass writes into the model has neither been clipped nor does it have noise.   [G16]
        if name is not None:
            raise ModelChangedError(
                f"{name}: it was changed in a forward or backward pass, or before step() by other code. What a layer "
                "writes into the model goes past clipping and noise. Nothing was released. Use a layer without "
                "running statistics or max_norm, and change weights after step() only"
            )


class _BeforeForward:
    """A hook of the model; in copies of the model it does nothing."""

    def __init__(self, unchanged: UnchangedModel | None = None) -> None:
        self._unchanged = unchanged

    def __reduce__(self) -> Any:
        return type(self), ()

    def __call__(self, module: nn.Module, _: Any) -> None:
        if self._unchanged is not None and module.training and torch.is_grad_enabled():
            self._unchanged.begin()


def changed_by(module: nn.Module, passes: Callable[[], None]) -> str | None:
    """The name of a parameter or buffer that ``passes()`` changes; None if there is none."""
    before = _look(module, hashed=True)
    passes()
    return _difference(before, _look(module, hashed=True))


def value_hash(tensor: Tensor) -> int:
    """A hash of the values of a tensor, by sums of its words with odd weights, on the tensor's device."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    words = flat.view(_WORDS[flat.element_size()]).to(torch.int64)
    weights = torch.arange(1, 2 * len(words), 2, device=words.device) * 0x9E3779B97F4A7C1
    mixed = (words + 0x632BE59B) * weights
    return int((mixed ^ (mixed >> 29)).sum())


def _look(module: nn.Module, hashed: bool) -> _Seen:
    found = {}
    for prefix, part in module.named_modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            if tensor is not None and not _is_sharded(tensor):
                found[f"{prefix}.{name}" if prefix else name] = tensor
    hashes = [value_hash(tensor) for tensor in found.values()] if hashed else None
    return _Seen(found, [tensor._version for tensor in found.values()], hashes)


def _is_sharded(tensor: Tensor) -> bool:
    """Whether it is a shard of fully_shard, which puts whole tensors in its place for a pass."""
    return hasattr(tensor, "placements") or tensor.is_meta


def _difference(before: _Seen, now: _Seen) -> str | None:
    """The name of the first tensor that is another, has another version, or other values."""
    for name in before.tensors.keys() ^ now.tensors.keys():
        return name
    for place, (name, tensor) in enumerate(before.tensors.items()):
        if now.tensors[name] is not tensor or before.versions[place] != now.versions[place]:
            return name
        if (
            before.hashes is not None
            and now.hashes is not None
            and before.hashes[place] != now.hashes[place]
        ):
            return name
    return None
