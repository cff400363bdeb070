r"""Figure 3 c with a linear model on scattering features: the paper's whole grid on CIFAR-10.

20 epochs of 100 batches of 500, δ = 1e-6, clip norm 1, six ε, 12 trials, learning rates tuned as in
`cifar10`. The features (`scattering_features`) are a fixed function of an image, so they cost no
privacy. The model is logistic regression from 1,840 features of length 1 to ten classes, the last
of which is the reference: 16,560 parameters, starting at zero. Beyond the paper: the damped design,
whose ρ is tuned with the rate. A trial trains the models of all ε side by side. They share its
batches and, up to scale, its noise, so errors of neighbouring points of a curve are correlated.
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
from antiphase.data import cache
from antiphase.noise.key import Key
from antiphase.reporting import figures
from antiphase.torch.batch_selection import FixedOrderBatches
from experiments import accuracies, scattering_features
from experiments.cifar10 import noise_multiplier
from experiments.learning_rates import cached_training
from experiments.linear_training import CLIP_MARGIN, Examples
from experiments.runner import Cell, Result, Results, Table

NAME = "scattering"
TITLE = "A linear model on scattering features of CIFAR-10, 2,000 steps in 20 epochs"
REVISION = 1  # raise it with every change that changes a result
COMMON: Cell = {
    "steps": 2000,
    "epochs": 20,
    "batch_size": 500,
    "delta": 1e-6,
    "clip_norm": 1.0,
    "epsilons": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    "rates": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0],
}
TRIALS = 12
TUNING = 0  # the seed; those of trials are 1, 2, …
MAX_EVALUATED = 10_000  # training examples on which the training error is measured
CHUNK = 500  # images whose features are computed together

FINAL_WEIGHT = math.sqrt(COMMON["steps"])
DESIGNS: dict[str, list[dict[str, Any]]] = {
    "dp-sgd": [{}],
    "dp-mf": [{}],
    "dp-mf+": [{}],
    "damped": [{"rho": rho, "final_weight": FINAL_WEIGHT} for rho in (0.99, 0.998)],
    "none": [{}],  # clipped, without noise
}
Matrix = NDArray[np.float32]


def cells(full: bool) -> list[Cell]:
    """Tuning and then trials of every mechanism; the default is the paper's whole grid."""
    by_mechanism = {
        name: COMMON | {"mechanism": name} | ({"epsilons": [None]} if name == "none" else {})
        for name in DESIGNS
    }
    tuning = [
        {"stage": "tuning", "options": options, "seed": TUNING} | by_mechanism[name]
        for name, several in DESIGNS.items()
        for options in several
    ]
    trials = [
        {"stage": "trial", "seed": seed} | cell
        for seed in range(1, TRIALS + 1)
        for cell in by_mechanism.values()
    ]
    return tuning + trials


def work(cell: Cell) -> Result:
    """Training errors of a tuning cell, or accuracies of a trial with the tuned options."""
    if cell["stage"] == "tuning":
        return cached_training(training_errors, REVISION, cell)
    chosen = tuned(cell)
    accuracy = dict.fromkeys(range(len(chosen)), 0.0)
    _, test = examples()
    for options in DESIGNS[cell["mechanism"]]:
        selected = [i for i, choice in enumerate(chosen) if choice["options"] == options]
        if selected:
            rates = [chosen[i]["rate"] for i in selected]
            epsilons = [cell["epsilons"][i] for i in selected]
            for i, weights in zip(selected, trained(cell, options, epsilons, rates), strict=True):
                accuracy[i] = test.accuracy(weights)
    return {"accuracy": list(accuracy.values()), "chosen": chosen}


def tuned(cell: Cell) -> list[dict[str, Any]]:
    """For each ε of a trial, the options and the rate with the lowest training error."""
    several = DESIGNS[cell["mechanism"]]
    tuning = cell | {"stage": "tuning", "seed": TUNING}
    tunings = (
        cached_training(training_errors, REVISION, tuning | {"options": options})
        for options in several
    )
    errors = np.array([result["training error"] for result in tunings])
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


def training_errors(cell: Cell) -> Result:
    """The training error for each ε and rate, all trained side by side."""
    epsilons = [epsilon for epsilon in cell["epsilons"] for _ in cell["rates"]]
    models = trained(cell, cell["options"], epsilons, cell["rates"] * len(cell["epsilons"]))
    train, _ = examples()
    first = slice(MAX_EVALUATED)
    evaluated = Examples(train.inputs[first], train.norms[first], train.targets[first])
    errors = [1 - evaluated.accuracy(weights) for weights in models]
    return {"training error": np.reshape(errors, (len(cell["epsilons"]), -1)).tolist()}


def trained(
    cell: Cell, options: dict[str, Any], epsilons: list[float | None], rates: list[float]
) -> Matrix:
    """One matrix of weights for each pair of ε and rate."""
    scales = [0.0 if e is None else noise_multiplier(cell | {"epsilon": e}) for e in epsilons]
    return side_by_side(
        examples()[0],
        _batches(cell),
        _noise(cell, options),
        rates=np.array(rates, np.float32),
        scales=np.array(scales, np.float32),
        divisor=cell["batch_size"],
        clip_norm=cell["clip_norm"],
    )


