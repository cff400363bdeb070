"""The private step and its engine, in small."""

import warnings

import numpy as np
import pytest
import torch
from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import antiphase as ap
from antiphase.errors import BypassError, HorizonError, ParticipationError
from antiphase.torch import FixedOrderBatches, PrivacyEngine
from antiphase.torch.clipping import clip_factors, clip_margin, example_norms, weighted_sum
from antiphase.torch.example_mixing import MixingError, refuse_mixing
from antiphase.torch.noise_run import row_of
from antiphase.torch.plan import derive_plan, planned_learning_rates
from antiphase.torch.release import Release
from tests.torch.setting import Training, data, epoch, make_private, small_model

MODES = ["hooks", "functorch", "ghost"]


def released(training, batch):
    """What one step hands to the inner optimizer, times the divisor: the noisy sum."""
    training.step(batch)
    return (
        torch.cat([p.grad.flatten() for p in training.optimizer.params]) * training.release.divisor
    )


def noise(training, step):
    row = row_of(training.release, step)
    return torch.cat([torch.from_numpy(row[name]).flatten() for name in training.release.shapes])


def naive_sum(model, batch, clip):
    """Example by example, with autograd."""
    inputs, targets = batch
    total = None
    for x, y in zip(inputs, targets, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        g = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        g = g * min(1.0, clip / float(g.double().norm()))
        total = g if total is None else total + g
    return total


@pytest.mark.parametrize("mode", MODES)
def test_what_is_released_is_the_clipped_sum_and_a_row_of_noise(mode):
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


def test_per_layer_clipping_has_the_norm_of_all_its_norms():
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
def test_the_inner_optimizer_does_not_step_alone(mode):
    training = Training(mode=mode)
    training.run(2)
    before = training.weights()
    with pytest.raises(BypassError, match="stepped directly"):
        training.inner.step()
    assert torch.equal(before, training.weights())
    with pytest.raises(BypassError):
        training.optimizer.add_noise()


def test_past_the_plan_nothing_moves():
    training = Training(epochs=1)
    training.run()
    assert training.engine.remaining_steps == 0
    before = training.weights()
    with pytest.raises(HorizonError, match="all 5 steps"):
        training.step(next(iter(training.loader)))
    assert torch.equal(before, training.weights())


def test_past_the_plan_nothing_is_written_down_where_no_ledger_counts():
    trusted = Training(epochs=1, participation="trusted").run()
    with pytest.raises(HorizonError):
        trusted.step(next(iter(trusted.loader)))
    assert trusted.release.drawn == 5


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_examples_that_are_not_finite_contribute_nothing(mode, value):
    """Not finite, or so large that float32 norms overflow: at most the clip norm."""
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
        assert one.optimizer.bad_examples == 1


def test_a_batch_of_nothing_is_a_row_of_noise():
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
def test_microbatches_are_one_step(mode):
    """A memory manager's pieces of 1, 7, 64 or all 80 at once: the same sums, one row a step, the same weights."""
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
def test_gradient_accumulation_uses_one_row_a_logical_step(mode):
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


def test_accumulating_more_than_planned_is_noticed():
    training = Training(batch_size=6, epochs=2)

    def every_other():
        training.optimizer.zero_grad()
        for i, (inputs, targets) in enumerate(batch for _ in range(2) for batch in training.loader):
            training.criterion(training.module(inputs), targets).backward()
            if i % 2:
                training.optimizer.step()
                training.optimizer.zero_grad()

    with pytest.raises(ParticipationError, match="12 examples"):
        every_other()


def test_noise_is_added_in_float32_whatever_the_model_is():
    """In bfloat16 a noise of 1e-4 on a gradient of 1 would be rounded away."""
    training = Training(model=small_model(), noise_multiplier=1e-4)
    shapes = training.release.shapes
    sums = [torch.ones(shape, dtype=torch.bfloat16) for shape in shapes.values()]
    training.release.batches, training.release.ledger = None, None
    training.release.guards.clear()  # which notice that
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
def test_bfloat16_models_get_their_own_type_last(mode, monkeypatch):
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


# ---- what is derived ---------------------------------------------------------------------------------------


def test_the_plan_follows_the_script():
    model = small_model()
    sgd = torch.optim.SGD(
        model.parameters(), lr=0.5, momentum=0.9, nesterov=True, weight_decay=1e-3
    )
    plan = derive_plan(sgd, 10, epochs=3, steps=None)
    assert (plan.steps, plan.steps_per_epoch, plan.notes) == (30, 10, ())
    assert plan.workload.nesterov
    assert (plan.workload.momentum, plan.workload.weight_decay) == (0.9, 1e-3)
    assert plan.participation.describe() == "3 epochs of 10 steps"
    assert derive_plan(sgd, 10, epochs=1, steps=None).participation.describe() == "once"
    assert (
        derive_plan(sgd, 10, epochs=None, steps=25).participation.describe()
        == "3 epochs of 10 steps"
    )
    with pytest.raises(TypeError, match="planned ahead"):
        derive_plan(sgd, 10, epochs=None, steps=None)


@pytest.mark.parametrize("every", ["step", "epoch"])
def test_a_scheduler_is_read_ahead_without_a_trace(every):
    schedulers = torch.optim.lr_scheduler
    makers = [
        lambda o: schedulers.CosineAnnealingLR(o, 30),
        lambda o: schedulers.LambdaLR(o, lambda t: 1 / (1 + t)),
        lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, 0.1, total_iters=5), schedulers.ExponentialLR(o, 0.9)], [5]
        ),
        lambda o: schedulers.OneCycleLR(o, 1.0, total_steps=30),
    ]
    for make in makers:
        optimizer = torch.optim.SGD(small_model().parameters(), lr=0.5, momentum=0.9)
        scheduler = make(optimizer)
        before = repr(scheduler.state_dict()), repr(optimizer.state_dict())
        ahead = planned_learning_rates(optimizer, scheduler, 30, every, 10)
        assert (repr(scheduler.state_dict()), repr(optimizer.state_dict())) == before
        real = []
        for t in range(30):
            real.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if every == "step" or (t + 1) % 10 == 0:
                scheduler.step()
        np.testing.assert_allclose(ahead, real)
    plateau = schedulers.ReduceLROnPlateau(optimizer)
    with pytest.raises(ValueError, match="not known ahead"):
        planned_learning_rates(optimizer, plateau, 5, every, 1)


