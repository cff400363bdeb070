r"""CIFAR-10 in the paper's whole grid, with a model that two cores can train: linear, on fixed scattering features.

20 epochs of 100 batches of 500, δ = 1e-6, clip norm 1, six ε, 12 trials, learning rates tuned as `cifar10` tunes them.
The features (`wavelets`) are a fixed function of an image, so they cost no privacy. The model is logistic regression
from 1,840 features of length 1 to ten classes, the last of which is the reference: 16,560 parameters, from zero on.
Ours is the damped design, whose ρ is tuned along with the rate. A trial trains the models of all ε side by side: they
share its batches and, but for its length, its noise, so neighbouring points of a curve err alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import antiphase as ap
from antiphase import data
from antiphase.data import store
from antiphase.noise.key import Key
from antiphase.reporting import figures
from antiphase.torch.batch_selection import FixedOrderBatches
from experiments import accuracies, scattering_features
from experiments.cifar10 import noise_multiplier
from experiments.learning_rates import remembered
from experiments.linear_training import CLIP_MARGIN, Examples
from experiments.runner import Cell, Result, Results, Table

NAME = "scattering"
TITLE = "A linear model on scattering features of CIFAR-10, 2,000 steps in 20 epochs"
REVISION = 1  # raise it with every change that changes a result
COMMON: Cell = {
    "steps": 2000, "epochs": 20, "batch_size": 500, "delta": 1e-6, "clip_norm": 1.0,
    "epsilons": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0], "rates": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0],
}  # fmt: skip
TRIALS = 12
TUNING = 0  # the seed; those of trials are 1, 2, …
JUDGED = 10_000  # training examples that the training error is measured on
AT_ONCE = 500  # images whose features are computed together

LAST = math.sqrt(COMMON["steps"])
DESIGNS: dict[str, list[dict[str, Any]]] = {
    "dp-sgd": [{}],
    "dp-mf": [{}],
    "dp-mf+": [{}],
    "damped": [{"rho": rho, "final_weight": LAST} for rho in (0.99, 0.998)],
    "none": [{}],  # clipped all the same
}
Matrix = NDArray[np.float32]


def cells(full: bool) -> list[Cell]:
    """All that the paper did, also by default: tuning, then one trial of everything after the other."""
    every = {
        name: COMMON | {"mechanism": name} | ({"epsilons": [None]} if name == "none" else {})
        for name in DESIGNS
    }
    tuning = [
        {"stage": "tuning", "options": options, "seed": TUNING} | every[name]
        for name, several in DESIGNS.items()
        for options in several
    ]
    trials = [
        {"stage": "trial", "seed": seed} | cell
        for seed in range(1, TRIALS + 1)
        for cell in every.values()
    ]
    return tuning + trials


def work(cell: Cell) -> Result:
    if cell["stage"] == "tuning":
        return remembered(tried, REVISION, cell)
    chosen = tuned(cell)
    accuracy = dict.fromkeys(range(len(chosen)), 0.0)
    _, test = examples()
    for options in DESIGNS[cell["mechanism"]]:
        those = [i for i, choice in enumerate(chosen) if choice["options"] == options]
        if those:
            rates, epsilons = (
                [chosen[i]["rate"] for i in those],
                [cell["epsilons"][i] for i in those],
            )
            for i, weights in zip(those, trained(cell, options, epsilons, rates), strict=True):
                accuracy[i] = test.accuracy(weights)
    return {"accuracy": list(accuracy.values()), "chosen": chosen}


def tuned(cell: Cell) -> list[dict[str, Any]]:
    """For each ε of the trial ``cell``, the options and the rate with the lowest training error."""
    several = DESIGNS[cell["mechanism"]]
    tuning = cell | {"stage": "tuning", "seed": TUNING}
    errors = np.array(
        [
            remembered(tried, REVISION, tuning | {"options": options})["training error"]
            for options in several
        ]
    )
    chosen = []
    for i in range(len(cell["epsilons"])):
        design, rate = np.unravel_index(errors[:, i].argmin(), errors[:, i].shape)
        chosen.append(
            {
                "options": several[design],
                "rate": cell["rates"][rate],
                "error": float(errors[design, i, rate]),
            }
        )
    return chosen


def tried(cell: Cell) -> Result:
    """The training error for each ε and rate, all trained side by side."""
    epsilons = [epsilon for epsilon in cell["epsilons"] for _ in cell["rates"]]
    found = trained(cell, cell["options"], epsilons, cell["rates"] * len(cell["epsilons"]))
    train, _ = examples()
    some = Examples(train.inputs[:JUDGED], train.norms[:JUDGED], train.targets[:JUDGED])
    errors = [1 - some.accuracy(weights) for weights in found]
    return {"training error": np.reshape(errors, (len(cell["epsilons"]), -1)).tolist()}


def trained(
    cell: Cell, options: dict[str, Any], epsilons: list[float | None], rates: list[float]
) -> Matrix:
    """One matrix of weights for each pair of ε and rate."""
    scales = [0.0 if e is None else noise_multiplier(cell | {"epsilon": e}) for e in epsilons]
    return side_by_side(
        examples()[0], _batches(cell), _noise(cell, options), np.array(rates, np.float32),
        np.array(scales, np.float32), cell["batch_size"], cell["clip_norm"],
    )  # fmt: skip


def side_by_side(
    examples: Examples, batches: Iterable[Any], noise: Iterator[Matrix], rates: Matrix, scales: Matrix, divisor: float,
    clip_norm: float,
) -> Matrix:  # fmt: skip
    """Several models at once, each as `loop.train` trains it, at its rate and with its scale of the rows of noise."""
    several, classes, width = len(rates), examples.targets.shape[1], examples.inputs.shape[1]
    weights = np.zeros((several, classes, width), np.float32)
    steps = (rates / divisor).astype(np.float32)[:, None, None]
    for batch in batches:
        x = examples.inputs[batch]
        scores = (x @ weights.reshape(-1, width).T).reshape(-1, several, classes)
        top = np.maximum(scores.max(axis=2, keepdims=True), 0)
        residuals = np.exp(scores - top)
        residuals /= residuals.sum(axis=2, keepdims=True) + np.exp(-top)
        residuals -= examples.targets[batch][:, None]
        norms = np.linalg.norm(residuals, axis=2) * examples.norms[batch][:, None]
        residuals *= np.minimum(
            np.float32(clip_norm * (1 - CLIP_MARGIN)) / np.maximum(norms, 1e-30), 1
        )[:, :, None]
        update = (residuals.reshape(len(x), -1).T @ x).reshape(weights.shape)
        update += scales[:, None, None] * next(noise)
        update *= steps
        weights -= update
    return weights


# ---- batches, noise, features ------------------------------------------------------------------------------


def _batches(cell: Cell) -> Iterable[Any]:
    """Poisson samples, or all epochs of one order: of a seed the same for all mechanisms."""
    rng, size = np.random.default_rng(cell["seed"]), len(examples()[0].inputs)
    if cell["mechanism"] == "dp-sgd":
        rate = cell["batch_size"] / size
        return (np.flatnonzero(rng.random(size) < rate) for _ in range(cell["steps"]))
    epoch = FixedOrderBatches(size, cell["batch_size"], order=rng.permutation(size).tolist())
    return islice(chain.from_iterable(repeat(epoch)), cell["steps"])


def _noise(cell: Cell, options: dict[str, Any]) -> Iterator[Matrix]:
    """Rows at noise multiplier 1. Of Poisson batches each is a release of its own, and its multiplier sees to that."""
    train, _ = examples()
    shape, name = (train.targets.shape[1], train.inputs.shape[1]), cell["mechanism"]
    if name == "none":
        return repeat(np.zeros(shape, np.float32))
    design = ap.design(
        name, steps=cell["steps"], epochs=1 if name == "dp-sgd" else cell["epochs"], **options
    )
    mechanism = ap.calibrate(design, noise_multiplier=1.0, clip_norm=cell["clip_norm"])
    key = Key.insecure(cell["seed"])
    run = f"{key.subkey('run', str(cell['seed'])):032x}"
    return (
        row["weight"]
        for row in mechanism.noise(key=key, shapes={"weight": shape}, run=run, threads=1)
    )


@lru_cache
def examples() -> tuple[Examples, Examples]:
    """Scattering features of the images, computed once and kept beside the data."""
    images = data.load("cifar10")
    with store.opened("cifar10-scattering") as place:
        train, test = (
            _kept(
                place / f"{images.digest[:16]}-{scattering_features.FEATURES}-{name}.npy",
                split.inputs,
            )
            for name, split in (("train", images.train), ("test", images.test))
        )
    classes = len(images.classes)
    return (
        Examples.of(data.Split(train, images.train.targets), classes),
        Examples.of(data.Split(test, images.test.targets), classes),
    )


def _kept(path: Path, images: scattering_features.Images) -> Matrix:
    if not path.exists():
        parts = [
            scattering_features.features(images[i : i + AT_ONCE])
            for i in range(0, len(images), AT_ONCE)
        ]
        whole = path.with_name(f".{path.name}")
        np.save(whole, np.concatenate(parts))
        whole.rename(path)
    kept: Matrix = np.load(path, mmap_mode=None if store.folder("") is None else "r")
    return kept


# ---- what follows, and what is shown -----------------------------------------------------------------------


def summary(found: Results, full: bool) -> dict[str, Any]:
    accuracy, chosen = {}, {}
    for name in DESIGNS:
        results = [
            result
            for cell, result in found
            if cell["mechanism"] == name and cell["stage"] == "trial"
        ]
        epsilons = [None] if name == "none" else COMMON["epsilons"]
        means = [
            accuracies.mean([result["accuracy"][i] for result in results])
            for i in range(len(epsilons))
        ]
        labels = ["none" if epsilon is None else accuracies.key(epsilon) for epsilon in epsilons]
        accuracy[name] = dict(zip(labels, means, strict=True))
        chosen[name] = dict(zip(labels, results[0]["chosen"], strict=True))
    level = accuracy.pop("none")["none"]
    return {
        "accuracy": accuracy,  # by mechanism and ε: mean, standard error
        "no noise": level,
        "chosen": chosen,
        "ahead": accuracies.comparisons(accuracy),
    }


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    summed = record["summary"]
    title = "CIFAR-10, linear model on scattering features, 20 epochs"
    chart = accuracies.chart(summed["accuracy"], title, _note(record), summed["no noise"][0])
    return list(figures.draw(folder / NAME, chart))


def tables(record: dict[str, Any]) -> list[Table]:
    chosen, level = record["summary"]["chosen"], record["summary"]["no noise"]
    rates = "; ".join(
        label + " " + ", ".join(f"{choice['rate']:g}" for choice in chosen[name].values())
        for name, label in accuracies.LABELS.items()
    )
    damping = ", ".join(f"{choice['options']['rho']:g}" for choice in chosen["damped"].values())
    note = f"{_note(record)} No noise: {accuracies.percent(level)}. Learning rates: {rates}. ρ of damped: {damping}."
    return accuracies.tables(record["summary"]["accuracy"], TITLE, note)


def _note(record: dict[str, Any]) -> str:
    return f"Means of {TRIALS} trials, ± one standard error. δ = {record['settings']['delta']:g}."
