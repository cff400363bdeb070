r"""The paper's Figure 3 a, b: logistic regression on MNIST, 2,048 steps, in one epoch (batches of 29) or 16 (of 469).

What the paper leaves open is as its table counts: 784 × 9 parameters, so the last class is the reference and there is
no bias; pixels in [0, 1]; weights begin at zero, and the last iterate is judged on the 10,000 test images. Batches come
in an order that each trial draws once; of one epoch the last 608 images are not seen, of 16 the last batch of each is
short, and sums are divided by the public batch size all the same. DP-SGD has Poisson batches with the same expected
size and the amplification that a privacy loss distribution gives it; beside it, DP-SGD without.

Beyond the paper: *advised*, the mechanism that `antiphase.recommend` recommends for batches in a fixed order, from
the curvature of the same model on public images (Fashion-MNIST); and training that clips and adds no noise.
"""

from __future__ import annotations

import math
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
from antiphase.torch.training import torch_generator
from experiments.accuracies import over_budgets
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

TENSOR = "weight"  # the name of the one tensor that noise is for
PARAMETERS = 784 * 9
PUBLIC = 2000  # images of Fashion-MNIST that the curvature is estimated on


def cells(full: bool) -> list[Cell]:
    """All that the paper did, also by default. What takes longest comes first, so that no process waits at the end."""
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
    """Accuracies of each trial, by ε, with what was promised."""
    if "epsilons" not in cell:
        return {"accuracies": [accuracies[0] for accuracies in _trials(cell, [])]}
    made = mechanisms(cell)
    by_epsilon = zip(*_trials(cell, made), strict=True)
    return {
        "design": repr(made[0].factorization),
        "private": [
            {
                "accuracies": accuracies,
                "noise_multiplier": mechanism.noise_multiplier,
                "noise_scale": mechanism.noise_scale,
                "epsilon": mechanism.epsilon(),
            }
            for mechanism, accuracies in zip(made, by_epsilon, strict=True)
        ],
    }


# ---- mechanisms --------------------------------------------------------------------------------------------


def mechanisms(cell: Cell) -> list[Mechanism]:
    """The same design, calibrated for each ε."""
    promise: dict[str, Any] = {"delta": cell["delta"], "clip_norm": cell["clip_norm"]}
    if "poisson" in cell:
        promise["sampling"] = ap.sampling.Poisson(sampling_rate(cell))
    made = _advised(cell) if cell["mechanism"] == "advised" else _design(cell)
    return [ap.calibrate(made, epsilon=epsilon, **promise) for epsilon in cell["epsilons"]]


def _design(cell: Cell) -> Factorization:
    setting, options = setting_of(cell), {"tau": cell["tau"]} if "tau" in cell else {}
    # Whoever is drawn anew for each step may be in any of them.
    who = min_separation(cell["steps"], apart=1) if "poisson" in cell else setting.participation
    return ap.design(cell["mechanism"], workload=setting.workload, participation=who, **options)


def _advised(cell: Cell) -> Factorization:
    """What `recommend` recommends. It looks at public images alone; on batches in a fixed order it is the same for all ε,
    which scale the noise of all designs alike."""
    return recommend(
        setting_of(cell), spectrum=public_spectrum(cell["clip_norm"])
    ).best.factorization


def setting_of(cell: Cell) -> Setting:
    optimizer = {"learning_rates": cell["learning_rate"]}
    return Setting.of(cell["steps"], cell["epochs"], optimizer=optimizer, parameters=PARAMETERS)