def side_by_side(
    examples: Examples,
    batches: Iterable[Any],
    noise: Iterator[Matrix],
    *,
    rates: Matrix,
    scales: Matrix,
    divisor: float,
    clip_norm: float,
) -> Matrix:
    """Train models at once, each as `linear_training.train` does, at its own rate and noise scale.

    Args:
        examples: the training examples.
        batches: indices of the examples of each step.
        noise: one array per step, shared by all models.
        rates: learning rate of each model.
        scales: factor of the noise of each model.
        divisor: the public batch size.
        clip_norm: norm to which each example's gradient is clipped.

    Returns:
        The weights: (models, classes − 1, inputs).
    """
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
        limit = np.float32(clip_norm * (1 - CLIP_MARGIN))
        residuals *= np.minimum(limit / np.maximum(norms, 1e-30), 1)[:, :, None]
        update = (residuals.reshape(len(x), -1).T @ x).reshape(weights.shape)
        update += scales[:, None, None] * next(noise)
        update *= steps
        weights -= update
    return weights


def _batches(cell: Cell) -> Iterable[Any]:
    """Poisson samples, or all epochs of one order; a seed has the same for all mechanisms."""
    rng, size = np.random.default_rng(cell["seed"]), len(examples()[0].inputs)
    if cell["mechanism"] == "dp-sgd":
        rate = cell["batch_size"] / size
        return (np.flatnonzero(rng.random(size) < rate) for _ in range(cell["steps"]))
    epoch = FixedOrderBatches(size, cell["batch_size"], order=rng.permutation(size).tolist())
    return islice(chain.from_iterable(repeat(epoch)), cell["steps"])


def _noise(cell: Cell, options: dict[str, Any]) -> Iterator[Matrix]:
    """Rows of noise at noise multiplier 1.

    One epoch for Poisson batches: their noise multiplier already accounts for all steps.
    """
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
    """Scattering features of the images, computed once and cached beside the data."""
    images = data.load("cifar10")
    prefix = f"{images.digest[:16]}-{scattering_features.FEATURES}"
    with cache.opened("cifar10-scattering") as folder:
        train = _cached_features(folder / f"{prefix}-train.npy", images.train.inputs)
        test = _cached_features(folder / f"{prefix}-test.npy", images.test.inputs)
    classes = len(images.classes)
    return (
        Examples.of(data.Split(train, images.train.targets), classes),
        Examples.of(data.Split(test, images.test.targets), classes),
    )


def _cached_features(path: Path, images: scattering_features.Images) -> Matrix:
    if not path.exists():
        parts = [
            scattering_features.features(images[i : i + CHUNK])
            for i in range(0, len(images), CHUNK)
        ]
        temporary = path.with_name(f".{path.name}")
        np.save(temporary, np.concatenate(parts))
        temporary.rename(path)
    features: Matrix = np.load(path, mmap_mode=None if cache.directory("") is None else "r")
    return features


def summary(results: Results, full: bool) -> dict[str, Any]:
    """Accuracies and tuned options by mechanism and ε."""
    accuracy, chosen = {}, {}
    for name in DESIGNS:
        trials = [
            result
            for cell, result in results
            if cell["mechanism"] == name and cell["stage"] == "trial"
        ]
        epsilons = [None] if name == "none" else COMMON["epsilons"]
        means = [
            accuracies.mean([trial["accuracy"][i] for trial in trials])
            for i in range(len(epsilons))
        ]
        labels = ["none" if epsilon is None else accuracies.key(epsilon) for epsilon in epsilons]
        accuracy[name] = dict(zip(labels, means, strict=True))
        chosen[name] = dict(zip(labels, trials[0]["chosen"], strict=True))
    level = accuracy.pop("none")["none"]
    return {
        "accuracy": accuracy,  # by mechanism and ε: mean, standard error
        "no noise": level,
        "chosen": chosen,
        "ahead": accuracies.comparisons(accuracy),
    }


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Accuracy by ε."""
    summed = record["summary"]
    title = "CIFAR-10, linear model on scattering features, 20 epochs"
    chart = accuracies.chart(summed["accuracy"], title, _note(record), summed["no noise"][0])
    return list(figures.draw(folder / NAME, chart))


def tables(record: dict[str, Any]) -> list[Table]:
    """Accuracies, tuned options and comparisons."""
    chosen, level = record["summary"]["chosen"], record["summary"]["no noise"]
    rates = "; ".join(
        label + " " + ", ".join(f"{choice['rate']:g}" for choice in chosen[name].values())
        for name, label in accuracies.LABELS.items()
    )
    damping = ", ".join(f"{choice['options']['rho']:g}" for choice in chosen["damped"].values())
    note = (
        f"{_note(record)} No noise: {accuracies.percent(level)}. Learning rates: {rates}. "
        f"ρ of damped: {damping}."
    )
    return accuracies.tables(record["summary"]["accuracy"], TITLE, note)


def _note(record: dict[str, Any]) -> str:
    return f"Means of {TRIALS} trials, ± one standard error. δ = {record['settings']['delta']:g}."
