"""Reversed Cholesky factors."""

import numpy as np
import pytest

from antiphase import Workload, once
from antiphase.linalg.cholesky import reversed_cholesky
from antiphase.objective import Average
from antiphase.sensitivity import sensitivity
from antiphase.solvers import dual


def test_the_reversed_factor_has_the_gram_matrix_on_its_columns():
    """CᵀC = X: the plain Cholesky factor has CCᵀ = X, and a sensitivity above 1."""
    Y = dual.solve(Average().root(Workload.sgd(32)), once().patterns(32)).factor
    X = Y.T @ Y
    C = reversed_cholesky(Y)
    np.testing.assert_allclose(C.T @ C, X, atol=1e-13)
    assert not np.triu(C, 1).any()
    assert sensitivity(C, once()) == pytest.approx(1.0, abs=1e-12)
    wrong = np.linalg.cholesky(X)
    assert sensitivity(wrong, once()) > 1.2, "the transposed factor must be noticed"
