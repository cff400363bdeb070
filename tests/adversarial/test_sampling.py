"""Attacks on participation: examples of other loaders, and rows that are not examples."""

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.errors import ParticipationError, PerExampleGradientError, SettingsError
from antiphase.torch import PrivacyEngine, batch_sampler_for
from antiphase.torch.noise_run import row_of
from tests.torch.setting import Training, data, make_private, small_model

pytestmark = pytest.mark.issue(21)


def sampled(mode="hooks", batch_size=12, **options):
    """DP-SGD on Poisson samples: engine, module, optimizer, criterion and both loaders."""
    engine, own = PrivacyEngine(mechanism="dp-sgd"), DataLoader(data(), batch_size=batch_size)
    made = make_private(engine, own, grad_sample_mode=mode, **options)
    criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()
    return engine, made[0], made[1], criterion, own, made[-1]


def step(module, optimizer, criterion, batch):
    optimizer.zero_grad()
    criterion(module(batch[0]), batch[1]).backward()
    optimizer.step()


def values(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_loop_over_the_old_loader_is_refused(mode):
    """Row 44: without sampling ε was 10.0 instead of 4.70. Nothing is released or counted."""
    engine, module, optimizer, criterion, own, _ = sampled(mode)
    before = values(module).clone()
    with pytest.raises(
        ParticipationError, match=r"did not hand over.*Nothing was released.*make_private returned"
    ):
        step(module, optimizer, criterion, next(iter(own)))
    assert torch.equal(values(module), before)
    assert len(engine.accountant) == 0


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_the_returned_loader_trains_and_every_step_is_counted(mode):
    engine, module, optimizer, criterion, _, loader = sampled(mode)
    before = values(module).clone()
    for _ in range(2):
        for batch in loader:
            step(module, optimizer, criterion, batch)
    assert not torch.equal(values(module), before)
    assert [steps for *_, steps in engine.accountant.history] == [2 * len(loader)]
    assert engine.get_epsilon(1e-5) > 0


def test_the_old_loader_is_refused_in_the_middle_of_training():
    engine, module, optimizer, criterion, own, loader = sampled()
    batches = iter(loader)
    step(module, optimizer, criterion, next(batches))
    with pytest.raises(ParticipationError):
        step(module, optimizer, criterion, next(iter(own)))
    other = next(iter(DataLoader(data(), batch_size=len(next(batches)[0]) + 1)))
    with pytest.raises(ParticipationError):  # a sample of another size was handed over
        step(module, optimizer, criterion, other)
    assert [steps for *_, steps in engine.accountant.history] == [1]


def test_a_sample_is_not_used_twice():
    """The second step on one sample is not amplified."""
    _, module, optimizer, criterion, _, loader = sampled()
    batch = next(iter(loader))
    step(module, optimizer, criterion, batch)
    with pytest.raises(ParticipationError):
        step(module, optimizer, criterion, batch)


def test_opacus_memory_manager_works_on_recorded_samples():
    engine, module, optimizer, criterion, _, loader = sampled()
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=5, optimizer=optimizer
    ) as pieces:
        for batch in pieces:
            step(module, optimizer, criterion, batch)
    assert [steps for *_, steps in engine.accountant.history] == [len(loader)]


def test_empty_samples_are_steps_too():
    engine, module, optimizer, criterion, _, loader = sampled(batch_size=1)
    sizes = []
    for batch in loader:
        sizes.append(len(batch[0]))
        step(module, optimizer, criterion, batch)
    assert 0 in sizes
    assert [steps for *_, steps in engine.accountant.history] == [60]


def test_made_up_examples_replace_only_empty_samples():
    _, module, optimizer, criterion, own, loader = sampled(batch_size=1, rand_on_empty=True)
    for batch in loader:
        step(module, optimizer, criterion, batch)
    with pytest.raises(ParticipationError):
        step(module, optimizer, criterion, next(iter(own)))


def test_the_rate_of_an_amplified_sampler_is_frozen():
    """Row 31: more examples in a step than amplification was computed for."""
    f = ap.design("dp-sgd", steps=10, participation=ap.min_separation(10, 1))
    mechanism = ap.calibrate(f, noise_multiplier=1.0, delta=1e-5, sampling=ap.sampling.Poisson(0.2))
    engine = PrivacyEngine(mechanism=mechanism, key=ap.Key.insecure(1))
    loader = DataLoader(data(), batch_sampler=batch_sampler_for(mechanism, 60))
    module, optimizer, private = make_private(engine, loader, noise_multiplier=None)
    private.batch_sampler.sampler.rate = 0.9
    with pytest.raises(SettingsError, match=r"sampler\.sampler\.rate was 0\.2.*now 0\.9"):
        step(module, optimizer, nn.CrossEntropyLoss(), next(iter(private)))
    assert optimizer.release.drawn == 0


