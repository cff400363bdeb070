"""Sensitivities against brute force."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.problem import Problem
from antiphase.sensitivity import sensitivity
from antiphase.solvers.dense import dense_optimum
from tests import brute_force
from tests.numerical.test_optima import random_problem
from tests.test_sensitivity import shortfall

pytestmark = pytest.mark.slow


@pytest.mark.issue(2)
def test_sensitivity_of_2000_random_encoders(shown):
    below, wrong, claims = shortfall(2000, seed=0)
    shown(
        "2,000 random signed encoders", f"worst shortfall {below:.1e}", "≤ 1e-12 below brute force"
    )
    shown(
        f"exact where claimed ({claims} of 2,000)",
        f"worst difference {wrong:.1e}",
        "equal, to 1e-12",
    )
    assert below <= 1e-12
    assert wrong <= 1e-12
    assert claims > 500
    f = ap.design("dp-mf", steps=64, buffers="exact")
    C = f.encoder()
    transposed = np.linalg.cholesky(C.T @ C)
    seen = ap.sensitivity(transposed, ap.once())
    shown(
        "the transposed factor of X",
        f"sensitivity {seen:.3f} instead of {f.sensitivity:.3f}",
        "noticed",
    )
    assert seen > 1.1


@pytest.mark.issue(5)
@pytest.mark.long
def test_feasible_points_by_brute_force(shown):
    """No pattern, signs or unit vectors move the encoder's output by more than 1."""
    rng = np.random.default_rng(6)
    largest, least, count, compared = 0.0, np.inf, 0, 0.0
    for _ in range(60):
        workload, objective, participation = random_problem(rng)
        f = ap.design(
            "optimal",
            workload=workload,
            objective=objective,
            participation=participation,
            tolerance=1e-4,
        )
        found = brute_force.sensitivity(
            f.encoder(), participation, rng, vectors=workload.steps <= 64
        )
        largest, least, count = max(largest, found), min(least, found), count + 1
        oracle = dense_optimum(Problem(workload, objective, participation), tolerance=1e-6)
        assert f.lower_bound <= oracle.error * (1 + 1e-12)
        assert oracle.lower_bound <= f.error * (1 + 1e-12)
        compared = max(compared, f.error / oracle.error - 1)
    shown(
        f"{count} feasible points, by brute force",
        f"sensitivity {least:.6f} … {largest:.15f}, error at most {compared:.1e} above the dense "
        "path's",
        "≤ 1; within the 1e-4 (streams 1e-3) asked of it",
    )
    assert largest <= 1 + 1e-12
    assert compared <= 1.01e-3


@pytest.mark.issue(13)
def test_minimum_separation_is_exact_or_says_that_it_is_a_bound(shown):
    participation = ap.min_separation(4, 16)
    words = {}
    designs = [
        ("toeplitz", {}),
        ("toeplitz", {"bands": 24}),
        ("banded", {"bands": 16}),
        ("banded", {"bands": 24}),
        ("blt", {}),
        ("bisr", {}),
        ("lambda-cgd", {}),
        ("epoch-restarts", {}),
        ("dp-mf", {"buffers": 4}),
        ("sqrt-toeplitz", {}),
        ("sqrt-toeplitz", {"bands": 16}),
    ]
    for name, options in designs:
        f = ap.design(name, steps=64, participation=participation, **options)
        statement = ap.calibrate(f, epsilon=1.0, delta=1e-5).statement()
        assert statement.sensitivity_is_exact == f.sensitivity_is_exact
        assert (
            f.sensitivity >= sensitivity(f.encoder(), participation) * (1 - 1e-9)
            or f.sensitivity_is_exact
        )
        label = name + "".join(f" {value}" for value in options.values())
        words[label] = "exact" if f.sensitivity_is_exact else "a bound"
    shown(
        "minimum separation",
        ", ".join(f"{k}: {v}" for k, v in words.items()),
        "exact where known, else said",
    )
    assert [k for k, v in words.items() if v == "a bound"] == ["banded 24", "sqrt-toeplitz"]
