"""Sampled batches are drawn as analysed, recorded and restored; others are refused."""

import random
from functools import lru_cache

import numpy as np
import pytest
import torch
from randomgen import AESCounter
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import antiphase as ap
from antiphase.errors import ParticipationError
from antiphase.torch import PrivacyEngine, batch_selection
from antiphase.torch.batch_selection import (
    BallsInBinsBatches,
    FixedOrderBatches,
    PoissonBatches,
    batch_sampler_for,
)
from antiphase.torch.distributed import Group

pytestmark = pytest.mark.slow

STEPS, SIZE = 16, 64


@lru_cache
def cyclic(rate=0.125):
    f = ap.design("dp-mf+", steps=STEPS, tau=4, participation=ap.min_separation(4, apart=4))
    return ap.calibrate(f, epsilon=4.0, delta=1e-5, sampling=ap.sampling.CyclicPoisson(rate))


@lru_cache
def bins():
    f = ap.design("sqrt-toeplitz", steps=STEPS, epochs=2)
    return ap.calibrate(f, noise_multiplier=1.0, delta=1e-2, sampling=ap.sampling.BallsInBins())


@lru_cache
def independent():
    return ap.calibrate(
        ap.design("dp-sgd", steps=STEPS),
        noise_multiplier=1.0,
        sampling=ap.sampling.Poisson(0.125),
    )


def dataset():
    torch.manual_seed(1)
    return TensorDataset(torch.randn(SIZE, 3), torch.randint(0, 2, (SIZE,)))


def private(mechanism, loader=None, key=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    engine = PrivacyEngine(mechanism=mechanism, key=key)
    loader = loader or DataLoader(dataset(), batch_sampler=batch_sampler_for(mechanism, SIZE))
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        max_grad_norm=1.0,
        **options,
    )
    return engine, *made


def train(module, optimizer, loader, steps):
    done = 0
    while True:
        for inputs, targets in loader:
            if done == steps:
                return
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()
            done += 1


def test_a_step_samples_its_group_alone_by_independent_coins():
    sampler = PoissonBatches(1000, 0.05, groups=4, secret=7)
    drawn = [sampler.sample(step) for step in range(400)]
    groups = [set().union(*drawn[first::4]) for first in range(4)]
    assert sorted(i for group in groups for i in group) == list(
        range(1000)
    )  # each example in one group
    sizes = np.array([len(group) for group in groups])
    assert (sizes != 250).any()  # random, not equal
    assert (abs(sizes - 250) < 80).all()
    counts = np.bincount(
        np.concatenate(drawn).astype(int), minlength=1000
    )  # 100 draws with probability 0.2 each
    assert abs(counts.mean() - 20) < 5 * 4 / np.sqrt(1000)
    assert abs(counts.var() - 16) < 4
    assert np.var([len(batch) for batch in drawn[::4]]) > 10  # about 40: batch sizes are random too
    assert sampler.sample(7) == sampler.sample(7) != sampler.sample(11)
    assert PoissonBatches(1000, 0.05, groups=4).sample(7) != sampler.sample(7)  # another secret


def test_groups_and_steps_use_different_random_numbers():
    """Otherwise the coins of a step would follow from the groups."""
    sampler = PoissonBatches(1000, 0.05, groups=4, secret=7)
    for step in (*range(8), *(1 << k for k in range(3, 63))):
        source = np.random.Generator(AESCounter(key=7, counter=step << 64))
        assert (
            source.integers(4, size=1000) != batch_selection._group_of_each_example(7, 4, 1000)
        ).any()
    assert all(
        (batch_selection._group_of_each_example(7, 4, 1000)[sampler.sample(step)] == step % 4).all()
        for step in range(8)
    )


SAMPLES = {
    "cyclic": lambda: PoissonBatches(200, 0.05, groups=4).sample(3),
    "bins": lambda: list(BallsInBinsBatches(200, 9)),
}


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_samples_come_from_128_bits_of_the_operating_system_and_not_from_a_seed(make, monkeypatch):
    def seeded():
        random.seed(0)
        torch.manual_seed(0)
        return make()

    assert seeded() != seeded()
    asked = []
    monkeypatch.setattr(batch_selection.secrets, "randbits", lambda bits: asked.append(bits) or 5)
    assert make() == make()
    assert asked == [128, 128]


