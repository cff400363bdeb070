"""Segments of streams: columns, refusals, read-only coefficients."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.segments import Segment
from antiphase.factorizations.streaming import Streaming
from antiphase.objective import Average
from antiphase.problem import Problem
from antiphase.sensitivity import DenseColumns
from antiphase.solvers.streaming import streaming_optimum


@pytest.mark.parametrize("rows", [None, 7, 1])
def test_products_of_a_streams_columns_are_those_of_the_matrix(rows):
    """Signed coefficients, buffers that are emptied, idle steps, a prefix."""
    rng = np.random.default_rng(1)
    live = np.array([0, 1, 2, 4, 5, 6, 7, 8, 10])
    r, g, move = rng.normal(size=(3, len(live), 3, 1))
    move[3, 1], move[6, 0], g[2, 1] = 0.0, 0.0, 0.0
    segment = Segment(11, live, rng.random(len(live)) + 3, r, g, move)
    f = Streaming("s", ap.Workload.sgd(22), Average(), ap.once(), (segment,), (0, 0))
    steps = 22 if rows is None else rows
    dense, ours = DenseColumns(f.encoder()[:steps, :steps]), f.encoder_columns(rows)
    np.testing.assert_allclose(
        ours.gram(np.arange(steps)), dense.gram(np.arange(steps)), atol=1e-12
    )
    some = np.arange(0, steps, 3)
    np.testing.assert_allclose(ours.gram(some), dense.gram(some), atol=1e-12)
    assert ours.reach >= dense.reach


def test_a_stream_with_broken_coefficients_is_refused():
    f = ap.design("dp-mf", steps=6)
    s = f.distinct[0]
    for change in (
        {"delta": -s.delta},
        {"r": s.r[:3]},
        {"g": s.g * np.nan},
        {"live": s.live[::-1]},
    ):
        fields = {
            "size": s.size,
            "live": s.live,
            "delta": s.delta,
            "r": s.r,
            "g": s.g,
            "move": s.move,
        }
        with pytest.raises(ValueError, match=r"stream|finite|positive"):
            type(s)(**(fields | change))


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    [
        ap.Workload.sgd(600, momentum=0.99),
        ap.Workload.sgd(600, momentum=0.99, nesterov=True),
        ap.Workload.sgd(600).with_ema(0.999),
        ap.Workload.sgd(300, momentum=0.99).with_ema(0.999),
    ],
    ids=lambda w: w.describe(),
)
def test_column_norms_keep_their_digits_where_a_nodes_vectors_nearly_cancel(workload):
    """They were too small by 5e-7 for momentum 0.99 with an EMA, since squares cancelled."""
    problem = Problem(workload, Average(), ap.once())
    f = streaming_optimum(problem, tolerance=1e-9, buffers=12)
    assert f.distinct[0].r.shape[2] > 1
    dense = np.square(f.encoder()).sum(axis=0)
    np.testing.assert_allclose(f.encoder_columns().squared_norms(), dense, rtol=1e-10)
    assert f.sensitivity >= np.sqrt(dense.max()) * (1 - 1e-11)


def forged(**change):
    ones = np.ones((4, 1, 1))
    fields = {
        "size": 4,
        "live": np.arange(4),
        "delta": np.ones(4),
        "r": ones,
        "g": ones,
        "move": ones,
    } | change
    return type(ap.design("dp-mf", steps=4).distinct[0])(**fields)


def test_a_forged_stream_cannot_hide_its_sensitivity():
    """Integers that wrap, floats that underflow, rows that cancel only in float64."""
    ones = np.ones((4, 1, 1))
    assert forged().squared_norms().max() == pytest.approx(4)
    wrapped = forged(r=np.full((4, 1, 1), 2**32), g=ones * 2.0**-32)
    assert wrapped.squared_norms().max() == pytest.approx(4)
    single = forged(r=(ones * 1e-25).astype(np.float32), g=(ones * 1e25).astype(np.float32))
    assert single.squared_norms().max() == pytest.approx(4, rel=1e-6)
    with pytest.raises(ValueError, match="too large"):
        forged(r=ones * 1e-170, g=ones * 1e170)
    with pytest.raises(ValueError, match="whole numbers"):
        forged(live=np.arange(4) + 0.5)
    a = 2.0**40
    cancelling = {"r": np.tile([[3 * a], [-a]], (4, 1, 1)), "g": np.tile([[1.0], [3.0]], (4, 1, 1))}
    with pytest.raises(ValueError, match="cancel"):
        forged(**cancelling, move=np.ones((4, 2, 1))).squared_norms()
    with pytest.raises(ValueError, match="read-only"):
        forged().delta[0] = 100.0


def test_a_stream_is_not_changed_from_outside():
    fields = {"delta": np.ones(4)} | {name: np.ones((4, 1, 1)) for name in ("r", "g", "move")}
    segment = forged(**fields)
    for name, given in fields.items():
        given[0] = 100.0
        assert (getattr(segment, name) == 1).all()