@lru_cache
def public_spectrum(clip_norm: float, count: int = PUBLIC) -> Spectrum:
    """Of the loss where training begins, on images of Fashion-MNIST, as clipped gradients see it: exactly.

    At zero all classes are equally likely, so every example has the Hessian ``(diag(p) − ppᵀ) ⊗ xxᵀ`` with the same
    ``p``, and the eigenvalues of the sum are products of those of its two factors.
    """
    public = data.load("fashion-mnist")
    chosen = np.random.default_rng(0).permutation(len(public.train))[:count]
    some = Examples.of(
        data.Split(public.train.inputs[chosen], public.train.targets[chosen]), len(public.classes)
    )
    p = np.full(some.targets.shape[1], 1 / len(public.classes))
    norms = np.linalg.norm(p - some.targets, axis=1) * some.norms
    x = some.inputs.astype(np.float64)
    moments = x.T @ (np.minimum(clip_norm / norms, 1.0)[:, None] * x) / count
    factors = np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)), np.linalg.eigvalsh(moments)
    return Spectrum(np.maximum(np.outer(*factors).ravel(), 0.0))


# ---- training ----------------------------------------------------------------------------------------------


@lru_cache
def examples() -> tuple[Examples, Examples]:
    mnist = data.load("mnist")
    return Examples.of(mnist.train, len(mnist.classes)), Examples.of(mnist.test, len(mnist.classes))


def _trials(cell: Cell, made: list[Mechanism]) -> list[list[float]]:
    """The accuracy on the test images: for each trial, that of each mechanism (or of none)."""
    _, test = examples()
    return [
        [test.accuracy(model) for model in trained(cell, made, trial)]
        for trial in range(cell["trials"])
    ]


def trained(
    cell: Cell, made: list[Mechanism], trial: int, batches: Batches | None = None
) -> Matrix:
    """The weights after all steps, one model for each mechanism, or one without noise."""
    return train(
        examples()[0],
        batches_of(cell, trial) if batches is None else batches,
        _noise(made, cell, trial) if made else None,
        learning_rate=cell["learning_rate"],
        divisor=cell["batch_size"],
        clip_norm=None if cell["mechanism"] == "none" else cell["clip_norm"],
        models=max(len(made), 1),
    )


def sampling_rate(cell: Cell) -> float:
    return float(cell["batch_size"] / len(examples()[0].inputs))


def batches_of(cell: Cell, trial: int) -> Batches:
    """Poisson samples, or all epochs of one order, the same for all mechanisms of a trial."""
    size = len(examples()[0].inputs)
    if "poisson" in cell:
        # Opacus' own sampler, which the accounting is for; its generator has a state from the key.
        sampler: Batches = UniformWithReplacementSampler(
            num_samples=size, sample_rate=sampling_rate(cell), steps=cell["steps"],
            generator=torch_generator(Key.insecure(cell["seed"]), "samples", str(trial)),
        )  # fmt: skip
        return sampler
    order = np.random.default_rng([cell["seed"], trial]).permutation(size)
    epoch = FixedOrderBatches(size, cell["batch_size"], order=order.tolist())
    return islice(chain.from_iterable(repeat(epoch)), cell["steps"])


def _noise(made: list[Mechanism], cell: Cell, trial: int) -> Iterator[Matrix]:
    key, run = key_and_run(cell, trial)
    seen, _ = examples()
    shapes = {TENSOR: (seen.targets.shape[1], seen.inputs.shape[1])}
    streams = [mechanism.noise(key=key, shapes=shapes, run=run, threads=1) for mechanism in made]
    return (np.stack([row[TENSOR] for row in rows]) for rows in zip(*streams, strict=True))


def key_and_run(cell: Cell, trial: int) -> tuple[Key, str]:
    """That the noise is made from: a function of the seed and the trial, so that results repeat."""
    key = Key.insecure(cell["seed"])
    return key, f"{key.subkey('run', str(trial)):032x}"


# ---- what follows ------------------------------------------------------------------------------------------

POISSON, FIXED, MF = "DP-SGD, Poisson batches", "DP-SGD, fixed order", "DP-MF"
ADVISED, CLIPPED, ALONE = "advised", "clipped, no noise", "no privacy"


def plus(tau: int) -> str:
    return f"DP-MF⁺, τ = {tau}"


