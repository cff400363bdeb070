"""What does a private step cost, and an epoch, against Opacus' DP-SGD and against no privacy? Sides take turns."""

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
from benchmarks.asking import Claim, Loss
from benchmarks.timing import in_words, ratio_in_words
from experiments.runner import Table

warnings.filterwarnings("ignore")

TITLE = "A private step, and an epoch"
OPTIMIZER_ASKED = 1.3
PLAIN_ASKED = {"large transformer, batch 32, ghost": 1.35}  # of the same step without privacy
EPOCH = 20  # batches
WARM = 6  # steps before the first that counts: ours compares values in the first five, and memory is new to all
ROUNDS = 4  # in which each side takes its steps one after the other
# Freed memory is kept by the process, as CUDA's allocator, jemalloc and tcmalloc do. glibc gives large blocks back at
# once, and then page faults decide: in a virtual machine the time of one step varied by a factor of two.
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
    """A word model of layers that all three ways of clipping know: attention written out."""

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


# name: model, inputs, batch size, how gradients are clipped, repetitions, the ratio asked (or none)
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
    """Seconds of a whole step, and of the optimizer alone: ``zero_grad()`` and ``step()``.

    Both count, since Opacus frees the gradients of examples in the one and antiphase in the other.
    """
    began = time.perf_counter()
    optimizer.zero_grad()
    cleared = time.perf_counter()
    loss().backward()
    middle = time.perf_counter()
    optimizer.step()
    end = time.perf_counter()
    return end - began, cleared - began + end - middle


class Private:
    """One engine on one setting; `step` gives the seconds of a whole step, and of the optimizer alone."""

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
        """The loader's own work included."""
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
    """A setting under "opacus", "antiphase" or "plain"; and the buffers of our noise.

    Ours has one participation of a long plan, so that the mechanism is a stream; the benchmark vouches for the batches.
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
    """A side in a process of its own, which works only when it is asked to.

    In one process the sides would share the allocator: what one has freed, the other is given without page faults.
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
        """Seconds of some steps one after the other."""
        return [self.ask("step") for _ in range(steps)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._pipe.close()  # which ends the process
        self._process.join()


def _serve(pipe, who, name, batches):
    side, buffers = side_of(who, name, batches)
    pipe.send(buffers)
    while True:
        try:
            method = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(side, method)())


