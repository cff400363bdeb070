"""Attacks on settings: what is changed after make_private is refused, or has no effect."""

import json
import warnings

import numpy as np
import pytest
import torch
from opacus.schedulers import ExponentialGradClip
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.accounting import gaussian_epsilon
from antiphase.errors import AntiphaseWarning, BypassError, KeyFileError, SettingsError, StateError
from antiphase.torch import PrivacyEngine
from antiphase.torch.frozen_settings import MAX_VALUE_LENGTH, _shown
from antiphase.torch.noise_run import row_of
from tests.torch.setting import Training, data, make_private, small_model

pytestmark = pytest.mark.issue(21)
DELTA = 1e-5


def gradients(training):
    return [p.grad.clone() for p in training.model.parameters()]


def two_steps(mode, between=None):
    """What the second of two steps released after a change between them, and its error if any."""
    training = Training(mode=mode, shuffle=False)
    batches = iter(training.loader)
    training.step(next(batches))
    before = [(p, p.detach().clone()) for p in training.model.parameters()]
    batch = next(batches)
    release, error = training.release, None
    try:
        if between is not None:
            between(training)
        training.step(batch)
    except Exception as caught:
        error = caught
    moved = not all(torch.equal(p, value) for p, value in before)
    return training, release.releases - 1, moved, error


OBJECTS = {
    "optimizer": ("hooks", lambda t: t.optimizer),
    "ghost optimizer": ("ghost", lambda t: t.optimizer),
    "module": ("hooks", lambda t: t.module),
    "ghost module": ("ghost", lambda t: t.module),
    "criterion": ("ghost", lambda t: t.criterion),
    "loader": ("hooks", lambda t: t.loader),
    "batch sampler": ("hooks", lambda t: t.loader.batch_sampler),
    "sampler": ("hooks", lambda t: t.loader.batch_sampler.sampler),
    "engine": ("hooks", lambda t: t.engine),
    "release": ("hooks", lambda t: t.release),
}
METHODS_TOO = ("optimizer", "release")
NOT_SETTINGS = {
    ("release", "guards"), ("release", "begin"), ("release", "restore"),  # the engine's own hook
    ("ghost module", "hooks_enabled"),  # Opacus' hooks, which our clipping does not depend on
}  # fmt: skip


def attributes(item, methods):
    """Names of public attributes that hold a value, and of methods on request."""
    found = []
    for name in dir(item):
        if name[0] != "_":
            try:
                value = getattr(item, name)
            except Exception:
                continue
            if methods or not callable(value) or isinstance(value, nn.Module):
                found.append(name)
    return found