PLUS = plus(TAUS[-1])
LABELS = [POISSON, FIXED, MF, *map(plus, TAUS), ADVISED]  # of what has an ε
COLOUR = {POISSON: "dp-sgd", FIXED: "dp-sgd", MF: "dp-mf", PLUS: "dp-mf+", ADVISED: "damped"}


def summary(found: Results, full: bool) -> dict[str, Any]:
    return {
        "settings": [_setting(epochs, found) for epochs in BATCH_SIZES],
        "runs": sum(cell["trials"] * len(cell.get("epsilons", [None])) for cell, _ in found),
    }


def _setting(epochs: int, found: Results) -> dict[str, Any]:
    here = {_label(cell): (cell, result) for cell, result in found if cell["epochs"] == epochs}
    accuracy = {
        label: {
            _key(epsilon): _mean(private["accuracies"])
            for epsilon, private in zip(cell["epsilons"], result["private"], strict=True)
        }
        for label, (cell, result) in ((label, here[label]) for label in LABELS)
    }
    return {
        "epochs": epochs,
        "batch_size": BATCH_SIZES[epochs],
        "accuracy": accuracy,  # by label and ε: mean, standard error
        "levels": {label: _mean(here[label][1]["accuracies"]) for label in (CLIPPED, ALONE)},
        "advised": here[ADVISED][1]["design"],
        "DP-MF⁺ over DP-MF": _over(accuracy[PLUS], accuracy[MF]),
        "DP-MF⁺ by τ": {
            f"{few} to {more}": _over(accuracy[plus(more)], accuracy[plus(few)])
            for few, more in pairwise(TAUS)
        },
        "over DP-SGD": {
            label: _over(accuracy[label], accuracy[POISSON]) for label in LABELS if label != POISSON
        },
        "advised over DP-MF⁺": _over(accuracy[ADVISED], accuracy[PLUS]),
    }


def _label(cell: Cell) -> str:
    if cell["mechanism"] == "dp-mf+":
        return plus(cell["tau"])
    if cell["mechanism"] == "dp-sgd":
        return POISSON if "poisson" in cell else FIXED
    return {"dp-mf": MF, "advised": ADVISED, "clipped": CLIPPED, "none": ALONE}[cell["mechanism"]]


def _key(epsilon: float) -> str:
    return f"{epsilon:g}"


def _mean(runs: list[float]) -> list[float]:
    """The mean and its standard error."""
    return [float(np.mean(runs)), float(np.std(runs, ddof=1) / math.sqrt(len(runs)))]


def _over(one: dict[str, list[float]], other: dict[str, list[float]]) -> dict[str, list[float]]:
    """By ε: by how much the one is better, and the standard error of that."""
    return {e: [one[e][0] - other[e][0], math.hypot(one[e][1], other[e][1])] for e in one}


def verdict(difference: list[float]) -> str:
    """``better`` or ``worse`` by more than two standard errors, or ``alike``."""
    gain, error = difference
    return "alike" if abs(gain) <= 2 * error else "better" if gain > 0 else "worse"


# ---- what is shown -----------------------------------------------------------------------------------------


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
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
    for label, (mean, _) in setting["levels"].items():
        level = np.full(len(x), 100 * mean)
        series.append(charts.Series(charts.NON_PRIVATE, label, x, level, dashed=True, points=False))
    note = NOTE + f"δ = {COMMON['delta']:g}, learning rate {COMMON['learning_rate']:g}."
    return over_budgets(title, series, note)


def _against_tau(setting: dict[str, Any], title: str) -> charts.Lines:
    series = []
    for epsilon in map(_key, EPSILONS):
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
        tables.append(Table(_title(setting), ["ε", *map(_key, EPSILONS)], rows, note))
    return tables


def _percent(value: list[float]) -> str:
    mean, error = value
    return f"{100 * mean:.1f} ± {100 * error:.1f}"
