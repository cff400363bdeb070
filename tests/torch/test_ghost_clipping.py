"""Ghost clipping of whole models: bounds of norms, and what a backward pass records."""

import pytest
import torch
from torch import nn

from antiphase.errors import PerExampleGradientError
from antiphase.torch.clipping import MAX_CANCELLATION
from antiphase.torch.ghost_clipping import (
    gradients_and_bounds,
    record_losses,
)
from antiphase.torch.recorded_module import recorded

pytestmark = pytest.mark.issue(21)


def ghost(module):
    return recorded(module, "ghost", batch_first=True, loss_reduction="mean", wrap_model=True)


def tokens(n, length, width, seed=0):
    return torch.randn(n, length, width, generator=torch.Generator().manual_seed(seed))


def test_an_example_whose_tokens_cancel_is_clipped_by_a_part_of_what_cancels():
    """Row 28: rounding of products is in proportion to Σ‖g_t‖‖a_t‖, which limits an example's share."""
    module = ghost(nn.Linear(60, 50, bias=False))
    x = tokens(4, 1, 60).repeat(1, 6, 1)
    weights = 1e4 * torch.tensor([1.0, 1.0, -2.0, 1.0, 1.0, -2.0])
    _, norms = gradients_and_bounds(module, (module(x) * weights[:, None]).sum(dim=(1, 2)))
    sizes = weights.abs().sum() * 50**0.5 * x[:, 0].norm(dim=1)
    assert bool((norms >= sizes / MAX_CANCELLATION * (1 - 1e-5)).all())


def test_a_plain_backward_pass_records_nothing():
    """Row 30: only the backward pass of the private loss is recorded."""
    module = ghost(nn.Linear(3, 2))
    output = module(tokens(4, 1, 3)[:, 0])
    output.sum().backward(retain_graph=True)
    assert module.recorder.terms == {}
    assert all(p.grad is None for p in module.parameters())
    assert set(gradients_and_bounds(module, output.sum(dim=1))[0]) == {"weight", "bias"}
    assert module.recorder.terms == {}


def test_losses_that_are_not_one_for_each_example_are_refused():
    """Row 33: the criterion flattened tokens into the batch, or took some examples together."""
    module = ghost(nn.Linear(3, 2))
    x = tokens(4, 6, 3)
    for losses in (module(x).flatten(0, 1).sum(dim=1), module(x).sum(dim=2)[:2].sum(dim=1)):
        with pytest.raises(PerExampleGradientError, match="gradients of 4 examples for"):
            record_losses(module, losses)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rows_of_hooks_are_in_float32_or_float64_as_the_parameter_is(dtype):
    """Embeddings are added up in float64, which only parameters in float64 keep; none is kept in less than float32."""
    module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)).to(dtype)
    wrapped = recorded(module, "hooks", batch_first=True, loss_reduction="mean", wrap_model=True)
    wrapped(torch.tensor([[0, 1], [2, 2]])).sum().backward()
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    assert {name: p.grad_sample.dtype for name, p in module.named_parameters()} == dict.fromkeys(
        ["0.weight", "1.weight", "1.bias"], expected
    )