def test_every_example_stays_in_one_bin():
    sampler = BallsInBinsBatches(1000, 10)
    first, again = list(sampler), list(sampler)
    assert first == again
    assert sorted(np.concatenate(first).tolist()) == list(range(1000))
    sizes = np.array([len(batch) for batch in first])
    assert sizes.std() > 0  # random, not equal
    assert list(BallsInBinsBatches(1000, 10)) != first


def test_a_rate_above_that_of_a_whole_group_is_refused():
    with pytest.raises(ValueError, match="more than one group"):
        PoissonBatches(100, 0.3, groups=4)


@pytest.mark.parametrize("thrown", [[9] * 64, [-1] * 64, [0] * 3, [[0] * 64]])
def test_every_example_needs_a_bin(thrown):
    with pytest.raises(ValueError, match="a bin below 8 for each of 64 examples"):
        BallsInBinsBatches(64, 8, thrown=thrown)


@pytest.mark.parametrize("make", [cyclic, bins, independent])
def test_training_on_sampled_batches(make):
    engine, module, optimizer, loader = private(make())
    train(module, optimizer, loader, STEPS)
    assert engine.remaining_steps == 0
    statement = engine.statement(1e-5)
    assert statement.sampler == make().sampling.name
    assert statement.epsilon == pytest.approx(make().epsilon(1e-5))
    assert "holds for this sampler and no other" in str(statement).replace("\n", " ")


OTHERS = {
    "sequential": lambda data: DataLoader(data, batch_size=8),
    "shuffled": lambda data: DataLoader(data, batch_size=8, shuffle=True),
    "fixed order": lambda data: DataLoader(data, batch_sampler=FixedOrderBatches(SIZE, 8)),
    "other rate": lambda data: DataLoader(
        data, batch_sampler=PoissonBatches(SIZE, 0.0625, groups=4)
    ),
    "other groups": lambda data: DataLoader(
        data, batch_sampler=PoissonBatches(SIZE, 0.125, groups=2)
    ),
    "other bins": lambda data: DataLoader(data, batch_sampler=BallsInBinsBatches(SIZE, 4)),
    "own bins": lambda data: DataLoader(
        data, batch_sampler=BallsInBinsBatches(SIZE, 8, thrown=np.arange(SIZE) % 8)
    ),
    "own secret": lambda data: DataLoader(
        data, batch_sampler=PoissonBatches(SIZE, 0.125, groups=4, secret=0)
    ),
    "own secret, one group": lambda data: DataLoader(
        data, batch_sampler=PoissonBatches(SIZE, 0.125, secret=0)
    ),
    "own sampler": lambda data: DataLoader(
        data, batch_size=8, sampler=WeightedRandomSampler(torch.ones(SIZE), SIZE)
    ),
}


@pytest.mark.parametrize("make", [cyclic, bins, independent])
@pytest.mark.parametrize("other", OTHERS)
def test_other_batches_are_refused(make, other):
    """An amplified ε does not hold for batches that are formed in another way."""
    with pytest.raises(ValueError, match="are formed in another way"):
        private(make(), OTHERS[other](dataset()))


def evaluated(loader):
    for _ in loader:
        pass


def peeked(loader):
    next(iter(loader))


