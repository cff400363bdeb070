"""What does a private step cost, against Opacus' DP-SGD step in the same run?

python -m benchmarks.step [--json] [--quick]

Steps of both engines take turns, so that what else the machine does hits both; the table has medians and their ratio.
"""

import argparse
import json
import statistics
import sys
import time
import warnings

import torch
from opacus import PrivacyEngine as Opacus
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import antiphase as ap
from antiphase.torch import PrivacyEngine

warnings.filterwarnings("ignore")


def cnn():
    """The network of the paper's CIFAR-10 experiment: 550,570 parameters."""
    layers, channels = [], 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


SETTINGS = {
    "cnn, batch 500, hooks": (cnn, (3, 32, 32), 500, "hooks", 5),
    "cnn, batch 500, ghost": (cnn, (3, 32, 32), 500, "ghost", 15),
    "logistic regression, batch 64, hooks": (lambda: nn.Linear(784, 10), (784,), 64, "hooks", 900),
}


class Private:
    """One engine on one setting; `step` gives the seconds of a whole step and of ``optimizer.step()`` alone."""

    def __init__(self, engine, make, shape, batch, mode, **options):
        torch.manual_seed(0)
        model = make()
        dataset = TensorDataset(torch.randn(2 * batch, *shape), torch.randint(0, 10, (2 * batch,)))
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
        began = time.perf_counter()
        self.optimizer.zero_grad()
        self.criterion(self.module(inputs), targets).backward()
        middle = time.perf_counter()
        self.optimizer.step()
        end = time.perf_counter()
        return end - began, end - middle


def measure(name, quick=False):
    """Medians over interleaved steps: whole steps, and ``optimizer.step()`` alone."""
    make, shape, batch, mode, count = SETTINGS[name]
    count = max(3, count // 3) if quick else count
    theirs = Private(Opacus(), make, shape, batch, mode)
    # One participation of a long plan, so that the mechanism is a stream; the benchmark vouches for the batches.
    f = ap.design("dp-mf", steps=2048)
    ours = Private(PrivacyEngine(mechanism=f), make, shape, batch, mode, steps=2048, participation="trusted")
    for private in (theirs, ours):
        for _ in range(2):
            private.step()
    times = {"opacus": [], "antiphase": []}
    for _ in range(count):
        times["opacus"].append(theirs.step())
        times["antiphase"].append(ours.step())
    median = {k: [statistics.median(t[i] for t in v) for i in (0, 1)] for k, v in times.items()}
    return {
        "what": name,
        "buffers": f.buffers,
        "opacus": median["opacus"][0],
        "antiphase": median["antiphase"][0],
        "ratio": median["antiphase"][0] / median["opacus"][0],
        "optimizer_opacus": median["opacus"][1],
        "optimizer_antiphase": median["antiphase"][1],
        "optimizer_ratio": median["antiphase"][1] / median["opacus"][1],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    arguments = parser.parse_args()
    rows = [
        measure(name, arguments.quick) for name in track(SETTINGS, description="stepping", console=Console(stderr=True))
    ]
    if arguments.json:
        print(json.dumps(rows))
        return 0
    table = Table("setting", "Opacus' DP-SGD", "antiphase, streamed", "ratio", "optimizer.step() alone")
    for row in rows:
        table.add_row(
            row["what"], f"{1e3 * row['opacus']:.2f} ms", f"{1e3 * row['antiphase']:.2f} ms ({row['buffers']} buffers)",
            f"{row['ratio']:.3f}", f"{row['optimizer_ratio']:.3f}",
        )  # fmt: skip
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
