r"""Table 2: next-word prediction by federated averaging, one epoch over users.

As in the paper: user-level privacy, an LSTM, sentences of at most 20 words, users who take part
once, server momentum 0.9, a learning rate that falls to a twentieth over the last quarter of the
rounds, noise multipliers 0.341 × {1, 2, 4, 8, 16}, accuracy of the last model on other users. C is
designed for prefix sums, as in the paper, or for what the server computes, as we recommend. Beyond
the paper: the tree of DP-FTRL; *advised*, the mechanism that `antiphase.recommend` recommends for
the true workload; and training that clips with negligible noise.

Users are Shakespeare's roles, or those of a file of JSON lines (`antiphase.data.load_texts`) whose
path is in ``ANTIPHASE_TEXT``. The vocabulary comes from the validation users, who count as public,
and learning rates are chosen on them.

With ``--full``, rounds, vocabulary and network are the paper's. The default is scaled down: 128
rounds instead of 2,048, an LSTM of 92,172 parameters instead of 4,050,748, 1,000 words instead of
10,000, 32 sentences per user instead of 256, one learning rate. That rate, the clients' rate, the
clip norm, and the choice not to predict unknown words were made by the accuracy on test users, in
seven runs on Stack Exchange and the first rounds of one on Ubuntu IRC. Results on Stack Exchange
are therefore slightly optimistic, for all mechanisms.

Thousands of users are tens per round, where the paper has 167, and the same noise weighs more in a
mean over fewer. So each setting is shown twice: as it is, and as a *projection* with the noise that
a mean over 167 users would have. The projection shows what training would achieve with the number
of users that the record names. It makes no privacy claim for the users in the data.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import antiphase as ap
from antiphase import accounting, data
from antiphase.comparison import Setting
from antiphase.errors import DataError
from antiphase.factorizations.base import Factorization
from antiphase.federated import Server
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.recommendation import recommend
from antiphase.reporting import charts, figures
from antiphase.workload import Workload
from experiments import accuracies
from experiments.accuracies import key
from experiments.next_word import (
    Client,
    NextWord,
    Sentences,
    Vocabulary,
    accuracy,
    most_frequent_accuracy,
)
from experiments.runner import Cell, Result, Results, StudyError, Table

NAME = "text"
TITLE = "Next-word prediction by federated averaging, one epoch over users"
REVISION = 1  # raise it with every change that changes a result
SOURCE = "ANTIPHASE_TEXT"  # environment variable: path of a file of texts
MULTIPLIERS = [0.341, 0.682, 1.364, 2.728, 5.456]
PAPER_CLIENTS = 167  # users per round in the paper
TRIALS = 2
COMMON: Cell = {
    "delta": 1e-6,
    "clip_norm": 1.0,
    "client_rate": 2.0,
    "batch_size": 16,
    "momentum": 0.9,
    "cooled_to": 0.05,
}
SIZES: dict[bool, Cell] = {
    True: {"rounds": 2048, "words": 10_000, "embedding": 96, "hidden": 670, "sentences": 256},
    False: {"rounds": 128, "words": 1000, "embedding": 32, "hidden": 64, "sentences": 32},
}
RATES = {True: [0.25, 0.5, 1.0, 2.0], False: [0.5]}  # of the server
MAX_EVALUATED = 5000  # sentences on which an accuracy is measured
NEGLIGIBLE_NOISE = 1e-6  # a noise multiplier that changes nothing

PREFIX, TRUE = "prefix sums", "momentum and decay"
DESIGNS: list[Cell] = [
    {"mechanism": "tree", "designed_for": PREFIX},
    {"mechanism": "dp-mf", "designed_for": PREFIX},
    {"mechanism": "dp-mf+", "designed_for": PREFIX},
    {"mechanism": "dp-mf", "designed_for": TRUE},
    {"mechanism": "advised", "designed_for": TRUE},
]
CLIPPED: Cell = {
    "mechanism": "dp-sgd",
    "designed_for": PREFIX,
    "noise_multiplier": NEGLIGIBLE_NOISE,
}


def cells(full: bool) -> list[Cell]:
    """Every design, noise and learning rate, as it is and projected, trial by trial."""
    texts = _texts()
    setting = (
        COMMON
        | SIZES[full]
        | {"data": texts.name, "digest": texts.digest, "users": len(texts.train)}
    )
    if len(texts.train) < setting["rounds"]:
        raise DataError(
            f"{texts.name} has {len(texts.train)} users to train, and {setting['rounds']} rounds "
            f"need at least as many; set {SOURCE} to a file with more"
            + (", or leave --full out" if full else "")
        )
    points: list[Cell] = [CLIPPED | {"projected": False}]
    for projected in (False, True) if clients(setting) < PAPER_CLIENTS else (False,):
        points += [
            d | {"noise_multiplier": m, "projected": projected}
            for m in MULTIPLIERS
            for d in DESIGNS
        ]
    return [
        point | {"rate": rate, "seed": seed} | setting
        for seed in range(1, TRIALS + 1)
        for point in points
        for rate in RATES[full]
    ]


def work(cell: Cell) -> Result:
    """Accuracies on test and validation users, the latter also during training."""
    users = _users(cell["digest"], cell["words"], cell["sentences"])
    calibrated = mechanism(cell)
    net = NextWord.seeded(cell["seed"], len(users.vocabulary), cell["embedding"], cell["hidden"])
    during_training = trained(cell, calibrated, net, users)
    promises_nothing = cell["projected"] or cell["noise_multiplier"] == NEGLIGIBLE_NOISE
    return {
        "accuracy": accuracy(net, users.test),
        "validation": accuracy(net, users.val),
        "on the way": during_training,
        "commonest word": most_frequent_accuracy(users.test),
        "parameters": sum(array.size for array in net.arrays().values()),
        "epsilon": None if promises_nothing else calibrated.epsilon(),
        "error": _errors(cell),
    }


class _Users:
    """Sentences of each training user, and of all validation and test users."""

    def __init__(self, texts: data.Texts, words: int, limit: int) -> None:
        self.vocabulary = Vocabulary.of(
            (text for several in texts.val.values() for text in several), words
        )
        self.train = {
            user: self.vocabulary.sentences(several, limit) for user, several in texts.train.items()
        }
        self.val, self.test = (self._evaluated(part, limit) for part in (texts.val, texts.test))

    def _evaluated(self, part: dict[str, list[str]], limit: int) -> Sentences:
        together = np.concatenate(
            [self.vocabulary.sentences(several, limit) for several in part.values()]
        )
        return np.random.default_rng(0).permutation(together)[:MAX_EVALUATED]


@lru_cache
def _texts() -> data.Texts:
    return data.load_texts(os.environ.get(SOURCE) or "shakespeare")


@lru_cache
def _users(digest: str, words: int, limit: int) -> _Users:
    texts = _texts()
    if texts.digest != digest:
        raise StudyError(
            f"{texts.name} has changed since the study began; do not change {SOURCE} and its file"
        )
    return _Users(texts, words, limit)


def clients(cell: Cell) -> int:
    """Users per round, when each takes part once."""
    return int(cell["users"] // cell["rounds"])


def workload(cell: Cell) -> Workload:
    """The server's optimizer: momentum, and a rate that falls over the last quarter of rounds."""
    rounds = cell["rounds"]
    cooling = np.linspace(1.0, cell["cooled_to"], rounds - 3 * rounds // 4)
    rates = cell["rate"] * np.concatenate([np.ones(3 * rounds // 4), cooling])
    return Workload.sgd(rounds, momentum=cell["momentum"], learning_rates=rates)


def design_of(cell: Cell) -> Factorization:
    """The factorization of a cell."""
    return _design(cell["mechanism"], workload(cell), cell["designed_for"] == PREFIX)


@lru_cache(maxsize=8)
def _design(name: str, true: Workload, for_prefix_sums: bool) -> Factorization:
    if name == "advised":
        return recommend(Setting(true, ap.once())).best.factorization
    return ap.design(name, steps=true.steps) if for_prefix_sums else ap.design(name, workload=true)


def mechanism(cell: Cell) -> Mechanism:
    """The mechanism calibrated for the noise multiplier.

    A projection has the noise in the mean that PAPER_CLIENTS users per round would have.
    """
    scale = clients(cell) / PAPER_CLIENTS if cell["projected"] else 1.0
    return ap.calibrate(
        design_of(cell),
        noise_multiplier=cell["noise_multiplier"] * scale,
        delta=cell["delta"],
        clip_norm=cell["clip_norm"],
        unit="user",
    )


def _errors(cell: Cell) -> list[float]:
    """The squared noise in the server's models, in total and in the last one.

    At noise multiplier and clip norm 1. ``B = A C⁻¹``, whatever C was designed for.
    """
    design = design_of(cell)
    squared = design.sensitivity**2 * ((workload(cell).dense() @ design.noising()) ** 2).sum(axis=1)
    return [float(squared.sum()), float(squared[-1])]


def trained(cell: Cell, calibrated: Mechanism, net: NextWord, users: _Users) -> list[float]:
    """Train ``net`` for all rounds; returns the validation accuracy after every eighth of them."""
    size, rounds = clients(cell), cell["rounds"]
    order = np.random.default_rng(cell["seed"]).permutation(list(users.train)).tolist()
    client = Client(net, cell["client_rate"], cell["batch_size"])
    noise_key = Key.insecure(cell["seed"])
    during_training = []
    with Server(
        calibrated, net.arrays(), clients_per_round=size, workload=workload(cell), key=noise_key
    ) as server:
        for number in range(rounds):
            model = server.model
            for user in server.begin_round(order[number * size : (number + 1) * size]):
                server.receive(user, client.update(model, users.train[user]))
            net.load(server.finish_round())
            if (number + 1) % max(rounds // 8, 1) == 0:
                during_training.append(accuracy(net, users.val))
    return during_training


LABELS = {
    ("tree", PREFIX): "tree DP-FTRL",
    ("dp-mf", PREFIX): "DP-MF",
    ("dp-mf+", PREFIX): "DP-MF⁺, τ = T",
    ("dp-mf", TRUE): "DP-MF, matched",
    ("advised", TRUE): "advised, matched",
}
TREE, MF, PLUS, MATCHED, ADVISED = LABELS.values()
COLOUR = {TREE: "tree", MF: "dp-mf", PLUS: "dp-mf+", MATCHED: "dp-mf", ADVISED: "damped"}
AHEAD = ((PLUS, MF), (MF, TREE), (MATCHED, MF), (ADVISED, PLUS), (ADVISED, MF))


def summary(results: Results, full: bool) -> dict[str, Any]:
    """Accuracies by design and noise, as they are and projected, and predicted errors."""
    first, result = results[0]
    private, clipped = (
        [(c, r) for c, r in results if (c["noise_multiplier"] == NEGLIGIBLE_NOISE) is negligible]
        for negligible in (False, True)
    )
    return {
        "data": first["data"],
        "users": first["users"],
        "clients a round": clients(first),
        "parameters": result["parameters"],
        "as it is": _setting(private, projected=False),
        "projected": _setting(private, projected=True),  # None where no projection is needed
        "users that the projection would need": PAPER_CLIENTS * first["rounds"],
        "clipped": _best(clipped),
        "commonest word": result["commonest word"],
        "epsilons": {key(m): accounting.gaussian_epsilon(m, first["delta"]) for m in MULTIPLIERS},
        "errors": {
            label: next(
                r["error"] for c, r in private if _label(c) == label and c["rate"] == first["rate"]
            )
            for label in LABELS.values()
        },
        "trials": TRIALS,
    }


def _setting(results: Results, projected: bool) -> dict[str, Any] | None:
    selected = [(cell, result) for cell, result in results if cell["projected"] == projected]
    if not selected:
        return None
    by = {
        label: {
            key(m): _best(
                [(c, r) for c, r in selected if _label(c) == label and c["noise_multiplier"] == m]
            )
            for m in MULTIPLIERS
        }
        for label in LABELS.values()
    }
    means = {label: {m: best["accuracy"] for m, best in by[label].items()} for label in by}
    return {
        "by": by,  # label and noise multiplier
        "ahead": {
            f"{one} over {other}": accuracies.differences(means[one], means[other])
            for one, other in AHEAD
        },
    }


def _best(results: Results) -> dict[str, Any]:
    """The trials with the learning rate that is best on the validation users."""
    rates = sorted({cell["rate"] for cell, _ in results})
    rate = max(
        rates,
        key=lambda rate: float(np.mean([r["validation"] for c, r in results if c["rate"] == rate])),
    )
    chosen = [result for cell, result in results if cell["rate"] == rate]
    return {
        "accuracy": accuracies.mean([result["accuracy"] for result in chosen]),
        "trials": [result["accuracy"] for result in chosen],
        "peak": [max(result["on the way"]) for result in chosen],
        "rate": rate,
        # Worse than always predicting the most frequent word: nothing was learned, or it was lost.
        "collapsed": sum(result["accuracy"] < result["commonest word"] for result in chosen),
    }


def _label(cell: Cell) -> str:
    return LABELS[cell["mechanism"], cell["designed_for"]]


def draw(record: dict[str, Any], folder: Path) -> list[Path]:
    """Accuracy by noise multiplier, as it is and projected."""
    summed = record["summary"]
    paths = list(figures.draw(folder / NAME, _chart(record, summed["as it is"], _as_it_is(summed))))
    if summed["projected"] is not None:
        paths += figures.draw(
            folder / f"{NAME}-projected", _chart(record, summed["projected"], _projected(summed))
        )
    return paths


def _chart(record: dict[str, Any], setting: dict[str, Any], title: str) -> charts.Lines:
    x = np.array(MULTIPLIERS)
    series = []
    for label, values in setting["by"].items():
        means, errors = 100 * np.array([value["accuracy"] for value in values.values()]).T
        series.append(
            charts.Series(COLOUR[label], label, x, means, errors, dashed=label == MATCHED)
        )
    for label, level in _levels(record["summary"]).items():
        series.append(
            charts.Series(
                charts.NON_PRIVATE,
                label,
                x,
                np.full(len(x), 100 * level),
                dashed=True,
                points=False,
            )
        )
    return charts.Lines(
        title,
        "noise multiplier (larger is more private)",
        "words predicted, of the test users (%)",
        series,
        log_x=True,
        note=_note(record),
    )


def tables(record: dict[str, Any]) -> list[Table]:
    """Accuracies and comparisons of each setting, and predicted errors."""
    summed = record["summary"]
    tables = _tables(summed, summed["as it is"], _as_it_is(summed), _note(record), private=True)
    if summed["projected"] is not None:
        note = (
            "A projection of utility: the noise of 167 users per round on the updates of fewer. It "
            f"would need {summed['users that the projection would need']:,} users, and claims no "
            "privacy for these."
        )
        tables += _tables(summed, summed["projected"], _projected(summed), note, private=False)
    base = summed["errors"]
    rows = [
        [
            label,
            f"{total:,.0f}",
            f"{_change(total, base[MF][0])}",
            f"{last:,.1f}",
            f"{_change(last, base[MF][1])}",
        ]
        for label, (total, last) in base.items()
    ]
    headings = ["squared noise", "all iterates", "against DP-MF", "last one", "against DP-MF"]
    note = (
        "Exact, in what the server computes (momentum and decay), at noise multiplier and clip "
        "norm 1."
    )
    return [*tables, Table("Predicted error", headings, rows, note)]


def _tables(
    summed: dict[str, Any], setting: dict[str, Any], title: str, note: str, *, private: bool
) -> list[Table]:
    headings = [f"{m} (ε = {e:.2f})" if private else m for m, e in summed["epsilons"].items()]
    rows = [
        [label, *(_shown(value) for value in values.values())]
        for label, values in setting["by"].items()
    ]
    note += " ↓: trials that ended below the accuracy of the most frequent word."
    return [
        Table(title, ["accuracy (%) at noise multiplier", *headings], rows, note),
        accuracies.comparison_table(
            f"{title}: who is ahead", ["points", *headings], setting["ahead"]
        ),
    ]


def _shown(value: dict[str, Any]) -> str:
    return accuracies.percent(value["accuracy"]) + (
        f" ({value['collapsed']}↓)" if value["collapsed"] else ""
    )


def _change(value: float, base: float) -> str:
    return f"{100 * (value / base - 1):+.1f} %"


def _levels(summed: dict[str, Any]) -> dict[str, float]:
    return {
        "clipped, no noise": summed["clipped"]["accuracy"][0],
        "commonest word": summed["commonest word"],
    }


def _as_it_is(summed: dict[str, Any]) -> str:
    return f"{_name(summed)}, {summed['users']:,} users, {summed['clients a round']} a round"


def _projected(summed: dict[str, Any]) -> str:
    return f"{_name(summed)}, projected: the noise of {PAPER_CLIENTS} users a round"


def _name(summed: dict[str, Any]) -> str:
    return str(summed["data"]).removesuffix(".gz").removesuffix(".jsonl")


def _note(record: dict[str, Any]) -> str:
    settings, summed = record["settings"], record["summary"]
    levels = ", ".join(f"{label} {100 * level:.1f}" for label, level in _levels(summed).items())
    return (
        f"Means of {summed['trials']} trials, ± one standard error. {settings['rounds']:,} rounds, "
        f"{summed['parameters']:,} parameters, δ = {settings['delta']:g}; {levels}."
    )
