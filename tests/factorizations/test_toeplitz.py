import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.toeplitz import Toeplitz
from antiphase.objective import Average
from antiphase.sensitivity import DenseColumns
from antiphase.solvers.closed_form import square_root_coefficients


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("bands", [1, 3, 20, 40])
@pytest.mark.parametrize("rows", [None, 1, 7])
def test_columns_by_formula_are_those_of_the_matrix(normalized, bands, rows):
    c = square_root_coefficients(bands) * np.where(np.arange(bands) % 3 == 1, -1, 1)
    f = Toeplitz("t", ap.Workload.sgd(20), Average(), ap.once(), c, normalized)
    dense = DenseColumns(f.encoder()[:rows, :rows])
    ours = f.encoder_columns(rows)
    every = np.arange(dense.steps)
    np.testing.assert_allclose(ours.squared_norms(), dense.squared_norms(), atol=1e-13)
    np.testing.assert_allclose(ours.gram(every), dense.gram(every), atol=1e-13)
    np.testing.assert_allclose(f.band_rows(3, 9), Factorization.band_rows(f, 3, 9), atol=1e-15)


def test_fourier_has_its_gram_matrix_on_its_columns():
    """CᵀC is Toeplitz with 1 on the diagonal; the plain Cholesky factor has CCᵀ = X instead."""
    C = ap.design("fourier", steps=20).encoder()
    X = C.T @ C
    np.testing.assert_allclose(np.diagonal(X), 1, atol=1e-12)
    np.testing.assert_allclose(X[1:, 1:], X[:-1, :-1], atol=1e-12)


def test_a_million_steps_need_no_matrix():
    assert ap.design("chess", steps=20_000, epochs=2).sensitivity == pytest.approx(2**0.5)
    f = ap.design("chess", steps=1_000_000)
    assert f.sensitivity == pytest.approx(1.0)
    assert ap.calibrate(f, epsilon=1.0, delta=1e-6).epsilon() <= 1.0
