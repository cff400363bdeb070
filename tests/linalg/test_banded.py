"""Banded matrices by diagonals agree with dense ones."""

import numpy as np
import pytest

from antiphase.linalg import banded

T = 6


def dense(bands):
    out = np.zeros((len(bands), len(bands)))
    for i in range(bands.shape[1]):
        out += np.diag(bands[i:, i], -i)
    return out


def random_bands(width, seed=0):
    bands = np.random.default_rng(seed).normal(size=(T, width))
    bands[:, 0] = 1.0 + np.abs(bands[:, 0])
    return bands


@pytest.mark.parametrize("width", [1, 3, T])
def test_products_and_solves_are_those_of_the_dense_matrix(width):
    left, right = random_bands(width), random_bands(2, seed=1)
    for rows in (np.arange(1.0, T + 1), np.random.default_rng(2).normal(size=(T, 2))):
        np.testing.assert_allclose(banded.apply(left, rows), dense(left) @ rows, atol=1e-12)
        solution = banded.solve(left, rows)
        np.testing.assert_allclose(dense(left) @ solution, rows, atol=1e-10)
    product = dense(banded.multiply(left, right)[:, :T])
    np.testing.assert_allclose(product, dense(left) @ dense(right), atol=1e-12)
    np.testing.assert_allclose(dense(banded.add(left, right)), dense(left) + dense(right))


def test_a_zero_on_the_diagonal_is_singular():
    bands = random_bands(2)
    bands[3, 0] = 0.0
    with pytest.raises(np.linalg.LinAlgError, match="row 3 of a banded triangular matrix"):
        banded.solve(bands, np.ones(T))


def test_trimmed_and_shifted_matrices():
    bands = random_bands(2)
    padded = np.column_stack([bands, np.zeros((T, 3))])
    np.testing.assert_array_equal(dense(banded.trim(padded)), dense(bands))
    assert banded.trim(padded).shape == (T, 2)
    shift = np.eye(T, k=-1)
    np.testing.assert_array_equal(dense(banded.delay_columns(bands, 1)), dense(bands) @ shift)
    rows = np.arange(1.0, T + 1)
    np.testing.assert_array_equal(banded.shift_rows(rows, 1), shift @ rows)
    np.testing.assert_array_equal(banded.shift_rows(rows, -1), shift.T @ rows)


def test_time_invariant_is_toeplitz_whatever_lies_outside_the_matrix():
    bands = np.tile([2.0, 1.0], (T, 1))
    bands[0, 1] = 7.0  # outside
    assert banded.is_time_invariant(bands)
    bands[2, 1] = 7.0
    assert not banded.is_time_invariant(bands)
    assert not banded.is_time_invariant(np.ones((T, 1)), bands)
