"""Loaders keep the batches that the user asked for, in one order."""

import itertools

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

import antiphase as ap
from antiphase.errors import ParticipationError
from antiphase.torch import FixedOrderBatches, PrivacyEngine
from antiphase.torch.recorded_loader import fixed_order_loader
from tests.torch.setting import Training, data, epoch, make_private, small_model


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


@pytest.mark.parametrize("where", ["loader", "sampler"])
def test_the_order_is_drawn_from_the_generator_of_the_loader_or_its_sampler(where):
    def order(seed):
        torch.manual_seed(0)
        generator, examples = torch.Generator().manual_seed(seed), data(60)
        if where == "loader":
            loader = DataLoader(examples, batch_size=12, shuffle=True, generator=generator)
            loader.sampler.generator = None
        else:
            drawn = RandomSampler(examples, generator=generator)
            loader = DataLoader(examples, batch_size=12, sampler=drawn)
        return sampler_of(loader).order.tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)


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


def test_batches_that_the_mechanism_is_not_for_are_refused():
    """ε of Poisson samples is 0.4 at this rate, and 4.4 for batches in a fixed order."""
    f = ap.design("dp-sgd", steps=15, epochs=3)
    for promise in ({"sampling": ap.sampling.Poisson(0.01)}, {"sampling": ap.sampling.HashSlots()}):
        m = ap.calibrate(f, noise_multiplier=1.0, adjacency="add-remove", **promise)
        with pytest.raises(
            ValueError, match=r"are formed in another way|here batches come in a fixed order"
        ):
            make_private(PrivacyEngine(mechanism=m), None, epochs=3)
    slots = DataLoader(data(), batch_sampler=[list(range(i, 60, 5)) for i in range(5)])
    engine = PrivacyEngine(mechanism=m)
    make_private(engine, slots, epochs=3)
    assert "by a hash of each record" in str(engine.statement(1e-5)).replace("\n", " ")


@pytest.mark.slow
def test_every_epoch_has_the_same_order_also_with_workers():
    dataset = TensorDataset(torch.arange(20).float()[:, None], torch.zeros(20).long())
    for workers in (0, 2):
        loader = DataLoader(dataset, batch_size=6, shuffle=True, num_workers=workers)
        _, optimizer, private = make_private(
            PrivacyEngine(mechanism="dp-mf"), loader, nn.Linear(1, 2), epochs=2
        )
        epochs = [[tuple(x[:, 0].tolist()) for x, _ in private] for _ in range(2)]
        assert epochs[0] == epochs[1]
        assert sorted(i for batch in epochs[0] for i in batch) == list(range(20))
        assert epochs[0] != [tuple(range(i, min(i + 6, 20))) for i in range(0, 20, 6)]
        assert [len(b) for b in epochs[0]] == [6, 6, 6, 2]
        assert optimizer.release.divisor == 6


def test_the_parts_of_a_batch_are_disjoint_and_complete():
    for world in (1, 2, 4):
        parts = [
            list(
                FixedOrderBatches(
                    22, 8, generator=torch.Generator().manual_seed(1), rank=r, world=world
                )
            )
            for r in range(world)
        ]
        for i, whole in enumerate(
            FixedOrderBatches(22, 8, generator=torch.Generator().manual_seed(1))
        ):
            assert sorted(index for part in parts for index in part[i]) == sorted(whole)
    assert len(FixedOrderBatches(22, 8, drop_last=True)) == 2
    with pytest.raises(ValueError, match="each must come once"):
        FixedOrderBatches(3, 1, order=[0, 1, 1])


def test_a_sampler_that_reshuffles_is_refused_with_a_remedy():
    class Reshuffled(torch.utils.data.Sampler):
        def __len__(self):
            return 60

        def __iter__(self):
            yield from torch.randperm(60).tolist()

    loader = DataLoader(data(), batch_size=12, sampler=Reshuffled())
    module, optimizer, private = make_private(PrivacyEngine(mechanism="dp-mf"), loader, epochs=2)
    epoch(module, optimizer, private)
    with pytest.raises(ParticipationError, match="min_separation"):
        epoch(module, optimizer, private)
    assert optimizer.release.position == 5, "the first epoch, and nothing of the second"