def changed(value):
    """Another value, of the same type if it is a number or a string."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 10 + 1
    if isinstance(value, str):
        return "sum" if value == "mean" else "mean"
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        return [v * 10 for v in value]
    if isinstance(value, np.ndarray):
        return value[::-1].copy()
    if callable(value) and not isinstance(value, nn.Module | torch.optim.Optimizer):
        return lambda *_, **__: None
    return object()


@pytest.mark.slow
@pytest.mark.parametrize("which", OBJECTS)
def test_every_attribute_changed_alone_changes_nothing_or_is_refused(which, shown):
    """Row 31: every public attribute of each returned object, one at a time."""
    mode, find = OBJECTS[which]
    untouched, _, _, error = two_steps(mode)
    assert error is None
    expected = gradients(untouched)
    names = attributes(find(untouched), which in METHODS_TOO)
    outcomes = {"refused": 0, "no effect": 0}
    for name in names:
        if (which, name) in NOT_SETTINGS:
            continue

        def change(training, name=name):
            item = find(training)
            setattr(item, name, changed(getattr(item, name)))

        training, releases, moved, error = two_steps(mode, change)
        if not releases and not moved:
            outcomes["refused" if error is not None else "no effect"] += 1
        else:
            found = [p.grad for p in training.model.parameters()]
            same = all(map(torch.equal, found, expected))
            assert same, f"{which}.{name} was changed, and something else was released"
            outcomes["no effect"] += 1
    assert sum(outcomes.values()) >= 4
    shown(f"{which}: {len(names)} attributes changed one by one, other values released", 0, 0)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_a_changed_clip_norm_is_refused_before_anything_is_released(mode):
    """Row 31: an example would contribute 27 clip norms, not covered by ε."""
    training, releases, moved, error = two_steps(
        mode, lambda t: setattr(t.optimizer, "max_grad_norm", 27.0)
    )
    assert isinstance(error, SettingsError)
    assert "optimizer.max_grad_norm was 1.0" in str(error)
    assert "27.0" in str(error)
    assert "Nothing was released" in str(error)
    assert not releases
    assert not moved
    assert training.release.drawn == 1


def test_after_a_refused_step_training_goes_on_once_the_change_is_undone():
    training = Training(shuffle=False)
    batches = iter(training.loader)
    training.optimizer.max_grad_norm = 27.0
    with pytest.raises(SettingsError):
        training.step(next(batches))
    training.optimizer.max_grad_norm = 1.0
    training.step(next(batches))
    assert training.release.drawn == 1
    assert training.release.ledger.count.sum() == 24  # the batch that was refused counts as used


def test_clip_schedulers_of_opacus_are_refused():
    def schedule(training):
        ExponentialGradClip(training.optimizer, gamma=2.0).step()

    _, releases, _, error = two_steps("hooks", schedule)
    assert isinstance(error, SettingsError)
    assert not releases


def test_norms_of_layers_are_frozen_in_place():
    training = Training(max_grad_norm=[1.0] * 4, clipping="per_layer", shuffle=False)
    training.optimizer.max_grad_norms[2] = 50.0
    with pytest.raises(SettingsError, match="max_grad_norms"):
        training.run(1)
    assert training.release.drawn == 0


def test_refusals_show_short_values_whole_and_cut_long_ones():
    assert _shown([1.0] * 4, "a") == "[1.0, 1.0, 1.0, 1.0]"
    whole = str([1.0] * 1000)
    assert _shown([1.0] * 1000, "a") == whole[:MAX_VALUE_LENGTH] + "…"


def unfreeze(training):
    next(training.model.parameters()).requires_grad_(False)


def add_parameter(training):
    training.model.register_parameter("extra", nn.Parameter(torch.zeros(2)))


def add_group(training):
    training.inner.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def swap_inner(training):
    training.optimizer.original_optimizer = torch.optim.Adam(training.model.parameters())


def reorder(training):
    training.inner.param_groups[0]["params"].reverse()


def replace_parameter(training):
    training.model[0].bias = nn.Parameter(torch.zeros(6))


@pytest.mark.parametrize(
    "change", [unfreeze, add_parameter, add_group, swap_inner, reorder, replace_parameter]
)
def test_other_parameters_or_another_inner_optimizer_are_refused(change):
    """Rows 31 and 38."""
    _, releases, moved, error = two_steps("hooks", change)
    assert isinstance(
        error, SettingsError | AttributeError
    )  # Opacus' hooks know no other parameter either
    assert not releases
    assert not moved


def test_learning_rates_and_options_of_the_inner_optimizer_may_change():
    def warm_up(training):
        training.inner.param_groups[0].update(lr=0.05, momentum=0.5)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AntiphaseWarning)
        _, releases, moved, error = two_steps("hooks", warm_up)
    assert error is None
    assert releases == 1
    assert moved


class WithoutNoise:
    """Takes the place of a release, and adds nothing."""

    max_batch_size = 100

    def __call__(self, sums, examples):
        return [total.clone() for total in sums]

    def prepare(self):
        pass


def test_a_release_that_was_replaced_lets_nothing_reach_the_model():
    """The clipped sums have no noise."""
    _, releases, moved, error = two_steps(
        "hooks", lambda t: setattr(t.optimizer, "release", WithoutNoise())
    )
    assert isinstance(error, BypassError)
    assert not releases
    assert not moved


# Coverage (row 38)


def partly(model, **options):
    return PrivacyEngine(mechanism="dp-mf", key=ap.Key.insecure(1)).make_private(
        module=model,
        optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1),
        noise_multiplier=1.0,
        data_loader=DataLoader(data(), batch_size=12),
        max_grad_norm=1.0,
        epochs=2,
        **options,
    )


@pytest.mark.parametrize("mechanism", ["dp-mf", "dp-sgd"])
def test_a_parameter_outside_the_private_optimizer_is_refused_by_name(mechanism):
    """Row 38: a second optimizer would train the head without privacy."""
    model = small_model()
    engine = PrivacyEngine(mechanism=mechanism)
    how = {"epochs": 2} if mechanism == "dp-mf" else {}
    with pytest.raises(
        ValueError, match=r"2\.weight, 2\.bias require gradients.*uncovered=\"freeze\""
    ):
        engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1),
            noise_multiplier=1.0,
            data_loader=DataLoader(data(), batch_size=12),
            max_grad_norm=1.0,
            **how,
        )


def test_what_is_not_covered_can_be_frozen_and_stays_so():
    model = small_model()
    with pytest.warns(
        AntiphaseWarning, match=r"2\.weight, 2\.bias: not in the optimizer, and frozen now"
    ):
        module, optimizer, loader = partly(model, uncovered="freeze")
    assert not any(p.requires_grad for p in model[2].parameters())
    batches = iter(loader)
    step(module, optimizer, next(batches))
    model[2].requires_grad_(True)
    with pytest.raises(SettingsError, match=r"module.2.weight.requires_grad was False"):
        step(module, optimizer, next(batches))
    assert optimizer.release.drawn == 1


def test_unfreezing_is_refused_with_opacus_samples_too():
    model = small_model()
    model[2].requires_grad_(False)
    module, optimizer, loader = make_private(PrivacyEngine(mechanism="dp-sgd"), None, model)
    model[2].requires_grad_(True)
    model.register_parameter("head", nn.Parameter(torch.zeros(1)))
    with pytest.raises(SettingsError, match="head: require gradients now"):
        step(module, optimizer, next(iter(loader)))


def step(module, optimizer, batch):
    optimizer.zero_grad()
    nn.functional.cross_entropy(module(batch[0]), batch[1]).backward()
    optimizer.step()


def test_the_statement_says_which_parameters_it_covers():
    model = small_model()
    model[2].bias.requires_grad_(False)
    statement = Training(model=model).engine.statement()
    said = json.loads(statement.to_json())
    assert said["covered_tensors"] == 3
    assert said["covered_numbers"] == 5 * 6 + 6 + 12
    assert said["frozen_parameters"] == ["2.bias"]
    words = " ".join(str(statement).split())
    assert "covers all 3 trained parameter tensors of the model (48 numbers)" in words
    assert "Not trained, and so not changed: 2.bias." in words


class PartlyUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.left_out = nn.Linear(5, 2), nn.Linear(5, 2)

    def forward(self, x):
        return self.used(x)


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_a_parameter_that_no_step_reaches_is_warned_about_after_the_first_epoch(mode):
    """Training continues. The check sees only whether the backward pass reached the parameter."""
    training = Training(model=PartlyUsed(), mode=mode, epochs=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        training.run(4)
        assert not [w for w in seen if issubclass(w.category, AntiphaseWarning)]
        training.run(6)
    told = [str(w.message) for w in seen if issubclass(w.category, AntiphaseWarning)]
    assert len(told) == 1
    assert "left_out.weight, left_out.bias had no gradient in the first epoch" in told[0]
    assert training.engine.remaining_steps == 0


# One plan per engine (row 32)


def test_a_second_make_private_voids_the_first():
    """Row 32: with both optimizers the stated ε was 4.38 and the true one 11.48."""
    engine = PrivacyEngine(mechanism="dp-mf", key=ap.Key.insecure(1))
    first = make_private(engine, None, epochs=2)
    second = make_private(engine, None, epochs=2)
    with pytest.raises(StateError, match="void: make_private was called again"):
        step(*first[:2], next(iter(first[2])))
    assert first[1].release.drawn == 0
    step(*second[:2], next(iter(second[2])))
    with pytest.raises(ValueError, match="has released 1 steps"):
        make_private(engine, None, epochs=2)


def test_a_second_plan_on_the_same_inner_optimizer_trains():
    model = small_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine(mechanism="dp-mf", key=ap.Key.insecure(1))
    how = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "epochs": 1}
    loader = DataLoader(data(), batch_size=12)
    first = engine.make_private(module=model, optimizer=inner, data_loader=loader, **how)
    second = engine.make_private(module=first[0], optimizer=inner, data_loader=loader, **how)
    batch = next(iter(second[2]))
    with pytest.raises(StateError, match="void"):
        step(first[0], first[1], batch)
    second[1].zero_grad()
    step(second[0], second[1], next(iter(second[2])))
    with pytest.raises(BypassError):
        inner.step()


def trained(key, mechanism="dp-mf", noise_multiplier=1.0, dataset=None, steps=3):
    training = Training(
        mechanism, key=key, run=None, noise_multiplier=noise_multiplier, dataset=dataset
    )
    return training.run(steps)


def test_a_second_training_on_the_same_data_states_the_combined_epsilon():
    key = ap.Key.generate()
    first = trained(key)
    assert "other training" not in str(first.engine.statement())
    with pytest.warns(AntiphaseWarning, match="1 other training.*same data set.*together they are"):
        second = trained(key)
    together = second.engine.mechanism.epsilon_of_runs([3, 15], DELTA)
    caveat = " ".join(str(second.engine.statement(DELTA)).split())
    assert f"together they are ({ap.statement.rounded_up(together)}, 1e-05)" in caveat
    with pytest.warns(AntiphaseWarning, match="2 other training"):
        third = trained(key, "tree", 0.7)
    mu = np.sqrt(1 + 1 + 1 / 0.7**2)
    expected = ap.statement.rounded_up(gaussian_epsilon(1 / (mu * (1 + 1e-10)), DELTA))
    assert f"together they are ({expected}, 1e-05)" in " ".join(
        str(third.engine.statement(DELTA)).split()
    )


def test_other_data_other_keys_and_runs_that_go_on_are_no_second_training(tmp_path):
    key = ap.Key.load_or_create(tmp_path / "key")
    first = trained(key)
    first.engine.save_checkpoint(
        path=tmp_path / "c", module=first.module, optimizer=first.optimizer
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", AntiphaseWarning)
        other = data()
        other.tensors[0][59] += 1
        trained(key, dataset=other)
        trained(ap.Key.generate())
        again = Training(key=ap.Key.load(tmp_path / "key"), run=None)
        again.engine.load_checkpoint(
            path=tmp_path / "c", module=again.module, optimizer=again.optimizer
        )
        again.run(1)
    assert "other training" not in str(again.engine.statement())


def test_fingerprinting_the_data_has_no_side_effects():
    """Generators are restored, and augmented examples are recognised."""

    class Augmented(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.rand(()) + np.random.rand(), y  # noqa: NPY002

    key, dataset = ap.Key.generate(), Augmented(*data().tensors)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = [ap.torch.earlier_runs.fingerprint(key, dataset) for _ in range(2)]
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)
    assert found[0] == found[1]
    assert found[0] != ap.torch.earlier_runs.fingerprint(ap.Key.generate(), dataset)

    class Broken(Augmented):
        def __getitem__(self, index):
            raise OSError("no such file")

    assert ap.torch.earlier_runs.fingerprint(key, Broken(*data().tensors))


# Learning rates (row 39)


def halved(inner):
    return torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)


@pytest.mark.parametrize(
    ("told", "stepped"), [(False, True), (True, False), (True, True), (False, False)]
)
def test_rates_that_are_not_the_plans_are_warned_about_once(told, stepped):
    """Row 39: a scheduler that was not passed, or is not stepped. Privacy holds."""
    training = Training(scheduler=halved if told else None, run=None)
    training.scheduler = (training.scheduler or halved(training.inner)) if stepped else None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        training.run(4)
    warned = [str(w.message) for w in seen if "learning rate is" in str(w.message)]
    assert len(warned) == (told != stepped)
    if warned:
        assert warned[0].startswith("step 1: the learning rate is")
        assert "Privacy holds" in warned[0]


# Keys and checkpoints (row 47)


def test_a_checkpoint_without_a_key_file_is_warned_about_once(tmp_path):
    """Row 47: such a run was lost when the process ended, or cost privacy twice."""
    training = Training(key=ap.Key.generate(), run=None).run(2)
    parts = {"module": training.module, "optimizer": training.optimizer}
    with pytest.warns(AntiphaseWarning, match=r'PrivacyEngine\(key="path"\) creates or loads'):
        training.engine.save_checkpoint(path=tmp_path / "a", **parts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.engine.save_checkpoint(path=tmp_path / "b", **parts)


def test_a_path_is_a_key_that_is_kept(tmp_path):
    """With a path as key, another process (here another engine) can continue."""

    def started():
        training = Training(key=str(tmp_path / "key"), run=None)
        return training, {"module": training.module, "optimizer": training.optimizer}

    first, parts = started()
    first.run(4)
    mine = {"epoch": 3, "best": 0.5, "history": [1.0, None, "x"], "average": torch.arange(3.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first.engine.save_checkpoint(path=tmp_path / "c", checkpoint_dict=mine, **parts)
    second, parts = started()
    found = second.engine.load_checkpoint(path=tmp_path / "c", **parts)
    assert torch.equal(found.pop("average"), torch.arange(3.0))
    assert found == {"epoch": 3, "best": 0.5, "history": [1.0, None, "x"]}
    assert second.engine.remaining_steps == 11
    torch.testing.assert_close(second.run(1).weights(), first.run(1).weights(), rtol=0, atol=0)


def test_what_a_checkpoint_cannot_keep_is_refused_before_it_is_written(tmp_path):
    training = Training(run=None)
    with pytest.raises(TypeError, match="cannot be kept"):
        training.engine.save_checkpoint(
            path=tmp_path / "c", module=training.module, checkpoint_dict={"model": small_model()}
        )
    assert not (tmp_path / "c").exists()


def test_a_damaged_key_file_is_not_replaced(tmp_path):
    (tmp_path / "key").write_text("something else")
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(KeyFileError):
        PrivacyEngine(mechanism="dp-mf", key=tmp_path / "key")
    assert (tmp_path / "key").read_text() == "something else"


# float64 (row 45)


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ghost"])
def test_low_bits_of_float64_models_carry_no_data(mode, shown):
    """Row 45: noise is float32, so lower digits of a sum had no noise: 200 of 200 guesses right.

    The released sum without its noise is a float32 number, and so is the released value.
    """
    dataset = TensorDataset(data().tensors[0].double(), data().tensors[1])
    training = Training(
        model=small_model().double(), dataset=dataset, mode=mode, noise_multiplier=1e4
    )
    training.run(1)
    given = [p.grad for p in training.model.parameters()]
    assert all(g.dtype is torch.float64 for g in given)
    beyond = sum(int((g.float().double() != g).sum()) for g in given)
    assert beyond == 0
    shown(f"{mode}: released numbers with digits below float32", beyond, 0)


def test_sums_in_float64_are_rounded_before_the_noise_is_added():
    """Two sums that are equal in float32 are one sum, in the release and in the ledger."""
    outputs = []
    for digit in (0.0, 1e-12):
        training = Training()
        training.release.batches = training.release.ledger = None
        training.release.guards.clear()
        sums = [
            torch.full(s, 0.1 + digit, dtype=torch.float64)
            for s in training.release.shapes.values()
        ]
        outputs.append(training.release(sums, 1))
        row = row_of(training.release, 0)
        for out, name in zip(outputs[-1], row, strict=True):
            noisy = np.float32(0.1) + row[name]
            assert out.dtype is torch.float32
            np.testing.assert_array_equal(out.numpy(), noisy / np.float32(training.release.divisor))
    assert all(map(torch.equal, *outputs))


# Side effects on the process


def test_make_private_leaves_the_filters_of_warnings_alone():
    before = list(warnings.filters)
    Training()
    make_private(PrivacyEngine(mechanism="dp-sgd"), None)
    assert warnings.filters == before


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_scaled_loss_is_refused_by_name(mode):
    """GradScaler would scale gradients before they are clipped; the error names the remedy."""
    training = Training(mode=mode)
    scaler = torch.amp.GradScaler("cpu")
    inputs, targets = next(iter(training.loader))

    def step():
        scaler.scale(training.criterion(training.module(inputs), targets)).backward()
        scaler.step(training.optimizer)

    with pytest.raises(SettingsError, match=r"GradScaler.*Nothing was released"):
        step()
    assert training.release.releases == 0


@pytest.mark.parametrize("mechanism", ["dp-mf", "dp-sgd"])
def test_an_optimizer_that_needs_a_closure_is_refused(mechanism):
    """LBFGS evaluates the loss several times per step; the plan has one release per step."""
    with pytest.raises(ValueError, match=r"optimizer = LBFGS: its step needs a closure"):
        Training(mechanism, optimizer=torch.optim.LBFGS)
