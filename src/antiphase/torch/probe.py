"""Does the model keep the examples of a batch apart? A look at its gradients, where the layers do not tell."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from antiphase.errors import AntiphaseError


class MixingError(AntiphaseError, ValueError):
    """One example's output depends on another example, so a clipped gradient does not bound what one can do."""


def refuse_mixing(module: nn.Module, loader: Any) -> bool:
    """Raise `MixingError` if the output for one example moves with the input of another.

    Inputs of the shape of the first batch's are made up, so the data decides nothing. False where the model cannot be
    called with the first tensor of a batch alone: nothing is known then.
    """
    try:
        batch = loader.collate_fn([loader.dataset[0], loader.dataset[0], loader.dataset[0]])
        first = batch if isinstance(batch, torch.Tensor) else next(iter(_values(batch)))
        device = next(module.parameters()).device
        made = _made_up(first).to(device)
        with torch.random.fork_rng(devices=[]):
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
        before = _first_tensor(module(inputs)).detach()
        if before.shape[:1] != inputs.shape[:1]:
            return False
        torch.manual_seed(0)
        other = _first_tensor(module(torch.cat([inputs[:1], inputs[1:].flip(1)]))).detach()
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
    if like.is_floating_point():
        generator = torch.Generator().manual_seed(1)
        return torch.rand(like.shape, generator=generator, dtype=torch.float32).to(like.dtype)
    return like.clone()


def _values(batch: Any) -> Any:
    return batch.values() if isinstance(batch, dict) else batch


def _first_tensor(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    found: torch.Tensor = next(iter(_values(output)))
    return found
