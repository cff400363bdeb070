"""Recommended mechanisms against all alternatives, on quadratics."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase.comparison import Setting
from antiphase.factorizations.dense import Dense
from antiphase.recommendation import recommend
from antiphase.theory.quadratic import Quadratic, expectation
from tests.numerical.test_quadratic import EVERY_DIRECTION

pytestmark = [pytest.mark.issue(8), pytest.mark.long, pytest.mark.study]

PAPER = Quadratic.paper()  # d = 100, L = 10, x_0 = 0


NOISE = 2.0  # the paper's σ = 20: E‖z_t‖² = 400 in 100 dimensions


def advised(steps, gamma, criterion, problem=PAPER):
    setting = Setting.of(steps, optimizer={"learning_rates": gamma})
    return recommend(setting, spectrum=problem, criterion=criterion)


@pytest.mark.parametrize(
    "gamma", [0.003, 0.007, *(pytest.param(g, marks=pytest.mark.long) for g in (0.0001, 0.001))]
)
def test_the_quadratic_on_average(shown, gamma):
    """Within 2 % of the lower bound: an optimal design per eigendirection.

    From γ = 0.015 on this bound is 2.6 to 5.5 % below every known design; the next test covers it.
    """
    found = advised(5000, gamma, "average")
    expected = expectation(found.best.factorization, PAPER, noise=NOISE).gradient
    over = expected.average / EVERY_DIRECTION[gamma] - 1
    bound = EVERY_DIRECTION[gamma] - float(expected.signal.mean())
    gains = ", ".join(f"{gain.ratio:.1%} of {gain.over}" for gain in found.gains)
    shown(
        f"T = 5000, γ = {gamma}, average squared gradient: {found.best.label}",
        f"{expected.average:.4f}, {over:.2%} above what no design can beat "
        f"({expected.noise.mean() / bound - 1:.2%} "
        f"of the noise); noise {gains}",
        "within 2 % of the best of all that we offer",
    )
    assert over <= 0.02


def offered(steps, gamma):
    """All that we offer: every name, many τ, and a grid of dampings and final weights."""
    yield "dp-sgd", {}
    yield "chess", {}
    yield "sqrt-toeplitz", {}
    for name in ("anti-pgd", "tree", "fourier", "dp-mf"):
        yield name, {}
    for tau in (2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if tau < steps:
            yield "dp-mf+", {"tau": tau}
    yield "dp-mf+", {"tau": steps}
    for weight in (1.0, 3.0, 6.0, 10.0, 16.0, 25.0, 40.0, 70.0, 120.0):
        for lost in (
            0.0,
            0.0003,
            0.001,
            0.003,
            0.01,
            *(a * gamma * PAPER.smoothness for a in (0.3, 0.5, 0.7)),
        ):
            yield "damped", {"rho": 1 - lost, "final_weight": weight}
    for weight in (1.0, math.sqrt(steps)):
        yield (
            "curvature",
            {"spectrum": PAPER.spectrum, "learning_rate": gamma, "final_weight": weight},
        )


@pytest.mark.parametrize(
    ("steps", "gamma"),
    [
        (500, 0.02),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in ((500, 0.1), (1000, 0.005), (1000, 0.03))
        ),
    ],
)
@pytest.mark.parametrize("criterion", ["last", "average"])
def test_the_quadratic_against_all_that_we_offer(shown, steps, gamma, criterion):
    def judged(f, rate):
        found = expectation(f, PAPER, learning_rate=rate, noise=NOISE)
        last, average = found.gap, found.gradient
        return (
            (last.last, last.noise[-1])
            if criterion == "last"
            else (average.average, average.noise.mean())
        )

    values, noises = {}, {}
    for name, options in offered(steps, gamma):
        f = ap.design(name, steps=steps, **options)  # for rates of 1, to which γ is a factor
        label = ", ".join([name, *(f"{k} {v:.6g}" for k, v in options.items() if np.ndim(v) == 0)])
        values[label], noises[label] = judged(f, gamma)
    found = advised(steps, gamma, criterion)
    value, noise = judged(found.best.factorization, 1.0)
    ranked = sorted(values, key=values.get)
    plain = "; ".join(
        f"{label} {values[label]:.4g}" for label in values if label.split(",")[0] not in ("damped",)
    )
    shown(
        f"T = {steps}, γ = {gamma}, {criterion}: {found.best.label}",
        f"{value:.5g}, {value / values[ranked[0]] - 1:+.2%} of the best of {len(values)} "
        f"({ranked[0]}), by the noise "
        f"alone {noise / min(noises.values()) - 1:+.2%} of the least; {plain}",
        "within 2 %",
    )
    assert value <= 1.02 * values[ranked[0]]
    assert noise <= 1.02 * min(noises.values())


@pytest.mark.parametrize(
    "optimizer",
    [
        {"momentum": 0.9},
        {"momentum": 0.95, "nesterov": True},
        {"momentum": 0.9, "learning_rates": [0.02 * (1 - t / 256) for t in range(256)]},
    ],
    ids=["momentum", "nesterov", "schedule"],
)
def test_momentum_matches_the_workload(shown, optimizer):
    """The recommended design is for the given optimizer; one for SGD leaves more noise."""
    optimizer = {"learning_rates": 0.02} | optimizer
    workload = ap.Workload.sgd(256, **optimizer)
    problem = Quadratic(np.geomspace(0.01, 5.0, 12))
    setting = Setting.of(256, optimizer=optimizer)
    found = recommend(setting, spectrum=problem)
    assert all(entry.factorization.workload == workload for entry in found.comparison.entries)
    assert found.best.mechanism.factorization.workload == workload
    plain = recommend(
        Setting.of(256), spectrum=Quadratic(0.02 * problem.spectrum)
    ).best.factorization
    f = found.best.factorization
    unmatched = Dense("unmatched", workload, f.objective, f.participation, plain.encoder())
    values = [expectation(g, problem, noise=1.0).gap.noise[-1] for g in (f, unmatched)]
    shown(
        f"{workload.describe()}: {found.best.label}",
        f"designed for {f.workload.describe()}; for plain SGD, noise² "
        f"{values[1] / values[0] - 1:+.0%}",
        "the optimizer's own workload",
    )
    assert values[0] <= 1.001 * values[1]
