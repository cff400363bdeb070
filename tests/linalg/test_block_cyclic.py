"""The inverse of a ring of blocks, both ways, against the dense inverse."""

import numpy as np
import pytest

from antiphase.linalg.block_cyclic import GramForm, RootForm, add_inverse, near_diagonal


def dense(D, E):
    count, size = D.shape[:2]
    M = np.zeros((count, size, count, size))
    for i in range(count):
        M[i, :, i] += D[i]
        M[i, :, (i + 1) % count] += E[i]
        M[(i + 1) % count, :, i] += E[i].T
    return M.reshape(count * size, -1)


def random_root(rng, count, size):
    own, other = rng.normal(size=(2, count, 2 * size, size))
    return own + 2 * np.eye(2 * size, size), other


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("size", [1, 3])
def test_both_ways_give_the_inverse(count, size):
    rng = np.random.default_rng(count + 10 * size)
    own, other = random_root(rng, count, size)
    D = own.swapaxes(1, 2) @ own + np.roll(other.swapaxes(1, 2) @ other, 1, axis=0)
    E = own.swapaxes(1, 2) @ other
    inverse = np.linalg.inv(dense(D, E)).reshape(count, size, count, size)
    near = np.array([inverse[i, :, i] for i in range(count)])
    beside = np.array([inverse[i, :, (i + 1) % count] for i in range(count)])
    for ring in (GramForm(D[None], E[None]), RootForm(own[None], other[None])):
        S, T = near_diagonal(ring)
        np.testing.assert_allclose(S[0], near, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(T[0], beside, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(near_diagonal(ring, neighbours=False)[0], S, rtol=1e-12)
        total = np.ones((count, size, count, size))
        add_inverse(total, ring, 2.0)
        np.testing.assert_allclose(total - 1, 2 * inverse, rtol=1e-9, atol=1e-10)


def test_roots_keep_twice_the_digits():
    """Second differences plus 1e-12: condition number 10¹²; exact trace from the eigenvalues."""
    count, little = 512, 1e-12
    own = np.zeros((1, count, 2, 1))
    other = np.zeros((1, count, 2, 1))
    own[:, :, 0], other[:, :, 0], own[:, :, 1] = 1, -1, np.sqrt(little)
    eigenvalues = 4 * np.sin(np.pi * np.arange(count) / count) ** 2 + little
    exact = (1 / eigenvalues).sum()
    D = own.swapaxes(2, 3) @ own + np.roll(other.swapaxes(2, 3) @ other, 1, axis=1)
    gram, _ = near_diagonal(GramForm(D, own.swapaxes(2, 3) @ other))
    root, _ = near_diagonal(RootForm(own, other))
    assert root.sum() == pytest.approx(exact, rel=1e-8)
    assert gram.sum() != pytest.approx(exact, rel=1e-6)