def test_gradients_of_unknown_examples_are_refused_unless_the_user_vouches():
    training = Training()
    batch = [t[:12] for t in training.dataset.tensors]
    with pytest.raises(ParticipationError, match="not known"):
        training.step(batch)
    assert training.release.position == 0
    trusted = Training(participation="trusted")
    trusted.step(batch)
    assert "on the user's word" in str(trusted.engine.statement()).replace("\n", " ")
    assert "on the user's word" not in str(training.engine.statement()).replace("\n", " ")


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_example_that_was_not_drawn_is_refused(workers):
    """Also if workers have read the next batches already."""
    training = Training(workers=workers)
    with pytest.raises(ParticipationError, match="13 gradients of examples that are not known"):
        training.step([torch.cat([part, part[:1]]) for part in next(iter(training.loader))])
    assert training.release.drawn == 0


@pytest.mark.slow
def test_using_a_batch_twice_is_refused():
    training = Training(workers=2)
    batch = next(iter(training.loader))
    training.step(batch)
    with pytest.raises(ParticipationError, match="12 gradients of examples that are not known"):
        training.step(batch)
    assert training.release.drawn == 1


def test_behind_another_loader_a_step_must_have_whole_batches():
    training = Training()
    recorded = training.loader.batch_sampler
    for count, known in (
        (12, 12),
        (24, 24),
        (11, None),
        (13, None),
        (36, None),
    ):  # of 60 examples, in order
        pass_ = iter(recorded)
        for _ in range(2):
            next(pass_)
        found = recorded.take(count)
        assert (None if found is None else len(found)) == known, count


