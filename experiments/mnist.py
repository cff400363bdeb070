r"""Figure 3 a, b: logistic regression on MNIST, 2,048 steps, 1 or 16 epochs.

Batches of 29 in one epoch or of 469 in 16. The paper's table counts 784 × 9 parameters, so the last
class is the reference and there is no bias. Pixels are in [0, 1]. Weights start at zero, and the
last iterate is evaluated on the 10,000 test images. Each trial draws one order of the images. In
one epoch the last 608 images are not used; in 16 the last batch of each epoch is short, and sums
are divided by the public batch size all the same. DP-SGD has Poisson batches of the same expected
size, with the amplification of its privacy loss distribution; beside it, DP-SGD without
amplification.

Beyond the paper: *advised*, the mechanism that `antiphase.recommend` recommends for batches in a
fixed order, from the curvature of the same model on public images (Fashion-MNIST); and training
that clips and adds no noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

import antiphase as ap
from antiphase import data
from antiphase.comparison import Setting
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.participation import min_separation
from antiphase.recommendation import recommend
from antiphase.reporting import charts, figures
from antiphase.theory.spectrum import Spectrum
from antiphase.torch.batch_selection import FixedOrderBatches
from antiphase.torch.secret_generator import torch_generator
from experiments.accuracies import differences, key, mean, over_budgets
from experiments.linear_training import Batches, Examples, Matrix, train
from experiments.runner import Cell, Result, Results, Table

NAME = "mnist"
TITLE = "Logistic regression on MNIST, 2,048 steps"
REVISION = 1  # raise it with every change that changes a result
SEED = 4
EPSILONS = [0.01, 0.1, 0.31, 1.0, 3.1, 10.0, 31.0, 100.0]
TAUS = [2, 8, 32, 128, 512, 2048]
BATCH_SIZES = {1: 29, 16: 469}  # by epochs
COMMON: Cell = {
    "steps": 2048,
    "delta": 1e-6,
    "clip_norm": 1.0,
    "learning_rate": 0.5,
    "trials": 5,
    "seed": SEED,
}

TENSOR = "weight"  # name of the only tensor of the model
PARAMETERS = 784 * 9
PUBLIC_IMAGES = 2000  # of Fashion-MNIST, on which the curvature is estimated


def cells(full: bool) -> list[Cell]:
    """The paper's whole grid, also by default; the slowest cells first, to keep processes busy."""
    kinds: list[Cell] = [
        {"mechanism": "advised"},
        {"mechanism": "dp-sgd", "poisson": True},
        {"mechanism": "dp-mf"},
    ]
    kinds += [{"mechanism": "dp-mf+", "tau": tau} for tau in reversed(TAUS)] + [
        {"mechanism": "dp-sgd"}
    ]
    kinds = [kind | {"epsilons": EPSILONS} for kind in kinds] + [
        {"mechanism": "clipped"},
        {"mechanism": "none"},
    ]
    return [
        kind | {"epochs": epochs, "batch_size": BATCH_SIZES[epochs]} | COMMON
        for kind in kinds
        for epochs in (16, 1)
    ]


def work(cell: Cell) -> Result:
    """Accuracies of each trial by ε, with the promise of each mechanism."""
    if "epsilons" not in cell:
        return {"accuracies": [accuracies[0] for accuracies in _trials(cell, [])]}
    calibrated = mechanisms(cell)
    by_epsilon = zip(*_trials(cell, calibrated), strict=True)
    return {
        "design": repr(calibrated[0].factorization),
        "private": [
            {
                "accuracies": accuracies,
                "noise_multiplier": mechanism.noise_multiplier,
                "noise_scale": mechanism.noise_scale,
                "epsilon": mechanism.epsilon(),
            }
            for mechanism, accuracies in zip(calibrated, by_epsilon, strict=True)
        ],
    }


def mechanisms(cell: Cell) -> list[Mechanism]:
    """The cell's factorization, calibrated for each ε."""
    promise: dict[str, Any] = {"delta": cell["delta"], "clip_norm": cell["clip_norm"]}
    if "poisson" in cell:
        promise["sampling"] = ap.sampling.Poisson(sampling_rate(cell))
    design = _advised(cell) if cell["mechanism"] == "advised" else _design(cell)
    return [ap.calibrate(design, epsilon=epsilon, **promise) for epsilon in cell["epsilons"]]


def _design(cell: Cell) -> Factorization:
    setting, options = setting_of(cell), {"tau": cell["tau"]} if "tau" in cell else {}
    participation = setting.participation
    if "poisson" in cell:  # an example may be in any batch
        participation = min_separation(cell["steps"], apart=1)
    return ap.design(
        cell["mechanism"], workload=setting.workload, participation=participation, **options
    )


def _advised(cell: Cell) -> Factorization:
    """The recommended factorization, from public images alone.

    On batches in a fixed order it is the same for all ε, which scale the noise of every design.
    """
    return recommend(
        setting_of(cell), spectrum=public_spectrum(cell["clip_norm"])
    ).best.factorization


