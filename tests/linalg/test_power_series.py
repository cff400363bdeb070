"""Power series by transforms, against what convolution and recurrences give."""

import numpy as np
import pytest

from antiphase.linalg import power_series


@pytest.mark.parametrize("terms", [1, 2, 63, 64, 65, 300, 1000])
@pytest.mark.parametrize("length", [1, 5, 64, 65, 1000])
def test_products_inverses_and_gradients(terms, length):
    rng = np.random.default_rng(terms)
    c = np.cumprod(np.concatenate([[1.0], rng.uniform(0.8, 1.0, length - 1)]))
    d = rng.normal(size=terms)
    np.testing.assert_allclose(
        power_series.multiply(c, d, terms), np.convolve(c, d)[:terms], atol=1e-11
    )
    u = power_series.inverse(c, terms)
    identity = np.convolve(c, u)[:terms]
    np.testing.assert_allclose(identity, np.eye(1, terms)[0], atol=1e-11)
    back = np.array([d[n:] @ u[: terms - n] for n in range(terms)])
    np.testing.assert_allclose(power_series.correlate(u, d), back, atol=1e-11)


def test_square_roots():
    rng = np.random.default_rng(0)
    a = np.concatenate([[2.0], rng.normal(size=40)])
    root = power_series.square_root(a, 41)
    np.testing.assert_allclose(np.convolve(root, root)[:41], a, rtol=1e-9)