def test_other_optimizers_are_noted():
    with pytest.warns(UserWarning, match="privacy is exact"):
        training = Training(optimizer=lambda p: torch.optim.Adam(p, lr=0.01), epochs=1)
    training.run()
    assert training.engine.remaining_steps == 0
    groups = lambda p: torch.optim.SGD(  # noqa: E731
        [{"params": [q], "momentum": 0.1 * i} for i, q in enumerate(p)], lr=0.1
    )
    with pytest.warns(UserWarning, match="first group"):
        Training(optimizer=groups, epochs=1)


@pytest.mark.slow
def test_mechanisms_by_name_object_and_file(tmp_path):
    f = ap.design("tree", steps=15, epochs=3)
    m = ap.calibrate(f, noise_multiplier=1.0)
    f.save(tmp_path / "f.antiphase")
    m.save(tmp_path / "m.antiphase")
    ends = []
    for mechanism in ("tree", f, m, tmp_path / "f.antiphase", str(tmp_path / "m.antiphase")):
        training = Training(mechanism)
        assert training.engine.mechanism.factorization.name == "tree"
        training.run()
        ends.append(training.engine.get_epsilon(1e-5))
    assert len(set(ends)) == 1
    for name in ap.designs():
        if name not in (
            "dp-sgd",
            "optimal",
            "curvature",
            "damped",
        ):  # these need options, or are Opacus' own
            Training(name, epochs=2).run(3)
    Training("damped", design={"rho": 0.9}).run(2)
    with pytest.raises(ValueError, match="for 15 steps, and training has 10"):
        Training(f, epochs=2)
    with pytest.raises(ValueError, match="the mechanism has"):
        Training(m, noise_multiplier=2.0)
    with pytest.raises(TypeError, match="made already"):
        PrivacyEngine(mechanism=f, tau=3)