def setting_of(cell: Cell) -> Setting:
    """The setting that mechanisms are designed for."""
    optimizer = {"learning_rates": cell["learning_rate"]}
    return Setting.of(cell["steps"], cell["epochs"], optimizer=optimizer, parameters=PARAMETERS)


@lru_cache
def public_spectrum(clip_norm: float, count: int = PUBLIC_IMAGES) -> Spectrum:
    """The spectrum of the clipped loss at the initial weights on Fashion-MNIST, exactly.

    At zero all classes are equally likely, so every example has the Hessian
    ``(diag(p) − ppᵀ) ⊗ xxᵀ`` with the same ``p``, and the eigenvalues of the sum are products of
    those of its two factors.
    """
    public = data.load("fashion-mnist")
    chosen = np.random.default_rng(0).permutation(len(public.train))[:count]
    split = data.Split(public.train.inputs[chosen], public.train.targets[chosen])
    sample = Examples.of(split, len(public.classes))
    p = np.full(sample.targets.shape[1], 1 / len(public.classes))
    norms = np.linalg.norm(p - sample.targets, axis=1) * sample.norms
    x = sample.inputs.astype(np.float64)
    moments = x.T @ (np.minimum(clip_norm / norms, 1.0)[:, None] * x) / count
    factors = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)), np.linalg.eigvalsh(moments)
    return Spectrum(np.maximum(np.outer(*factors).ravel(), 0.0))


@lru_cache
def examples() -> tuple[Examples, Examples]:
    """The training and the test images."""
    mnist = data.load("mnist")
    return Examples.of(mnist.train, len(mnist.classes)), Examples.of(mnist.test, len(mnist.classes))


def _trials(cell: Cell, mechanisms: list[Mechanism]) -> list[list[float]]:
    """The test accuracy of each trial and mechanism (or of the model without noise)."""
    _, test = examples()
    return [
        [test.accuracy(model) for model in trained(cell, mechanisms, trial)]
        for trial in range(cell["trials"])
    ]


def trained(
    cell: Cell, mechanisms: list[Mechanism], trial: int, batches: Batches | None = None
) -> Matrix:
    """The weights after all steps: a model for each mechanism, or one without noise."""
    return train(
        examples()[0],
        batches_of(cell, trial) if batches is None else batches,
        _noise(mechanisms, cell, trial) if mechanisms else None,
        learning_rate=cell["learning_rate"],
        divisor=cell["batch_size"],
        clip_norm=None if cell["mechanism"] == "none" else cell["clip_norm"],
        models=max(len(mechanisms), 1),
    )


def sampling_rate(cell: Cell) -> float:
    """The rate of Poisson batches whose expected size is the batch size."""
    return float(cell["batch_size"] / len(examples()[0].inputs))


def batches_of(cell: Cell, trial: int) -> Batches:
    """Poisson samples, or all epochs of one order; the same for all mechanisms of a trial."""
    size = len(examples()[0].inputs)
    if "poisson" in cell:
        # Opacus' own sampler, with a generator seeded from the key.
        sampler: Batches = UniformWithReplacementSampler(
            num_samples=size,
            sample_rate=sampling_rate(cell),
            steps=cell["steps"],
            generator=torch_generator(Key.insecure(cell["seed"]), "samples", str(trial)),
        )
        return sampler
    order = np.random.default_rng([cell["seed"], trial]).permutation(size)
    epoch = FixedOrderBatches(size, cell["batch_size"], order=order.tolist())
    return islice(chain.from_iterable(repeat(epoch)), cell["steps"])


def _noise(mechanisms: list[Mechanism], cell: Cell, trial: int) -> Iterator[Matrix]:
    key, run = key_and_run(cell, trial)
    seen, _ = examples()
    shapes = {TENSOR: (seen.targets.shape[1], seen.inputs.shape[1])}
    streams = [m.noise(key=key, shapes=shapes, run=run, threads=1) for m in mechanisms]
    return (np.stack([row[TENSOR] for row in rows]) for rows in zip(*streams, strict=True))


def key_and_run(cell: Cell, trial: int) -> tuple[Key, str]:
    """The key and run of the noise: a function of seed and trial, so that results repeat."""
    key = Key.insecure(cell["seed"])
    return key, f"{key.subkey('run', str(trial)):032x}"


POISSON, FIXED, MF = "DP-SGD, Poisson batches", "DP-SGD, fixed order", "DP-MF"
ADVISED, CLIPPED, ALONE = "advised", "clipped, no noise", "no privacy"


def plus(tau: int) -> str:
    """The label of DP-MF⁺."""
    return f"DP-MF⁺, τ = {tau}"


PLUS = plus(TAUS[-1])
LABELS = [POISSON, FIXED, MF, *map(plus, TAUS), ADVISED]  # of mechanisms with an ε
COLOUR = {POISSON: "dp-sgd", FIXED: "dp-sgd", MF: "dp-mf", PLUS: "dp-mf+", ADVISED: "damped"}


