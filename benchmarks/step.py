"""Time of a private step and of an epoch, beside Opacus' DP-SGD and a step without privacy."""

import math
import multiprocessing
import os
import statistics
import time
import warnings
from contextlib import ExitStack

import torch
from opacus import PrivacyEngine as Opacus
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.torch import PrivacyEngine
from benchmarks.question import Claim, Loss
from benchmarks.timing import format_ratio, format_seconds
from experiments.runner import Table

TITLE = "A private step, and an epoch"
OPTIMIZER_ASKED = 1.3
PLAIN_ASKED = {"large transformer, batch 32, ghost": 1.35}  # of the same step without privacy
EPOCH = 20  # batches
# Steps that are not counted: antiphase checks gradients in the first five, and all allocate memory.
WARM = 6
ROUNDS = 4  # of alternation; within one, a side takes its steps one after the other
# The process keeps freed memory, as CUDA's allocator, jemalloc and tcmalloc do. glibc returns large
# blocks at once, and page faults then dominate: in a virtual machine the time of a step varied by a
# factor of two.
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**36)}


def cnn():
    """The network of the paper's CIFAR-10 experiment: 550,570 parameters."""
    layers, channels = [], 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


class Transformer(nn.Module):
    """A word model with explicit attention, of layers that all ways of clipping support."""

    def __init__(self, words=1000, width=64, length=32, blocks=2):
        super().__init__()
        self.embedding, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, words):
        places = torch.arange(words.shape[1]).repeat(len(words), 1)
        x = self.embedding(words) + self.place(places)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class _Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.first, self.second = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.first(x)
        shape = (*y.shape[:2], self.heads, -1)
        q, k, v = (
            layer(y).view(shape).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(torch.relu(self.wide(self.second(x))))


def large_transformer():
    """Six blocks of width 256 on 256 tokens."""
    return Transformer(width=256, length=256, blocks=6)


def logistic():
    return nn.Linear(784, 10)


def _images(count):
    return torch.randn(count, 3, 32, 32)


def _pixels(count):
    return torch.randn(count, 784)


def _words(count):
    return torch.randint(0, 1000, (count, 32))


def _tokens(count):
    return torch.randint(0, 1000, (count, 256))


# {name: (model, inputs, batch size, clipping mode, repetitions, ratio asked or None)}
SETTINGS = {
    "cnn, batch 500, hooks": (cnn, _images, 500, "hooks", 5, 1.05),
    "cnn, batch 500, ghost": (cnn, _images, 500, "ghost", 9, 1.0),
    "cnn, batch 64, hooks": (cnn, _images, 64, "hooks", 20, None),
    "cnn, batch 64, ghost": (cnn, _images, 64, "ghost", 40, None),
    "transformer, batch 64, hooks": (Transformer, _words, 64, "hooks", 60, None),
    "transformer, batch 64, ghost": (Transformer, _words, 64, "ghost", 60, None),
    "large transformer, batch 32, ghost": (large_transformer, _tokens, 32, "ghost", 5, 0.85),
    "logistic, batch 500, hooks": (logistic, _pixels, 500, "hooks", 300, None),
    "logistic, batch 64, hooks": (logistic, _pixels, 64, "hooks", 900, 1.1),
    "logistic, batch 64, ghost": (logistic, _pixels, 64, "ghost", 300, None),
}


def _timed(optimizer, loss):
    """Seconds of a step, and of ``zero_grad()`` and ``step()`` of the optimizer.

    Opacus frees per-example gradients in the former, antiphase in the latter.
    """
    began = time.perf_counter()
    optimizer.zero_grad()
    cleared = time.perf_counter()
    loss().backward()
    backward = time.perf_counter()
    optimizer.step()
    end = time.perf_counter()
    return end - began, cleared - began + end - backward


class Private:
    """One engine in one setting; `step` returns the seconds of a step and of its optimizer."""

    def __init__(self, engine, make, inputs, batch, mode, batches=2, **options):
        torch.manual_seed(0)
        model = make()
        dataset = TensorDataset(inputs(batches * batch), torch.randint(0, 10, (batches * batch,)))
        made = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            data_loader=DataLoader(dataset, batch_size=batch),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
            **options,
        )
        self.module, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
        self.batches = self._endless()

    def _endless(self):
        while True:
            yield from self.loader

    def step(self):
        inputs, targets = next(self.batches)
        return _timed(self.optimizer, lambda: self.criterion(self.module(inputs), targets))

    def epoch(self):
        """Seconds of an epoch, including the data loader."""
        began = time.perf_counter()
        for _ in range(EPOCH):
            self.step()
        return time.perf_counter() - began


