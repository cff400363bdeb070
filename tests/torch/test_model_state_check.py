"""Passes that write into the model are refused; changes between steps are counted."""

import copy

import pytest
import torch
from torch import nn

from antiphase.errors import ModelChangedError
from antiphase.torch.model_state_check import (
    ALWAYS_HASHED_STEPS,
    HASH_INTERVAL,
    UnchangedModel,
    changed_by,
    value_hash,
)
from tests.torch.setting import Training, small_model

pytestmark = pytest.mark.issue(21)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64],
)
def test_a_hash_changes_with_every_number_and_with_their_order(dtype):
    x = torch.arange(40).remainder(7).to(dtype).view(5, 8)
    assert value_hash(x) == value_hash(x.clone())
    assert value_hash(x) == value_hash(x.t().contiguous().t())
    for place in range(40):
        other = x.clone()
        other.view(-1)[place] = (
            1 - other.view(-1)[place] if dtype is not torch.bool else ~other.view(-1)[place]
        )
        assert value_hash(other) != value_hash(x)
    if dtype is not torch.bool:
        assert value_hash(x.flip(0)) != value_hash(x)


def test_the_name_of_what_was_written_is_found():
    model = small_model()
    assert changed_by(model, lambda: None) is None
    assert changed_by(model, lambda: model[2].bias.data.add_(1)) == "2.bias"
    with torch.no_grad():
        assert changed_by(model, lambda: model[0].weight.mul_(1.0)) == "0.weight", (
            "written, with the same values"
        )


class Optimizer:
    """What the guard needs of a private optimizer."""

    def __init__(self, model, has_gradients=False):
        self.original_optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.has_gradients = lambda: has_gradients


def after_steps(model, steps, has_gradients=False):
    """The guard of a model after so many steps."""
    unchanged = UnchangedModel(model, Optimizer(model, has_gradients))
    for _ in range(steps):
        unchanged.end_step()
    return unchanged


@pytest.mark.parametrize("step", [0, ALWAYS_HASHED_STEPS - 1, HASH_INTERVAL, 7 * HASH_INTERVAL])
def test_writes_past_version_counters_are_found_in_the_steps_that_are_hashed(step):
    model = small_model()
    unchanged = after_steps(model, step)
    unchanged.begin_forward()
    model[0].weight.data.add_(1e-3)
    with pytest.raises(ModelChangedError, match=r"0\.weight.*Nothing was released"):
        unchanged()


def test_writes_that_torch_counts_are_found_in_every_step():
    model = small_model()
    unchanged = after_steps(model, ALWAYS_HASHED_STEPS + 1)
    unchanged.begin_forward()
    unchanged()
    with torch.no_grad():
        model[0].weight.add_(1e-3)
    with pytest.raises(ModelChangedError):
        unchanged()


def test_a_second_forward_pass_of_a_step_is_compared_with_the_first():
    """Gradient accumulation: the first pass may have written before the second begins."""
    model = small_model()
    unchanged = after_steps(model, 0, has_gradients=True)
    unchanged.begin_forward()
    model[0].weight.data.add_(1e-3)
    with pytest.raises(ModelChangedError):
        unchanged.begin_forward()


def test_steps_of_the_inner_optimizer_are_counted_until_the_guard_is_removed():
    model = small_model()
    optimizer = Optimizer(model)
    unchanged = UnchangedModel(model, optimizer)
    unchanged.attach()
    model(torch.zeros(1, 5)).sum().backward()
    optimizer.original_optimizer.step()
    with torch.no_grad():
        model[0].weight.add_(1e-3)
    model(torch.zeros(1, 5))
    assert unchanged.changes_between_steps == 1
    unchanged.detach()
    optimizer.original_optimizer.step()
    with torch.no_grad():
        model[0].weight.add_(1e-3)
    model(torch.zeros(1, 5))
    assert unchanged.changes_between_steps == 1


def test_another_tensor_under_the_same_name_is_found():
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_buffer("mean", torch.zeros(2))

    def replace():
        model.mean = torch.zeros(2)

    assert changed_by(model, replace) == "mean"


def test_changes_between_steps_are_allowed_counted_and_stated():
    training = Training(shuffle=False)
    batches = iter(training.loader)
    training.step(next(batches))
    with torch.no_grad():
        training.model[0].weight.mul_(0.99)
    training.step(next(batches))
    training.step(next(batches))
    assert training.engine._training.unchanged_model.changes_between_steps == 1
    assert "changed parameters or buffers between steps, 1 times" in " ".join(
        str(training.engine.statement()).split()
    )


def test_a_copy_of_the_model_is_not_guarded_and_evaluation_takes_no_state():
    """A copy may be averaged or changed, and a pass for evaluation may come at any time."""
    model = small_model()
    unchanged = UnchangedModel(model, Optimizer(model))
    unchanged.attach()
    copy.deepcopy(model)(torch.zeros(1, 5))
    model.eval()(torch.zeros(1, 5))
    with torch.no_grad():
        model.train()(torch.zeros(1, 5))
    assert unchanged._before is None
    model(torch.zeros(1, 5))
    assert unchanged._before is not None