def stepped(name, quick=False):
    """Medians of whole steps, and of the optimizer alone.

    Sides take turns by rounds, not by steps: the first step after a pause is slower, since the system has taken free
    pages back, and is not counted.
    """
    count = SETTINGS[name][4]
    each = math.ceil((max(ROUNDS, count // 3) if quick else count) / ROUNDS)
    with ExitStack() as stack:
        sides = {
            who: stack.enter_context(Side(who, name)) for who in ("opacus", "antiphase", "plain")
        }
        for side in sides.values():
            side.take(WARM)
        times = {who: [] for who in sides}
        for turn in range(ROUNDS):
            for who in list(sides)[:: -1 if turn % 2 else 1]:
                times[who] += sides[who].take(1 + each)[1:]
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
    """Whole epochs in turn, the loaders' work and the ledger's included."""
    with Side("opacus", name, EPOCH) as theirs, Side("antiphase", name, EPOCH) as ours:
        theirs.ask("epoch"), ours.ask("epoch")
        times = [(theirs.ask("epoch"), ours.ask("epoch")) for _ in range(repetitions)]
    opacus, antiphase = (statistics.median(t[i] for t in times) for i in (0, 1))
    return {"what": name, "opacus": opacus, "antiphase": antiphase, "ratio": antiphase / opacus}


def measure(run):
    rows = []
    for name in SETTINGS:
        run.say(f"step: {name}")
        rows.append(stepped(name, quick=not run.full))
    run.say("epochs")
    names = ["logistic, batch 64, hooks", "transformer, batch 64, hooks"] + [
        "cnn, batch 64, ghost"
    ] * run.full
    return {
        "rows": rows,
        "epochs": [epoch_of(name, 9 if run.full else 3) for name in names],
        "batches": EPOCH,
    }


# ---- what is shown -----------------------------------------------------------------------------------------


def tables(record):
    rows = [
        [row["what"], in_words(row["opacus"]), f"{in_words(row['antiphase'])}", ratio_in_words(row["ratio"]),
         ratio_in_words(row["optimizer_ratio"])]
        for row in record["rows"]
    ]  # fmt: skip
    epochs = [
        [
            row["what"],
            in_words(row["opacus"]),
            in_words(row["antiphase"]),
            ratio_in_words(row["ratio"]),
        ]
        for row in record["epochs"]
    ]
    return [
        Table(
            "A step",
            ["", "Opacus, DP-SGD", "antiphase, DP-MF", "ratio", "the optimizer alone"],
            rows,
        ),
        Table(
            f"{record['batches']} batches",
            ["", "Opacus, DP-SGD", "antiphase, DP-MF", "ratio"],
            epochs,
        ),
    ]


def claims(record):
    made = []
    for row in record["rows"]:
        if row["asked"] is not None:
            made.append(_claim(f"a step, {row['what']}", row["ratio"], row["asked"]))
            made.append(
                _claim(
                    f"the optimizer alone, {row['what']}", row["optimizer_ratio"], OPTIMIZER_ASKED
                )
            )
        if row["what"] in PLAIN_ASKED and "ratio_to_plain" in row:
            what = f"a step, {row['what']}, against one without privacy"
            made.append(_claim(what, row["ratio_to_plain"], PLAIN_ASKED[row["what"]]))
    return made


def _claim(what, ratio, asked):
    return Claim(what, f"{ratio:.3f} ×", f"≤ {asked} ×", ratio <= asked)


NOISE = (
    "correlated noise reads and writes its buffers, sums of small groups are added in float64, and settings, model and "
    "ledger are looked at before every release"
)
PASSES = (
    "the optimizer alone is no slower, so neither buffers nor ledger are the reason: it lies in the passes, which "
    "ours follows function by function, and which vary by a few percent from run to run"
)
GHOST = "; norms are bounded with their rounding"
BESIDE = "; a long row of noise is made beside the passes, on the same cores"
FEW = "a median of few epochs, the loaders' work included, varies more than one of many steps"


def losses(record):
    """Steps, the optimizer alone, and epochs. A step that is slower only as a whole has a reason of its own."""
    lost, slower = [], {row["what"] for row in record["rows"] if row["optimizer_ratio"] > 1}
    for row in record["rows"]:
        alone = row["what"] in slower
        if row["ratio"] > 1:
            lost.append(
                Loss(_against("a step", row), NOISE if alone else _in_the_passes(row["what"]))
            )
        if alone:
            taken = {"opacus": row["optimizer_opacus"], "antiphase": row["optimizer_antiphase"]}
            lost.append(Loss(_against("the optimizer alone", row | taken), NOISE))
    for row in record["epochs"]:
        if row["ratio"] > 1:
            lost.append(
                Loss(_against("an epoch", row), f"{NOISE}; {FEW}" if row["what"] in slower else FEW)
            )
    return lost


def _against(kind, row):
    return f"{kind}, {row['what']}: Opacus {in_words(row['opacus'])}, ours {in_words(row['antiphase'])}"


def _in_the_passes(what):
    return (
        PASSES + GHOST * what.endswith("ghost") + BESIDE * (not what.startswith("logistic"))
    )  # whose row is short


def words(record):
    buffers = record["rows"][0]["buffers"]
    return [
        f"Opacus 1.6's DP-SGD with independent noise against correlated noise of the same length from {buffers} "
        "buffers; ours also draws from a secret key, where Opacus' default generator is not meant to be secure. "
        "Each side is a process of its own that keeps freed memory (as jemalloc does); they take turns; medians. "
        "The optimizer alone is `zero_grad()` and `step()`. "
        "SGD with momentum 0.9; the transformer has 2 blocks of width 64 on 32 words.",
        "The smaller the model, the more the ledger and the stream weigh: their cost does not depend on how "
        "gradients are computed.",
    ]


def draw(record, folder):
    return []
