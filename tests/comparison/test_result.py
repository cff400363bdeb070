"""Entries and frontiers of a comparison, by matrices and by brute force."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase import accounting
from antiphase.comparison import Setting, compare, default_candidates, pareto_front

BUDGET = {"epsilon": 2.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def found():
    """All default candidates except Poisson sampling, which takes seconds to calibrate."""
    setting = Setting.of(64, 4, **BUDGET)
    return compare(
        setting,
        [c for c in default_candidates(setting) if not c.amplified],
        measure=False,
    )


@pytest.mark.parametrize("name", ["dp-sgd", "tree", "sqrt-toeplitz", "dp-mf", "dp-mf+"])
def test_noise_is_that_of_the_dense_decoder(found, name):
    """σ·sens(C)·‖rows of A C⁻¹‖, by dense matrices."""
    f = ap.design(
        name, steps=64, epochs=4, **({"tolerance": 1e-3} if name.startswith("dp-mf") else {})
    )
    s = accounting.gaussian_noise_multiplier(**BUDGET)
    deviation = s * f.sensitivity * np.sqrt((f.decoder() ** 2).sum(axis=1))
    e = next(e for e in found.entries if e.name == name)
    assert e.mechanism.noise_multiplier == s
    np.testing.assert_allclose(e.deviation, deviation, rtol=1e-6)
    assert e.final == pytest.approx(deviation[-1], rel=1e-6)
    assert e.average == pytest.approx(math.sqrt((deviation**2).mean()), rel=1e-6)
    row = e.to_dict(found.baseline)
    assert row["average_relative"] == pytest.approx(e.average / found.entries[0].average)
    assert row["digest"] == e.mechanism.digest


def test_all_candidates_are_entries(found):
    assert len(found.entries) == 8
    assert found.refused == {}
    assert found.baseline is found.dp_sgd("fixed-order") is found.entries[0]
    assert found.dp_sgd("poisson") is None


def test_nothing_unamplified_is_below_the_optimum(found):
    """The bound is below the error of a design that is solved to 1e-9, and near it."""
    best = ap.design("dp-mf", steps=64, epochs=4)
    assert found.optimum <= best.error * (1 + 1e-9)
    assert found.optimum >= best.error * (1 - 2e-3)
    for e in found.entries:
        assert e.over_optimum >= 1
        if e.name != "dp-mf+":  # which has an objective of its own
            error = ap.design(e.name, steps=64, epochs=4).error
            assert e.over_optimum == pytest.approx(error / found.optimum, rel=1e-3)


def test_the_pareto_front_by_brute_force():
    rng = np.random.default_rng(3)
    for _ in range(200):
        points = [
            tuple(map(float, p)) for p in rng.integers(0, 6, (rng.integers(1, 12), 2))
        ]  # with many ties
        beaten = [any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points) for p in points]
        assert pareto_front(points) == [not b for b in beaten]


def test_rows_mark_the_frontiers(found):
    rows = {row["label"]: row for row in found.rows()}
    assert rows["DP-MF"]["memory_frontier"]  # nothing has less noise
    assert rows["DP-λCGD"]["memory_frontier"]  # nor memory
    assert not rows["DP-SGD, fixed order"]["memory_frontier"]
    assert not any(row["time_frontier"] for row in rows.values())  # nothing was measured
    assert [e.label for e in found.memory_frontier] == [
        label for label, row in rows.items() if row["memory_frontier"]
    ]
    assert found.to_dict()["mechanisms"] == list(rows.values())
    assert rows["DP-MF"]["vectors"] == 63
