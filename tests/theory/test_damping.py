"""The best damping on a quadratic, against the exact objective and all other dampings."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.theory.damping import best_damping
from antiphase.theory.quadratic import Quadratic, expectation
from tests.theory.problems import PAPER, SMALL, T


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


def test_refusals():
    with pytest.raises(ValueError, match="last = 2"):
        best_damping(SMALL, steps=T, last=2.0)
