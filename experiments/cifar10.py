r"""The paper's Figure 3 c: a convolutional network on CIFAR-10, 20 epochs of 100 batches of 500, δ = 1e-6.

Learning rates are tuned as in the paper, without privacy: for each mechanism and ε one training at every rate of a
fixed grid, and the rate with the lowest training error is used for trials with other seeds. What the paper leaves open:
clip norm 1, images standardised by their published mean and deviation. DP-SGD has Poisson batches and their
amplification. Ours is the damped design, for errors that shrink by ρ = 0.998 a step.

With ``--full`` it is the paper's: the network of 550,570 parameters, six ε, 12 trials; weeks on two cores. By default
it is scaled down: the same network with half as many channels and units, two ε, four rates for each, 3 trials; and of
each batch 8 images are looked at instead of 500 (`experiments.subsampled_training`). Steps, epochs and designs are the
paper's, and so is the noise in every coordinate of the mean gradient; the gradient itself is rougher, and the promise
of (ε, δ) is that of whole batches.
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import antiphase as ap
from antiphase import accounting, data
from antiphase.factorizations.base import Factorization
from antiphase.reporting import figures
from experiments import accuracies, subsampled_training
from experiments.learning_rates import remembered
from experiments.runner import Cell, Result, Results, Table

NAME = "cifar10"
TITLE = "A convolutional network on CIFAR-10, 2,000 steps in 20 epochs"
REVISION = 1  # raise it with every change that changes a result
EPSILONS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
COMMON: Cell = {"steps": 2000, "epochs": 20, "batch_size": 500, "delta": 1e-6, "clip_norm": 1.0}
FULL: Cell = {"model": "cnn", "glimpse": 500}
SCALED: Cell = {"model": "cnn-half", "glimpse": 8}
RATES = {epsilon: [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2] for epsilon in EPSILONS}
SCALED_RATES = {4.0: [0.2, 0.4, 0.8, 1.6], 16.0: [0.4, 0.8, 1.6, 3.2]}
TRIALS = {True: 12, False: 3}
TUNING = 0  # the seed; those of trials are 1, 2, …

OPTIONS: dict[str, dict[str, Any]] = {
    "dp-mf+": {},
    "damped": {"rho": 0.998, "final_weight": math.sqrt(COMMON["steps"])},
    "dp-mf": {},
    "dp-sgd": {},
}


def cells(full: bool) -> list[Cell]:
    """For every ε, the largest first: tuning, then one trial of every mechanism after the other."""
    setting, found = COMMON | (FULL if full else SCALED), []
    for epsilon, rates in reversed((RATES if full else SCALED_RATES).items()):
        points = [
            {"mechanism": name, "epsilon": epsilon, "rates": rates} | setting for name in OPTIONS
        ]
        found += [
            {"stage": "tuning", "rate": rate, "seed": TUNING} | p for p in points for rate in rates
        ]
        found += [
            {"stage": "trial", "seed": seed} | p
            for seed in range(1, TRIALS[full] + 1)
            for p in points
        ]
    return found


def work(cell: Cell) -> Result:
    if cell["stage"] == "tuning":
        return remembered(trained, REVISION, cell)
    rate = tuned(cell)
    return {"rate": rate} | trained(cell | {"rate": rate})


def tuned(cell: Cell) -> float:
    """The learning rate for the trial ``cell``."""
    tuning = cell | {"stage": "tuning", "seed": TUNING}
    errors = {
        rate: remembered(trained, REVISION, tuning | {"rate": rate})["training error"]
        for rate in cell["rates"]
    }
    best: float = min(cell["rates"], key=lambda rate: float(errors[rate]))
    return best


def trained(cell: Cell) -> Result:
    how = subsampled_training.Glimpsed(
        model=cell["model"], learning_rate=cell["rate"], noise_multiplier=noise_multiplier(cell),
        batch_size=cell["batch_size"], glimpse=cell["glimpse"], poisson=cell["mechanism"] == "dp-sgd",
        clip_norm=cell["clip_norm"], seed=cell["seed"],
    )  # fmt: skip
    found = subsampled_training.train(how, design_of(cell), _images())
    return {
        "accuracy": found.accuracy,
        "training error": found.training_error,
        "finite": found.finite,
        "images a second": cell["steps"] * cell["glimpse"] / found.seconds,
    }


@lru_cache
def _images() -> data.Dataset:
    return data.load("cifar10")


def design_of(cell: Cell) -> Factorization:
    """Of Poisson batches each is a release of its own, and the noise multiplier has seen to all of them."""
    name = cell["mechanism"]
    return ap.design(
        name, steps=cell["steps"], epochs=1 if name == "dp-sgd" else cell["epochs"], **OPTIONS[name]
    )


def noise_multiplier(cell: Cell) -> float:
    """For whole batches."""
    if cell["mechanism"] == "dp-sgd":
        rate = cell["epochs"] / cell["steps"]
        return _poisson_noise_multiplier(cell["epsilon"], cell["delta"], rate, cell["steps"])
    return accounting.gaussian_noise_multiplier(cell["epsilon"], cell["delta"])


@lru_cache
def _poisson_noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    return accounting.poisson_noise_multiplier(epsilon, delta, sampling_rate=rate, steps=steps)


# ---- what follows, and what is shown -----------------------------------------------------------------------


def summary(found: Results, full: bool) -> dict[str, Any]:
    accuracy: dict[str, dict[str, list[float]]] = {}
    rates: dict[str, dict[str, float]] = {}
    for epsilon in sorted({cell["epsilon"] for cell, _ in found}):
        for name in accuracies.LABELS:
            here = [
                result for cell, result in found
                if (cell["stage"], cell["mechanism"], cell["epsilon"]) == ("trial", name, epsilon)
            ]  # fmt: skip
            accuracy.setdefault(name, {})[accuracies.key(epsilon)] = accuracies.mean(
                [r["accuracy"] for r in here]
            )
            rates.setdefault(name, {})[accuracies.key(epsilon)] = here[0]["rate"]
    return {
        "accuracy": accuracy,  # by mechanism and ε: mean, standard error
        "rates": rates,
        "ahead": accuracies.comparisons(accuracy),
        "trials": TRIALS[full],
        "diverged": sum(not result["finite"] for _, result in found),
    }


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    summed = record["summary"]
    chart = accuracies.chart(
        summed["accuracy"], "CIFAR-10, convolutional network, 20 epochs", _note(record)
    )
    return list(figures.draw(folder / NAME, chart))


def tables(record: dict[str, Any]) -> list[Table]:
    rates = "; ".join(
        f"{accuracies.LABELS[name]} {', '.join(f'{rate:g}' for rate in several.values())}"
        for name, several in record["summary"]["rates"].items()
    )
    return accuracies.tables(
        record["summary"]["accuracy"], TITLE, f"{_note(record)} Learning rates: {rates}."
    )


def _note(record: dict[str, Any]) -> str:
    settings = record["settings"]
    scaled = (
        ""
        if record["full"]
        else f" Scaled down: {settings['glimpse']} images of every batch, half the channels."
    )
    return f"Means of {record['summary']['trials']} trials, ± one standard error. δ = {settings['delta']:g}.{scaled}"