@pytest.mark.issue(21)
@pytest.mark.parametrize(
    "options", [{"max_grad_norm": 5.0}, {"clipping": "per_layer", "max_grad_norm": [1.0] * 4}]
)
def test_a_given_mechanism_has_its_clip_norm(options):
    """Its noise is for that norm: examples of five would have a fifth of the noise they need."""
    m = ap.calibrate(ap.design("tree", steps=15, epochs=3), noise_multiplier=1.0, clip_norm=1.0)
    Training(m)
    with pytest.raises(ValueError, match=r"max_grad_norm = [25]: the mechanism has 1 and 1"):
        Training(m, **options)


def test_what_is_not_covered_is_refused():
    with pytest.raises(ValueError, match="independent noise alone"):
        Training(poisson_sampling=True)
    with pytest.raises(ValueError, match="secret key"):
        Training(noise_generator=torch.Generator())
    with pytest.raises(ValueError, match="secret key"):
        PrivacyEngine(secure_mode=True)
    with pytest.raises(ValueError, match="adaptive"):
        Training(clipping="adaptive")
    with pytest.raises(ValueError, match="is not supported"):
        Training(mode="ghost", clipping="per_layer", max_grad_norm=[1.0] * 4)
    with pytest.raises(TypeError, match="no such option"):
        Training(target_unclipped_quantile=0.5)
    with pytest.raises(TypeError, match="planned ahead"):
        Training(epochs=None)
    with pytest.raises(TypeError, match="noise_multiplier"):
        Training(noise_multiplier=None)
    with pytest.raises(ValueError, match="call make_private"):
        PrivacyEngine().remaining_steps  # noqa: B018
    other = torch.optim.SGD(small_model().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="different than optimizer"):
        Training(optimizer=lambda _: other)


def test_a_promise_for_other_batches_is_refused():
    """ε of Poisson samples (0.4 at this rate) on batches in a fixed order (4.4); add-remove where one more record
    would move all others."""
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


def test_layers_that_mix_examples_are_refused():
    norm = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    with pytest.raises(Exception, match="BatchNorm"):
        Training(model=norm)
    Training(model=nn.Sequential(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.Linear(6, 2))).run(2)

    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    with pytest.raises(MixingError, match="mixes examples"):
        Training(model=nn.Sequential(nn.Linear(5, 6), Centred(), nn.Linear(6, 2)))
    embedding = nn.Sequential(nn.Embedding(4, 3), nn.Flatten(), nn.Linear(6, 2))
    tokens = TensorDataset(torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 1]))
    assert refuse_mixing(embedding, DataLoader(tokens))
    with pytest.raises(MixingError):
        refuse_mixing(
            nn.Sequential(nn.Embedding(4, 3), Centred(), nn.Flatten(), nn.Linear(6, 2)),
            DataLoader(tokens),
        )
    assert not refuse_mixing(nn.Bilinear(2, 2, 1), DataLoader(tokens)), (
        "a model of two inputs cannot be probed"
    )


@pytest.mark.parametrize("mode", MODES)
def test_models_that_mix_examples_are_refused_in_every_mode(mode):
    """The probe does not depend on how gradients of examples are computed."""

    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(dim=0)

    with pytest.raises(MixingError, match="mixes examples"):
        Training(model=nn.Sequential(nn.Linear(5, 6), Centred(), nn.Linear(6, 2)), mode=mode)


def test_the_probe_sees_shapes_and_types_alone_and_leaves_no_trace():
    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.seen = nn.Parameter(torch.ones(1)), []

        def forward(self, x):
            self.seen.append(x.detach().clone())
            return x.float() * self.weight

    for examples in (
        (torch.tensor([[1, 3, 2]]), torch.tensor([[2, 2, 2]])),
        (torch.tensor([5]), torch.tensor([7])),
        (torch.tensor([[True, True]]), torch.tensor([[False, True]])),
        (torch.randn(1, 4), torch.randn(1, 4)),
    ):
        models = Looking(), Looking()
        for model, example in zip(models, examples, strict=True):
            assert refuse_mixing(model, DataLoader(TensorDataset(example)))
        one, other = (torch.cat(model.seen) for model in models)
        assert torch.equal(one, other)
        assert len(one.unique()) > 1
    module = GradSampleModule(small_model())
    assert refuse_mixing(module, DataLoader(data()))
    assert module.hooks_enabled
    assert not any(getattr(part, "activations", None) for part in module.modules())
    assert all(p.grad_sample is None for p in module.parameters())


