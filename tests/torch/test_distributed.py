"""Several processes have the noise and the weights of one, and stop together."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from opacus.grad_sample import GradSampleModule
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import antiphase as ap
from antiphase.errors import StateError
from antiphase.noise.stream import NoiseStream
from antiphase.torch.batch_selection import FixedOrderBatches
from antiphase.torch.distributed import Group
from antiphase.torch.recorded_loader import fixed_order_loader
from antiphase.torch.sharding import ShardedNoise, rows_of
from tests.forked_script import Script
from tests.torch.setting import Training, data

ROOT = Path(__file__).parents[2]
RUN = "ab" * 16
SECONDS = 150  # the time limit of each process


class Processes:
    """``world`` processes that run ``jobs`` one by one; see workers/several.py."""

    def __init__(self, folder, world, jobs, name):
        self.folder, self.world, self.name, self.jobs = folder, world, name, len(jobs)
        worker = Path(__file__).parent / "workers" / "several.py"
        self.all = [
            Script(
                worker,
                folder,
                rank,
                world,
                json.dumps(jobs),
                name,
                env={"ANTIPHASE_CACHE": "off"},
                together=True,
            )
            for rank in range(world)
        ]
        self.until = time.monotonic() + SECONDS

    def wait(self):
        """Exit codes and output; processes that are late are killed."""
        try:
            codes = [process.wait(max(1, self.until - time.monotonic())) for process in self.all]
        finally:
            for process in self.all:
                process.kill()  # no effect if it has ended
                process.wait(30)
        return codes, [process.out for process in self.all]

    def results(self):
        """What each job returned on each rank."""
        codes, printed = self.wait()
        assert codes == [0] * self.world, "\n".join(printed)[-3000:]
        found = []
        for number in range(self.jobs):
            files = [self.folder / f"{self.name}.{number}.{rank}.pt" for rank in range(self.world)]
            found.append([torch.load(file, weights_only=True) for file in files])
        return found


GHOST, LAYERS = {"mode": "ghost"}, {"clipping": "per_layer"}
INFINITE = {"mode": "ghost", "infinite": [3, 9]}
FSDP = {"mode": "ghost_fsdp", "wrap": "fsdp"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The results of one process: rows of noise, then trainings."""
    jobs = [["noise", {}], *(["train", options] for options in ({}, GHOST, LAYERS, INFINITE))]
    noise, *trained = Processes(tmp_path_factory.mktemp("alone"), 1, jobs, "alone").results()
    return noise[0], dict(
        zip(("hooks", "ghost", "layers", "infinite"), (t[0] for t in trained), strict=True)
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    jobs = [
        ["noise", {}],
        ["train", {}],
        ["train", GHOST],
        ["train", LAYERS],
        ["train", INFINITE],
        ["train", {"sampler": "fixed order"}],
    ]
    return Processes(tmp_path_factory.mktemp("two"), 2, jobs, "two").results()


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    jobs = [["noise", {}], ["train", {}], ["train", GHOST], ["train", FSDP]]
    return Processes(tmp_path_factory.mktemp("four"), 4, jobs, "four").results()


def apart(left, right):
    return max(
        float((a - b).abs().max()) for a, b in zip(left["weights"], right["weights"], strict=True)
    )


def same(tensors, others):
    return all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("several", ["two", "four"])
def test_the_noise_of_all_processes_is_that_of_one_bit_for_bit(several, alone, request, shown):
    rows = request.getfixturevalue(several)[0]
    unlike = sum(
        int((a != b).sum())
        for of_rank in rows
        for row, one in zip(of_rank, alone[0], strict=True)
        for a, b in zip(row, one, strict=True)
    )
    numbers = sum(t.numel() for row in alone[0] for t in row)
    assert all(float(t.abs().sum()) > 0 for row in alone[0] for t in row)
    shown(f"noise of {several} processes, {numbers} numbers, unlike one process's", unlike, 0)
    assert unlike == 0


@pytest.mark.slow
@pytest.mark.parametrize("several", ["two", "four"])
def test_several_processes_train_what_one_trains(several, alone, request, shown):
    trained = request.getfixturevalue(several)[1:]
    kinds = ["hooks", "ghost", "layers", "infinite"][: 4 if several == "two" else 2]
    for kind, of_ranks in zip(kinds, trained, strict=False):
        assert all(same(of_ranks[0]["weights"], other["weights"]) for other in of_ranks)
        assert {r["epsilon"] for r in of_ranks} == {alone[1][kind]["epsilon"]}
        distance = apart(of_ranks[0], alone[1][kind])
        shown(
            f"{kind}: weights of {several} processes from one process's",
            f"{distance:.1e}",
            "1e-5, ranks equal",
        )
        assert distance < 1e-5
    if several == "two":
        assert [r["bad"] for r in trained[3]] != [0, 0]
        assert sum(r["bad"] for r in trained[3]) == alone[1]["infinite"]["bad"] == 6


@pytest.mark.slow
def test_each_example_is_with_one_process_once_even_if_some_have_none(alone, two, four):
    for of_ranks in (two[1], two[5], four[1]):
        for step, parts in enumerate(zip(*(r["seen"] for r in of_ranks), strict=True)):
            together = sorted(map(tuple, torch.cat(parts).tolist()))
            assert len(set(together)) == len(together) == (2 if step % 4 == 3 else 16)
            if of_ranks is not two[5]:  # its order is drawn in another way
                assert together == sorted(map(tuple, alone[1]["hooks"]["seen"][step].tolist()))
        epoch = torch.cat([x for r in of_ranks for x in r["seen"][:4]])
        assert len(epoch.unique(dim=0)) == len(epoch) == 50
    assert [len(r["seen"][3]) for r in four[1]] == [1, 1, 0, 0]


@pytest.mark.slow
def test_processes_that_disagree_all_refuse_before_anything_is_drawn(tmp_path, shown):
    keys = [tmp_path / "first.key", tmp_path / "second.key"]
    for path in keys:
        ap.Key.generate().save(path)
    first = str(keys[0])
    cases = {
        "disagree on the mechanism": {"noise_multiplier": [0.5, 0.6], "key": first},
        "disagree on the key": {"key": [str(path) for path in keys]},
        "disagree on the key: [None": {"keyless": [True, False], "key": first},
        "several processes need the same key": {"keyless": True},
        "each batch is divided among them": {"sampler": "padded", "key": first},
        "Wrap the model in opacus.distributed.DifferentiallyPrivate": {"wrap": "ddp", "key": first},
        "DifferentiallyPrivateDistributedDataParallel instead": {
            "wrap": "ddp",
            "mode": "ghost",
            "key": first,
        },
        'Use grad_sample_mode="ghost_fsdp"': {"wrap": "fsdp", "mode": "ghost", "key": first},
    }
    jobs = [["refused", {"options": options}] for options in cases.values()]
    # As if rank 1 had stopped before it saved step 5: the checkpoints do not fit.
    third = tmp_path / "third.key"
    ap.Key.generate().save(third)
    jobs.append(["train", {"key": str(third), "run": None, "save_at": {"0": [2, 5], "1": [2]}}])
    jobs.append(["refused", {"options": {"key": str(third), "resume": True}}])
    *results, _, mixed = Processes(tmp_path, 2, jobs, "refused").results()
    for message, errors in zip(cases, results, strict=True):
        for error in errors:
            assert message in error["error"]
    for error in mixed:
        assert re.search(
            "disagree on the checkpoint: .*step 5.*step 2.*Nothing was drawn", error["error"]
        )
    for error in (*results[0], *results[1]):
        assert error["error"].startswith("StateError: the processes disagree on the ")
        assert error["error"].endswith(
            "Nothing was drawn. Start all of them with the same arguments"
        )
    runs = [len(ap.Key.load(path).runs()) for path in keys]
    shown("runs begun by processes that disagree on mechanism or key", runs, [0, 0])
    assert runs == [0, 0]
    assert not [path for path in tmp_path.glob("*.ledger") if not path.name.startswith("third.key")]


@pytest.mark.slow
def test_shards_without_one_owner_for_each_row_are_refused(tmp_path):
    """Columns, replicas and other layouts are refused by each process, before a draw."""
    key = tmp_path / "run.key"
    ap.Key.generate().save(key)
    rows = "every trained tensor must be divided along its first dimension"
    cases = dict.fromkeys(("by columns", "replicas", "each for itself", "some left out"), rows)
    cases["in part"] = "is for models of torch's fully_shard"
    jobs = [
        ["refused", {"options": {"wrap": wrap, "mode": "ghost_fsdp", "key": str(key)}}]
        for wrap in cases
    ]
    jobs.append(["refused", {"options": {"wrap": "in part", "mode": "ghost", "key": str(key)}}])
    *results, part = Processes(tmp_path, 2, jobs, "layouts").results()
    for (wrap, message), errors in zip(cases.items(), results, strict=True):
        for error in errors:
            assert message in error["error"], wrap
    assert all("call fully_shard(module) too" in error["error"] for error in part)
    assert ap.Key.load(key).runs() == []


@pytest.mark.slow
def test_after_a_process_is_killed_all_stop_and_resume_to_the_same_weights(tmp_path, shown):
    key = tmp_path / "run.key"
    ap.Key.generate().save(key)
    training = {"key": str(key), "run": None, "save_at": [2, 5]}
    crashed = Processes(tmp_path, 2, [["train", training | {"stop_at": [1, 6]}]], "crashed")
    while not (tmp_path / "stopped").exists():  # rank 1 is before step 6, and rank 0 waits for it
        assert time.monotonic() < crashed.until, crashed.wait()
        assert all(process.poll() is None for process in crashed.all), crashed.wait()
        time.sleep(0.1)
    time.sleep(1)
    crashed.all[1].kill()
    begun = time.monotonic()
    (code, killed), (printed, _) = crashed.wait()
    waited = time.monotonic() - begun
    assert code == 1
    assert killed == -9
    assert "process 0 of 2 lost another one, and none can go on alone" in printed
    shown("the other process stops after one is killed", f"{waited:.1f} s", "30 s (gloo's timeout)")
    assert waited < 30
    # The same run without the kill: the same key and run id, with its own ledgers.
    (run,) = [record["run"] for record in ap.Key.load(key).runs()]
    copy = tmp_path / "copy.key"
    shutil.copy(key, copy)
    for rank in range(2):
        (tmp_path / f"copy.key.{run}.{rank}.ledger").touch(mode=0o600)
    jobs = [["train", training | {"resume": True}], ["train", {"key": str(copy), "run": run}]]
    resumed, whole = Processes(tmp_path, 2, jobs, "resumed").results()
    for r in resumed:
        assert r["begun"] == 5
        assert r["drawn"] == 7  # rank 0 had recorded step 6 when rank 1 was killed; both count it
        assert r["run"] == run
    unlike = sum(not same(r["weights"], whole[0]["weights"]) for r in (*resumed, *whole))
    shown("ranks whose weights after kill and resume are unlike an uninterrupted run's", unlike, 0)
    assert unlike == 0
    epsilons = {r[which] for r in (*resumed, *whole) for which in ("epsilon", "spent")}
    shown("ε of the resumed and of the uninterrupted run", epsilons, "one number")
    assert len(epsilons) == 1


@pytest.mark.slow
def test_sharded_models_train_what_one_process_trains_and_resume(tmp_path, alone, four, shown):
    key = tmp_path / "run.key"
    ap.Key.generate().save(key)
    kept = FSDP | {"key": str(key), "run": None}
    jobs = [
        ["train", FSDP],
        ["train", FSDP | {"infinite": [3, 9]}],
        ["train", kept | {"save_at": [5]}],
        ["train", kept | {"resume": True}],
    ]
    plain, infinite, whole, resumed = Processes(tmp_path, 2, jobs, "fsdp").results()
    for kind, of_ranks, as_one in (
        ("2", plain, "ghost"),
        ("4", four[3], "ghost"),
        ("2, some not finite", infinite, "infinite"),
    ):
        assert all(same(of_ranks[0]["weights"], other["weights"]) for other in of_ranks)
        distance = apart(of_ranks[0], alone[1][as_one])
        shown(f"fully_shard over {kind}: weights from one process's", f"{distance:.1e}", 1e-5)
        assert distance < 1e-5
        assert sum(r["bad"] for r in of_ranks) == alone[1][as_one]["bad"]
    assert [r["begun"] for r in resumed] == [5, 5]
    assert same(whole[0]["weights"], resumed[0]["weights"])


MECHANISMS = {
    "dp-mf": {},
    "dp-mf, drawn again": {"memory": 200_000},
    "tree": {},
    "fourier": {},
    "dp-sgd": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("world", [2, 4])
def test_shards_of_noise_are_together_the_noise_of_one_process(name, world):
    steps = (
        72 if "drawn again" in name else 8
    )  # beyond 64 diagonals normals are drawn again in little memory
    participation = ap.epochs(2, steps // 2)
    factorization = ap.design(
        name.split(",")[0], workload=ap.Workload.sgd(steps), participation=participation
    )
    mechanism = ap.calibrate(factorization, noise_multiplier=1.0)
    key, memory = ap.Key.insecure(3), MECHANISMS[name].get("memory", "2GB")
    shapes = {"wide": (9, 700), "deep": (2500,), "small": (3, 2), "one": (1,)}
    one = NoiseStream(mechanism, key=key, run=RUN, shapes=shapes, memory=memory)
    even = [{n: rows_of(s[0], rank, world) for n, s in shapes.items()} for rank in range(world)]
    cuts = {}
    for n, s in shapes.items():
        inner = np.random.default_rng(len(n)).integers(0, s[0] + 1, world - 1).tolist()
        cuts[n] = [0, *sorted(inner), s[0]]
    uneven = [{n: (c[rank], c[rank + 1]) for n, c in cuts.items()} for rank in range(world)]
    shards = [
        [
            ShardedNoise(mechanism, key=key, run=RUN, shapes=shapes, rows=rows, memory=memory)
            for rows in division
        ]
        for division in (even, uneven)
    ]
    for step in range(steps):
        whole = one.next()
        for division in shards:
            if step == 2:
                for shard in division:
                    shard.skip(1)
                continue
            parts = [shard.next() for shard in division]
            for n in shapes:
                np.testing.assert_array_equal(np.concatenate([part[n] for part in parts]), whole[n])
    owners = [
        Group(rank, world).noise(mechanism, key, RUN, shapes, memory) for rank in range(world)
    ]
    last = [stream for stream in owners if stream is not None]
    for stream in last:
        stream.skip(steps - 1)
    made = {n: row for stream in last for n, row in stream.next().items()}
    for n in shapes:
        np.testing.assert_array_equal(made[n], whole[n])


def test_shards_that_reach_past_the_tensor_are_refused():
    mechanism = ap.calibrate(ap.design("dp-sgd", workload=ap.Workload.sgd(2)), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="the tensor has 3 rows"):
        ShardedNoise(
            mechanism, key=ap.Key.insecure(1), run=RUN, shapes={"a": (3, 2)}, rows={"a": (2, 4)}
        )


@pytest.mark.parametrize("world", [1, 2, 3, 4, 7])
def test_every_tensor_has_one_owner(world):
    shapes = {f"layer{i}": (2 ** (i % 5), 3 + i) for i in range(11)}
    owned = [Group(rank, world).owned(shapes) for rank in range(world)]
    assert sorted(name for share in owned for name in share) == sorted(shapes)
    loads = [sum(map(math.prod, share.values())) for share in owned]
    assert max(loads) <= sum(loads) / world + max(map(math.prod, shapes.values()))


def test_too_little_memory_is_refused_by_every_process():
    """If only one refused, the others would wait for it."""
    factorization = ap.design("dp-mf", workload=ap.Workload.sgd(8), participation=ap.epochs(2, 4))
    mechanism, key = ap.calibrate(factorization, noise_multiplier=1.0), ap.Key.insecure(3)
    shapes = {"a": (3000,), "b": (10,)}
    needed = 4 * (3072 + 1024) * 7
    for world in (1, 2):
        for rank in range(world):
            assert Group(rank, world).noise(mechanism, key, RUN, shapes, needed) is not None
            assert (
                Group(rank, world, sharded=True).noise(mechanism, key, RUN, shapes, needed)
                is not None
            )
            for sharded in (False, True):
                with pytest.raises(ValueError, match="an encoder of 8 diagonals takes"):
                    Group(rank, world, sharded).noise(mechanism, key, RUN, shapes, needed - 1)


def test_modes_that_do_not_fit_the_model_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="is for models of torch's fully_shard"):
        Group.of(nn.Linear(2, 2), "ghost_fsdp")
    monkeypatch.setattr(Group, "current", classmethod(lambda cls: cls(1, 2)))
    with pytest.warns(UserWarning, match="this one trains alone"):
        assert Group.of(nn.Linear(2, 2), "hooks") == Group()


@pytest.fixture
def pretended():
    """This process is the first of two for torch; the other does not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "wrap", [DDP, lambda module: GradSampleModule(DDP(module))], ids=["bare", "inside"]
)
def test_models_that_sum_gradients_in_the_backward_pass_are_refused(pretended, wrap):
    with pytest.raises(ValueError, match="before they are clipped"):
        Group.of(wrap(nn.Linear(2, 2)), "hooks")


@pytest.mark.parametrize("how", ["by columns", "replicas", "each for itself"])
def test_a_row_with_two_owners_is_refused(pretended, how):
    """With one row the number of rows is right, however the tensor is divided."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    ways = {"by columns": {"shard_placement_fn": lambda _: Shard(1)}, "replicas": {"mesh": mesh}}
    net = fully_shard(nn.Linear(4, 1, bias=False), **ways.get(how, {"mesh": mesh["shard"]}))
    with pytest.raises(
        ValueError, match="must be divided along its first dimension among all processes"
    ):
        Group.of(net, "ghost_fsdp")


def test_disagreement_of_one_process_of_three_is_noticed(monkeypatch):
    def gathered(values, value):
        values[:] = [value, "another", value]

    monkeypatch.setattr(dist, "all_gather_object", gathered)
    with pytest.raises(StateError, match="the processes disagree on the key"):
        Group(0, 3).require_same("key", "mine")


@pytest.mark.issue(21)
def test_sums_of_processes_are_added_up_in_float64(monkeypatch):
    """In float32, ±1e8 of two processes would cancel the digits of the third."""

    def all_reduce(part):
        part.add_(1e8)
        part.sub_(1e8)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    own = torch.tensor([0.1, 0.2, 0.3])
    (found,) = Group(0, 3).summed([own.clone()], [own])
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, own, atol=1e-7, rtol=0)


def test_parts_of_a_batch_are_those_of_rank_0s_order(monkeypatch):
    first = FixedOrderBatches(60, 12, world=2)
    monkeypatch.setattr(
        dist, "broadcast_object_list", lambda box, src: box.__setitem__(0, first.order)
    )
    monkeypatch.setattr(Group, "require_same", lambda *_: None)
    loader = fixed_order_loader(DataLoader(data(), batch_size=12, shuffle=True))
    Group(1, 2).share(loader)
    for i, parts in enumerate(zip(first, loader.batch_sampler.sampler, strict=True)):
        assert sorted(index for part in parts for index in part) == sorted(
            first.order[12 * i : 12 * i + 12]
        )


def test_all_processes_must_resume_the_same_step_with_their_own_checkpoints(
    monkeypatch,
):
    said = []

    def gathered(values, value):
        said.append(value)
        values[:] = [said[0], value]

    monkeypatch.setattr(dist, "all_gather_object", gathered)
    monkeypatch.setattr(Group, "largest", lambda _, value: value)
    trainings = [Training(), Training()]
    state = trainings[0].release.state() | {"world": 2}
    for rank, training in enumerate(trainings):
        training.release.group = Group(rank, 2)
        training.release.restore(state | {"rank": rank})
    for other in ({"run": "cd" * 16}, {"position": 1}, {"rank": 0}):
        with pytest.raises(StateError, match="the processes disagree on the checkpoint"):
            trainings[1].release.restore(state | {"rank": 1} | other)


@pytest.mark.slow
def test_the_torchrun_example_trains(tmp_path, shown):
    command = [
        Path(sys.executable).parent / "torchrun",
        "--standalone",
        "--nproc-per-node",
        "2",
        ROOT / "examples" / "torchrun.py",
        "--key",
        tmp_path / "digits.key",
        "--epochs",
        "10",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ANTIPHASE_CACHE": "off"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("accuracy") == 1  # of rank 0 alone
    accuracy = float(re.search(r"accuracy ([\d.]+)", done.stdout)[1])
    epsilon = float(re.search(r"ε = ([\d.]+)", done.stdout)[1])
    shown(
        "examples/torchrun.py, two processes",
        f"accuracy {accuracy}, ε = {epsilon}",
        "accuracy above 0.8, ε = 8",
    )
    assert accuracy > 0.8
    assert epsilon == pytest.approx(8, abs=0.001)
