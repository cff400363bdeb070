r"""Beyond the paper: what sampling is worth to each mechanism. Logistic regression on MNIST, 2,048 steps, 16 epochs.

As in `experiments.mnist`, at three ε: DP-SGD on Poisson samples; encoders of few bands on cyclic Poisson samples,
with the number of bands that `antiphase.best_bands` finds for each ε (Toeplitz, and DP-MF⁺ that restarts as often); and
DP-MF⁺ with τ = T on batches in a fixed order, which needs no sampling and gets nothing from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from antiphase.mechanism import Mechanism
from antiphase.reporting import charts, figures
from antiphase.torch.batch_selection import PoissonBatches
from experiments import mnist
from experiments.accuracies import key, mean, over_budgets, percent, verdict
from experiments.linear_training import Batches
from experiments.runner import Cell, Result, Results, Table

NAME = "amplified"
TITLE = "Amplification by sampling, on MNIST, 16 epochs"
REVISION = 1  # raise it with every change that changes a result
EPSILONS = [0.31, 1.0, 3.1]
EPOCHS = 16

SGD, BANDED, SHORT, PLUS = (
    "DP-SGD, Poisson",
    "Toeplitz, cyclic Poisson",
    "DP-MF⁺, τ = bands, cyclic Poisson",
    mnist.PLUS,
)
KINDS: dict[str, Cell] = {
    SGD: {"mechanism": "dp-sgd", "poisson": True},
    BANDED: {"mechanism": "toeplitz", "cyclic": True},
    SHORT: {"mechanism": "dp-mf+", "cyclic": True},
    PLUS: {"mechanism": "dp-mf+", "tau": mnist.COMMON["steps"]},
}
COLOUR = {SGD: "dp-sgd", BANDED: "toeplitz", SHORT: "banded", PLUS: "dp-mf+"}


def cells(full: bool) -> list[Cell]:
    """One for each mechanism and ε, since each has bands of its own."""
    common = {"epochs": EPOCHS, "batch_size": mnist.BATCH_SIZES[EPOCHS]} | mnist.COMMON
    return [
        kind | {"epsilons": [epsilon]} | common for kind in KINDS.values() for epsilon in EPSILONS
    ]


def work(cell: Cell) -> Result:
    made = _banded(cell) if "cyclic" in cell else mnist.mechanisms(cell)[0]
    accuracies = [
        mnist.examples()[1].accuracy(
            mnist.trained(cell, [made], trial, _batches(cell, made, trial))[0]
        )
        for trial in range(cell["trials"])
    ]
    found = {
        "accuracies": accuracies,
        "noise_multiplier": made.noise_multiplier,
        "epsilon": made.epsilon(),
    }
    return found | {
        "bands": made.factorization.bands,
        "design": repr(made.factorization),
        "noise": _noise(made, cell),
    }


def _noise(made: Mechanism, cell: Cell) -> list[float]:
    """In one weight, by the design alone: root mean square over all iterates, and in the last one."""
    scale = made.noise_scale / made.factorization.sensitivity / cell["batch_size"]
    variances = scale**2 * made.factorization.noise_per_iterate
    return [float(np.sqrt(variances.mean())), float(np.sqrt(variances[-1]))]


def _banded(cell: Cell) -> Mechanism:
    """With the number of bands that is best at this ε: least noise over all iterates. No image is looked at."""
    return ap.best_bands(
        cell["mechanism"],
        workload=mnist.setting_of(cell).workload,
        sampling=ap.sampling.CyclicPoisson(mnist.sampling_rate(cell)),
        epsilon=cell["epsilons"][0],
        delta=cell["delta"],
        clip_norm=cell["clip_norm"],
    ).mechanism


def _batches(cell: Cell, made: Mechanism, trial: int) -> Batches | None:
    if "cyclic" not in cell:
        return None  # as they are there
    key, _ = mnist.key_and_run(cell, trial)
    size, rate = len(mnist.examples()[0].inputs), mnist.sampling_rate(cell)
    # With one band every step draws from everyone, which is DP-SGD's own sampling.
    drawn = PoissonBatches(
        size, rate, groups=made.factorization.bands, secret=key.subkey("samples", str(trial))
    )
    return (drawn.drawn(step) for step in range(cell["steps"]))


# ---- what follows ------------------------------------------------------------------------------------------


def summary(found: Results, full: bool) -> dict[str, Any]:
    accuracy: dict[str, dict[str, list[float]]] = {label: {} for label in KINDS}
    design: dict[str, dict[str, Result]] = {label: {} for label in KINDS}
    for cell, result in found:
        label = next(label for label, kind in KINDS.items() if kind.items() <= cell.items())
        accuracy[label][key(cell["epsilons"][0])] = mean(result["accuracies"])
        design[label][key(cell["epsilons"][0])] = {
            name: result[name] for name in ("bands", "noise")
        }
    return {"accuracy": accuracy, "design": design}


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    series = []
    for label, values in record["summary"]["accuracy"].items():
        means, errors = 100 * np.array(list(values.values())).T
        series.append(charts.Series(COLOUR[label], label, np.array(EPSILONS), means, errors))
    return list(figures.draw(folder / NAME, over_budgets(TITLE, series, mnist.NOTE)))


def tables(record: dict[str, Any]) -> list[Table]:
    accuracy, design = record["summary"]["accuracy"], record["summary"]["design"]
    epsilons = [key(epsilon) for epsilon in EPSILONS]
    rows = [[label, *(percent(accuracy[label][e]) for e in epsilons)] for label in KINDS]
    noise = [
        [label, *("{:.3f}, {:.3f}".format(*design[label][e]["noise"]) for e in epsilons)]
        for label in KINDS
    ]
    noise += [
        [f"bands: {label}", *(str(design[label][e]["bands"]) for e in epsilons)]
        for label in (BANDED, SHORT)
    ]
    ahead = [
        [f"{one} over {other}", *(_ahead(accuracy[one][e], accuracy[other][e]) for e in epsilons)]
        for one, other in ((BANDED, SGD), (PLUS, SGD), (PLUS, BANDED), (SHORT, BANDED))
    ]
    return [
        Table(TITLE, ["accuracy (%) at ε =", *epsilons], rows, mnist.NOTE),
        Table("Noise in a weight: over all iterates, in the last", ["at ε =", *epsilons], noise),
        Table(
            "Who is ahead",
            ["points at ε =", *epsilons],
            ahead,
            "alike: within two standard errors.",
        ),
    ]


def _ahead(one: list[float], other: list[float]) -> str:
    difference = [one[0] - other[0], float(np.hypot(one[1], other[1]))]
    return f"{percent(difference, '+')} {verdict(difference)}"