# ---- batches -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_order_is_the_same_in_every_epoch_with_workers_too():
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


def test_parts_of_a_batch_are_disjoint_and_complete():
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


def test_a_sampler_that_reshuffles_is_noticed_and_told_what_to_do():
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
def test_an_example_that_nobody_drew_is_refused_beside_those_drawn(workers):
    """Also where workers have read the next batches already."""
    training = Training(workers=workers)
    with pytest.raises(ParticipationError, match="13 gradients of examples that are not known"):
        training.step([torch.cat([part, part[:1]]) for part in next(iter(training.loader))])
    assert training.release.drawn == 0


@pytest.mark.slow
def test_a_batch_is_not_taken_twice_in_the_name_of_the_next():
    training = Training(workers=2)
    batch = next(iter(training.loader))
    training.step(batch)
    with pytest.raises(ParticipationError, match="12 gradients of examples that are not known"):
        training.step(batch)
    assert training.release.drawn == 1


def test_behind_another_loader_a_step_has_whole_batches():
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
    return DataLoader(data(), batch_size=12, sampler=sampler), {}


DUPLICATES = {
    "within a batch": lambda: (DataLoader(data(6), batch_sampler=[[0, 1, 1], [2, 3, 4]]), {}),
    "drawn with replacement": with_replacement,
    "across microbatches": lambda: (
        DataLoader(data(12), batch_sampler=[[0, 1, 2], [3, 4, 1], [5, 6, 7], [8, 9, 10]]),
        {"gradient_accumulation_steps": 2},
    ),
}


def accumulated(module, optimizer, loader, steps):
    """An epoch of microbatches, so many to a logical step."""
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(loader):
        nn.functional.cross_entropy(module(inputs), targets).backward()
        if (i + 1) % steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("made", DUPLICATES.values(), ids=DUPLICATES)
def test_an_example_twice_in_a_step_is_refused(made):
    """Before anything is released or recorded."""
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


def test_an_example_twice_across_a_memory_managers_pieces_is_refused():
    """The pieces are divided anew from a batch; the step is theirs together."""
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


# ---- epsilon and statements --------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [0.5, 2.0])
def test_a_mechanism_with_another_clip_norm_is_refused(clip_norm):
    """Its noise is scaled by its own clip norm: one below the engine's would be too little noise."""
    f = ap.design("dp-mf", steps=15, epochs=3)
    mechanism = ap.calibrate(f, noise_multiplier=1.0, clip_norm=clip_norm)
    with pytest.raises(ValueError, match="max_grad_norm = 1: the mechanism has"):
        make_private(PrivacyEngine(mechanism=mechanism), None, epochs=3)
    engine = PrivacyEngine(mechanism=mechanism)
    make_private(engine, None, epochs=3, max_grad_norm=clip_norm)
    assert engine.mechanism is mechanism


def test_epsilon_is_of_the_plan_and_spent_is_of_what_was_released():
    training = Training()
    whole = training.engine.get_epsilon(1e-5)
    assert training.engine.get_epsilon(1e-5, spent=True) == 0
    training.run(5)
    part = training.engine.get_epsilon(1e-5, spent=True)
    assert 0 < part <= whole
    training.run()
    assert training.engine.get_epsilon(1e-5, spent=True) == pytest.approx(whole)
    assert training.engine.accountant.get_epsilon(delta=1e-5) == whole
    assert len(training.engine.accountant) == 15


