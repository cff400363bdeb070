"""Expectations on quadratics: against reference values, the dense formula and simulations."""

import dataclasses
import time

import numpy as np
import pytest

import antiphase as ap
from antiphase.errors import TooLargeError
from antiphase.factorizations.base import Factorization
from antiphase.mechanism import Mechanism
from antiphase.objective import Curvature
from antiphase.theory import quadratic, simulation
from antiphase.theory.damping import best_damping
from antiphase.theory.quadratic import Quadratic, diverges, expectation
from antiphase.theory.simulation import simulate

PAPER = Quadratic.paper()
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

T = 24
RATES = np.linspace(1.0, 0.2, T)
RESTING = np.where(np.arange(T) % 5 == 4, 0.0, 1.0)
WORKLOADS = {
    "sgd": ap.Workload.sgd(T),
    "schedule": ap.Workload.sgd(T, learning_rates=RATES),
    "idle steps": ap.Workload.sgd(T, learning_rates=RESTING),
    "momentum": ap.Workload.sgd(T, momentum=0.8, learning_rates=RATES),
    "dampened": ap.Workload.sgd(T, momentum=0.8, dampening=0.3),
    "nesterov": ap.Workload.sgd(T, momentum=0.7, nesterov=True),
    "weight decay": ap.Workload.sgd(T, momentum=0.5, weight_decay=0.3),
    "delay": ap.Workload.sgd(T, delay=3, momentum=0.5),
    "ema": ap.Workload.sgd(T, momentum=0.5).with_ema(0.6),
    "tail average": ap.Workload.sgd(T, learning_rates=RATES).with_tail_average(9),
}
SMALL = Quadratic(
    [0.0, 0.1, 0.7, 2.0],
    optimum=[1.0, -2.0, 0.5, 0.3],
    start=[0.4, 1.0, -1.0, 0.2],
    spread=[0, 1, 0.5, 2],
)
RATE = 0.3


# ---- exact values ---------------------------------------------------------------------------


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
    paths = simulate(f, Quadratic([2.0], multiplicity=3), learning_rate=RATE, noise=1.0, seed=1)
    repeated = simulate(f, Quadratic([2.0, 2.0, 2.0]), learning_rate=RATE, noise=1.0, seed=1)
    assert np.array_equal(paths.gradient, repeated.gradient)


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


