"""Expectations on quadratics: against reference values, the dense formula and simulations."""

import dataclasses
import time

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import TooLargeError
from antiphase.factorizations.base import Factorization
from antiphase.objective import Curvature
from antiphase.theory import quadratic
from antiphase.theory.quadratic import Quadratic, diverges, expectation
from tests.theory.problems import PAPER, RATE, RATES, SMALL, WORKLOADS, T

NOISE = 2.0  # the paper's σ = 20 in 100 dimensions

# Computed independently of this project (reference.json, quadratic_exact_T256, gamma=0.01):
# the paper's quadratic, 256 steps, γ = 0.01, E‖z_t‖² = 400, sens(C) = 1.
SIGNAL_AVERAGE, SIGNAL_LAST = 17.31382553120088, 1.193045017551315  # mean over t = 0 … T
AT = [1, 2, 3, 16, 64, 256]
# noise summed over t = 1 … T, divided by T + 1; noise at the steps above
NOISE_256 = {
    "dp-sgd": (6.55780564327671, [
        0.8121346787605335, 1.5116887911222547, 2.1155842660249333, 5.538566403562495,
        6.721084787536988, 6.88709864109408,
    ]),
    "anti-pgd": (214.65643185355185, [
        207.90647776269657, 209.0847672757391, 210.07664491466, 214.90732059054608,
        215.70219421183626, 215.71340554108005,
    ]),
    "chess": (59.45154032073005, [
        1.6242693575210672, 1.6334747443417117, 3.049537399939869, 9.861084319100511,
        31.536080068738173, 115.56993111940916,
    ]),
    "dp-mf": (2.738535312893124, [
        3.893237571873538, 3.9801965343427117, 3.9470135950335283, 3.472760281053352,
        3.0402275332608024, 1.6944626456354694,
    ]),
    "dp-mf+ 4": (3.328256063581771, [
        1.4458942799497778, 1.4867511304525585, 1.4733703646583198, 2.2744608674693376,
        2.7534059008166403, 2.8198614735445724,
    ]),
    "dp-mf+ 16": (2.556815866485666, [
        2.2981817390685784, 2.3505724730350646, 2.331683743840372, 1.0196566393405133,
        1.2041843317764873, 1.2261522294997829,
    ]),
    "dp-mf+ 64": (2.9003520216278296, [
        3.326043014517127, 3.400411421274757, 3.372115283513456, 2.964035669802552,
        1.0174718329317844, 1.0260255854686842,
    ]),
    "dp-mf+ 256": (3.436528464133836, [
        4.539607779238256, 4.6409541063729405, 4.602228367375927, 4.051140720905748,
        3.5765965556316015, 1.1478675751579157,
    ]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISE_256)
def test_reference_values(name):
    """Streams, few diagonals (dp-sgd, chess) and the dense formula (anti-pgd)."""
    name, _, tau = name.partition(" ")
    options = {"tau": int(tau)} if tau else {}
    if name.startswith("dp-mf"):
        options |= {"buffers": "exact", "tolerance": 1e-13}
    found = expectation(
        ap.design(name, steps=256, **options), PAPER, learning_rate=0.01, noise=NOISE
    ).gradient
    average, at = NOISE_256[f"{name} {tau}".strip()]
    assert found.signal.mean() == pytest.approx(SIGNAL_AVERAGE, rel=1e-12)
    assert found.signal[-1] == pytest.approx(SIGNAL_LAST, rel=1e-12)
    assert found.noise.mean() == pytest.approx(average, rel=1e-8)
    assert found.noise[AT] == pytest.approx(
        at, rel=1e-6
    )  # of designs that are optimal to 1e-13, to its root
    assert found.average == pytest.approx(SIGNAL_AVERAGE + average, rel=1e-8)
    assert found.last == pytest.approx(SIGNAL_LAST + at[-1], rel=1e-6)


def test_plain_sgd_in_closed_form():
    """The start decays by ``ρ^2t``; the noise is a geometric sum of ``ρ²``."""
    h, gamma, t = 1.5, 0.4, np.arange(T + 1)
    rho = 1 - gamma * h
    found = expectation(
        ap.design("dp-sgd", steps=T),
        Quadratic([h], optimum=3.0, start=1.0),
        learning_rate=gamma,
        noise=0.7,
    )
    assert found.gradient.signal == pytest.approx(h**2 * 4.0 * rho ** (2 * t), rel=1e-9, abs=1e-15)
    assert found.gradient.noise == pytest.approx(
        (h * gamma * 0.7) ** 2 * (1 - rho ** (2 * t)) / (1 - rho**2), rel=1e-9
    )
    assert found.gap.signal == pytest.approx(found.gradient.signal / (2 * h), rel=1e-12)
    assert found.gap.noise == pytest.approx(found.gradient.noise / (2 * h), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dp-sgd", {}),
        ("chess", {}),
        ("tree", {"estimator": "full"}),
        ("dp-mf", {"buffers": 3}),
        ("dp-mf", {"buffers": "exact"}),
        ("dp-mf+", {"tau": 7, "buffers": "exact"}),
        ("damped", {"rho": 0.9, "final_weight": 3.0}),
    ],
)
def test_the_recurrence_agrees_with_the_dense_formula(workload, name, options):
    f = ap.design(name, workload=workload, **options)
    spectrum = np.array([0.05, 0.4, 1.5])
    scaled = workload.scaled(RATE)
    streamed = quadratic.streamed_variances(f.as_stream(), scaled, spectrum)
    assert streamed == pytest.approx(
        quadratic.dense_variances(f, scaled, spectrum), rel=1e-10, abs=1e-13
    )


