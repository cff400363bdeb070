"""A run resumes bit for bit with the same ε, or is refused."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase.errors import (
    AntiphaseError,
    FileFormatError,
    HorizonError,
    KeyFileError,
    ReplayError,
    StateError,
)
from antiphase.torch import PrivacyEngine
from antiphase.torch.tensor_packing import pack
from tests.torch.setting import Training, data

pytestmark = pytest.mark.slow  # seconds each

COSINE = {
    "optimizer": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
    "scheduler": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 15),
}


@pytest.fixture
def key(tmp_path):
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    return key


def dropout():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 2))


def training(key, **options):
    return Training(key=key, run=None, model=dropout(), **{**COSINE, **options})


def save(t, path):
    t.engine.save_checkpoint(
        path=path, module=t.module, optimizer=t.optimizer, scheduler=t.scheduler
    )


def load(t, path, **options):
    t.engine.load_checkpoint(
        path=path, module=t.module, optimizer=t.optimizer, scheduler=t.scheduler, **options
    )


@pytest.mark.parametrize("mechanism", ["dp-mf", "dp-mf+", "tree", "sqrt-toeplitz"])
@pytest.mark.parametrize("stop", [1, 5, 8, 14])
def test_a_resumed_run_ends_with_the_same_weights_bit_for_bit(key, tmp_path, mechanism, stop):
    whole = training(key, mechanism=mechanism)
    whole.run(stop)
    save(whole, tmp_path / "checkpoint")
    whole.run()
    torch.manual_seed(99)  # other code may use the generator
    again = training(ap.Key.load(tmp_path / "key"), mechanism=mechanism)
    load(again, tmp_path / "checkpoint")
    assert again.release.position == stop
    again.run()
    assert again.engine.remaining_steps == 0
    assert torch.equal(whole.weights(), again.weights())
    assert whole.engine.get_epsilon(1e-5) == again.engine.get_epsilon(1e-5)
    assert again.release.drawn == 15, "each step once"
    with pytest.raises(HorizonError):
        again.step(next(iter(again.loader)))


def own_checkpoint(t):
    parts = {
        "module": t.module,
        "optimizer": t.optimizer,
        "scheduler": t.scheduler,
        "engine": t.engine,
    }
    return {name: part.state_dict() for name, part in parts.items()}


@pytest.mark.parametrize("stop", [1, 8])
def test_state_dicts_in_a_checkpoint_of_the_users_resume_too(key, tmp_path, stop):
    whole = training(key, mechanism="dp-mf")
    whole.run(stop)
    torch.save(own_checkpoint(whole), tmp_path / "own")
    whole.run()
    kept = torch.load(tmp_path / "own", weights_only=True)
    again = training(ap.Key.load(tmp_path / "key"), mechanism="dp-mf")
    for name, part in {
        "module": again.module,
        "optimizer": again.optimizer,
        "scheduler": again.scheduler,
    }.items():
        part.load_state_dict(kept[name])
    torch.manual_seed(99)
    again.engine.load_state_dict(kept["engine"])
    again.run()
    assert again.engine.remaining_steps == 0
    assert torch.equal(whole.weights(), again.weights())
    assert whole.engine.get_epsilon(1e-5) == again.engine.get_epsilon(1e-5)


def test_the_state_of_another_engine_is_refused_and_nothing_changed(key, tmp_path):
    first = training(key, mechanism="dp-mf")
    first.run(3)
    state = first.engine.state_dict()
    again = training(ap.Key.load(tmp_path / "key"), mechanism="dp-mf")
    random = torch.get_rng_state()
    bad = [
        None,
        {},
        {**state, "random": 3},
        {**state, "release": {}},
        {**state, "order": None},
        {**state, "order": 1},
    ]
    parts = [
        {"position": "x"},
        {"position": 16},
        {"position": -1},
        {"foreign": "x"},
        {"world": 2},
        {"key": "00"},
    ]
    parts += [
        {"rank": 1},
        {"ledger": {}},
        {"ledger": state["release"]["ledger"] | {"count": torch.zeros(3)}},
    ]
    bad += [{**state, "release": state["release"] | part} for part in parts]
    for wrong in bad:
        with pytest.raises(AntiphaseError):
            again.engine.load_state_dict(wrong)
        assert torch.equal(torch.get_rng_state(), random)
        assert (again.release.position, again.release.run) == (0, None)
        assert not again.release.ledger.count.any()
        assert (again.release.ledger.when == -1).all()
    with pytest.raises(StateError, match=r"with mechanism .* Nothing was changed"):
        training(ap.Key.load(tmp_path / "key"), mechanism="tree").engine.load_state_dict(state)
    with pytest.raises(ValueError, match="call make_private first"):
        PrivacyEngine().load_state_dict(state)
    again.engine.load_state_dict(state)
    assert again.release.position == 3


def test_two_processes_that_resume_at_once_do_not_share_a_row(key, tmp_path):
    """Each loads the checkpoint before the other steps; their weights differ."""
    first = training(key)
    first.run(4)
    save(first, tmp_path / "checkpoint")
    one, other = (training(ap.Key.load(tmp_path / "key")) for _ in range(2))
    load(one, tmp_path / "checkpoint")
    load(other, tmp_path / "checkpoint")
    with torch.no_grad():
        next(other.model.parameters()).mul_(1.5)
    one.run(1)
    with pytest.raises(ReplayError, match="step 4 was released before"):
        other.run(1)


def test_a_key_without_a_file_is_refused_in_another_process(tmp_path):
    """There is no record of which rows were released with which sums."""
    secret = bytes(range(32))
    first = training(ap.Key(secret))
    first.run(4)
    save(first, tmp_path / "checkpoint")
    again = training(ap.Key(secret))
    with pytest.raises(KeyFileError, match="no record of what was released"):
        load(again, tmp_path / "checkpoint")
    assert again.release.run is None
    load(again, tmp_path / "checkpoint", fresh_noise=True)
    assert again.engine.get_epsilon(1e-5) > first.engine.get_epsilon(1e-5)


def test_loading_another_run_after_a_release_is_refused(key, tmp_path):
    """Going back within a run is allowed; another run would hide what was released."""
    first, other = training(key), training(key)
    first.run(3)
    save(first, tmp_path / "first")
    save(other, tmp_path / "begin")
    other.run(5)
    save(other, tmp_path / "other")
    for options in ({}, {"fresh_noise": True}):
        with pytest.raises(StateError, match="has released 5 steps of another run"):
            load(other, tmp_path / "first", **options)
        assert other.release.position == 5
    load(other, tmp_path / "begin")
    with pytest.raises(StateError, match="has released 5 steps of another run"):
        load(other, tmp_path / "first")
    load(other, tmp_path / "other")
    load(other, tmp_path / "other", fresh_noise=True)
    load(other, tmp_path / "other", fresh_noise=True)
    assert sorted(other.release.replaced_runs()) == [5, 5]


@pytest.mark.issue(21)
def test_spent_epsilon_counts_the_rows_drawn(key, tmp_path):
    """A training that goes back to step 2 has spent the rows up to step 6."""
    first = training(key)
    first.run(2)
    save(first, tmp_path / "checkpoint")
    first.run(4)
    again = training(ap.Key.load(tmp_path / "key"))
    load(again, tmp_path / "checkpoint")
    assert again.release.position == 2
    expected = again.engine.mechanism.epsilon_of_runs([6], 1e-5)
    assert again.engine.get_epsilon(1e-5, spent=True) == expected
    assert again.engine.statement(1e-5).released_epsilon == pytest.approx(expected)


def test_a_fork_of_a_checkpoint_is_refused(key, tmp_path):
    first = training(key)
    first.run(4)
    save(first, tmp_path / "checkpoint")
    first.run(2)
    before = first.release.drawn
    fork = training(key)
    load(fork, tmp_path / "checkpoint")
    with torch.no_grad():
        next(fork.model.parameters()).mul_(1.5)  # as with another learning rate
    weights = fork.weights()
    with pytest.raises(ReplayError, match="released before"):
        fork.run(1)
    assert torch.equal(weights, fork.weights())
    assert fork.release.drawn == before
    assert fork.release._stream.position == 4, "refused before its row was drawn"


def test_changed_data_are_refused(key, tmp_path):
    first = training(key, shuffle=False)
    save(first, tmp_path / "checkpoint")
    first.run(3)
    changed = data()
    changed.tensors[0][4] += 1
    other = training(key, shuffle=False, dataset=changed)
    load(other, tmp_path / "checkpoint")
    with pytest.raises(ReplayError, match="fresh_noise"):
        other.run(3)


def test_fresh_noise_is_a_second_release(key, tmp_path):
    first = training(key)
    first.run(4)
    save(first, tmp_path / "checkpoint")
    first.run(3)
    once = first.engine.get_epsilon(1e-5)
    second = training(key)
    load(second, tmp_path / "checkpoint", fresh_noise=True)
    with torch.no_grad():
        next(second.model.parameters()).mul_(1.5)
    second.run()
    assert second.engine.remaining_steps == 0
    both = second.engine.get_epsilon(1e-5)
    f = second.engine.mechanism.factorization
    ratio = 1 / np.sqrt(1 + (f.sensitivity_of(7) / f.sensitivity) ** 2)
    expected = ap.calibrate(f, noise_multiplier=ratio).epsilon(1e-5)
    assert once < both
    assert both == pytest.approx(expected, rel=1e-9)
    assert "given up" in str(second.engine.statement()).replace("\n", " ")
    assert second.engine.statement().epsilon == both
    save(second, tmp_path / "later")
    third = training(key)
    load(third, tmp_path / "later")
    assert third.engine.get_epsilon(1e-5) == both, "what was given up is not forgotten"


def test_every_run_with_fresh_noise_is_accounted_for(key, tmp_path):
    """Every run from a checkpoint is counted, whichever of them goes on."""
    first = training(key)
    first.run(4)
    save(first, tmp_path / "checkpoint")
    spent = []
    for _ in range(3):
        again = training(ap.Key.load(tmp_path / "key"))
        load(again, tmp_path / "checkpoint", fresh_noise=True)
        again.run(5)
        spent.append(again.engine.get_epsilon(1e-5))
        released = again.engine.statement().released_epsilon
        assert released == again.engine.get_epsilon(1e-5, spent=True) < spent[-1]
    assert again.release.replaced_runs().count(9) == 2
    assert sorted(again.release.replaced_runs()) == [4, 9, 9]
    back = training(ap.Key.load(tmp_path / "key"))
    load(back, tmp_path / "checkpoint")
    assert sorted(back.release.replaced_runs()) == [9, 9, 9]
    assert (
        first.engine.mechanism.epsilon(1e-5)
        < spent[0]
        < spent[1]
        < spent[2]
        < back.engine.get_epsilon(1e-5)
    )


def test_spent_epsilon_counts_rows_drawn_after_the_checkpoint(key, tmp_path):
    """Going back to step 3 of a run that drew 8 rows still counts 8."""
    first = training(key)
    first.run(3)
    at_checkpoint = first.engine.get_epsilon(1e-5, spent=True)
    save(first, tmp_path / "checkpoint")
    first.run(5)
    spent = first.engine.get_epsilon(1e-5, spent=True)
    assert at_checkpoint < spent
    again = training(ap.Key.load(tmp_path / "key"))
    load(again, tmp_path / "checkpoint")
    assert (again.release.position, again.release.drawn) == (3, 8)
    assert again.engine.get_epsilon(1e-5, spent=True) == spent
    assert again.engine.statement().released_epsilon == spent
    assert again.engine.statement().released_rows == 8


def test_a_resume_with_accumulation_begins_at_the_right_batch(key, tmp_path):
    def accumulated():
        return Training(
            key=key,
            run=None,
            dataset=data(36),
            batch_size=4,
            epochs=2,
            gradient_accumulation_steps=4,
            shuffle=False,
        )

    def step(t, batches):
        t.optimizer.zero_grad()
        for inputs, targets in batches:
            t.criterion(t.module(inputs), targets).backward()
        t.optimizer.step()

    first = accumulated()
    batches = list(first.loader)
    first.loader.batch_sampler._handed_over.clear()
    iterator = iter(first.loader)
    step(first, [next(iterator) for _ in range(4)])
    first.engine.save_checkpoint(
        path=tmp_path / "c", module=first.module, optimizer=first.optimizer
    )
    again = accumulated()
    again.engine.load_checkpoint(
        path=tmp_path / "c", module=again.module, optimizer=again.optimizer
    )
    rest = list(again.loader)
    assert len(rest) == 5
    assert torch.equal(rest[0][0], batches[4][0])


def test_two_runs_under_one_key_differ(key):
    a, b = training(key), training(key)
    a.run(1)
    b.run(1)
    assert a.release.run != b.release.run
    assert not (a.weights() == b.weights()).any()


def test_another_mechanism_or_number_of_processes_is_refused(key, tmp_path):
    first = training(key)
    first.run(2)
    save(first, tmp_path / "checkpoint")
    other = training(key, noise_multiplier=2.0)
    before = other.weights()
    with pytest.raises(StateError, match="same arguments"):
        load(other, tmp_path / "checkpoint")
    assert torch.equal(before, other.weights())
    foreign = ap.Key.generate()
    foreign.save(tmp_path / "foreign")
    for stranger in (ap.Key.insecure(5), foreign):
        target = training(stranger)
        before = target.weights()
        with pytest.raises(AntiphaseError, match="another key"):
            load(target, tmp_path / "checkpoint")
        assert torch.equal(before, target.weights())
        load(target, tmp_path / "checkpoint", fresh_noise=True)
        target.run()
        assert target.release.replaced_runs() == [15], "all of the other run may have been released"


def test_a_key_without_a_file_can_resume_in_its_own_process(tmp_path):
    key = ap.Key.generate()
    first = training(key)
    first.run(2)
    save(first, tmp_path / "checkpoint")
    first.run(2)
    fork = training(key)
    load(fork, tmp_path / "checkpoint")
    with torch.no_grad():
        next(fork.model.parameters()).mul_(1.5)
    with pytest.raises(ReplayError):
        fork.run(1)
    again = training(ap.Key.insecure(5))
    again.run(3)
    save(again, tmp_path / "insecure")
    again.run()
    later = training(ap.Key.insecure(5))  # as in another process
    load(later, tmp_path / "insecure")
    later.run()
    assert torch.equal(again.weights(), later.weights())


def test_a_damaged_checkpoint_changes_nothing(key, tmp_path):
    first = training(key)
    first.run(2)
    path = tmp_path / "checkpoint"
    save(first, path)
    data_, rng = bytearray(path.read_bytes()), np.random.default_rng(1)
    target = training(key)
    before = target.weights()
    for place in rng.choice(8 * len(data_), 1000, replace=False):
        data_[place // 8] ^= 1 << place % 8
        (tmp_path / "bad").write_bytes(data_)
        with pytest.raises(FileFormatError):
            load(target, tmp_path / "bad")
        data_[place // 8] ^= 1 << place % 8
    assert torch.equal(before, target.weights())

    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "pickled").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(FileFormatError):
        load(target, tmp_path / "pickled")
    assert not (tmp_path / "ran").exists()
    first.engine.mechanism.save(tmp_path / "m")
    with pytest.raises(FileFormatError, match="not a checkpoint"):
        load(target, tmp_path / "m")


def test_neither_key_nor_noise_is_in_a_checkpoint(key, tmp_path):
    first = training(key)
    first.run(3)
    save(first, tmp_path / "checkpoint")
    content = (tmp_path / "checkpoint").read_bytes()
    assert (tmp_path / "checkpoint").stat().st_mode & 0o777 == 0o600, "it says who took part"
    own = tmp_path / "own"
    torch.save(first.engine.state_dict(), own)
    secret = key._Key__secret
    for content in ((tmp_path / "checkpoint").read_bytes(), own.read_bytes()):
        assert secret not in content
        assert secret.hex().encode() not in content
    from antiphase.torch.noise_run import row_of

    for step in range(3):
        for array in row_of(first.release, step).values():
            assert array.tobytes()[:8] not in content


def test_optimizer_state_of_every_kind_survives(key, tmp_path):
    options = {"optimizer": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True), "scheduler": None}
    with pytest.warns(UserWarning, match="heuristic"):
        first = training(key, **options)
    first.run(4)
    save(first, tmp_path / "checkpoint")
    with pytest.warns(UserWarning, match="heuristic"):
        again = training(key, **options)
    load(again, tmp_path / "checkpoint")
    for a, b in zip(first.inner.state.values(), again.inner.state.values(), strict=True):
        for name in a:
            assert torch.equal(torch.as_tensor(a[name]), torch.as_tensor(b[name]))
    with pytest.raises(TypeError, match="noise_scheduler"):
        first.engine.save_checkpoint(
            path=tmp_path / "x", module=first.module, noise_scheduler=object()
        )


def test_only_numbers_that_json_does_not_have_are_kept_as_text():
    assert pack(1.5, {}) == 1.5
    assert pack(-math.inf, {}) == {"$": "float", "value": "-inf"}
