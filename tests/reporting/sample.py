"""A page with real designs and made-up accuracies, for the tests of this folder."""

import functools

import numpy as np

import antiphase as ap
from antiphase.reporting import charts
from antiphase.reporting.page import Column, Grid, Page
from benchmarks.time_chart import seconds_against_steps

STEPS, EPOCHS = 256, 4
KINDS = ("noise", "spectrum", "accuracy", "training", "seconds", "matrices", "rates")
NAMES = {"DP-SGD": "dp-sgd", "DP-MF": "dp-mf", "DP-MF⁺, τ = T": "dp-mf+", "damped": "damped"}


@functools.cache
def designs():
    """A dict from labels to (name, Factorization)."""
    options = {"damped": {"rho": 0.9, "final_weight": 16.0}}
    return {
        label: (name, ap.design(name, steps=STEPS, epochs=EPOCHS, **options.get(name, {})))
        for label, name in NAMES.items()
    }


def made_up_runs():
    """Accuracies of a fixture: a smooth formula and a fixed seed, no training."""
    rng = np.random.default_rng(7)
    skill = {"dp-sgd": 0.0, "dp-mf": 1.1, "dp-mf+": 1.4, "damped": 1.25}
    runs = []
    for label, name in NAMES.items():
        for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
            for _ in range(5):
                accuracy = 0.96 / (
                    1 + np.exp(-(0.6 + 0.8 * np.log(epsilon) + skill[name]))
                ) + rng.normal(0, 0.008)
                runs.append(
                    {"name": name, "label": label, "epsilon": epsilon, "accuracy": float(accuracy)}
                )
    runs.append({"name": "non-private", "label": "no noise", "epsilon": None, "accuracy": 0.957})
    return runs


def made_up_curves():
    rng = np.random.default_rng(8)
    steps = np.arange(4, STEPS + 1, 4)
    top = {"dp-sgd": 0.78, "dp-mf": 0.88, "dp-mf+": 0.9, "damped": 0.89}
    return [
        {
            "name": name,
            "label": label,
            "steps": steps.tolist(),
            "accuracies": (
                top[name] * (1 - 0.9 * np.exp(-steps / 60)) + rng.normal(0, 0.01, len(steps))
            ).tolist(),
        }
        for label, name in NAMES.items()
        for _ in range(3)
    ]


def made_up_times():
    return {"DP-MF, 8 epochs": ("dp-mf", [(1024 * 2**i, 0.5 * 1.9**i) for i in range(6)])}


def made_up_rates():
    """Lines with points, a band and a region that belong to them."""
    rates = np.array([1e-4, 1e-3, 0.01, 0.1, 0.3, 1.0])
    values = np.array([70.0, 9.0, 5.0, 300.0, np.nan, np.nan])
    series = [
        charts.Series("dp-mf", "DP-MF", rates, values, points=False),
        charts.Series("dp-mf", "DP-MF, simulated", rates, 1.02 * values, 0.05 * values, line=False),
        charts.Series("dp-mf+", "DP-MF⁺", rates, 0.7 * values, points=False),
        charts.Series(
            "dp-mf+", "DP-MF⁺, band", rates, 0.7 * values, 0.1 * values, line=False, points=False
        ),
    ]
    return charts.Lines(
        "Gradient by learning rate (made-up fixture)",
        "learning rate",
        "squared gradient",
        series,
        log_x=True,
        log_y=True,
        note="Lines: exact. Points: simulated, ± one standard error. " * 2,
        regions=[charts.Region(0.2, 1.4, "too large:\ndiverges")],
    )


@functools.cache
def all_charts():
    return {
        "noise": charts.noise_per_iterate(designs()),
        "spectrum": charts.noise_spectrum(designs()),
        "accuracy": charts.accuracy_against_epsilon(
            made_up_runs(), "Accuracy against privacy (made-up fixture)"
        ),
        "training": charts.training_curves(
            made_up_curves(), "Accuracy while training (made-up fixture)"
        ),
        "seconds": seconds_against_steps(made_up_times(), "Time to design (made-up fixture)"),
        "matrices": charts.encoder_and_decoder(designs()["DP-MF⁺, τ = T"][1]),
        "rates": made_up_rates(),
    }


@functools.cache
def page():
    """All parts of a page."""
    drawn = all_charts()
    base = designs()["DP-SGD"][1].noise_per_iterate
    rows = []
    for label, (name, f) in designs().items():
        noise = f.noise_per_iterate
        rows.append(
            {
                "name": name,
                "mechanism": label,
                "average": float(np.sqrt(noise.mean())),
                "final": float(np.sqrt(noise[-1])),
                "relative": float(np.sqrt(noise.mean() / base.mean())),
                "gap": f.gap if f.bound is not None else None,
                "accuracy": float(
                    np.mean([r["accuracy"] for r in made_up_runs() if r["label"] == label])
                ),
            }
        )
    columns = [
        Column("mechanism", "Mechanism"),
        Column(
            "average",
            "Average iterate",
            "clip norms",
            "Standard deviation per coordinate, over all steps.",
            "low",
        ),
        Column(
            "final", "Final iterate", "clip norms", "The same, of the last iterate alone.", "low"
        ),
        Column("relative", "Against DP-SGD", "", "The average, relative to DP-SGD.", "low", ".0%"),
        Column("gap", "Gap", "", "At most so much better could any mechanism be.", None, ".0e"),
        Column(
            "accuracy", "Accuracy", "made up", "A fixture: no model was trained.", "high", ".1%"
        ),
    ]
    best = designs()["DP-MF"][1]
    mechanism = ap.calibrate(best, epsilon=8.0, delta=1e-6, clip_norm=1.0)
    return Page(
        title="Which mechanism for 256 steps and 4 epochs?",
        question="Which noise costs the least accuracy, if every record is in 4 of 256 batches and "
        "all mechanisms are equally private?",
        answer="DP-MF leaves 23 % of the noise that DP-SGD leaves in the model, at "
        "(8, 10⁻⁶)-differential privacy.",
        points=[
            "Average iterate: a standard deviation of 5.21 clip norms instead of 22.7.",
            "No mechanism can do better by more than 2·10⁻¹⁰: the gap is certified.",
            "If only the last iterate counts, take DP-MF⁺: 4.65 instead of 32.",
        ],
        grids=[Grid("Noise in the model at equal privacy: 256 steps, 4 epochs", columns, rows)],
        charts=list(drawn.values()),
        statements=[mechanism.statement(delta=1e-6)],
        reproduce=[
            "pip install antiphase",
            "antiphase compare --steps 256 --epochs 4 --epsilon 8 --delta 1e-6 --html report.html",
        ],
        notes=[
            "Noise is a standard deviation per coordinate, at noise multiplier 1, in clip norms.",
            "Equal privacy: the same (ε, δ), the same participation, the same clip norm.",
        ],
        made="antiphase 0.1.0, 1 January 2030",
    )
