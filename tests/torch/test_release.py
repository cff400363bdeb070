"""A step releases the clipped sum plus its row of noise, and is refused past the plan."""

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.errors import BypassError, HorizonError, ParticipationError
from antiphase.torch import PrivacyEngine
from antiphase.torch.noise_run import row_of
from antiphase.torch.release import Release, _divided
from tests.torch.setting import Training, data, make_private, small_model

MODES = ["hooks", "functorch", "ghost"]


def released(training, batch):
    """The noisy sum of one step: the gradients of the inner optimizer times the divisor."""
    training.step(batch)
    return (
        torch.cat([p.grad.flatten() for p in training.optimizer.params]) * training.release.divisor
    )


def noise(training, step):
    row = row_of(training.release, step)
    return torch.cat([torch.from_numpy(row[name]).flatten() for name in training.release.shapes])


def naive_sum(model, batch, clip):
    """The clipped sum, example by example with autograd."""
    inputs, targets = batch
    total = None
    for x, y in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        g = g * min(1.0, clip / float(g.double().norm()))
        total = g if total is None else total + g
    return total


@pytest.mark.parametrize("mode", MODES)
def test_a_step_releases_the_clipped_sum_plus_a_row_of_noise(mode):
    training = Training(mode=mode, max_grad_norm=0.3)
    for step, batch in enumerate(training.loader):
        twin = small_model()
        twin.load_state_dict(training.model.state_dict())
        expected = naive_sum(twin, batch, 0.3 * (1 - training.optimizer.clip_margin))
        found = released(training, batch)
        torch.testing.assert_close(found, expected + noise(training, step), atol=2e-5, rtol=1e-5)
        if step == 2:
            break
    assert training.engine.remaining_steps == 12


