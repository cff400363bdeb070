r"""Beyond the paper: privacy amplification by sampling for each mechanism, on MNIST.

Logistic regression as in `experiments.mnist`, 2,048 steps, 16 epochs, at three ε: DP-SGD on Poisson
samples; banded encoders on cyclic Poisson samples, with the number of bands that
`antiphase.select_bands` selects for each ε (Toeplitz, and DP-MF⁺ with restarts as far apart); and
DP-MF⁺ with τ = T on batches in a fixed order, without amplification.
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
from experiments.accuracies import (
    comparison_table,
    differences,
    key,
    mean,
    over_budgets,
    percent,
)
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
    """One cell for each mechanism and ε, since the number of bands depends on both."""
    common = {"epochs": EPOCHS, "batch_size": mnist.BATCH_SIZES[EPOCHS]} | mnist.COMMON
    return [
        kind | {"epsilons": [epsilon]} | common for kind in KINDS.values() for epsilon in EPSILONS
    ]


def work(cell: Cell) -> Result:
    """Accuracies of each trial, with the mechanism and its noise."""
    mechanism = _banded(cell) if "cyclic" in cell else mnist.mechanisms(cell)[0]
    _, test = mnist.examples()
    accuracies = []
    for trial in range(cell["trials"]):
        (weights,) = mnist.trained(cell, [mechanism], trial, _batches(cell, mechanism, trial))
        accuracies.append(test.accuracy(weights))
    return {
        "accuracies": accuracies,
        "noise_multiplier": mechanism.noise_multiplier,
        "epsilon": mechanism.epsilon(),
        "bands": mechanism.factorization.bands,
        "design": repr(mechanism.factorization),
        "noise": _noise(mechanism, cell),
    }


def _noise(mechanism: Mechanism, cell: Cell) -> list[float]:
    """Predicted noise in one weight: root mean square over all iterates, and in the last one."""
    scale = mechanism.noise_scale / mechanism.factorization.sensitivity / cell["batch_size"]
    variances = scale**2 * mechanism.factorization.noise_per_iterate
    return [float(np.sqrt(variances.mean())), float(np.sqrt(variances[-1]))]


def _banded(cell: Cell) -> Mechanism:
    """The mechanism with the best number of bands at this ε, selected without any image."""
    return ap.select_bands(
        cell["mechanism"],
        workload=mnist.setting_of(cell).workload,
        sampling=ap.sampling.CyclicPoisson(mnist.sampling_rate(cell)),
        epsilon=cell["epsilons"][0],
        delta=cell["delta"],
        clip_norm=cell["clip_norm"],
    ).mechanism


def _batches(cell: Cell, mechanism: Mechanism, trial: int) -> Batches | None:
    if "cyclic" not in cell:
        return None  # those of `mnist.trained`
    run_key, _ = mnist.key_and_run(cell, trial)
    size, rate = len(mnist.examples()[0].inputs), mnist.sampling_rate(cell)
    # With one band every step samples all examples, as DP-SGD does.
    bands, secret = mechanism.factorization.bands, run_key.subkey("samples", str(trial))
    sampler = PoissonBatches(size, rate, groups=bands, secret=secret)
    return (sampler.sample(step) for step in range(cell["steps"]))


def summary(results: Results, full: bool) -> dict[str, Any]:
    """Accuracies, bands and noise by mechanism and ε."""
    accuracy: dict[str, dict[str, list[float]]] = {label: {} for label in KINDS}
    design: dict[str, dict[str, Result]] = {label: {} for label in KINDS}
    for cell, result in results:
        label = next(label for label, kind in KINDS.items() if kind.items() <= cell.items())
        accuracy[label][key(cell["epsilons"][0])] = mean(result["accuracies"])
        design[label][key(cell["epsilons"][0])] = {
            name: result[name] for name in ("bands", "noise")
        }
    return {"accuracy": accuracy, "design": design}


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Accuracy by ε."""
    series = []
    for label, values in record["summary"]["accuracy"].items():
        means, errors = 100 * np.array(list(values.values())).T
        series.append(charts.Series(COLOUR[label], label, np.array(EPSILONS), means, errors))
    return list(figures.draw(folder / NAME, over_budgets(TITLE, series, mnist.NOTE)))


def tables(record: dict[str, Any]) -> list[Table]:
    """Accuracies, predicted noise, and comparisons."""
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
    ahead = {
        f"{one} over {other}": differences(accuracy[one], accuracy[other])
        for one, other in ((BANDED, SGD), (PLUS, SGD), (PLUS, BANDED), (SHORT, BANDED))
    }
    return [
        Table(TITLE, ["accuracy (%) at ε =", *epsilons], rows, mnist.NOTE),
        Table("Noise in a weight: over all iterates, in the last", ["at ε =", *epsilons], noise),
        comparison_table("Who is ahead", ["points at ε =", *epsilons], ahead),
    ]
