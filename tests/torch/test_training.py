"""Whole trainings: what a seed decides, how runs resume, and what is refused."""

import dataclasses
import json
import os
import signal
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase import data
from antiphase.errors import AntiphaseWarning, FileFormatError, StateError
from antiphase.torch import training_run
from antiphase.torch.recipe import Recipe
from antiphase.torch.training import train


def dataset(size=400):
    whole = data.load("digits")
    part = data.Split(whole.train.inputs[:size], whole.train.targets[:size])
    return dataclasses.replace(whole, train=part)


DIGITS = dataset()
RECIPE = Recipe(
    epochs=2, batch_size=40, learning_rate=0.5, epsilon=8.0, delta=1e-5, mechanism="dp-mf"
)


def recipe(**other):
    return dataclasses.replace(RECIPE, **other)


def same(a, b):
    return a.weights.keys() == b.weights.keys() and all(
        torch.equal(a.weights[k], b.weights[k]) for k in a.weights
    )


class StopError(Exception):
    """Stops a training."""


def stopping(at, error=StopError):
    def progress(report):
        if report.task == "training" and report.done == at:
            raise error

    return progress


def test_the_seed_decides_all_but_the_noise():
    first, again = train(RECIPE, DIGITS, seed=3), train(RECIPE, DIGITS, seed=3)
    assert not same(first, again), "noise from a secret key differs every time"
    plain = recipe(mechanism="none")
    assert same(train(plain, DIGITS, seed=3), train(plain, DIGITS, seed=3))
    assert not same(train(plain, DIGITS, seed=3), train(plain, DIGITS, seed=4)), "another order"


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["dp-mf", "dp-sgd"])
def test_insecure_noise_repeats_and_the_statement_says_so(mechanism):
    wanted = recipe(mechanism=mechanism, epsilon=None, noise_multiplier=1.0)
    first = train(wanted, DIGITS, insecure_noise=5)
    assert same(first, train(wanted, DIGITS, insecure_noise=5))
    assert not same(first, train(wanted, DIGITS, insecure_noise=6))
    assert first.statement.insecure
    assert "INSECURE" in str(first.statement)
    assert not train(wanted, DIGITS).statement.insecure