class Plain:
    """The same step without privacy."""

    def __init__(self, make, inputs, batch):
        torch.manual_seed(0)
        self.model = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.batch = inputs(batch), torch.randint(0, 10, (batch,))

    def step(self):
        return _timed(
            self.optimizer,
            lambda: nn.functional.cross_entropy(self.model(self.batch[0]), self.batch[1]),
        )


def side_of(who, name, batches=2):
    """A setting under "opacus", "antiphase" or "plain", and the buffers of our noise.

    Ours is planned for one participation in many steps, so that the mechanism is a stream;
    participation is not checked.
    """
    make, inputs, batch, mode, _, _ = SETTINGS[name]
    if who == "plain":
        return Plain(make, inputs, batch), 0
    if who == "opacus":
        return Private(Opacus(), make, inputs, batch, mode, batches), 0
    f = ap.design("dp-mf", steps=2048)
    options = {"steps": 2048, "participation": "trusted"}
    return Private(
        PrivacyEngine(mechanism=f), make, inputs, batch, mode, batches, **options
    ), f.buffers


class Side:
    """A side in its own process, which works on request only.

    In one process the sides would share an allocator, and reuse each other's memory.
    """

    def __init__(self, who, name, batches=2):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, who, name, batches), daemon=True
        )
        before = {variable: os.environ.get(variable) for variable in KEPT_MEMORY}
        os.environ.update(KEPT_MEMORY)  # read when the process starts
        self._process.start()
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value
        theirs.close()
        self.buffers = self._pipe.recv()

    def ask(self, method):
        self._pipe.send(method)
        return self._pipe.recv()

    def take(self, steps):
        """Seconds of consecutive steps."""
        return [self.ask("step") for _ in range(steps)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pipe.close()  # ends the process
        self._process.join()


def _serve(pipe, who, name, batches):
    warnings.simplefilter("ignore")  # of this process alone
    side, buffers = side_of(who, name, batches)
    pipe.send(buffers)
    while True:
        try:
            method = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(side, method)())