# Rows and examples (row 33)


def test_fewer_rows_of_gradients_than_examples_are_refused():
    """Rows of a part of a batch, or rows that are not examples."""
    training = Training(shuffle=False)
    inputs, targets = next(iter(training.loader))
    with pytest.raises(
        ParticipationError,
        match=r"7 gradients of examples that are not known.*Nothing was released",
    ):
        training.step((inputs[:7], targets[:7]))
    assert training.release.drawn == 0


def test_tensors_with_rows_of_different_examples_are_refused():
    """Rows of two tensors must belong to the same examples."""
    training = Training(shuffle=False)
    inputs, targets = next(iter(training.loader))
    training.criterion(training.module(inputs), targets).backward()
    first = training.optimizer.params[0]
    shorter = first.grad_sample[:-1].clone()
    shorter._forward_pass = first.grad_sample._forward_pass
    first.grad_sample = shorter
    with pytest.raises(PerExampleGradientError, match="of 12 and of 11 examples"):
        training.optimizer.step()
    assert training.release.drawn == 0


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_sums_of_dp_sgd_are_rounded_before_the_noise_is_added(mode, monkeypatch):
    """Row 45, Poisson samples: low bits of a float64 sum would have no noise."""
    seen = []

    def watched(std, reference, **_):
        seen.append(reference.clone())
        return torch.zeros_like(reference)

    monkeypatch.setattr("opacus.optimizers.optimizer._generate_noise", watched)
    monkeypatch.setattr(
        "opacus.optimizers.optimizer_fast_gradient_clipping._generate_noise", watched
    )
    dataset = TensorDataset(data().tensors[0].double(), data().tensors[1])
    made = make_private(
        PrivacyEngine(mechanism="dp-sgd"),
        DataLoader(dataset, batch_size=12),
        small_model().double(),
        grad_sample_mode=mode,
    )
    criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()
    step(made[0], made[1], criterion, next(iter(made[-1])))
    assert len(seen) == 4
    assert all(torch.equal(total, total.float().double()) for total in seen)


class TimeFirst(nn.Module):
    """Swaps examples and time before its layer; Opacus' hooks would record a row per time."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).mean(dim=0)


def time_first(length, mode, **options):
    X = torch.randn(60, length, 3, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(X, (X[:, 0, 0] > 0).long())
    torch.manual_seed(0)
    return Training(
        model=TimeFirst(), dataset=dataset, mode=mode, max_grad_norm=0.1, shuffle=False, **options
    )


LENGTHS = pytest.mark.parametrize("length", [5, 12, 20], ids=["T < B", "T = B", "T > B"])


@LENGTHS
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_time_first_layer_is_clipped_by_example(length, mode):
    """Row 33: the sum is that of a loop over examples, also with as many times as examples."""
    training = time_first(length, mode)
    model = TimeFirst()
    model.load_state_dict(training.model.state_dict())
    inputs, targets = next(iter(training.loader))
    expected = 0
    for x, y in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        expected = expected + g * min(
            1.0, 0.1 * (1 - training.optimizer.clip_margin) / float(g.norm())
        )
    training.step((inputs, targets))
    found = torch.cat([p.grad.flatten() for p in training.optimizer.params]) * 12
    noise = torch.cat([torch.from_numpy(r).flatten() for r in row_of(training.release, 0).values()])
    torch.testing.assert_close(found - noise, expected, atol=1e-5, rtol=1e-4)


@LENGTHS
@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_inputs_with_time_before_examples_are_refused(length, mode):
    """Row 33: rows would be times, also with as many times as examples. Nothing is released."""

    def collate(examples):
        X, y = zip(*examples, strict=True)
        return torch.stack(X, dim=1), torch.stack(y)

    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))
    X = torch.randn(60, length, 3, generator=torch.Generator().manual_seed(0))
    loader = DataLoader(TensorDataset(X, torch.zeros(60)), batch_size=12, collate_fn=collate)
    with pytest.raises(PerExampleGradientError, match="Nothing was released"):
        make_private(
            PrivacyEngine(key=ap.Key.insecure(1)), loader, model, epochs=1, grad_sample_mode=mode
        )


def test_a_batch_that_was_passed_over_counts_as_used():
    """A skipped batch counts as used in the ledger."""
    training = Training(shuffle=False)
    batches = iter(training.loader)
    next(batches)
    training.step(next(batches))
    assert training.release.ledger.count.tolist() == [1] * 24 + [0] * 36
    np.testing.assert_array_equal(training.release.ledger.when[:24], 0)


def test_an_uneven_model_still_trains():
    assert Training(model=small_model(), batch_size=25, epochs=1).run().engine.remaining_steps == 0
