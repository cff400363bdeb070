"""Few buffers for one participation: never worse than the truncated optimum, nor than a BLT."""

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.streaming import Streaming
from antiphase.objective import Average, Restarts
from antiphase.problem import Problem
from antiphase.solvers import few_buffers
from antiphase.solvers.streaming import streaming_optimum

pytestmark = pytest.mark.slow

T = 96
RATES = np.linspace(1.0, 0.05, T)
WORKLOADS = {
    "prefix sums": ap.Workload.sgd(T),
    "momentum": ap.Workload.sgd(T, momentum=0.9),
    "a schedule": ap.Workload.sgd(T, learning_rates=RATES),
    "idle steps": ap.Workload.sgd(T, learning_rates=np.where(np.arange(T) % 7 == 3, 0.0, RATES)),
}


def cut(workload, objective, participation, buffers):
    problem = Problem(workload, objective, participation)
    return streaming_optimum(problem, tolerance=1e-9, buffers=buffers)


def problem_of(stream):
    return Problem(stream.workload, stream.objective, stream.participation)


def refined(stream, buffers, **options):
    return few_buffers.refine(problem_of(stream), stream, buffers, **options)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_better_than_what_it_begins_with(workload, buffers):
    f = ap.design("dp-mf", workload=workload, buffers=buffers)
    assert isinstance(f, Streaming)
    assert f.buffers == buffers
    assert f.error < ap.design("blt", workload=workload, buffers=buffers).error
    if buffers > 1 or workload.momentum == 0:
        assert f.error < cut(workload, Average(), ap.once(), buffers).error
    assert 0 < f.gap < {1: 0.2, 2: 0.02, 3: 0.004}[buffers]
    assert f.bound <= ap.design("dp-mf", workload=workload, buffers="exact").error
    assert f.sensitivity == pytest.approx(
        np.sqrt(np.square(f.encoder()).sum(axis=0).max()), rel=1e-12
    )


@pytest.mark.parametrize("participation", [ap.once(), ap.epochs(6, 16)])
def test_nothing_is_carried_over_a_restart(participation):
    """No class has two steps between restarts, so the sensitivity over epochs stays exact."""
    f = ap.design("dp-mf+", steps=T, tau=16, participation=participation, buffers=1)
    assert f.error < cut(ap.Workload.sgd(T), Restarts(16), participation, 1).error
    C = f.encoder()
    assert not any(C[start:, :start].any() for start in f.restarts())
    assert f.restarts() == list(range(0, T, 16))
    assert ap.sensitivity(C, participation) == pytest.approx(1.0, abs=1e-12)


def test_momentum_needs_no_more_vectors_than_prefix_sums():
    workload = ap.Workload.sgd(400, momentum=0.9)
    f = ap.design("dp-mf", workload=workload)
    assert (
        f.buffers < few_buffers.MANY_BUFFERS <= cut(workload, Average(), ap.once(), "auto").buffers
    )
    assert f.gap <= 1e-3


def test_where_buffers_hardly_help_the_search_ends_soon(monkeypatch):
    workload = ap.Workload.sgd(400, momentum=0.9).with_ema(0.99)
    stream, tried = cut(workload, Average(), ap.once(), "auto"), []
    descend = few_buffers._descend_from_blt
    monkeypatch.setattr(
        few_buffers,
        "_descend_from_blt",
        lambda p, f, m, progress: tried.append(m) or descend(p, f, m, progress),
    )
    assert refined(stream, "auto") is stream
    assert tried == [2, 3]


def test_where_a_descent_would_take_long_the_better_beginning_is_taken(monkeypatch):
    descended = [ap.design("dp-mf", steps=T, buffers=m).error for m in (1, 4)]
    monkeypatch.setenv("ANTIPHASE_CACHE", "off")
    monkeypatch.setattr(few_buffers, "MAX_DESCENT_STEPS", T - 1)
    short, long = (ap.design("dp-mf", steps=T, buffers=m) for m in (1, 4))
    assert descended[0] < short.error < cut(ap.Workload.sgd(T), Average(), ap.once(), 1).error
    assert long.error == pytest.approx(
        cut(ap.Workload.sgd(T), Average(), ap.once(), 4).error, rel=1e-9
    )


def test_what_is_good_enough_is_left_alone():
    f = cut(ap.Workload.sgd(T), Average(), ap.once(), 7)
    assert refined(f, 7) is f
    assert refined(f, "auto") is f


def test_it_can_be_stopped_and_is_a_stream_all_the_same():
    seen = []
    f = cut(ap.Workload.sgd(T), Average(), ap.once(), 2)
    found = refined(f, 2, progress=lambda report: seen.append(report.gap) or len(seen) == 2)
    assert len(seen) == 2
    assert found.error < f.error
    assert problem_of(found).banded.size == T
    assert found.sensitivity == pytest.approx(1.0, abs=1e-12)
