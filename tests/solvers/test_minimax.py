"""The least maximum error, certified."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.streaming import Streaming
from antiphase.objective import Average, Maximum
from antiphase.sensitivity import sensitivity
from antiphase.verification import verify
from tests import reference


@pytest.mark.parametrize("steps", [2, 3, 4, 8, 16])
def test_reference_values(steps):
    f = ap.design("optimal", steps=steps, objective=Maximum(), tolerance=1e-7)
    low, high = reference.MAXIMUM_ERROR[steps]
    assert f.lower_bound <= high**2 * (1 + 1e-12)
    assert f.error >= low**2 * (1 - 1e-12)
    assert f.error == pytest.approx(high**2, rel=1e-6)
    assert f.gap <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("participation", [ap.epochs(2, every=4), ap.min_separation(2, 4)], ids=str)
def test_no_encoder_beats_the_bound(participation):
    rng = np.random.default_rng(0)
    workload = ap.Workload.sgd(8, momentum=0.5)
    f = ap.design(
        "optimal",
        workload=workload,
        participation=participation,
        objective=Maximum(),
        tolerance=1e-3,
    )
    A = workload.dense()
    for _ in range(300):
        C = f.encoder() + rng.choice([0.003, 0.1, 1.0]) * np.tril(rng.normal(size=(8, 8)))
        if (np.abs(np.diagonal(C)) > 1e-3).all():
            error = (
                sensitivity(C, participation) ** 2
                * np.square(A @ np.linalg.inv(C)).sum(axis=1).max()
            )
            assert error >= f.lower_bound
    if isinstance(participation, ap.participation.Epochs):
        assert f.gap <= 1.1e-3


def test_the_form_that_is_asked_for():
    """Better at the maximum than DP-MF, worse at the mean; a stream that is saved and verified."""
    f = ap.design("optimal", steps=48, objective=Maximum())
    mean = ap.design("dp-mf", steps=48)
    assert isinstance(f, Streaming)
    assert f.gap < 5e-3
    assert f.error < mean.error_under(Maximum())
    assert f.error_under(Average()) > mean.error
    assert f.error == pytest.approx(f.noise_per_iterate.max(), rel=1e-12)
    assert all(check.holds for check in verify(ap.calibrate(f, epsilon=1.0, delta=1e-5)))
    with pytest.raises(ValueError, match="rather than the maximum"):
        ap.design("optimal", steps=48, epochs=4, objective=Maximum(), buffers=2)


def test_baselines_are_judged_by_it():
    f = ap.design("blt", steps=32, buffers=2, objective=Maximum())
    assert 0 < f.gap < 0.3
    assert f.error < ap.design("blt", steps=32, buffers=2).error_under(Maximum())
