"""Quadrature of the inverse square root."""

import numpy as np
import pytest

from antiphase.linalg.quadrature import inverse_square_root_nodes, nodes_needed


@pytest.mark.parametrize("spread", [1.0, 10.0, 1e6, 1e12, 1e22, 1e30])
def test_quadrature_keeps_its_precision_however_wide_the_spectrum(spread):
    low, high = 1e-3, 1e-3 * spread
    squares, weights = inverse_square_root_nodes(nodes_needed(low, high), low, high)
    x = np.geomspace(low, high, 500)
    assert np.abs((weights / (x[:, None] + squares)).sum(axis=1) * np.sqrt(x) - 1).max() < 1e-14


def test_where_the_sum_does_not_reach_it_is_too_small():
    """So a bound that rests on it still holds: outside [low, high] the rule underestimates."""
    squares, weights = inverse_square_root_nodes(20, 1.0, 1e6)
    for x in (1e-4, 1e-2, 1e8, 1e12):
        assert (weights / (x + squares)).sum() * np.sqrt(x) < 1