def stepped(name, quick=False):
    """Medians of steps and of their optimizers.

    Sides alternate by rounds, not by steps: the first step after a pause is slower, since the
    system has taken free pages back, and is not counted.
    """
    count = SETTINGS[name][4]
    per_round = math.ceil((max(ROUNDS, count // 3) if quick else count) / ROUNDS)
    with ExitStack() as stack:
        sides = {
            who: stack.enter_context(Side(who, name)) for who in ("opacus", "antiphase", "plain")
        }
        for side in sides.values():
            side.take(WARM)
        times = {who: [] for who in sides}
        for turn in range(ROUNDS):
            for who in list(sides)[:: -1 if turn % 2 else 1]:
                times[who] += sides[who].take(1 + per_round)[1:]
        buffers = sides["antiphase"].buffers
    median = {k: [statistics.median(t[i] for t in v) for i in (0, 1)] for k, v in times.items()}
    return {
        "what": name,
        "buffers": buffers,
        "opacus": median["opacus"][0],
        "antiphase": median["antiphase"][0],
        "plain": median["plain"][0],
        "ratio": median["antiphase"][0] / median["opacus"][0],
        "ratio_to_plain": median["antiphase"][0] / median["plain"][0],
        "optimizer_opacus": median["opacus"][1],
        "optimizer_antiphase": median["antiphase"][1],
        "optimizer_ratio": median["antiphase"][1] / median["opacus"][1],
        "asked": SETTINGS[name][5],
    }


def epoch_of(name, repetitions):
    """Medians of whole epochs in alternation, including data loader and ledger."""
    with Side("opacus", name, EPOCH) as theirs, Side("antiphase", name, EPOCH) as ours:
        theirs.ask("epoch"), ours.ask("epoch")
        times = [(theirs.ask("epoch"), ours.ask("epoch")) for _ in range(repetitions)]
    opacus, antiphase = (statistics.median(t[i] for t in times) for i in (0, 1))
    return {"what": name, "opacus": opacus, "antiphase": antiphase, "ratio": antiphase / opacus}


def measure(run):
    rows = []
    for name in SETTINGS:
        run.report(f"step: {name}")
        rows.append(stepped(name, quick=not run.full))
    run.report("epochs")
    names = ["logistic, batch 64, hooks", "transformer, batch 64, hooks"] + [
        "cnn, batch 64, ghost"
    ] * run.full
    return {
        "rows": rows,
        "epochs": [epoch_of(name, 9 if run.full else 3) for name in names],
        "batches": EPOCH,
    }


def tables(record):
    rows = [[*_times(row), format_ratio(row["optimizer_ratio"])] for row in record["rows"]]
    headings = ["", "Opacus, DP-SGD", "antiphase, DP-MF", "ratio"]
    return [
        Table("A step", [*headings, "the optimizer alone"], rows),
        Table(f"{record['batches']} batches", headings, [_times(row) for row in record["epochs"]]),
    ]


def _times(row):
    times = [format_seconds(row["opacus"]), format_seconds(row["antiphase"])]
    return [row["what"], *times, format_ratio(row["ratio"])]


def claims(record):
    claims = []
    for row in record["rows"]:
        if row["asked"] is not None:
            claims.append(_claim(f"a step, {row['what']}", row["ratio"], row["asked"]))
            what = f"the optimizer alone, {row['what']}"
            claims.append(_claim(what, row["optimizer_ratio"], OPTIMIZER_ASKED))
        if row["what"] in PLAIN_ASKED and "ratio_to_plain" in row:
            what = f"a step, {row['what']}, against one without privacy"
            claims.append(_claim(what, row["ratio_to_plain"], PLAIN_ASKED[row["what"]]))
    return claims


def _claim(what, ratio, asked):
    return Claim(what, f"{ratio:.3f} ×", f"≤ {asked} ×", ratio <= asked)


NOISE = (
    "correlated noise reads and writes its buffers, small groups are summed in float64, and "
    "settings, model and ledger are checked before every release"
)
PASSES = (
    "the optimizer alone is no slower; the difference lies in the forward and backward passes, "
    "which our recorder follows function by function, and which vary by a few percent between runs"
)
GHOST = "; norms are bounded with their rounding errors"
CONCURRENT = "; a long row of noise is computed during the passes, on the same cores"
FEW = "a median of few epochs, including the data loader, varies more than one of many steps"


def losses(record):
    """Steps, optimizers and epochs; a step may be slower with an optimizer that is not."""
    lost, slower = [], {row["what"] for row in record["rows"] if row["optimizer_ratio"] > 1}
    for row in record["rows"]:
        alone = row["what"] in slower
        if row["ratio"] > 1:
            why = NOISE if alone else _reason_in_passes(row["what"])
            lost.append(Loss(_against("a step", row), why))
        if alone:
            taken = {"opacus": row["optimizer_opacus"], "antiphase": row["optimizer_antiphase"]}
            lost.append(Loss(_against("the optimizer alone", row | taken), NOISE))
    for row in record["epochs"]:
        if row["ratio"] > 1:
            why = f"{NOISE}; {FEW}" if row["what"] in slower else FEW
            lost.append(Loss(_against("an epoch", row), why))
    return lost


def _against(kind, row):
    opacus, antiphase = format_seconds(row["opacus"]), format_seconds(row["antiphase"])
    return f"{kind}, {row['what']}: Opacus {opacus}, ours {antiphase}"


def _reason_in_passes(what):
    has_long_rows = not what.startswith("logistic")
    return PASSES + GHOST * what.endswith("ghost") + CONCURRENT * has_long_rows


def notes(record):
    buffers = record["rows"][0]["buffers"]
    return [
        "Opacus 1.6's DP-SGD with independent noise beside correlated noise of the same norm from "
        f"{buffers} buffers. Our noise is drawn from a secret key; Opacus' default generator is "
        "not secure. Each side is a process that keeps freed memory (as jemalloc does); the sides "
        "alternate; medians. The optimizer alone is `zero_grad()` and `step()`. SGD with momentum "
        "0.9; the transformer has 2 blocks of width 64 on 32 words.",
        "Ledger and noise stream weigh more for smaller models: their cost does not depend on how "
        "gradients are computed.",
    ]


def draw(record, folder):
    return []
