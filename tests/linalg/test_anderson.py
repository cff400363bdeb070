"""Anderson acceleration on linear fixed points."""

import numpy as np

from antiphase.linalg.anderson import Anderson

A = np.array([[0.6, 0.2], [0.1, 0.7]])
B = np.array([1.0, -1.0])
FIXED_POINT = np.linalg.solve(np.eye(2) - A, B)


def step(x):
    return A @ x + B


def test_two_earlier_steps_solve_a_linear_problem_of_two_unknowns():
    anderson, x = Anderson(memory=2), np.zeros(2)
    for _ in range(3):
        plain = step(x)
        proposed = anderson.extrapolate(plain, plain - x, np.ones(2))
        x = plain if proposed is None else proposed
    np.testing.assert_allclose(x, FIXED_POINT, rtol=1e-12)


def test_the_first_step_and_the_first_after_a_restart_are_plain():
    anderson = Anderson(memory=2)
    assert anderson.extrapolate(step(B), step(B) - B, np.ones(2)) is None
    assert anderson.extrapolate(step(A[0]), step(A[0]) - A[0], np.ones(2)) is not None
    anderson.restart()
    assert len(anderson._history) == 1
    assert Anderson(memory=2).extrapolate(B, B, np.ones(2)) is None


def test_it_remembers_no_more_steps_than_asked_for():
    anderson, rng = Anderson(memory=3), np.random.default_rng(0)
    for _ in range(8):
        anderson.extrapolate(rng.normal(size=5), rng.normal(size=5), np.ones(5))
    assert len(anderson._history) == 4