@pytest.mark.slow
def test_the_recurrence_agrees_with_the_dense_formula_over_many_steps():
    """Errors do not accumulate: 700 steps, restarts, a short last segment, curvatures near 0."""
    spectrum = np.array([1e-6, 1e-3, 0.5, 1.9])
    workload = ap.Workload.sgd(700)
    for name, options in (("dp-mf", {"buffers": "exact"}), ("dp-mf", {}), ("dp-mf+", {"tau": 90})):
        f = ap.design(name, workload=workload, **options)
        streamed = quadratic.streamed_variances(f.as_stream(), workload, spectrum)
        assert streamed == pytest.approx(
            quadratic.dense_variances(f, workload, spectrum), rel=1e-10
        )
    momentum = ap.Workload.sgd(700, momentum=0.9)
    f = ap.design("dp-mf", workload=momentum)
    streamed = quadratic.streamed_variances(f.as_stream(), momentum, 0.1 * spectrum)
    assert streamed == pytest.approx(
        quadratic.dense_variances(f, momentum, 0.1 * spectrum), rel=1e-10
    )


def test_matrix_workloads_and_several_epochs_use_the_dense_formula():
    """A workload and its matrix have the same expectations."""
    workload = ap.Workload.sgd(T, momentum=0.8, learning_rates=RATES)
    encoder = ap.design("dp-mf", workload=workload, epochs=4)
    matrix = dataclasses.replace(encoder, workload=ap.Workload.from_matrix(workload.dense()))
    first, second = (
        expectation(f, SMALL, learning_rate=RATE, noise=1.0).gradient for f in (encoder, matrix)
    )
    assert second.signal == pytest.approx(first.signal, rel=1e-10)
    assert second.noise == pytest.approx(first.noise, rel=1e-10)


def test_a_stream_of_many_steps_needs_no_dense_matrix(monkeypatch):
    def refuse(self):
        raise TooLargeError("dense")

    f = ap.design("dp-mf+", steps=20_000, tau=500)
    monkeypatch.setattr(Factorization, "encoder", refuse)
    began = time.perf_counter()
    found = expectation(f, Quadratic([0.1, 1.0]), learning_rate=0.1, noise=1.0)
    assert len(found.gradient.total) == 20_001
    assert time.perf_counter() - began < 60