@pytest.mark.parametrize("between", [evaluated, peeked])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("make", [cyclic, bins, independent])
def test_each_step_has_its_own_sample_after_unused_batches(make, workers, between):
    """Evaluation passes, and loops that end while workers read ahead, shift no sample."""
    mechanism = make()
    loader = DataLoader(
        dataset(), batch_sampler=batch_sampler_for(mechanism, SIZE), num_workers=workers
    )
    engine, module, optimizer, loader = private(mechanism, loader)
    recorded, seen = loader.batch_sampler, []
    take, sampler = recorded.take, recorded.sampler
    recorded.take = lambda count: seen.append(take(count)) or seen[-1]
    for _ in range(4):
        train(module, optimizer, loader, STEPS // 4)
        between(loader)
    assert engine.remaining_steps == 0
    for step, indices in enumerate(seen):
        if isinstance(sampler, PoissonBatches):
            assert indices.tolist() == sampler.sample(step)
        else:
            assert (sampler.thrown[indices] == step % sampler.bins).all()


@pytest.mark.parametrize("make", [cyclic, bins])
def test_a_batch_that_was_drawn_for_another_step_is_refused(make):
    """A loop that skips batches; the refusal must not depend on their examples."""
    engine, module, optimizer, loader = private(make())
    batches = iter(loader)
    skipped, (inputs, targets) = next(batches), next(batches)
    assert len(skipped[0])
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(inputs), targets).backward()
    with pytest.raises(ParticipationError, match="step 0: the batch was drawn for another step"):
        optimizer.step()
    assert engine._training.release.drawn == 0


def test_what_a_mechanism_is_for_is_in_its_repr():
    assert "cyclic-poisson" not in repr(cyclic())  # its ε is there
    assert "sampling rate 0.125" in repr(cyclic())
    assert "poisson, sampling rate 0.125" in repr(independent())
    assert "balls-in-bins" in repr(
        ap.Mechanism(bins().factorization, 1.0, sampling=ap.sampling.BallsInBins())
    )


@pytest.mark.parametrize("make", [cyclic, bins])
def test_trusted_participation_is_refused_for_sampled_batches(make):
    with pytest.raises(ValueError, match="recorded by the participation ledger"):
        private(make(), participation="trusted")


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr(Group, "of", classmethod(lambda cls, *_: cls(0, 2)))
    monkeypatch.setattr(Group, "require_same", lambda *_: None)
    with pytest.raises(ValueError, match=r"2 process\(es\).* drawn by one process"):
        private(bins(), key=ap.Key.insecure(3))


@pytest.mark.parametrize("make", [cyclic, bins])
def test_accumulation_is_refused(make):
    with pytest.raises(ValueError, match="one batch for each step"):
        private(make(), gradient_accumulation_steps=2)


@pytest.mark.parametrize("make", [cyclic, bins])
def test_a_resumed_run_has_the_same_batches(make, tmp_path):
    mechanism, key = make(), ap.Key.insecure(3)
    engine, module, optimizer, loader = private(mechanism, key=key)
    train(module, optimizer, loader, 5)
    engine.save_checkpoint(path=tmp_path / "saved", module=module, optimizer=optimizer)
    sampler = loader.batch_sampler.sampler
    again, module_2, optimizer_2, loader_2 = private(mechanism, key=key)
    again.load_checkpoint(path=tmp_path / "saved", module=module_2, optimizer=optimizer_2)
    other = loader_2.batch_sampler.sampler
    if isinstance(sampler, PoissonBatches):
        assert other.first == 5
        assert other.sample(9) == sampler.sample(9)
    else:
        assert other.first == 5
        assert (other.thrown == sampler.thrown).all()
    train(module_2, optimizer_2, loader_2, STEPS - 5)
    assert again.remaining_steps == 0


def test_the_number_of_examples_of_a_step_is_limited():
    """Fixed-order batches to the batch size, sampled ones to 2 × 8 + 100."""
    assert private(independent())[0]._training.release.max_batch_size == 2 * 8 + 100
    fixed = ap.calibrate(ap.design("dp-mf", steps=STEPS, epochs=2), noise_multiplier=1.0)
    assert (
        private(fixed, DataLoader(dataset(), batch_size=8), epochs=2)[
            0
        ]._training.release.max_batch_size
        == 8
    )


def test_groups_may_be_drawn_whole_and_batches_have_at_least_one_example_on_average():
    assert PoissonBatches(8, 0.5, groups=2).batch_size == 4
    assert PoissonBatches(8, 0.01).batch_size == 1
    assert BallsInBinsBatches(2, 8).batch_size == 1
