"""Problems and their banded form."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.linalg import banded
from antiphase.objective import Average, Curvature, Maximum, Restarts
from antiphase.problem import MAX_HALF_BANDWIDTH, Problem


def problem(workload, objective=None, participation=None):
    return Problem(workload, objective or Average(), participation or ap.once())


@pytest.mark.parametrize(
    "workload",
    [
        ap.Workload.sgd(12, momentum=0.9),
        ap.Workload.sgd(12, delay=3),
        ap.Workload.sgd(12, learning_rates=[1.0, 0.0, 0.5, 1.0] * 3),
    ],
    ids=lambda workload: workload.describe(),
)
def test_the_banded_form_is_the_root_over_the_steps_that_move_the_model(workload):
    form = problem(workload, Average(np.linspace(1, 2, 12))).banded
    inverse = banded.apply(form.P, np.diag(1 / form.weights))
    weighted = banded.apply(form.weighted_bands, np.eye(form.size))
    np.testing.assert_allclose(weighted, inverse, atol=1e-14)
    M = form.weights[:, None] * banded.solve(form.P, banded.apply(form.N, np.eye(form.size)))
    root = Average(np.linspace(1, 2, 12)).root(workload)[:, ~workload.idle]
    np.testing.assert_allclose(M.T @ M, root.T @ root, atol=1e-12)
    np.testing.assert_array_equal(form.live, np.flatnonzero(~workload.idle))


def test_the_banded_form_is_derived_once():
    whole = problem(ap.Workload.sgd(8))
    assert whole.banded is whole.banded


def test_there_is_no_banded_form_without_a_short_recurrence():
    assert problem(ap.Workload.from_matrix(np.tri(6))).banded is None
    assert problem(ap.Workload.sgd(6), Curvature([0.5])).banded is None
    wide = ap.Workload.sgd(12, delay=MAX_HALF_BANDWIDTH).with_curvature(0.1)
    assert problem(wide).banded is None
    with pytest.raises(ValueError, match="banded needs a workload that is a short recurrence"):
        problem(ap.Workload.sgd(6), Curvature([0.5])).recurrence("banded")


def test_segments_are_what_lies_between_restarts():
    form = problem(ap.Workload.sgd(10), Restarts(4)).banded
    assert form.segments == [(0, 4), (4, 8), (8, 10)]
    assert form.longest_segment == 4
    assert form.part(4, 8).live.tolist() == [4, 5, 6, 7]
    assert problem(ap.Workload.sgd(10)).banded.segments == [(0, 10)]


def test_only_a_fixed_order_has_a_period():
    workload = ap.Workload.sgd(10)
    periods = [
        problem(workload, participation=p).period
        for p in (ap.once(), ap.epochs(3, every=4), ap.epochs(1, every=20), ap.min_separation(2, 3))
    ]
    assert periods == [10, 4, 10, 10]
    classes = problem(workload, participation=ap.epochs(3, every=4)).step_classes
    assert classes.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_searches_that_cannot_follow_the_maximum_warn():
    mean = problem(ap.Workload.sgd(4))
    assert mean.for_mean() is mean
    with pytest.warns(UserWarning, match="searched for the mean error"):
        assert problem(ap.Workload.sgd(4), Maximum()).for_mean() == mean
