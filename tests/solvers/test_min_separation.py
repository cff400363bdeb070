"""The best encoder known for a minimum separation."""

import numpy as np
import pytest

from antiphase import Workload, min_separation
from antiphase.factorizations.dense import Dense
from antiphase.objective import Average
from antiphase.problem import Problem
from antiphase.sensitivity import sensitivity
from antiphase.solvers.min_separation import min_separation_encoder


def test_whatever_it_is_made_from_the_best_for_a_separation_has_sensitivity_1():
    participation = min_separation(2, 3)
    f = min_separation_encoder(
        Problem(Workload.sgd(8), Average(), participation),
        lambda problem: Dense("x", **problem.fields, matrix=3 * np.tri(8), bound=1.0),
    )
    assert sensitivity(f.encoder(), participation) == pytest.approx(1.0, abs=1e-12)
