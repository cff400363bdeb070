"""Encoders with a banded inverse, and encoders that restart with every epoch."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.block_diagonal import BlockDiagonal
from antiphase.factorizations.inverse_toeplitz import InverseToeplitz
from antiphase.factorizations.streaming import Streaming
from antiphase.objective import Average, Damped
from antiphase.solvers.closed_form import inverse_root_coefficients


def test_the_inverse_root_of_momentum():
    """The inverse of its square is the first column of the workload."""
    workload = ap.Workload.sgd(12, momentum=0.5, weight_decay=0.1, learning_rates=3.0)
    g = inverse_root_coefficients(workload, 12)
    C = np.linalg.inv(InverseToeplitz("b", workload, Average(), ap.once(), g).noising())
    A = workload.dense()
    np.testing.assert_allclose(C @ C, A / A[0, 0], atol=1e-12)


def test_banded_roots_for_several_epochs():
    """RMSE 5.60 and 15.43 for square roots with as many bands as an epoch has steps.

    5.82 and 15.73 for inverse ones with the best number of bands.
    """
    for epochs, bands, root, inverse in ((4, 64, 5.60, 5.82), (16, 16, 15.43, 15.73)):
        common = {"steps": 256, "epochs": epochs}
        root_of_prefix = ap.design("sqrt-toeplitz", normalized=False, bands=bands, **common)
        best = ap.design("bisr", **common)
        rmse = [np.sqrt(f.error / 256) for f in (root_of_prefix, best)]
        assert rmse == pytest.approx([root, inverse], abs=0.006)
        for other in (-1, 1):
            assert (
                best.error <= ap.design("bisr", bands=best.options["bands"] + other, **common).error
            )


def test_the_correlation_is_the_best():
    for setting in ({}, {"epochs": 4}, {"participation": ap.min_separation(3, 9)}):
        best = ap.design("lambda-cgd", steps=40, **setting)
        assert best.sensitivity_is_exact
        for step in (-0.01, 0.01):
            near = best.options["correlation"] + step
            assert (
                best.error <= ap.design("lambda-cgd", steps=40, correlation=near, **setting).error
            )
    assert (
        ap.design("lambda-cgd", steps=40, correlation=0.0).error
        == ap.design("dp-sgd", steps=40).error
    )


def test_an_inverse_that_explodes_is_refused():
    with pytest.raises(ValueError, match="too large"):
        InverseToeplitz("b", ap.Workload.sgd(200), Average(), ap.once(), np.array([1.0, -8.0]))
    with pytest.raises(ValueError, match="begin with a positive"):
        InverseToeplitz("b", ap.Workload.sgd(4), Average(), ap.once(), np.array([0.0, -1.0]))


def test_restarts_with_every_epoch():
    """A stream for plain SGD, else blocks, with the same error; shares of the budget decrease."""
    stream = ap.design("epoch-restarts", steps=48, epochs=4)
    blocks = ap.design(
        "epoch-restarts", workload=ap.Workload.from_matrix(np.tril(np.ones((48, 48)))), epochs=4
    )
    assert isinstance(stream, Streaming)
    assert isinstance(blocks, BlockDiagonal)
    assert stream.restarts() == blocks.restarts() == [0, 12, 24, 36]
    assert stream.error == pytest.approx(blocks.error, rel=2e-3)
    assert stream.sensitivity == pytest.approx(1.0, abs=1e-9)
    assert stream.sensitivity_is_exact
    assert stream.error < 0.999 * ap.design("dp-mf+", steps=48, epochs=4, tau=12).error_under(
        Average()
    )
    shares = [float(s.squared_norms()[0]) for s in stream.distinct]
    assert shares == sorted(shares, reverse=True)
    apart = ap.design("epoch-restarts", steps=48, participation=ap.min_separation(2, 12))
    assert apart.sensitivity == pytest.approx(2**0.5, rel=1e-9)
    assert apart.sensitivity_is_exact
    damped = ap.design("epoch-restarts", steps=48, epochs=4, objective=Damped(0.9))
    assert damped.error < ap.design("epoch-restarts", steps=48, epochs=4).error_under(Damped(0.9))


def test_one_participation_needs_no_restart():
    assert ap.design("epoch-restarts", steps=20).gap < 1e-3
