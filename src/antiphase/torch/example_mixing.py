"""Does the model keep the examples of a batch apart? A look at its gradients, where the layers do not tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleModule
from torch import nn

from antiphase.errors import AntiphaseError


class MixingError(AntiphaseError, ValueError):
    """One example's output depends on another example, so a clipped gradient does not bound what one can do."""


def refuse_mixing(module: nn.Module, loader: Any) -> bool:
    """Raise `MixingError` if the output for one example moves with the input of another.

    Of the data, only shape and type of the first example are looked at: the inputs are made up, so that no error can
    tell of an example. False where the model cannot be called with such a tensor alone: nothing is known then.
    """
    try:
        batch = loader.collate_fn([loader.dataset[0], loader.dataset[0], loader.dataset[0]])
        first = batch if isinstance(batch, torch.Tensor) else next(iter(_values(batch)))
        device = next(module.parameters()).device
        made = _made_up(first).to(device)
        with torch.random.fork_rng(devices=[]), _without_hooks(module):
            return _probe(module, made)
    except MixingError:
        raise
    except Exception:  # whatever a model does with inputs that are not its own
        return False


def _probe(module: nn.Module, inputs: torch.Tensor) -> bool:
    torch.manual_seed(0)
    if inputs.is_floating_point():
        inputs = inputs.requires_grad_()
        output = _first_tensor(module(inputs))
        if output.shape[:1] != inputs.shape[:1]:
            return False
        (gradient,) = torch.autograd.grad(output[0].double().abs().sum(), inputs)
        moved = float(gradient[1:].abs().max())
    else:
        before = _first_tensor(
            module(torch.cat([inputs[:1], torch.zeros_like(inputs[1:])]))
        ).detach()
        if before.shape[:1] != inputs.shape[:1]:
            return False
        torch.manual_seed(0)
        other = _first_tensor(module(torch.cat([inputs[:1], torch.ones_like(inputs[1:])]))).detach()
        moved = float((other[0] - before[0]).abs().max())
        moved = moved if moved > 1e-6 * float(before[0].abs().max()) else 0.0
    # PRIVACY: an example that moves another's output is in more gradients than its own.   [G16]
    if moved > 0:
        raise MixingError(
            f"the model mixes examples: the output for one moves with the input of another ({moved:.1e}). Clipping "
            "one example's gradient does not bound its influence then. Normalise within examples (GroupNorm, "
            "LayerNorm) instead of over the batch; or, if you know better, make_private(…, probe=False)"
        )
    return True


def _made_up(like: torch.Tensor) -> torch.Tensor:
    """Numbers between 0 and 1; whole ones are 1, 0, 1, 0 and so on, tokens that all but the smallest embedding has."""
    if like.is_floating_point():
        generator = torch.Generator().manual_seed(1)
        return torch.rand(like.shape, generator=generator, dtype=torch.float32).to(like.dtype)
    return (torch.arange(1, like.numel() + 1) % 2).reshape(like.shape).to(like.dtype)


@contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    """Hooks of Opacus, if the module has them already, would take what they see for a batch to come."""
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


def _values(batch: Any) -> Any:
    return batch.values() if isinstance(batch, dict) else batch


def _first_tensor(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    found: torch.Tensor = next(iter(_values(output)))
    return found