def test_global_generators_and_threads_are_left_alone():
    threads, state, numpy_state = (
        torch.get_num_threads(),
        torch.get_rng_state(),
        np.random.get_state()[1].copy(),  # noqa: NPY002
    )
    train(recipe(model="mlp"), DIGITS, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()  # noqa: NPY002
    assert threads == torch.get_num_threads()


def test_the_outcome_has_statement_curve_and_accuracy():
    seen = []
    made = train(
        RECIPE,
        DIGITS,
        evaluate=5,
        progress=seen.append,
    )
    assert made.steps == 20
    assert [step for step, _, _ in made.curve] == [5, 10, 15, 20]
    assert made.curve[-1][1:] == (made.accuracy, made.loss)
    designing = [report for report in seen if report.task == "designing"]
    assert designing
    assert designing[-1].gap < 1e-6
    assert seen[: len(designing)] == designing
    seen = seen[len(designing) :]
    assert {report.task for report in seen} == {"training"}
    assert [(report.done, report.total) for report in seen] == [(t, 20) for t in range(1, 21)]
    assert seen[3].metrics == {}
    assert seen[-1].metrics == {"accuracy": made.accuracy, "loss": made.loss}
    assert made.finite
    assert made.epsilon <= 8.0
    assert made.statement.released_rows == 20
    found = json.loads(made.to_json())
    assert found["epsilon"] == made.epsilon
    assert found["recipe"]["mechanism"] == "dp-mf"
    assert found["statement"]["delta"] == 1e-5


def test_without_privacy_there_is_no_statement_and_more_accuracy():
    plain = train(recipe(mechanism="none", epochs=5), DIGITS)
    assert plain.statement is plain.epsilon is plain.noise_multiplier is None
    assert plain.accuracy > 0.8
    assert json.loads(plain.to_json())["statement"] is None


@pytest.mark.parametrize("mechanism", ["dp-mf+", "none"])
def test_divergence_is_an_outcome_not_a_crash(mechanism):
    lost = train(recipe(mechanism=mechanism, learning_rate=1e38, momentum=0.9), DIGITS)
    assert not lost.finite
    assert 0 <= lost.accuracy <= 1
    assert json.loads(lost.to_json())["finite"] is False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_every_model_learns_digits(name, mode):
    made = train(
        recipe(
            model=name,
            epochs=4,
            learning_rate=0.5,
            momentum=0.5,
            epsilon=50.0,
            grad_sample_mode=mode,
        ),
        DIGITS,
    )
    assert made.accuracy > 0.5, made.accuracy


@pytest.mark.slow
def test_the_engine_designs_for_the_schedule_and_the_momentum():
    found = {
        train(recipe(schedule=schedule, momentum=momentum), DIGITS).statement.digest
        for schedule in ("constant", "linear", "cosine")
        for momentum in (0.0, 0.9)
    }
    assert len(found) == 6


@pytest.mark.slow
def test_options_reach_the_design():
    made = train(recipe(mechanism="dp-mf+", options={"tau": 7}), DIGITS)
    assert made.statement.digest != train(recipe(mechanism="dp-mf+"), DIGITS).statement.digest
    with pytest.raises(TypeError, match=r"tua = 7.*tau"):
        train(recipe(mechanism="dp-mf+", options={"tua": 7}), DIGITS)


def test_inputs_are_scaled_by_public_constants():
    plain = recipe(mechanism="none", inputs="standard")
    mean, std = (np.float32(v[0]) for v in (DIGITS.mean, DIGITS.std))
    parts = {
        name: data.Split((getattr(DIGITS, name).inputs - mean) / std, getattr(DIGITS, name).targets)
        for name in ("train", "test")
    }
    shifted = dataclasses.replace(DIGITS, **parts, mean=None)
    found = train(plain, DIGITS).weights, train(recipe(mechanism="none"), shifted).weights
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name])
    with pytest.raises(ValueError, match="no public mean"):
        train(plain, shifted)


@pytest.mark.slow
def test_neither_noise_nor_samples_of_dp_sgd_follow_the_seed(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        training_run, "collate", lambda batch: drawn.append(batch[1].tolist()) or batch
    )
    wanted = recipe(mechanism="dp-sgd", epsilon=None, noise_multiplier=1.0)
    first = train(wanted, DIGITS, seed=1)
    again = train(wanted, DIGITS, seed=1)
    assert drawn[:20] != drawn[20:]
    assert len({len(batch) for batch in drawn}) > 5, "sizes vary"
    assert abs(sum(map(len, drawn)) - 1600) < 5 * 1600**0.5
    assert not same(first, again)


@pytest.mark.slow
def test_dp_sgd_claims_amplification_for_its_samples_alone():
    sampled = train(recipe(mechanism="dp-sgd", epsilon=None, noise_multiplier=1.0), DIGITS)
    assert sampled.statement.sampler == "poisson"
    assert sampled.statement.sampling_rate == 0.1
    assert "no cryptographic generator" in sampled.statement.noise_source
    ordered = train(
        recipe(mechanism="dp-sgd", epsilon=None, noise_multiplier=1.0, poisson=False), DIGITS
    )
    assert ordered.statement.sampler == "fixed-order"
    assert ordered.statement.sampling_rate is None
    assert ordered.statement.participation == "2 epochs of 10 steps"


@pytest.mark.slow
def test_empty_poisson_samples_are_steps():
    made = train(
        recipe(mechanism="dp-sgd", epsilon=None, noise_multiplier=1.0, batch_size=1), dataset(30)
    )
    assert made.steps == 60
    assert made.finite


