r"""Figure 3 c: a convolutional network on CIFAR-10, 20 epochs of 100 batches of 500.

Learning rates are tuned as in the paper, without privacy: one training per mechanism, ε and rate of
a fixed grid; the rate with the lowest training error is used for trials with other seeds. Choices
that the paper does not state: clip norm 1, images standardised by their published mean and
deviation. DP-SGD has Poisson batches and their amplification. Beyond the paper: the damped design,
for errors that shrink by ρ = 0.998 per step. δ = 1e-6.

With ``--full`` the study is the paper's: the network of 550,570 parameters, six ε, 12 trials; weeks
on two cores. The default is scaled down: the same network with half as many channels and units, two
ε, four rates for each, 3 trials, and 8 images of each batch instead of 500
(`experiments.subsampled_training`). Steps, epochs and designs are the paper's, and so is the noise
in every coordinate of the mean gradient. The gradient is noisier, and (ε, δ) is that of whole
batches.
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
from experiments.learning_rates import cached_training
from experiments.runner import Cell, Result, Results, Table

NAME = "cifar10"
TITLE = "A convolutional network on CIFAR-10, 2,000 steps in 20 epochs"
REVISION = 1  # raise it with every change that changes a result
EPSILONS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
COMMON: Cell = {"steps": 2000, "epochs": 20, "batch_size": 500, "delta": 1e-6, "clip_norm": 1.0}
FULL: Cell = {"model": "cnn", "subsample": 500}
SCALED: Cell = {"model": "cnn-half", "subsample": 8}
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
    """Tuning and then trials of every mechanism for each ε, the largest first."""
    setting, cells = COMMON | (FULL if full else SCALED), []
    for epsilon, rates in reversed((RATES if full else SCALED_RATES).items()):
        points = [
            {"mechanism": name, "epsilon": epsilon, "rates": rates} | setting for name in OPTIONS
        ]
        cells += [
            {"stage": "tuning", "rate": rate, "seed": TUNING} | p for p in points for rate in rates
        ]
        cells += [
            {"stage": "trial", "seed": seed} | p
            for seed in range(1, TRIALS[full] + 1)
            for p in points
        ]
    return cells


def work(cell: Cell) -> Result:
    """Accuracy and training error of one training, for tuning or as a trial."""
    if cell["stage"] == "tuning":
        return cached_training(trained, REVISION, cell)
    rate = tuned(cell)
    return {"rate": rate} | trained(cell | {"rate": rate})


def tuned(cell: Cell) -> float:
    """The learning rate that tuning selects for a trial."""
    tuning = cell | {"stage": "tuning", "seed": TUNING}
    errors = {
        rate: cached_training(trained, REVISION, tuning | {"rate": rate})["training error"]
        for rate in cell["rates"]
    }
    best: float = min(cell["rates"], key=lambda rate: float(errors[rate]))
    return best


def trained(cell: Cell) -> Result:
    """Train at the cell's rate."""
    settings = subsampled_training.Settings(
        model=cell["model"],
        learning_rate=cell["rate"],
        noise_multiplier=noise_multiplier(cell),
        batch_size=cell["batch_size"],
        subsample=cell["subsample"],
        poisson=cell["mechanism"] == "dp-sgd",
        clip_norm=cell["clip_norm"],
        seed=cell["seed"],
    )
    outcome = subsampled_training.train(settings, design_of(cell), _images())
    return {
        "accuracy": outcome.accuracy,
        "training error": outcome.training_error,
        "finite": outcome.finite,
        "images a second": cell["steps"] * cell["subsample"] / outcome.seconds,
    }


@lru_cache
def _images() -> data.Dataset:
    return data.load("cifar10")


def design_of(cell: Cell) -> Factorization:
    """The factorization of a cell.

    One epoch for Poisson batches: the noise multiplier already accounts for all steps.
    """
    name = cell["mechanism"]
    return ap.design(
        name, steps=cell["steps"], epochs=1 if name == "dp-sgd" else cell["epochs"], **OPTIONS[name]
    )


def noise_multiplier(cell: Cell) -> float:
    """The noise multiplier of whole batches."""
    if cell["mechanism"] == "dp-sgd":
        rate = cell["epochs"] / cell["steps"]
        return _poisson_noise_multiplier(cell["epsilon"], cell["delta"], rate, cell["steps"])
    return accounting.gaussian_noise_multiplier(cell["epsilon"], cell["delta"])


@lru_cache
def _poisson_noise_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    return accounting.poisson_noise_multiplier(epsilon, delta, sampling_rate=rate, steps=steps)


def summary(results: Results, full: bool) -> dict[str, Any]:
    """Accuracies and tuned rates by mechanism and ε."""
    accuracy: dict[str, dict[str, list[float]]] = {}
    rates: dict[str, dict[str, float]] = {}
    for epsilon in sorted({cell["epsilon"] for cell, _ in results}):
        for name in accuracies.LABELS:
            trials = [
                result
                for cell, result in results
                if (cell["stage"], cell["mechanism"], cell["epsilon"]) == ("trial", name, epsilon)
            ]
            mean = accuracies.mean([trial["accuracy"] for trial in trials])
            accuracy.setdefault(name, {})[accuracies.key(epsilon)] = mean
            rates.setdefault(name, {})[accuracies.key(epsilon)] = trials[0]["rate"]
    return {
        "accuracy": accuracy,  # by mechanism and ε: mean, standard error
        "rates": rates,
        "ahead": accuracies.comparisons(accuracy),
        "trials": TRIALS[full],
        "diverged": sum(not result["finite"] for _, result in results),
    }


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Accuracy by ε."""
    summed = record["summary"]
    chart = accuracies.chart(
        summed["accuracy"], "CIFAR-10, convolutional network, 20 epochs", _note(record)
    )
    return list(figures.draw(folder / NAME, chart))


def tables(record: dict[str, Any]) -> list[Table]:
    """Accuracies, tuned rates and comparisons."""
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
        else f" Scaled down: {settings['subsample']} images of every batch, half the channels."
    )
    trials = record["summary"]["trials"]
    return f"Means of {trials} trials, ± one standard error. δ = {settings['delta']:g}.{scaled}"