def test_multiplicity_is_repetition_and_flat_directions_have_no_gradient():
    f = ap.design("dp-mf", steps=T)
    one = expectation(
        f,
        Quadratic([0.0, 0.5, 2.0], spread=1.0, multiplicity=[4, 2, 3]),
        learning_rate=RATE,
        noise=1.0,
    )
    other = expectation(
        f, Quadratic([2.0, 0.5, 2.0, 0.5, 2.0], spread=1.0), learning_rate=RATE, noise=1.0
    )
    for a, b in ((one.gradient, other.gradient), (one.gap, other.gap)):
        assert a.total == pytest.approx(b.total, rel=1e-12)


def test_a_mechanism_has_its_own_noise():
    f = ap.design("anti-pgd", steps=T)
    m = ap.calibrate(f, noise_multiplier=1.5, clip_norm=0.2)
    own = expectation(m, SMALL, learning_rate=RATE)
    given = expectation(f, SMALL, learning_rate=RATE, noise=0.3)
    assert own.gradient.total == pytest.approx(given.gradient.total, rel=1e-12)
    assert (
        expectation(m, SMALL, learning_rate=RATE, noise=0.1).gradient.noise[-1]
        < own.gradient.noise[-1]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload", [WORKLOADS[name] for name in WORKLOADS if name != "tail average"]
)
def test_the_curvature_objective_is_the_exact_expectation(workload):
    """``design("curvature")`` minimises the noise in the squared gradient, summed over steps."""
    spectrum, many = np.array([0.1, 0.7, 2.0]), np.array([3.0, 2.0, 0.5])
    problem = Quadratic(spectrum, multiplicity=many)
    objective = Curvature(spectrum, RATE, probabilities=many)
    for f in (
        ap.design("dp-sgd", workload=workload),
        ap.design("damped", workload=workload, rho=0.9),
    ):
        noise = expectation(f, problem, learning_rate=RATE, noise=1.0).gradient.noise
        assert noise.sum() == pytest.approx(RATE**2 * f.error_under(objective), rel=1e-10)
    options = {"spectrum": spectrum, "learning_rate": RATE, "probabilities": many}
    best = ap.design("curvature", workload=workload, **options)
    least = expectation(best, problem, learning_rate=RATE, noise=1.0).gradient.noise.sum()
    assert least == pytest.approx(RATE**2 * best.error, rel=1e-10)
    assert RATE**2 * best.lower_bound <= least <= noise.sum() * (1 + 1e-9)


def test_refusals():
    f = ap.design("dp-sgd", steps=T)
    with pytest.raises(ValueError, match="spectrum"):
        Quadratic([-1.0])
    with pytest.raises(ValueError, match="optimum has 3 entries for 2"):
        Quadratic([1.0, 2.0], optimum=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="spread = -1"):
        Quadratic([1.0], spread=-1.0)
    with pytest.raises(TypeError, match="noise = None"):
        expectation(f, SMALL, learning_rate=RATE)
    with pytest.raises(ValueError, match="curvature of its own"):
        expectation(
            ap.design("dp-sgd", workload=ap.Workload.sgd(T).with_curvature(0.1)), SMALL, noise=1.0
        )
    with pytest.raises(ValueError, match="diverges"):
        expectation(
            ap.design("dp-sgd", steps=5000), Quadratic([1.0]), learning_rate=30.0, noise=1.0
        )
    both = ap.design("dp-sgd", workload=ap.Workload.sgd(T, weight_decay=0.1, delay=1))
    with pytest.raises(ValueError, match="start = 0"):
        expectation(both, SMALL, learning_rate=RATE, noise=1.0)


@pytest.mark.parametrize(
    ("rates", "momentum", "curvature", "expected"),
    [
        (2.01, 0.0, 1.0, True),
        (1.99, 0.0, 1.0, False),
        (9.0, 0.0, 1.0, True),
        (3.5, 0.9, 1.0, False),
        (4.0, 0.9, 1.0, True),
    ],
)
def test_training_diverges_beyond_the_largest_stable_rate(rates, momentum, curvature, expected):
    """The limit is 2/h, with momentum 2(1 + μ)/h, even if few steps do not overflow."""
    workload = ap.Workload.sgd(200, learning_rates=rates, momentum=momentum)
    assert diverges(workload, curvature) == expected
    assert diverges(ap.Workload.sgd(200, momentum=momentum), curvature, rates) == expected
