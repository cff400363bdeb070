"""Simulations: against exact expectations, torch's optimizer and closed forms."""

import dataclasses

import numpy as np
import pytest

import antiphase as ap
from antiphase.mechanism import Mechanism
from antiphase.theory.quadratic import Quadratic, expectation
from experiments.simulation import SIMULATED_RUN, simulate
from tests.theory.problems import RATE, RATES, SMALL, WORKLOADS, T


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
    stream = Mechanism(f, 1.0).noise(runs * 4, key=ap.Key.insecure(3), run=SIMULATED_RUN)
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


def test_multiplicity_is_repetition():
    f = ap.design("dp-mf", steps=T)
    paths = simulate(f, Quadratic([2.0], multiplicity=3), learning_rate=RATE, noise=1.0, seed=1)
    repeated = simulate(f, Quadratic([2.0, 2.0, 2.0]), learning_rate=RATE, noise=1.0, seed=1)
    assert np.array_equal(paths.gradient, repeated.gradient)


def test_refusals():
    f = ap.design("dp-sgd", steps=T)
    matrix = ap.design("dp-sgd", workload=ap.Workload.from_matrix(np.tril(np.ones((T, T)))))
    with pytest.raises(ValueError, match="not simulated"):
        simulate(matrix, SMALL, noise=1.0, seed=1)
    with pytest.raises(ValueError, match="tau = 3"):
        simulate(
            ap.design("dp-sgd", workload=WORKLOADS["momentum"]), SMALL, noise=1.0, seed=1, tau=3
        )
    with pytest.raises(ValueError, match="whole directions"):
        simulate(f, Quadratic([1.0], multiplicity=0.5), noise=1.0, seed=1)
