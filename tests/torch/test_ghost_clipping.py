"""Ghost clipping of whole models: bounds of norms, and what a backward pass records."""

import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase.errors import PerExampleGradientError
from antiphase.torch import PrivacyEngine
from antiphase.torch.clipping import MAX_CANCELLATION
from antiphase.torch.ghost_clipping import (
    GhostTensor,
    gradients_and_bounds,
    record_losses,
)
from antiphase.torch.recorded_module import recorded

pytestmark = pytest.mark.issue(21)


def ghost(module):
    return recorded(module, "ghost", batch_first=True, loss_reduction="mean", wrap_model=True)


def tokens(n, length, width, seed=0):
    return torch.randn(n, length, width, generator=torch.Generator().manual_seed(seed))


def test_an_example_whose_tokens_cancel_is_divided_by_its_uncancelled_norm():
    """Row 28: rounding is in proportion to S = Σ‖g_t‖‖a_t‖, so the factor is at most κC/S."""
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
    """Row 33: a criterion that flattens tokens into the batch, or combines examples."""
    module = ghost(nn.Linear(3, 2))
    x = tokens(4, 6, 3)
    for losses in (module(x).flatten(0, 1).sum(dim=1), module(x).sum(dim=2)[:2].sum(dim=1)):
        with pytest.raises(PerExampleGradientError, match="gradients of 4 examples for"):
            record_losses(module, losses)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rows_of_hooks_are_in_float32_or_float64_as_the_parameter_is(dtype):
    """float64 sums of embeddings are kept for float64 parameters only; nothing is below float32."""
    module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)).to(dtype)
    wrapped = recorded(module, "hooks", batch_first=True, loss_reduction="mean", wrap_model=True)
    wrapped(torch.tensor([[0, 1], [2, 2]])).sum().backward()
    expected = torch.float64 if dtype is torch.float64 else torch.float32
    assert {name: p.grad_sample.dtype for name, p in module.named_parameters()} == dict.fromkeys(
        ["0.weight", "1.weight", "1.bias"], expected
    )


@pytest.mark.parametrize("value", [0.3, 1.1])
def test_ghost_clipping_covers_the_rounding_of_norms_of_millions_of_numbers(value):
    """Opacus adds up gradients of convolutions in float32, here two million numbers."""
    layer = torch.nn.Conv1d(1500, 1400, 1, bias=False)
    net = torch.nn.Sequential(layer, torch.nn.Flatten())
    x = torch.full((1, 1500, 1), value)
    dataset = torch.utils.data.TensorDataset(x, torch.zeros(1, dtype=torch.int64))
    engine = PrivacyEngine(mechanism="dp-sgd", key=ap.Key.insecure(0))
    module, optimizer, criterion, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=1.0),
        noise_multiplier=1.0,
        max_grad_norm=0.7,
        data_loader=torch.utils.data.DataLoader(dataset, batch_size=1),
        poisson_sampling=False,
        epochs=1,
        grad_sample_mode="ghost",
        criterion=Total(),
    )
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(module(inputs), targets).backward()
        length = float(torch.linalg.vector_norm(layer.weight.summed_grad))
    assert 0.7 * (1 - 0.02) <= length <= 0.7 * (1 + 1e-6)


def test_losses_are_added_up_and_scaled_as_tensors_are():
    """What is computed from the losses is what is differentiated."""
    values = torch.tensor([1.0, 4.0])
    losses = GhostTensor(None, None, values, "mean")
    for compute in (
        lambda x: x + 3,
        lambda x: 3 + x,
        lambda x: x - 3,
        lambda x: 3 - x,
        lambda x: x - values.square(),
        lambda x: -x,
        lambda x: x * 3,
        lambda x: 3 * x,
        lambda x: x / 4,
    ):
        found = compute(losses)
        assert isinstance(found, GhostTensor)
        torch.testing.assert_close(found.loss_per_sample, compute(values))


class Total(torch.nn.Module):
    """The sum of all outputs: gradients that are as long as they are constant."""

    reduction = "mean"

    def forward(self, outputs, targets):
        each = outputs.sum(dim=1)
        return each if self.reduction == "none" else each.mean()
