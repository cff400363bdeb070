"""Loaders keep the batches that the user asked for, in one order."""

import pytest
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from antiphase.torch.batch_selection import FixedOrderBatches
from antiphase.torch.recorded_loader import fixed_order_loader
from tests.torch.setting import data


def sampler_of(loader):
    return fixed_order_loader(loader).batch_sampler.sampler


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_of_the_whole_data_set_get_a_fixed_order(shuffle):
    sampler = sampler_of(DataLoader(data(60), batch_size=12, shuffle=shuffle))
    assert isinstance(sampler, FixedOrderBatches)
    assert (sampler.order.tolist() != list(range(60))) == shuffle


def test_a_batch_sampler_of_the_whole_data_set_is_shuffled_as_it_says():
    examples = RandomSampler(data(60))
    loader = DataLoader(data(60), batch_sampler=BatchSampler(examples, 7, drop_last=True))
    sampler = sampler_of(loader)
    assert isinstance(sampler, FixedOrderBatches)
    assert sampler.order.tolist() != list(range(60))
    assert (len(sampler), sampler.batch_size) == (8, 7)


@pytest.mark.parametrize(
    "examples",
    [
        SubsetRandomSampler(range(20)),
        SequentialSampler(range(20)),
        RandomSampler(data(60), num_samples=20),
    ],
    ids=["subset", "first examples", "some of them"],
)
@pytest.mark.parametrize("given_as", ["sampler", "batch_sampler"])
def test_a_sampler_of_some_examples_is_kept(examples, given_as):
    """The others are not trained on."""
    options = {"batch_size": 5, "sampler": examples}
    if given_as == "batch_sampler":
        options = {"batch_sampler": BatchSampler(examples, 5, drop_last=False)}
    loader = fixed_order_loader(DataLoader(data(60), **options))
    assert sum(len(batch) for batch in loader.batch_sampler) == 20