def summary(results: Results, full: bool) -> dict[str, Any]:
    """Accuracies and comparisons for one and for 16 epochs, and the number of trainings."""
    return {
        "settings": [_setting(epochs, results) for epochs in BATCH_SIZES],
        "runs": sum(cell["trials"] * len(cell.get("epsilons", [None])) for cell, _ in results),
    }


def _setting(epochs: int, results: Results) -> dict[str, Any]:
    by_label = {
        _label(cell): (cell, result) for cell, result in results if cell["epochs"] == epochs
    }
    accuracy = {
        label: {
            key(epsilon): mean(private["accuracies"])
            for epsilon, private in zip(cell["epsilons"], result["private"], strict=True)
        }
        for label, (cell, result) in ((label, by_label[label]) for label in LABELS)
    }
    return {
        "epochs": epochs,
        "batch_size": BATCH_SIZES[epochs],
        "accuracy": accuracy,  # by label and ε: mean, standard error
        "levels": {label: mean(by_label[label][1]["accuracies"]) for label in (CLIPPED, ALONE)},
        "advised": by_label[ADVISED][1]["design"],
        "DP-MF⁺ over DP-MF": differences(accuracy[PLUS], accuracy[MF]),
        "DP-MF⁺ by τ": {
            f"{few} to {more}": differences(accuracy[plus(more)], accuracy[plus(few)])
            for few, more in pairwise(TAUS)
        },
        "over DP-SGD": {
            label: differences(accuracy[label], accuracy[POISSON])
            for label in LABELS
            if label != POISSON
        },
        "advised over DP-MF⁺": differences(accuracy[ADVISED], accuracy[PLUS]),
    }


def _label(cell: Cell) -> str:
    if cell["mechanism"] == "dp-mf+":
        return plus(cell["tau"])
    if cell["mechanism"] == "dp-sgd":
        return POISSON if "poisson" in cell else FIXED
    return {"dp-mf": MF, "advised": ADVISED, "clipped": CLIPPED, "none": ALONE}[cell["mechanism"]]


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Accuracy by ε, and accuracy of DP-MF⁺ by τ, for one and for 16 epochs."""
    paths: list[Path] = []
    for setting in record["summary"]["settings"]:
        name, title = f"{NAME}-{setting['epochs']}", _title(setting)
        paths += figures.draw(folder / name, _against_epsilon(setting, f"MNIST, {title}"))
        paths += figures.draw(
            folder / f"{name}-tau", _against_tau(setting, f"DP-MF⁺ on MNIST, {title}")
        )
    return paths


def _title(setting: dict[str, Any]) -> str:
    epochs = setting["epochs"]
    return f"{epochs} epoch{'s' * (epochs > 1)}, batches of {setting['batch_size']}"


NOTE = f"Means of {COMMON['trials']} trials, ± one standard error. "


def _against_epsilon(setting: dict[str, Any], title: str) -> charts.Lines:
    accuracy, x = setting["accuracy"], np.array(EPSILONS)
    series = []
    for label, name in COLOUR.items():
        means, errors = 100 * np.array(list(accuracy[label].values())).T
        series.append(charts.Series(name, label, x, means, errors, dashed=label == FIXED))
    for label, (accuracy_without_noise, _) in setting["levels"].items():
        level = np.full(len(x), 100 * accuracy_without_noise)
        series.append(charts.Series(charts.NON_PRIVATE, label, x, level, dashed=True, points=False))
    note = NOTE + f"δ = {COMMON['delta']:g}, learning rate {COMMON['learning_rate']:g}."
    return over_budgets(title, series, note)


def _against_tau(setting: dict[str, Any], title: str) -> charts.Lines:
    series = []
    for epsilon in map(key, EPSILONS):
        values = [setting["accuracy"][plus(tau)][epsilon] for tau in TAUS]
        means, errors = 100 * np.array(values).T
        series.append(
            charts.Series("dp-mf+", f"ε = {epsilon}", np.array(TAUS, dtype=float), means, errors)
        )
    return charts.Lines(
        title,
        "steps between restarts τ",
        "accuracy on the test images (%)",
        series,
        log_x=True,
        note=NOTE,
    )


def tables(record: dict[str, Any]) -> list[Table]:
    """Accuracies for one and for 16 epochs."""
    tables = []
    for setting in record["summary"]["settings"]:
        rows = [
            [label, *map(_percent, values.values())]
            for label, values in setting["accuracy"].items()
        ]
        levels = ", ".join(
            f"{label} {_percent(value)}" for label, value in setting["levels"].items()
        )
        note = f"In percent, {NOTE[0].lower() + NOTE[1:]}{levels}. Advised: {setting['advised']}."
        tables.append(Table(_title(setting), ["ε", *map(key, EPSILONS)], rows, note))
    return tables


def _percent(value: list[float]) -> str:
    return f"{100 * value[0]:.1f} ± {100 * value[1]:.1f}"