def test_a_target_is_met():
    model, target = small_model(), {"target_epsilon": 3.0, "target_delta": 1e-5, "epochs": 4}
    engine = PrivacyEngine(mechanism="dp-mf+", tau=5)
    engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data(), batch_size=12),
        max_grad_norm=1.0,
        **target,
    )
    assert 2.99 < engine.get_epsilon(1e-5) <= 3.0
    assert engine.mechanism.factorization.objective.tau == 5
    again = PrivacyEngine(mechanism="dp-mf+", tau=5)
    make_private(again, None, noise_multiplier=None, **target)
    assert again.mechanism.digest == engine.mechanism.digest
    with pytest.raises(TypeError, match="give one of the two"):
        make_private(PrivacyEngine(), None, **target)
    with pytest.raises(TypeError, match="use make_private_with_epsilon"):
        make_private(PrivacyEngine(mechanism="dp-sgd"), None, noise_multiplier=None, **target)
    with pytest.raises(ValueError, match="has its noise multiplier already"):
        make_private(
            PrivacyEngine(mechanism=engine.mechanism), None, noise_multiplier=None, **target
        )


def test_opacus_own_engine_remains():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine(mechanism="dp-sgd")
        module, optimizer, loader = make_private(engine, None)
        assert isinstance(optimizer, DPOptimizer)
        assert isinstance(loader, DPDataLoader)
        epoch(module, optimizer, loader)
        assert engine.get_epsilon(1e-5) > 0
        assert engine.mechanism is None
        unsampled = PrivacyEngine(mechanism="dp-sgd")
        epoch(*make_private(unsampled, None, poisson_sampling=False))
        with pytest.raises(ValueError, match="these batches are none"):
            unsampled.get_epsilon(1e-5)
        epoch(
            *make_private(unsampled, None, poisson_sampling=True)
        )  # which does not undo those before
        with pytest.raises(ValueError, match="these batches are none"):
            unsampled.get_epsilon(1e-5)
    fixed = Training("dp-sgd", poisson_sampling=False)
    assert fixed.engine.mechanism.sensitivity == pytest.approx(np.sqrt(3))


def test_a_key_that_is_not_used_is_noted():
    with pytest.warns(UserWarning, match="key: it is not used"):
        make_private(PrivacyEngine(mechanism="dp-sgd", key=ap.Key.generate()), None)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["dp-sgd", "dp-mf"])
def test_a_delta_that_promises_little_is_noted(mechanism):
    target = {"target_epsilon": 4.0, "max_grad_norm": 1.0, "epochs": 2}
    model, loader = small_model(), torch.utils.data.DataLoader(data(), batch_size=12)
    parts = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": loader,
    }
    with pytest.warns(
        UserWarning, match="publishing one whole record would satisfy this guarantee"
    ):
        PrivacyEngine(mechanism=mechanism).make_private_with_epsilon(
            **parts, target_delta=0.05, **target
        )


def test_before_anything_is_planned_there_is_no_epsilon():
    for mechanism in ("dp-sgd", "dp-mf"):
        with pytest.raises(ValueError, match="call make_private first"):
            PrivacyEngine(mechanism=mechanism).get_epsilon(1e-5)


# ---- the pieces --------------------------------------------------------------------------------------------


def test_norms_do_not_overflow():
    g = torch.full((2, 4), 1e38)
    g[1] = 1.0
    norms, kept = example_norms([g, g])
    assert kept is None, "large, and finite"
    assert norms[0] == pytest.approx(np.sqrt(8) * 1e38, rel=1e-6)
    factors = clip_factors(norms, 1.0, clip_margin(1))
    total = weighted_sum(factors, g)
    assert float(torch.linalg.vector_norm(total.double())) <= 2.0
    tiny = torch.full((1, 3), 1e-42)
    assert torch.isfinite(
        weighted_sum(clip_factors(example_norms([tiny])[0], 1.0, clip_margin(1)), tiny)
    ).all()
    g[0, 0] = float("nan")
    norms, kept = example_norms([g, g])
    assert kept.tolist() == [False, True]
    total = weighted_sum(clip_factors(norms, 1.0, clip_margin(1)), g, kept)
    assert torch.isfinite(total).all()


