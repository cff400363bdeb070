"""Check that the output for one example is independent of the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from torch import nn

from antiphase.errors import AntiphaseError
from antiphase.torch.compilation import eagerly

Tensor = torch.Tensor


class MixingError(AntiphaseError, ValueError):
    """One example's output depends on another, so clipping does not bound its influence."""


def refuse_mixing(module: nn.Module, loader: Any) -> bool:
    """Refuse a model whose output for one example depends on the input of another.

    Only shape and type of the first example are read: the inputs are made up, so that no error can
    tell of an example.

    Args:
        module: the model.
        loader: of the training data.

    Returns:
        False if the model cannot be called with such a tensor alone: nothing is known then.

    Raises:
        MixingError: if the model mixes examples.
    """
    try:
        batch = loader.collate_fn([loader.dataset[0]] * 3)
        inputs = _made_up(_first_tensor(batch)).to(next(module.parameters()).device)
        with eagerly(), torch.random.fork_rng(devices=[]), _without_hooks(module):
            influence = _influence_of_others(module, inputs)
    except Exception:  # whatever a model does with inputs that are not its own
        return False
    # PRIVACY: an example that changes another's output is in more gradients than its own.   [G16]
    if influence is not None and influence > 0:
        raise MixingError(
            "the model mixes examples: the output for one moves with the input of another "
            f"({influence:.1e}), so clipping does not bound an example's influence. Normalise "
            "within examples (GroupNorm, LayerNorm); or, if you know better, probe=False"
        )
    return influence is not None


def _influence_of_others(module: nn.Module, inputs: Tensor) -> float | None:
    """How much the first output moves with other inputs; None if outputs are not of examples."""
    if inputs.is_floating_point():
        torch.manual_seed(0)
        inputs = inputs.requires_grad_()
        output = _first_tensor(module(inputs))
        if output.shape[:1] != inputs.shape[:1]:
            return None
        (gradient,) = torch.autograd.grad(output[0].double().abs().sum(), inputs)
        return float(gradient[1:].abs().max())
    outputs = []
    for others in (torch.zeros_like(inputs[1:]), torch.ones_like(inputs[1:])):
        torch.manual_seed(0)
        outputs.append(_first_tensor(module(torch.cat([inputs[:1], others]))).detach())
    before, after = outputs
    if before.shape[:1] != inputs.shape[:1]:
        return None
    moved = float((after[0] - before[0]).abs().max())
    return moved if moved > 1e-6 * float(before[0].abs().max()) else 0.0


def _made_up(like: Tensor) -> Tensor:
    """Numbers between 0 and 1; integers are 1, 0, 1, 0, …, tokens that every embedding has."""
    if like.is_floating_point():
        generator = torch.Generator().manual_seed(1)
        return torch.rand(like.shape, generator=generator, dtype=torch.float32).to(like.dtype)
    return (torch.arange(1, like.numel() + 1) % 2).reshape(like.shape).to(like.dtype)


@contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """Disable the hooks of Opacus, which would record what they see as a batch."""
    hooks: Any = module
    if not (
        isinstance(module, AbstractGradSampleModule) and getattr(module, "hooks_enabled", False)
    ):
        yield
        return
    hooks.disable_hooks()
    try:
        yield
    finally:
        hooks.enable_hooks()


def _first_tensor(batch: Any) -> Tensor:
    if isinstance(batch, Tensor):
        return batch
    first: Tensor = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return first