def test_per_layer_clipping_has_the_norm_of_its_clip_norms():
    norms = [0.1, 0.2, 0.3, 0.4]
    training = Training(clipping="per_layer", max_grad_norm=norms)
    assert training.engine.mechanism.clip_norm == pytest.approx(np.linalg.norm(norms))
    batch = next(iter(training.loader))
    twin = small_model()
    twin.load_state_dict(training.model.state_dict())
    found = released(training, batch) - noise(training, 0)
    expected = []
    for p_index, norm in enumerate(norms):
        total = 0.0
        for x, y in zip(*batch, strict=True):
            loss = nn.functional.cross_entropy(twin(x[None]), y[None])
            g = torch.autograd.grad(loss, list(twin.parameters()))[p_index]
            total = total + g * min(
                1.0, norm * (1 - training.optimizer.clip_margin) / float(g.norm())
            )
        expected.append(total.flatten())
    torch.testing.assert_close(found, torch.cat(expected), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_stepping_the_inner_optimizer_is_refused(mode):
    training = Training(mode=mode)
    training.run(2)
    before = training.weights()
    with pytest.raises(BypassError, match="stepped directly"):
        training.inner.step()
    assert torch.equal(before, training.weights())
    with pytest.raises(BypassError):
        training.optimizer.add_noise()


def test_steps_past_the_plan_are_refused():
    training = Training(epochs=1)
    training.run()
    assert training.engine.remaining_steps == 0
    before = training.weights()
    with pytest.raises(HorizonError, match="all 5 steps"):
        training.step(next(iter(training.loader)))
    assert torch.equal(before, training.weights())


def test_steps_past_the_plan_draw_no_noise_without_a_participation_ledger():
    trusted = Training(epochs=1, participation="trusted").run()
    with pytest.raises(HorizonError):
        trusted.step(next(iter(trusted.loader)))
    assert trusted.release.drawn == 5


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_examples_that_are_not_finite_contribute_nothing(mode, value):
    """If float32 norms overflow but inputs are finite, at most the clip norm."""
    dataset = data()
    inputs = dataset.tensors[0].clone()
    inputs[5] = value
    bad = TensorDataset(inputs, dataset.tensors[1])
    one, other = (
        Training(dataset=d, mode=mode, shuffle=False, max_grad_norm=0.5) for d in (bad, dataset)
    )
    batch = next(iter(other.loader))
    torn = next(iter(one.loader))
    first = released(one, torn) - noise(one, 0)
    second = released(other, batch) - noise(other, 0)
    assert torch.isfinite(first).all()
    assert float((first - second).norm()) <= 1.0 * 0.5 * 2 * (1 + 1e-5)
    if not np.isfinite(value):
        kept = [i for i in range(12) if i != 5]
        twin = small_model()
        expected = naive_sum(
            twin, (batch[0][kept], batch[1][kept]), 0.5 * (1 - one.optimizer.clip_margin)
        )
        torch.testing.assert_close(first, expected, atol=2e-5, rtol=1e-5)
        assert one.optimizer.nonfinite_examples == 1


def test_an_empty_batch_releases_a_row_of_noise():
    order = [[0, 1, 2], [], [3, 4, 5]]
    dataset = data(6)
    loader = DataLoader(dataset, batch_sampler=order)
    for mode in ("hooks", "ghost"):
        engine = PrivacyEngine(mechanism="dp-mf", key=ap.Key.insecure(3))
        made = make_private(engine, loader, grad_sample_mode=mode, epochs=1)
        module, optimizer = made[:2]
        criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss(reduction="sum")
        for step, (inputs, targets) in enumerate(made[-1]):
            assert len(inputs) == len(order[step])
            optimizer.zero_grad()
            criterion(module(inputs), targets).backward()
            optimizer.step()
            if not len(inputs):
                found = (
                    torch.cat([p.grad.flatten() for p in optimizer.params])
                    * optimizer.release.divisor
                )
                row = row_of(optimizer.release, step)
                expected = torch.cat([torch.from_numpy(r).flatten() for r in row.values()])
                torch.testing.assert_close(found, expected)
        assert engine.remaining_steps == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_microbatches_of_a_memory_manager_are_one_step(mode):
    """Microbatches of 1, 7, 64 or all 80: one row of noise for each step, equal weights."""
    ends, size = {}, 80
    for most in (1, 7, 64, size):
        training = Training(mode=mode, epochs=1, dataset=data(2 * size), batch_size=size)
        assert training.engine.mechanism.steps == 2
        with BatchMemoryManager(
            data_loader=training.loader, max_physical_batch_size=most, optimizer=training.optimizer
        ) as loader:
            pieces = [training.step(batch) for batch in loader]
        assert len(pieces) == 2 * -(-size // most)
        assert training.engine.remaining_steps == 0
        ends[most] = training.weights()
    for most in (1, 7, 64):
        torch.testing.assert_close(ends[most], ends[size], atol=1e-6, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_gradient_accumulation_uses_one_row_of_noise_for_each_logical_step(mode):
    ends = []
    for accumulation, size in ((1, 12), (2, 6), (4, 3)):
        training = Training(
            mode=mode, batch_size=size, epochs=1, gradient_accumulation_steps=accumulation
        )
        training.optimizer.zero_grad()
        for i, (inputs, targets) in enumerate(training.loader):
            training.criterion(training.module(inputs), targets).backward()
            if (i + 1) % accumulation == 0:
                training.optimizer.step()
                training.optimizer.zero_grad()
        assert training.engine.remaining_steps == 0
        assert training.release.divisor == 12
        ends.append(training.weights())
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0], atol=1e-6, rtol=1e-6)


def test_accumulating_more_batches_than_planned_is_refused():
    training = Training(batch_size=6, epochs=2)

    def every_other():
        training.optimizer.zero_grad()
        for i, (inputs, targets) in enumerate(batch for _ in range(2) for batch in training.loader):
            training.criterion(training.module(inputs), targets).backward()
            if i % 2:
                training.optimizer.step()
                training.optimizer.zero_grad()

    with pytest.raises(ParticipationError, match=r"^step 0: gradients of 2 batches in one step"):
        every_other()


def test_noise_is_added_in_float32_for_models_of_any_dtype():
    """In bfloat16 a noise of 1e-4 on a gradient of 1 would be rounded away."""
    training = Training(model=small_model(), noise_multiplier=1e-4)
    shapes = training.release.shapes
    sums = [torch.ones(shape, dtype=torch.bfloat16) for shape in shapes.values()]
    training.release.batches, training.release.ledger = None, None
    training.release.guards.clear()  # they refuse this
    rows = [training.release(sums, 1) for _ in range(15)]
    noisy = torch.stack([torch.cat([t.flatten() for t in row]) for row in rows])
    assert noisy.dtype is torch.float32
    found = noisy * training.release.divisor - 1
    f = training.engine.mechanism.factorization
    expected = 1e-4 * torch.from_numpy(np.sqrt(np.square(f.noising()).sum(axis=1)))
    assert float(found.norm() / (expected.norm() * np.sqrt(found.shape[1]))) == pytest.approx(
        1, abs=0.1
    )


@pytest.mark.parametrize("mode", MODES)
def test_noisy_gradients_are_cast_to_bfloat16_after_the_noise(mode, monkeypatch):
    types, release = set(), Release.__call__

    def looked_at(self, sums, examples):
        types.update(total.dtype for total in sums)
        return release(self, sums, examples)

    monkeypatch.setattr(Release, "__call__", looked_at)
    training = Training(model=small_model().to(torch.bfloat16), dataset=bfloat(data()), mode=mode)
    training.run(2)
    assert types == {torch.float64}, "a rounded sum may move by more than the clip norm"
    assert all(p.grad.dtype is torch.bfloat16 for p in training.optimizer.params)


def bfloat(dataset):
    return TensorDataset(dataset.tensors[0].to(torch.bfloat16), dataset.tensors[1])


def test_a_sum_is_divided_where_it_is():
    """On a CPU by NumPy, in place; a tensor elsewhere has no NumPy array."""
    total = torch.arange(6.0)
    assert _divided(total, 4.0) is total
    assert torch.equal(total, torch.arange(6.0) / 4)
    assert _divided(torch.ones(3, device="meta"), 4.0).device.type == "meta"
