"""Training on subsamples of batches: their examples, and the norm of the noise."""

import dataclasses

import numpy as np
import pytest
import torch

import antiphase as ap
from antiphase.data import Dataset, Split
from antiphase.torch.in_memory import InMemoryDataset
from experiments import subsampled_training
from experiments.subsampled_training import Settings, SubsampledBatches, train

SETTINGS = Settings(
    model="logistic", learning_rate=0.1, noise_multiplier=2.0, batch_size=50, subsample=5
)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)

    def split(count):
        targets = np.arange(count) % 10
        inputs = 0.2 * rng.random((count, 3, 8, 8), dtype=np.float32)
        inputs[np.arange(count), targets % 3, targets % 8, targets // 3] += 1
        return Split(inputs, targets)

    return Dataset("dots", split(200), split(100), tuple("0123456789"), (0.1,) * 3, (0.1,) * 3)


def drawn(settings, count, size=200):
    batches = iter(SubsampledBatches(size, settings))
    return [next(batches) for _ in range(count)]


def test_a_subsample_is_of_its_batch():
    """Subsamples are subsets of the batches, which are the same in every epoch."""
    whole = drawn(dataclasses.replace(SETTINGS, subsample=50), 8)
    few = drawn(SETTINGS, 8)
    assert sorted(np.concatenate(whole[:4])) == list(range(200))
    for first, second, subsample, later in zip(whole[:4], whole[4:], few[:4], few[4:], strict=True):
        assert sorted(first) == sorted(second)
        assert set(subsample) | set(later) <= set(first)
        assert len(set(subsample)) == len(set(later)) == 5
        assert subsample != later


def test_poisson_batches_have_the_sizes_of_poisson_batches():
    """Batches are samples at rate 1/4; subsamples a tenth of that, randomly rounded."""
    sizes = np.array(
        [len(b) for b in drawn(dataclasses.replace(SETTINGS, subsample=50, poisson=True), 2000)]
    )
    assert sizes.mean() == pytest.approx(50, abs=4 * np.sqrt(37.5 / 2000))
    assert sizes.var() == pytest.approx(200 * 0.25 * 0.75, rel=0.15)
    few = np.array([len(b) for b in drawn(dataclasses.replace(SETTINGS, poisson=True), 2000)])
    assert few.mean() == pytest.approx(5, abs=0.1)
    assert set(few) <= set(range(2, 9))


@pytest.mark.parametrize("subsample", [5, 50])
def test_the_noise_is_that_of_whole_batches(images, subsample):
    """A coordinate of the mean gradient has deviation noise multiplier · clip norm / batch size."""
    settings = dataclasses.replace(SETTINGS, subsample=subsample, noise_multiplier=1000.0)
    table = InMemoryDataset(images, images.train, "standard")
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 100, bias=False))
    f = ap.design("dp-sgd", steps=4)
    module, optimizer, loader = subsampled_training._private(
        settings, f, net, table, SubsampledBatches(200, settings)
    )
    inputs, targets = next(iter(loader))
    torch.nn.functional.cross_entropy(module(inputs), targets).backward()
    optimizer.step()
    assert float(net[1].weight.grad.std()) == pytest.approx(1000 / 50, rel=0.03)


@pytest.mark.slow
def test_training_depends_on_the_seed_alone(images):
    f = ap.design("dp-mf+", steps=80, epochs=20)
    first, again, other = (
        train(dataclasses.replace(SETTINGS, seed=s, noise_multiplier=30.0), f, images)
        for s in (1, 1, 2)
    )
    assert (first.accuracy, first.training_error) == (again.accuracy, again.training_error)
    assert (first.accuracy, first.training_error) != (other.accuracy, other.training_error)
    quiet = train(dataclasses.replace(SETTINGS, noise_multiplier=1e-6), f, images)
    assert quiet.accuracy > max(first.accuracy, 0.9) > 0.1
    assert quiet.training_error < 0.1


def test_divergence_counts_as_chance_level(images):
    found = train(
        dataclasses.replace(SETTINGS, model="mlp", learning_rate=1e38, noise_multiplier=1e6),
        ap.design("dp-sgd", steps=20),
        images,
    )
    assert (found.accuracy, found.training_error, found.finite) == (0.1, 0.9, False)
