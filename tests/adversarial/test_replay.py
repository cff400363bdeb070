"""Record and replay: with the same released rows, training on a neighbour is identical.

Then only the released rows depend on the data, and their queries have the declared sensitivity.
One test covers most of what can go wrong in between.
"""

import json
import logging
import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import antiphase as ap
from tests.torch.setting import Training, data

CLIP, EPOCHS, EVERY = 0.5, 3, 5
KINDS = {
    "zeroed": 1,
    "nan": 1,
    "replaced": 2,
    "huge": 2,
}  # how far the query may move, in sensitivities
FACTORIZATION = ap.design("dp-mf", workload=ap.Workload.sgd(15, momentum=0.9), epochs=EPOCHS)
MECHANISM = ap.calibrate(FACTORIZATION, noise_multiplier=1.0, clip_norm=CLIP, delta=1e-5)


class Weighted(nn.Module):
    """Logits times the first input, which is 1; an example in which it is 0 has no gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 2))

    def forward(self, x):
        return self.net(x[:, 1:]) * x[:, :1]


def weighted(dataset):
    X, y = dataset.tensors
    return TensorDataset(torch.cat([torch.ones(len(X), 1), X], dim=1), y)


def neighbours(dataset, count):
    """The dataset with one example zeroed, replaced, NaN or huge, at the same position."""
    rng = np.random.default_rng(18)
    for i in range(count):
        X, y = (t.clone() for t in dataset.tensors)
        which, kind = int(rng.integers(len(X))), list(KINDS)[i % len(KINDS)]
        if kind == "zeroed":
            X[which, 0] = 0
        elif kind == "nan":
            X[which, int(rng.integers(6))] = float("nan")
        elif kind == "replaced":
            X[which], y[which] = torch.from_numpy(rng.normal(size=6) * 3), 1 - y[which]
        else:
            X[which] *= 10.0 ** int(rng.integers(6, 38))
        yield kind, TensorDataset(X, y)


class Watched:
    """Replaces a release: records queries and released rows, and can release given rows."""

    def __init__(self, release, forced):
        self.release, self.forced = release, forced
        self.group, self.prepare = release.group, release.prepare
        self.max_batch_size = release.max_batch_size
        self.queries, self.out, self.shapes = [], [], []

    def __call__(self, sums, examples):
        self.queries.append(torch.cat([s.detach().flatten().double() for s in sums]).numpy())
        self.shapes.append(
            (examples, [(tuple(s.shape), str(s.dtype)) for s in sums], self.release.divisor)
        )
        made = self.release(sums, examples)
        self.out.append([t.clone() for t in made])
        return made if self.forced is None else [t.clone() for t in self.forced[len(self.out) - 1]]


def recorded(dataset, mode, folder, forced=None):
    """The queries, the released rows, and everything observable of a training, with files."""
    training = Training(
        MECHANISM,
        dataset=dataset,
        model=Weighted(),
        mode=mode,
        max_grad_norm=CLIP,
        noise_multiplier=None,
        run="ef" * 16,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 15),
    )
    release = training.release
    watched = training.optimizer.release = Watched(release, forced)
    torch.manual_seed(5)
    training.run()
    training.optimizer.release = release
    engine = training.engine
    engine.save_checkpoint(
        path=folder / "checkpoint",
        module=training.module,
        optimizer=training.optimizer,
        scheduler=training.scheduler,
    )
    engine.mechanism.save(folder / "mechanism")
    statement = engine.statement()
    seen = {
        "shapes": watched.shapes,
        "scale": engine.mechanism.noise_scale,
        "words": str(statement),
        "epsilon": [engine.get_epsilon(1e-5), engine.get_epsilon(1e-5, spent=True)],
        "steps": [
            engine.remaining_steps,
            engine.completed_epochs,
            release.drawn,
            len(engine.accountant),
        ],
        "weights": training.weights().tolist(),
        "generator": torch.get_rng_state().tolist(),
        "statement": statement.to_json(),
        "files": {
            name: parsed((folder / name).read_bytes()) for name in ("checkpoint", "mechanism")
        },
    }
    return np.array(watched.queries), watched.out, seen


def parsed(content):
    """A safetensors file as a dict: its header may be in any order."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def compare(mode, count, folder, caplog, capsys):
    """The largest distance / sensitivity for each kind of neighbour: (of a step, of the run)."""
    caplog.set_level(logging.DEBUG)
    dataset, C = weighted(data(seed=3)), FACTORIZATION.encoder()

    def told(dataset, forced=None):
        caplog.clear()
        capsys.readouterr()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            queries, out, seen = recorded(dataset, mode, folder, forced)
        # Without warnings about files of other tests, which come with garbage collection.
        warned_of = [str(w.message) for w in warned if w.category is not ResourceWarning]
        # Without durations, which differ between any two runs.
        logs = re.sub(r"\b[\d.e+-]+ s\b", "# s", caplog.text)
        return queries, out, seen | {
            "logs": logs, "printed": capsys.readouterr(), "warnings": warned_of,
        }  # fmt: skip

    told(dataset)  # warnings that are issued once per process have been issued
    queries, out, seen = told(dataset)
    worst = {kind: (0.0, 0.0) for kind in KINDS}
    for kind, other in neighbours(dataset, count):
        found, _, also = told(other, out)
        for what, value in seen.items():
            assert also[what] == value, f"{kind}: {what} depends on the data"
        apart = found - queries
        a_step = float(np.linalg.norm(apart, axis=1).max()) / CLIP
        in_all = float(np.linalg.norm(C @ apart)) / (CLIP * MECHANISM.sensitivity)
        assert a_step > 0, "the neighbour is another dataset"
        worst[kind] = max(worst[kind][0], a_step), max(worst[kind][1], in_all)
    for kind, most in KINDS.items():
        assert max(worst[kind]) <= most * (1 + 1e-5), f"{kind}: {worst[kind]} sensitivities apart"
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_few_neighbours(mode, tmp_path, caplog, capsys):
    compare(mode, 4, tmp_path, caplog, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_fifty_neighbours(mode, tmp_path, caplog, capsys, shown):
    """Steps, shapes, logs, generators and files are identical.

    The query moves by at most the declared sensitivity, in each step and over the run.
    """
    worst = compare(mode, 50, tmp_path, caplog, capsys)
    shown(
        f"50 neighbours, {mode}, distance over sensitivity, of a step and in all",
        json.dumps({k: [round(v, 4) for v in pair] for k, pair in worst.items()}),
        "at most 1; 2 for replaced and huge; all else identical",
    )