@pytest.mark.parametrize("kind", ["normal", "constant", "few large"])
def test_no_example_is_longer_than_the_clip_norm_however_many_coordinates(kind):
    """What a plain float32 sum of five million squares loses, the clipped gradient would have too much."""
    g = torch.full((1, 5_000_000), 0.1)
    if kind == "normal":
        g.normal_(generator=torch.Generator().manual_seed(0))
    elif kind == "few large":
        g.fill_(2.4e-4)  # beside eight of 1.0 their squares vanish, one by one
        g[0, :8] = 1.0
    norms, kept = example_norms([g])
    length = float(
        torch.linalg.vector_norm(
            weighted_sum(clip_factors(norms, 0.7, clip_margin(1)), g, kept).double()
        )
    )
    assert length <= 0.7 * (1 + 1e-6)


def test_clipped_examples_are_shorter_than_the_clip_norm_however_they_are_rounded():
    g = torch.randn(1000, 40, generator=torch.Generator().manual_seed(0))
    norms, _ = example_norms([g])
    lengths = torch.linalg.vector_norm(
        (clip_factors(norms, 0.7, clip_margin(1))[:, None] * g).double(), dim=1
    )
    assert 0.7 * (1 - 1e-4) < float(lengths.max()) <= 0.7


def test_what_opacus_releases_and_a_plan_are_not_for_one_engine():
    """Each would report its own ε alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = PrivacyEngine(mechanism="dp-sgd")
        epoch(*make_private(first, None))
        with pytest.raises(ValueError, match="has released 5 steps"):
            make_private(first, None, poisson_sampling=False, epochs=2)
        second = PrivacyEngine(mechanism="dp-sgd")
        make_private(second, None, poisson_sampling=False, epochs=2)
        with pytest.raises(ValueError, match="this engine has a plan"):
            make_private(second, None)


def test_a_second_plan_needs_a_second_engine():
    training = Training()
    begin = training.engine.state_dict()
    training.run(1)
    with pytest.raises(ValueError, match="second release"):
        make_private(training.engine, None, epochs=1)
    training.engine.load_state_dict(begin)
    assert training.release.position == 0
    with pytest.raises(ValueError, match="has released 1 steps"):
        make_private(training.engine, None, epochs=1)


def test_loaders_without_indices_or_length_are_the_users_word():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from zip(*data(12).tensors, strict=True)

    endless = DataLoader(Endless(), batch_size=4)
    with pytest.raises(ValueError, match="no length"):
        make_private(PrivacyEngine(mechanism="dp-mf"), endless, steps=3, participation="trusted")
    engine = PrivacyEngine(mechanism=ap.design("dp-mf", steps=3))
    with pytest.raises(ValueError, match="no indices"):
        make_private(engine, endless)
    epoch(*make_private(engine, endless, participation="trusted"))
    assert engine.remaining_steps == 0


@pytest.mark.parametrize("value", [0.3, 1.1])
def test_ghost_clipping_makes_up_for_norms_that_are_added_up_at_one_time(value):
    """Opacus has no ghost rule for convolutions: it adds up their gradients in float32, here two million numbers."""
    layer = torch.nn.Conv1d(1500, 1400, 1, bias=False)
    net = torch.nn.Sequential(layer, torch.nn.Flatten())
    x = torch.full((1, 1500, 1), value)
    dataset = torch.utils.data.TensorDataset(x, torch.zeros(1, dtype=torch.int64))
    engine = PrivacyEngine(mechanism="dp-sgd", key=ap.Key.insecure(0))
    module, optimizer, criterion, loader = engine.make_private(
        module=net, optimizer=torch.optim.SGD(net.parameters(), lr=1.0), noise_multiplier=1.0, max_grad_norm=0.7,
        data_loader=torch.utils.data.DataLoader(dataset, batch_size=1), poisson_sampling=False, epochs=1,
        grad_sample_mode="ghost", criterion=Total(),
    )  # fmt: skip
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(module(inputs), targets).backward()
        length = float(torch.linalg.vector_norm(layer.weight.summed_grad))
    assert 0.7 * (1 - 0.02) <= length <= 0.7 * (1 + 1e-6)


class Total(torch.nn.Module):
    """The sum of all outputs: gradients that are as long as they are constant."""

    reduction = "mean"

    def forward(self, outputs, targets):
        each = outputs.sum(dim=1)
        return each if self.reduction == "none" else each.mean()