def with_replacement():
    """60 draws of 60 examples: with this seed the first batch of 12 has an example twice."""
    sampler = RandomSampler(data(), replacement=True, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(data(), batch_size=12, sampler=sampler)
    return loader, {"participation": ap.min_separation(5, apart=1)}


DUPLICATES = {
    "within a batch": lambda: (DataLoader(data(6), batch_sampler=[[0, 1, 1], [2, 3, 4]]), {}),
    "drawn with replacement": with_replacement,
    "across microbatches": lambda: (
        DataLoader(data(12), batch_sampler=[[0, 1, 2], [3, 4, 1], [5, 6, 7], [8, 9, 10]]),
        {"gradient_accumulation_steps": 2},
    ),
}


def accumulated(module, optimizer, loader, steps):
    """Train an epoch of microbatches, ``steps`` for each logical step."""
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(loader):
        nn.functional.cross_entropy(module(inputs), targets).backward()
        if (i + 1) % steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("made", DUPLICATES.values(), ids=DUPLICATES)
def test_an_example_twice_in_a_step_is_refused(made):
    """Nothing is released or recorded."""
    loader, options = made()
    model = small_model()
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    engine = PrivacyEngine(mechanism="dp-mf")
    module, optimizer, private = make_private(engine, loader, model, epochs=1, **options)
    with pytest.raises(ParticipationError, match="step 0: an example occurs twice"):
        accumulated(module, optimizer, private, options.get("gradient_accumulation_steps", 1))
    assert optimizer.release.position == optimizer.release.drawn == 0
    assert not optimizer.release.ledger.count.any()
    assert torch.equal(before, torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_an_example_twice_across_microbatches_is_refused():
    """A memory manager divides a batch; the step has all its examples."""
    loader = DataLoader(data(6), batch_sampler=[[0, 1, 2, 3, 0], [4, 5]])
    module, optimizer, private = make_private(PrivacyEngine(mechanism="dp-mf"), loader, epochs=1)
    with (
        BatchMemoryManager(
            data_loader=private, max_physical_batch_size=2, optimizer=optimizer
        ) as pieces,
        pytest.raises(ParticipationError, match="step 0: an example occurs twice"),
    ):
        epoch(module, optimizer, pieces)
    assert optimizer.release.position == optimizer.release.drawn == 0


# What a loop does that the plan does not know of: three messages, and how each is declared.


def some_steps(training, batches):
    """Train on the first batches of one pass."""
    for batch in itertools.islice(training.loader, batches):
        training.step(batch)


def accumulate(training, passes, microbatches=2):
    for _ in range(passes):
        batches = iter(training.loader)
        while group := list(itertools.islice(batches, microbatches)):
            training.optimizer.zero_grad()
            for inputs, targets in group:
                training.criterion(training.module(inputs), targets).backward()
            training.optimizer.step()


class Reshuffled(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(torch.randperm(60).tolist())

    def __len__(self):
        return 60


@pytest.mark.issue(23)
def test_an_epoch_that_was_broken_off_is_named_and_can_be_declared():
    """Declared as short epochs if all are, or as passes that end anywhere."""
    training = Training(epochs=3)
    some_steps(training, 3)
    with pytest.raises(ParticipationError) as refusal:
        some_steps(training, 1)
    assert str(refusal.value) == (
        "step 3: batch 0 of the epoch, where batch 3 is planned: a pass over the loader was broken "
        "off before its end. Take all of its 5 batches in every epoch, or declare the short "
        "epochs: make_private(…, steps=…, participation=antiphase.epochs(passes, every=n)) if each "
        "has n steps, antiphase.min_separation(passes, apart=1) if they end anywhere. Nothing was "
        "released"
    )
    assert training.engine.remaining_steps == 12
    short = Training(steps=6, participation=ap.epochs(2, every=3))
    some_steps(short, 3)
    some_steps(short, 3)
    assert short.engine.remaining_steps == 0
    anywhere = Training(steps=6, participation=ap.min_separation(3, apart=1))
    for batches in (1, 3, 2):
        some_steps(anywhere, batches)
    assert anywhere.engine.remaining_steps == 0


@pytest.mark.issue(23)
def test_undeclared_accumulation_is_named_and_can_be_declared():
    training = Training(epochs=2)
    with pytest.raises(ParticipationError) as refusal:
        accumulate(training, 1)
    assert str(refusal.value) == (
        "step 0: gradients of 2 batches in one step, 1 planned. To accumulate, declare it: "
        "make_private(…, gradient_accumulation_steps=2). Else take a step for every batch, and "
        "skip none. Nothing was released"
    )
    assert training.engine.remaining_steps == 10
    declared = Training(epochs=2, gradient_accumulation_steps=2)
    accumulate(declared, 2)
    assert declared.engine.remaining_steps == 0


@pytest.mark.issue(23)
def test_less_accumulation_than_declared_is_named():
    training = Training(epochs=2, gradient_accumulation_steps=2)
    with pytest.raises(ParticipationError, match=r"^step 5: gradients of 1 batch\(es\) in one st"):
        accumulate(training, 2, microbatches=1)


@pytest.mark.issue(23)
def test_reshuffling_is_named_and_can_be_declared():
    loader = DataLoader(data(), batch_size=12, sampler=Reshuffled())
    module, optimizer, private = make_private(PrivacyEngine(mechanism="dp-mf"), loader, epochs=2)
    epoch(module, optimizer, private)
    with pytest.raises(ParticipationError) as refusal:
        epoch(module, optimizer, private)
    assert str(refusal.value) == (
        "step 5: an example is at another position within the epoch than before, and the plan "
        "(2 epochs of 5 steps) assumes a fixed order. Nothing was released. Shuffling again in "
        "every epoch is another participation, with more noise: keep the order (antiphase's loader "
        "does), or plan for participation=antiphase.min_separation(2, apart=…)"
    )
    engine = PrivacyEngine(mechanism="dp-mf")
    declared = {"epochs": 2, "participation": ap.min_separation(2, apart=1)}
    module, optimizer, private = make_private(engine, loader, **declared)
    for _ in range(2):
        epoch(module, optimizer, private)
    assert engine.remaining_steps == 0