def dropout(shape, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, classes)
    )


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["dp-mf", "dp-sgd"])
@pytest.mark.parametrize("stop", [1, 13, 20])
def test_a_resumed_run_is_identical_bit_for_bit(tmp_path, mechanism, stop):
    wanted = recipe(
        mechanism=mechanism,
        poisson=False,
        model=f"{__name__}:dropout",
        momentum=0.9,
        schedule="cosine",
    )
    whole = train(wanted, DIGITS, insecure_noise=1, evaluate=4)
    options = {"insecure_noise": 1, "evaluate": 4, "checkpoint": tmp_path / "run"}
    with pytest.raises(StopError):
        train(wanted, DIGITS, progress=stopping(stop), **options)
    torch.manual_seed(99)  # other code may use the generator
    again = train(wanted, DIGITS, resume=True, **options)
    assert same(whole, again)
    assert again.curve == whole.curve
    assert again.statement == whole.statement


def test_the_key_is_stored_and_repeated_steps_are_the_same(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(RECIPE, DIGITS, checkpoint=folder, progress=stopping(13))
    (ledger,) = folder.glob("key.*.ledger")
    first = ledger.read_bytes()
    assert len(first) == 13 * 16
    made = train(RECIPE, DIGITS, checkpoint=folder, resume=True)
    assert [ledger] == list(folder.glob("key.*.ledger")), "one run"
    assert ledger.read_bytes()[: len(first)] == first
    assert len(ledger.read_bytes()) == 20 * 16, "each step once"
    assert made.statement.epsilon <= 8.0
    finished = train(RECIPE, DIGITS, checkpoint=folder, resume=True)
    assert same(made, finished)
    assert dataclasses.replace(finished, weights={}) == dataclasses.replace(made, weights={}), (
        "to the last second"
    )
    from safetensors.torch import load_file

    stored = load_file(folder / "model.safetensors")
    assert all(torch.equal(stored[name], w) for name, w in made.weights.items())


@pytest.mark.slow
def test_a_run_whose_checkpoint_is_missing_is_refused(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(RECIPE, DIGITS, checkpoint=folder, progress=stopping(3))
    (folder / "checkpoint").rename(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="checkpoint is gone"):
        train(RECIPE, DIGITS, checkpoint=folder, resume=True)
    (tmp_path / "elsewhere").rename(folder / "checkpoint")
    assert train(RECIPE, DIGITS, checkpoint=folder, resume=True).steps == 20


@pytest.mark.slow
def test_damaged_run_files_are_refused_and_nothing_is_lost(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(RECIPE, DIGITS, checkpoint=folder, progress=stopping(4), evaluate=2)
    for name, contents in {
        "run.json": [b"", b"[]", b"{", b"\xff", b"[" * 100_000],
        "curve.json": [
            b"",
            b"[]",
            b"{}",
            b'{"curve": [[1, 2]], "seconds": 0}',
            b'{"curve": [], "seconds": "x"}',
        ],
    }.items():
        whole = (folder / name).read_bytes()
        for content in contents:
            (folder / name).write_bytes(content)
            with pytest.raises(FileFormatError, match=f"{name}: is damaged .* Nothing was changed"):
                train(RECIPE, DIGITS, checkpoint=folder, resume=True)
        (folder / name).write_bytes(whole)
    (folder / "curve.json").unlink()
    assert [
        step for step, *_ in train(RECIPE, DIGITS, checkpoint=folder, resume=True, evaluate=8).curve
    ] == [8, 16, 20]


@pytest.mark.slow
@pytest.mark.parametrize("raised", [True, False], ids=["raised", "signal"])
def test_ctrl_c_saves_the_run(tmp_path, raised):
    def press(report):
        if report.task == "training" and report.done == 5 and not raised:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    options = {"checkpoint": tmp_path / "run", "insecure_noise": 2}
    with pytest.raises(KeyboardInterrupt):
        train(
            RECIPE, DIGITS, progress=stopping(5, KeyboardInterrupt) if raised else press, **options
        )
    assert signal.getsignal(signal.SIGINT) is before
    seen = []
    again = train(RECIPE, DIGITS, resume=True, progress=seen.append, **options)
    steps = [report.done for report in seen if report.task == "training"]
    assert steps == list(range(6, 21))
    assert same(again, train(RECIPE, DIGITS, insecure_noise=2))


def test_another_run_is_refused_and_nothing_overwritten(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(StopError):
        train(RECIPE, DIGITS, checkpoint=folder, progress=stopping(3))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(FileExistsError, match="resume=True"):
        train(RECIPE, DIGITS, checkpoint=folder)
    with pytest.raises(
        ValueError, match=r"epochs was 2, is 3; learning_rate was 0.5, is 0.25; seed was 0, is 1"
    ):
        train(recipe(epochs=3, learning_rate=0.25), DIGITS, checkpoint=folder, resume=True, seed=1)
    with pytest.raises(ValueError, match=r"data digest was '\w+', is '\w+'\. Nothing"):
        train(RECIPE, dataset(300), checkpoint=folder, resume=True)
    with pytest.raises(ValueError, match="insecure_noise was None, is 1"):
        train(RECIPE, DIGITS, checkpoint=folder, resume=True, insecure_noise=1)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(FileNotFoundError, match="no run to go on with"):
        train(RECIPE, DIGITS, checkpoint=tmp_path / "other", resume=True)
    with pytest.raises(TypeError, match="resume = True needs checkpoint"):
        train(RECIPE, DIGITS, resume=True)
    for name in ("none", "dp-sgd"):
        with pytest.raises(ValueError, match="keeps no checkpoints"):
            train(recipe(mechanism=name), DIGITS, checkpoint=tmp_path / "none")
    with pytest.raises(ValueError, match="cannot be imported"):
        train(recipe(model="no_such_module:f"), DIGITS, checkpoint=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_models_are_made_by_functions_of_the_user(tmp_path, monkeypatch):
    (tmp_path / "mine_for_this_test.py").write_text(
        "from torch import nn\n"
        "def small(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
        "def mixing(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))\n"
        "def wrong(shape, classes): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert train(recipe(model="mine_for_this_test:small"), DIGITS).finite
    with pytest.raises(Exception, match="BatchNorm"):
        train(recipe(model="mine_for_this_test:mixing"), DIGITS)
    with pytest.raises(TypeError, match="returned a int"):
        train(recipe(model="mine_for_this_test:wrong"), DIGITS)
    for name in ("mine_for_this_test:absent", "no_such_module:f", ":"):
        with pytest.raises(ValueError, match="cannot be imported"):
            train(recipe(model=name), DIGITS)
    with pytest.raises(ValueError, match="logistic, mlp, cnn"):
        train(recipe(model="perceptron"), DIGITS)


class Mixing(nn.Module):
    """Subtracts the mean of the batch, which no list of layers shows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.layer(x - x.mean(dim=0))


def mixing(shape, classes):
    return Mixing()


def test_models_that_mix_examples_are_refused_with_data_in_memory():
    with pytest.raises(ValueError, match="mixes examples"):
        train(recipe(model=f"{__name__}:mixing"), DIGITS)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs = 0"),
        ({"batch_size": 2.5}, "batch_size = 2.5"),
        ({"learning_rate": -1.0}, "learning_rate = -1"),
        ({"momentum": 1.0}, "momentum = 1"),
        ({"schedule": "sine"}, "schedule = 'sine'.*cosine"),
        ({"mechanism": "dpsgd"}, "mechanism = 'dpsgd'.*dp-sgd"),
        ({"noise_multiplier": 1.0}, "give one"),
        ({"epsilon": None}, "give one"),
        ({"delta": None}, "δ is yours"),
    ],
)
def test_invalid_recipes_are_refused(wrong, message):
    with pytest.raises((TypeError, ValueError), match=message):
        recipe(**wrong)


def plan(epochs=2, participation=None, calibrated=True, **budget):
    """A mechanism for the training of RECIPE, or its design alone."""
    f = ap.design(
        "dp-mf",
        workload=ap.Workload.sgd(20, learning_rates=0.5),
        participation=participation or ap.epochs(epochs, 20 // epochs),
    )
    return ap.calibrate(f, **(budget or {"epsilon": 8.0, "delta": 1e-5})) if calibrated else f


def sampled():
    """A mechanism whose batches are drawn at random."""
    f, rate = ap.design("dp-sgd", steps=20, epochs=2), ap.sampling.Poisson(0.1)
    return ap.calibrate(f, epsilon=8.0, delta=1e-5, sampling=rate)


def given(mechanism, **other):
    """RECIPE with a mechanism that is designed already."""
    budget = {"epsilon": None, "delta": None} if isinstance(mechanism, ap.Mechanism) else {}
    return recipe(**({"mechanism": mechanism} | budget | other))


@pytest.mark.issue(23)
def test_a_given_mechanism_trains_like_its_design_by_name():
    """The same weights, bit for bit: from the name, from the design, from the mechanism."""
    expected = train(RECIPE, DIGITS, insecure_noise=1)
    for mechanism in (plan(), plan(calibrated=False)):
        made = train(given(mechanism), DIGITS, insecure_noise=1)
        assert same(made, expected)
        assert made.statement == expected.statement
        assert made.to_dict()["recipe"]["mechanism"] == "dp-mf"
        assert len(made.to_dict()["recipe"]["mechanism_digest"]) == 64


@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("make", "other", "error"),
    [
        (plan, {"batch_size": 100}, r"steps = 20 of the mechanism .* steps = 8 and epochs = 2"),
        (plan, {"epochs": 4}, "steps = 20 of the mechanism must be those of the training, 40"),
        (plan, {"epochs": 1, "batch_size": 20}, None),
        (lambda: plan(epochs=1), {}, "participation = 1 epochs of 20 .* 2 epochs of 10 steps"),
        (lambda: plan(epochs=4), {}, "participation = 4 epochs of 5 .* Design it with epochs = 2"),
        (lambda: plan(participation=ap.min_separation(2, 11)), {}, "at least 11 steps apart"),
        (lambda: plan(participation=ap.min_separation(3, 9)), {}, None),
        (plan, {"epsilon": 1.0, "delta": 1e-5}, "epsilon = 1: .* calibrated already"),
        (plan, {"noise_multiplier": 2.0}, "noise_multiplier = 2: .* calibrated already"),
        (plan, {"clip_norm": 2.0}, "clip_norm = 2 must be that of the calibrated mechanism, 1"),
        (plan, {"options": {"weights": None}}, "options = .* designed already"),
        (lambda: plan(noise_multiplier=1.0), {}, "delta = None"),
        (lambda: plan(calibrated=False), {"epsilon": None}, "epsilon = None, noise_multiplier"),
        (sampled, {}, "its ε holds for batches drawn by poisson"),
    ],
)
def test_a_mechanism_that_does_not_fit_the_data_is_refused(make, other, error):
    """Before the training begins, with what would fit."""
    if error is None:
        given(make(), **other).require_fit(400)
        return
    with pytest.raises((ValueError, TypeError), match=error):
        given(make(), **other).require_fit(400)


@pytest.mark.issue(23)
def test_a_batch_larger_than_the_data_is_refused():
    recipe(batch_size=400).require_fit(400)
    with pytest.raises(ValueError, match=r"batch_size = 401 must be at most .* 400"):
        train(recipe(batch_size=401), DIGITS)


@pytest.mark.issue(23)
def test_a_mechanism_for_another_optimizer_warns():
    """Not for another learning rate, by which the noise is scaled."""
    with pytest.warns(AntiphaseWarning, match="designed for sgd, and training is by sgd, momentum"):
        train(given(plan(), momentum=0.9), DIGITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AntiphaseWarning)
        train(given(plan(), learning_rate=0.1), DIGITS)


@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("other", "sampler", "rate"),
    [
        ({"mechanism": "none"}, "fixed-order", None),
        ({}, "fixed-order", None),
        ({"mechanism": "dp-sgd"}, "poisson", 0.1),
        ({"mechanism": "dp-sgd", "poisson": False}, "fixed-order", None),
    ],
)
def test_the_outcome_names_the_sampler_that_ran(other, sampler, rate):
    found = train(recipe(**other), DIGITS).to_dict()
    assert (found["sampler"], found["sampling_rate"]) == (sampler, rate)
    assert found["recipe"]["poisson"] is (sampler == "poisson")
