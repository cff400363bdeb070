"""The dual optimum for one participation."""

import numpy as np

import antiphase as ap
from antiphase.objective import Average
from antiphase.problem import Problem
from antiphase.solvers.single_participation import maximise_dual


def test_a_search_cut_short_still_certifies():
    problem = Problem(ap.Workload.sgd(64), Average(), ap.once()).banded
    best = ap.design("dp-mf", steps=64, buffers="exact").error
    bounds = [
        maximise_dual(problem, tolerance=1e-9, max_iterations=most).lower_bound for most in range(8)
    ]
    assert all(bound <= best for bound in bounds)
    assert (np.diff(bounds) > 0).all()