# ---- simulation -----------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_without_noise_a_simulation_is_the_signal(workload):
    problem = dataclasses.replace(SMALL, spread=0.0)
    f = ap.design("dp-sgd", workload=workload)
    found = expectation(f, problem, learning_rate=RATE, noise=0.0)
    paths = simulate(f, problem, learning_rate=RATE, noise=0.0, seed=1)
    assert paths.gradient[0] == pytest.approx(found.gradient.total, rel=1e-10, abs=1e-12)
    assert paths.gap[0] == pytest.approx(found.gap.total, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("name", ["dp-sgd", "dp-mf", "fourier"])
def test_simulations_agree_with_the_expectation(workload, name):
    """At every step within 4.5 standard errors of 2,000 runs; the seed was not selected."""
    f = ap.design(name, workload=workload)
    found = expectation(f, SMALL, learning_rate=RATE, noise=1.0)
    paths = simulate(f, SMALL, learning_rate=RATE, noise=1.0, runs=2000, seed=0)
    for expected, seen in ((found.gradient, paths.gradient), (found.gap, paths.gap)):
        error = seen.std(axis=0, ddof=1) / np.sqrt(len(seen))
        assert (np.abs(seen.mean(axis=0) - expected.total) <= 4.5 * error).all()


def test_the_virtual_sequence():
    """``x_t − x̃_t = −γ(b_t − b_r)ᵀZ``, the noise since the last restart, on every path."""
    tau, runs, noise, gamma = 5, 3000, 0.8, 0.3
    f = ap.design("dp-mf+", steps=T, tau=tau)
    paths = simulate(f, SMALL, learning_rate=gamma, noise=noise, runs=runs, seed=3, tau=tau)
    B = np.vstack([np.zeros(T), f.decoder()])
    since = B - B[np.arange(T + 1) // tau * tau]
    expected = 4 * (gamma * noise * f.sensitivity) ** 2 * np.square(since).sum(axis=1)
    error = paths.virtual_distance.std(axis=0, ddof=1) / np.sqrt(runs)
    assert (np.abs(paths.virtual_distance.mean(axis=0) - expected) <= 4.5 * error + 1e-12).all()
    restarts = np.arange(0, T + 1, tau)
    assert not paths.virtual_distance[:, restarts].any()
    assert np.array_equal(paths.virtual_gradient[:, restarts], paths.gradient[:, restarts])
    assert np.array_equal(paths.virtual_gap[:, restarts], paths.gap[:, restarts])
    stream = Mechanism(f, 1.0).noise(runs * 4, key=ap.Key.insecure(3), run=simulation.SIMULATED_RUN)
    rows = noise * np.array(list(stream), dtype=np.float64).reshape(T, runs, 4)
    moved = gamma * np.concatenate([rows[: tau - 1].cumsum(axis=0), np.zeros((1, runs, 4))])
    assert paths.virtual_distance[:, 1 : tau + 1] == pytest.approx(
        np.square(moved).sum(axis=2).T, rel=1e-5, abs=1e-12
    )


def test_the_virtual_sequence_never_restarted_is_the_classical_one():
    """Without noise it is the real sequence; with Anti-PGD it differs by the last row of noise."""
    f = ap.design("anti-pgd", steps=T)
    paths = simulate(f, SMALL, learning_rate=RATE, noise=0.0, seed=1, tau=T + 1)
    assert paths.virtual_gradient == pytest.approx(paths.gradient, rel=1e-12)
    paths = simulate(f, SMALL, learning_rate=RATE, noise=1.0, runs=4000, seed=1, tau=T + 1)
    apart = paths.virtual_distance[:, 1:].mean(axis=0)
    assert apart == pytest.approx(4 * RATE**2 * f.sensitivity**2, rel=0.1)


def test_the_simulated_optimizer_is_that_of_torch():
    """Momentum, dampening and weight decay as in ``torch.optim.SGD``, without noise."""
    rates, mu, dampening, decay = RATE * RATES, 0.8, 0.3, 0.2
    workload = ap.Workload.sgd(
        T, learning_rates=RATES, momentum=mu, dampening=dampening, weight_decay=decay
    )
    problem = dataclasses.replace(SMALL, spread=0.0)
    h, x, buffer, expected = problem.spectrum, problem.start.copy(), None, []
    for rate in rates:
        expected.append(np.square(h * (x - problem.optimum)).sum())
        gradient = h * (x - problem.optimum) + decay * x
        buffer = gradient if buffer is None else mu * buffer + (1 - dampening) * gradient
        x = x - rate * buffer
    f = ap.design("dp-sgd", workload=workload)
    found = expectation(f, problem, learning_rate=RATE, noise=0.0).gradient.total
    assert found[:-1] == pytest.approx(expected, rel=1e-10)
    assert simulate(f, problem, learning_rate=RATE, noise=0.0, seed=1).gradient[0] == pytest.approx(
        found, rel=1e-10
    )


@pytest.mark.slow
def test_the_virtual_sequence_of_independent_noise_in_closed_form():
    """``E‖x̃_t‖² = γ²σ² Σ_{k<t} (1 − ρ^k)²`` from the optimum: it drifts away (appendix E.3)."""
    h, gamma, runs = 1.5, 0.2, 6000
    paths = simulate(
        ap.design("dp-sgd", steps=T),
        Quadratic([h]),
        learning_rate=gamma,
        noise=0.7,
        runs=runs,
        seed=2,
        tau=T + 1,
    )
    expected = (gamma * 0.7 * h) ** 2 * np.cumsum((1 - (1 - gamma * h) ** np.arange(T)) ** 2)
    seen = paths.virtual_gradient[:, 1:]
    assert (
        np.abs(seen.mean(axis=0) - expected) <= 4.5 * seen.std(axis=0, ddof=1) / runs**0.5 + 1e-12
    ).all()
    assert expected[-1] >= (gamma * 0.7 * h) ** 2 * T / 4  # the paper's bound: ‖∇f‖² = h²‖x̃‖²
    assert paths.virtual_gap[:, 1:] == pytest.approx(seen / (2 * h), rel=1e-12)


def test_the_same_seed_is_the_same_simulation():
    f = ap.design("dp-mf", steps=T)
    one, again, other = (
        simulate(f, SMALL, learning_rate=RATE, noise=1.0, runs=3, seed=s) for s in (5, 5, 6)
    )
    assert np.array_equal(one.gradient, again.gradient)
    assert not np.array_equal(one.gradient, other.gradient)
    assert one.virtual_distance is None


# ---- curvature ------------------------------------------------------------------------------


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


@pytest.mark.slow
def test_the_best_damping_is_near_the_optimum_for_the_spectrum():
    """On the paper's spectrum: within 1 % of the certified optimum, better than either extreme."""
    steps, gamma = 300, 0.01
    choice = best_damping(PAPER, steps=steps, learning_rate=gamma)
    best = ap.design(
        "curvature", steps=steps, spectrum=PAPER.spectrum[1::7], learning_rate=gamma, tolerance=1e-6
    )
    few = Quadratic(PAPER.spectrum[1::7])
    chosen = best_damping(few, steps=steps, learning_rate=gamma)
    assert 1 - 1e-9 <= chosen.value * (steps + 1) / (gamma**2 * best.lower_bound) <= 1.01
    values = {rho: value for rho, _, value in choice.tried}
    assert choice.value == min(values.values()) == values[choice.rho]
    assert choice.value < 0.9 * values[1.0]
    assert 0.3 < (1 - choice.rho) / (gamma * PAPER.smoothness) < 0.9
    again = expectation(
        choice.factorization, PAPER, learning_rate=gamma, noise=1.0
    ).gradient.noise.mean()
    assert again == pytest.approx(choice.value, rel=1e-12)
    for alpha in np.linspace(0.2, 1.0, 9):
        f = ap.design("damped", steps=steps, rho=1 - alpha * gamma * PAPER.smoothness)
        value = expectation(f, PAPER, learning_rate=gamma, noise=1.0).gradient.noise.mean()
        assert choice.value <= value * (1 + 1e-3)  # buffers="auto" keeps to 0.1 %


@pytest.mark.slow
def test_a_final_weight_is_chosen_where_the_last_iterate_counts():
    problem = Quadratic([0.1, 1.0, 3.0])
    weights = (1.0, 3.0, 10.0)
    found = best_damping(problem, steps=60, learning_rate=0.1, last=0.5, final_weights=weights)
    plain = best_damping(problem, steps=60, learning_rate=0.1, last=0.5)
    assert found.final_weight > 1
    assert found.value < plain.value
    assert {w for _, w, _ in found.tried} == set(weights)


@pytest.mark.slow
def test_damping_with_momentum():
    """Chosen for the workload in use: no worse than no damping, or a design for plain SGD."""
    workload = ap.Workload.sgd(80, momentum=0.9)
    problem = Quadratic([0.01, 0.1, 1.0])
    choice = best_damping(problem, workload=workload, learning_rate=0.05)
    assert choice.factorization.workload == workload
    none = expectation(
        ap.design("dp-mf", workload=workload), problem, learning_rate=0.05, noise=1.0
    ).gradient.noise.mean()
    assert choice.value <= none * (1 + 1e-3)


# ---- refusals -------------------------------------------------------------------------------


def test_what_is_refused():
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
    matrix = ap.design("dp-sgd", workload=ap.Workload.from_matrix(np.tril(np.ones((T, T)))))
    with pytest.raises(ValueError, match="not simulated"):
        simulate(matrix, SMALL, noise=1.0, seed=1)
    with pytest.raises(ValueError, match="tau = 3"):
        simulate(
            ap.design("dp-sgd", workload=WORKLOADS["momentum"]), SMALL, noise=1.0, seed=1, tau=3
        )
    with pytest.raises(ValueError, match="whole directions"):
        simulate(f, Quadratic([1.0], multiplicity=0.5), noise=1.0, seed=1)
    with pytest.raises(ValueError, match="last = 2"):
        best_damping(SMALL, steps=T, last=2.0)


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
