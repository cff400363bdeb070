"""Attacks on DP-SGD with Poisson samples, and unusual rows of gradients."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from antiphase.errors import BypassError, ParticipationError, PerExampleGradientError, SettingsError
from antiphase.torch import PrivacyEngine
from tests.torch.setting import Training, data, make_private, small_model

pytestmark = pytest.mark.issue(21)


class Sampled:
    """DP-SGD on Poisson samples."""

    def __init__(self, mode="hooks", **options):
        self.engine, self.model = PrivacyEngine(mechanism="dp-sgd"), small_model()
        made = make_private(self.engine, None, self.model, grad_sample_mode=mode, **options)
        self.module, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()

    def backward(self, inputs, targets):
        self.criterion(self.module(inputs), targets).backward()

    @property
    def steps(self):
        return sum(count for *_, count in self.engine.accountant.history)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_several_samples_in_one_step_are_refused(mode):
    """Two samples in one forward pass: ε would be that of one sample, 1.14 instead of 5.88."""
    sampled = Sampled(mode)
    batches = iter(sampled.loader)
    inputs, targets = (torch.cat(parts) for parts in zip(next(batches), next(batches), strict=True))
    sampled.backward(inputs, targets)
    with pytest.raises(
        ParticipationError, match="2 samples in one step, of which 1 would be accounted for"
    ):
        sampled.optimizer.step()
    assert sampled.steps == 0


def test_samples_that_are_accounted_for_one_by_one_are_accepted():
    """In hooks mode Opacus accounts for every backward pass of a step."""
    sampled = Sampled()
    batches = iter(sampled.loader)
    sampled.optimizer.zero_grad()
    for _ in range(2):
        sampled.backward(*next(batches))
    sampled.optimizer.step()
    assert sampled.engine.accountant.history[0][1] == pytest.approx(2 * 0.2)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_after_a_refused_step_training_goes_on(mode):
    """zero_grad forgets the examples of a step that was refused."""
    sampled = Sampled(mode)
    other = next(iter(DataLoader(data(), batch_size=12)))
    sampled.backward(*other)
    with pytest.raises(ParticipationError):
        sampled.optimizer.step()
    for batch in sampled.loader:
        sampled.optimizer.zero_grad()
        sampled.backward(*batch)
        sampled.optimizer.step()
    assert sampled.steps == len(sampled.loader)


def test_the_inner_optimizer_of_dp_sgd_does_not_step_alone():
    """Unclipped gradients of an eval-mode pass would reach the weights, unaccounted."""
    sampled = Sampled()
    before = [p.detach().clone() for p in sampled.model.parameters()]
    sampled.model.eval()
    nn.functional.cross_entropy(sampled.model(data().tensors[0]), data().tensors[1]).backward()
    with pytest.raises(BypassError, match="stepped directly"):
        sampled.optimizer.original_optimizer.step()
    assert all(map(torch.equal, before, sampled.model.parameters()))


def test_a_layer_that_was_frozen_later_gets_no_raw_gradient():
    """The inner optimizer does not apply a gradient that an eval-mode pass left."""
    sampled = Sampled()
    sampled.model.eval()
    nn.functional.cross_entropy(sampled.model(data().tensors[0]), data().tensors[1]).backward()
    sampled.model.train()
    frozen = sampled.model[2]
    frozen.requires_grad_(False)
    before = [p.detach().clone() for p in frozen.parameters()]
    sampled.backward(*next(iter(sampled.loader)))
    sampled.optimizer.step()
    assert all(map(torch.equal, before, frozen.parameters()))


def test_a_clip_norm_that_changes_between_backward_and_step_is_refused():
    """Ghost clipping clips in the backward pass: norms of 10⁶ would have noise for norm 1."""
    sampled = Sampled("ghost")
    sampled.optimizer.max_grad_norm = 1e6
    sampled.backward(*next(iter(sampled.loader)))
    sampled.optimizer.max_grad_norm = 1.0
    with pytest.raises(SettingsError, match="clipped to"):
        sampled.optimizer.step()
    assert sampled.steps == 0


def test_rows_that_were_replaced_for_some_parameters_are_refused():
    """They would count as other examples, and an example would be clipped twice."""
    training = Training(participation="trusted")
    training.criterion(training.module(data().tensors[0][:12]), data().tensors[1][:12]).backward()
    first = training.optimizer.params[0]
    first.grad_sample = first.grad_sample * 2
    with pytest.raises(PerExampleGradientError, match="grad_sample was replaced"):
        training.optimizer.step()
    assert training.release.drawn == 0


def test_two_wrappers_of_one_model_share_no_rows():
    """Rows of the old wrapper are not added to those of the new one."""
    model = small_model()
    first, second = Training(model=model, shuffle=False), Training(model=model, shuffle=False)
    for training, part in ((first, slice(12)), (second, slice(12, 24))):
        inputs, targets = (tensor[part] for tensor in data().tensors)
        training.criterion(training.module(inputs), targets).backward()
    assert [len(rows) for rows in model[0].weight.grad_sample] == [12, 12]


class Rectified(nn.Module):
    """A bias that is a function of a parameter: S scales with norms, here infinity times zero."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4)), nn.Parameter(-torch.ones(3))

    def forward(self, x):
        return nn.functional.linear(x, self.weight, torch.relu(self.bias))


class Weighted(nn.Module):
    reduction = "sum"

    def forward(self, output, weights):
        losses = (output * weights).sum(dim=(1, 2))
        return losses.sum() if self.reduction == "sum" else losses


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_an_example_whose_size_is_not_finite_contributes_nothing(mode):
    """Token gradients of ±2e38 on zero inputs: S is NaN, and the other gradients are finite."""
    X, w = torch.randn(40, 4, 4), torch.randn(40, 4, 3)
    X[0] = 0
    w[0] = torch.tensor([2e38, -2e38, 2e38, -2e38])[:, None]
    training = Training(model=Rectified(), dataset=TensorDataset(X, w), batch_size=40, mode=mode,
                        criterion=Weighted(), loss_reduction="sum")  # fmt: skip
    training.run(1)
    assert all(bool(torch.isfinite(p).all()) for p in training.model.parameters())


def test_ghost_clipping_of_a_pass_that_was_not_recorded_is_refused():
    """In eval mode, or without the wrapper, nothing is recorded; a step would be only noise."""
    training = Training(mode="ghost")
    training.module.eval()
    with pytest.raises(PerExampleGradientError, match="in training mode"):
        training.run(1)
    assert training.release.drawn == 0


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_an_empty_sample_is_a_step_of_convolutions_too(mode):
    """No example was drawn: the step is only noise, and is accounted for."""
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.GroupNorm(1, 3),
        nn.Conv2d(3, 2, 2),
        nn.Flatten(),
        nn.Linear(18, 2),
    )
    dataset = TensorDataset(torch.randn(30, 1, 4, 4), torch.zeros(30, dtype=torch.long))
    engine = PrivacyEngine(mechanism="dp-sgd")
    made = make_private(engine, DataLoader(dataset, batch_size=1), model, grad_sample_mode=mode)
    criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()
    sizes = []
    for inputs, targets in made[-1]:
        sizes.append(len(inputs))
        made[1].zero_grad()
        criterion(made[0](inputs), targets).backward()
        made[1].step()
    assert 0 in sizes
    assert sum(count for *_, count in engine.accountant.history) == len(sizes)
