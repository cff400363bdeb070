"""Banded encoders: columns and refusals."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.banded import Banded, outside
from antiphase.objective import Average
from antiphase.sensitivity import DenseColumns

T, P = 11, 4


def random_columns(seed=0, bands=P):
    columns = np.random.default_rng(seed).normal(size=(T, bands))
    columns[:, 0] = np.abs(columns[:, 0]) + 0.5
    columns[outside(columns)] = 0.0
    return columns


@pytest.mark.parametrize("rows", [None, 1, 3, 7])
@pytest.mark.parametrize("bands", [1, 4, T])
def test_columns_are_those_of_the_matrix(rows, bands):
    f = Banded("b", ap.Workload.sgd(T), Average(), ap.once(), random_columns(bands=bands))
    dense, ours = DenseColumns(f.encoder()[:rows, :rows]), f.encoder_columns(rows)
    every = np.arange(dense.steps)
    np.testing.assert_allclose(ours.squared_norms(), dense.squared_norms(), atol=1e-13)
    np.testing.assert_allclose(ours.gram(every), dense.gram(every), atol=1e-13)
    np.testing.assert_allclose(ours.gram(every[::3]), dense.gram(every[::3]), atol=1e-13)
    np.testing.assert_allclose(
        f.band_rows(2, 9), super(Banded, f).band_rows(2, 9)[:, :bands], atol=1e-15
    )


def test_columns_say_what_is_wrong_with_them():
    common = "b", ap.Workload.sgd(T), Average(), ap.once()
    for columns, words in (
        (random_columns()[:-1], "columns has shape"),
        (np.ones((T, P)), "past the last row"),
        (-random_columns(), "not positive"),
        (np.zeros((T, 0)), "columns has shape"),
    ):
        with pytest.raises(ValueError, match=words):
            Banded(*common, columns)
