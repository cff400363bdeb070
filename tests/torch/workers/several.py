"""One process of several: python several.py FOLDER RANK WORLD JOBS NAME.

JOBS is a JSON list of [job, options]. The result of job number n is written to
FOLDER/NAME.n.RANK.pt.
"""

import json
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from antiphase import Workload, calibrate, design, epochs
from antiphase.noise.key import Key
from antiphase.torch import FixedOrderBatches, PrivacyEngine
from antiphase.torch.distributed import Group
from antiphase.torch.release import Release

RUN = "ab" * 16
SIZE, BATCH = 50, 16  # the last batch has 2 examples, so that two of 4 processes have none


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SIZE, 6, generator=generator)
    return TensorDataset(x, (x @ torch.randn(6, 3, generator=generator)).argmax(1))


def model():
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))


def noise(rank, world, folder):
    """Three rows of noise on sums of zero."""
    shapes = {"a": (40, 60), "b": (7,), "c": (3, 5, 2), "d": (1,)}
    mechanism = calibrate(
        design("dp-mf", workload=Workload.sgd(8), participation=epochs(2, 4)), noise_multiplier=1.0
    )
    release = Release(
        mechanism,
        Key.insecure(7),
        shapes,
        4.0,
        batches=None,
        ledger=None,
        group=Group.current(),
        max_batch_size=100,
    )
    release.begin(RUN)
    return [release([torch.zeros(shape) for shape in shapes.values()], 0) for _ in range(3)]


def wrapped(net, how, world):
    """The model for several processes; all but the first three layouts are refused."""
    if how == "dpddp":
        return DPDDP(net) if world > 1 else net
    if how == "ddp":
        return DDP(net)
    if how == "fsdp":
        with torch.no_grad():
            for p in net.parameters():
                dist.broadcast(p, 0)
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(net)
    mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("replicate", "shard"))
    ways = {
        "by columns": {"shard_placement_fn": lambda p: Shard(int(p.shape[-1] == 6))},
        "replicas": {"mesh": mesh},
        "each for itself": {"mesh": mesh["shard"]},
        "some left out": {"ignored_params": {net[0].bias}},
        "in part": {},
    }
    fully_shard(net[0] if how == "in part" else net, **ways[how])
    return net


def train(
    rank,
    world,
    folder,
    *,
    mode="hooks",
    clipping="flat",
    wrap="dpddp",
    key=None,
    run=RUN,
    noise_multiplier=0.5,
    epochs=3,
    save_at=(),
    stop_at=None,
    resume=False,
    infinite=(),
    sampler=None,
    keyless=False,
):
    """Weights, ε and batches; each process has another seed, and rank 0's order counts."""
    torch.manual_seed(100 + rank)
    net = wrapped(model(), wrap, world)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    torch.manual_seed(200 + rank)
    dataset = data()
    for index in infinite:
        dataset.tensors[0][index] = float("inf")
    if sampler == "fixed order":  # each process has the batches of all
        loader = DataLoader(dataset, batch_sampler=FixedOrderBatches(SIZE, BATCH))
    elif sampler == "padded":
        loader = DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset))
    else:
        loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    secret = None if keyless else Key.insecure(5) if key is None else Key.load(key)
    engine = PrivacyEngine(mechanism="dp-mf", key=secret)
    made = engine.make_private(
        module=net,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=noise_multiplier,
        clipping=clipping,
        max_grad_norm=[0.5] * 6 if clipping == "per_layer" else 1.0,
        epochs=epochs,
        grad_sample_mode=mode,
        criterion=nn.CrossEntropyLoss(),
        target_delta=1e-5,
    )
    net, optimizer, loader = made[0], made[1], made[-1]
    criterion = made[2] if len(made) == 4 else nn.CrossEntropyLoss()
    release = engine._training.release
    if resume:
        engine.load_checkpoint(path=folder / "checkpoint", module=net, optimizer=optimizer)
    elif run is not None:
        release.begin(run)
    seen, begun, drawn = [], release.position, release.drawn
    while engine.remaining_steps:
        for x, y in loader:
            seen.append(x)
            if stop_at == [rank, release.position]:
                (folder / "stopped").write_text("here")
                time.sleep(300)  # until the test kills this process
            optimizer.zero_grad()
            criterion(net(x), y).backward()
            optimizer.step()
            if release.position in (save_at[str(rank)] if isinstance(save_at, dict) else save_at):
                engine.save_checkpoint(path=folder / "checkpoint", module=net, optimizer=optimizer)
    weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
    return {
        "weights": [w.detach().clone() for w in weights],
        "begun": begun,
        "seen": seen,
        "run": release.run,
        "epsilon": engine.get_epsilon(1e-5),
        "spent": engine.get_epsilon(1e-5, spent=True),
        "drawn": drawn,
        "bad": optimizer.nonfinite_examples,
    }


def refused(rank, world, folder, *, options):
    """The error of `train`; of options that are lists, each process takes its own."""
    mine = {
        key: value[rank] if isinstance(value, list) else value for key, value in options.items()
    }
    try:
        train(rank, world, folder, run=None, **mine)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": None}


def main():
    folder, rank, world, jobs = (
        Path(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[3]),
        json.loads(sys.argv[4]),
    )
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if world > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meet.{sys.argv[5]}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=30),
        )
    for number, (job, options) in enumerate(jobs):
        result = globals()[job](rank, world, folder, **options)
        torch.save(result, folder / f"{sys.argv[5]}.{number}.{rank}.pt")
    if world > 1:
        dist.destroy_process_group()
        os._exit(0)  # gloo's threads sometimes abort a process that ends by itself


if __name__ == "__main__":
    main()
