"""The study of quadratics at small size: a cell's results, and the summary."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase.theory.quadratic import Quadratic
from experiments import chess, quadratic

SMALL = {
    "steps": 60,
    "smoothness": 4.0,
    "sigma": 6.0,
    "dimension": 9,
    "runs": 200,
    "seed": 5,
    "curve": True,
}


def by_hand(name, rate, **options):
    """``E‖∇f(x_t)‖²`` by dense matrices, from the noise and the start along each direction."""
    problem = Quadratic.paper(9, 4.0)
    noising = ap.design(name, steps=60, buffers="exact", **options).noising() * (6.0 / math.sqrt(9))
    out = np.zeros(61)
    for h, spread in zip(problem.spectrum, problem.spread, strict=True):
        rows = np.array(
            [[(1 - rate * h) ** (t - s) if s <= t else 0.0 for s in range(60)] for t in range(60)]
        )
        out += h**2 * spread**2 * (1 - rate * h) ** (2 * np.arange(61))
        out[1:] += h**2 * rate**2 * np.square(rows @ noising).sum(axis=1)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("dp-mf", {}), ("dp-mf+", {"tau": 7})])
def test_a_cell_is_exact_and_its_simulation_agrees(name, options):
    result = quadratic.work(SMALL | {"mechanism": name, "rate": 0.1} | options)
    expected = by_hand(name, 0.1, **options)
    assert result["average"] == pytest.approx(expected.mean(), rel=1e-9)
    assert result["last"] == pytest.approx(expected[-1], rel=1e-9)
    for key in ("average", "last"):
        mean, error = result[f"simulated {key}"]
        assert abs(mean - result[key]) < 4 * error
    assert result["curve"]["exact"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_divergence_is_reported():
    """At γ > 2/L = 0.5, and not below."""
    fine = quadratic.work(SMALL | {"mechanism": "damped", "rate": 0.45})
    assert not fine["diverges"]
    assert fine.keys() >= {"rho", "final_weight"}
    wild = quadratic.work(SMALL | {"mechanism": "damped", "rate": 0.55})
    assert wild["diverges"]
    assert wild["growth"] == pytest.approx(1.2**2)
    assert wild["early"] > 1e6


def made_up():
    """Results of a fixture, from formulas: DP-MF⁺ best at τ = 50 but for the largest rates."""
    found = []
    for cell in quadratic.cells(False):
        if cell["rate"] > 0.2:
            found.append((cell, {"diverges": True, "growth": 4.0, "early": 1e30}))
            continue
        size = (
            10.0
            + abs(math.log(cell.get("tau", 200) / 50))
            + {"damped": -2.0, "dp-mf": 1.0}.get(cell["mechanism"], 0.0)
        )
        result = {"diverges": False, "average": size, "last": size / 2}
        result |= {"simulated average": [size + 0.1, 0.1], "simulated last": [size / 2, 0.1]}
        if cell["mechanism"] == "damped":
            result |= {"rho": 0.9, "final_weight": 10.0}
        if cell["curve"]:
            wave = (size + np.sin(2 * np.pi * np.arange(5001) / cell.get("tau", 50))).tolist()
            result["curve"] = {"exact": wave, "mean": wave, "error": [0.1] * 5001}
        found.append((cell, result))
    return found


@pytest.mark.slow
def test_the_best_tau_is_selected_and_figures_are_drawn(tmp_path):
    found = made_up()
    record = {
        "settings": {"runs": 16},
        "summary": quadratic.summary(found, False),
        "cells": [{"settings": cell, "result": result} for cell, result in found],
    }
    first, *_, last = record["summary"]["rates"]
    assert first["dp-mf+"]["average"]["tau"] == 50
    assert first["dp-sgd"]["average"]["tau"] == 1
    assert first["advantage"]["average"] == pytest.approx(1 - 10 / (11 + math.log(4)))
    assert last == {"rate": 1.0, "diverges": True, "growth a step": 4.0, "early": 1e30}
    assert record["summary"]["period of the oscillation"] == 50
    assert record["summary"]["standard errors between exact and simulated"][
        "largest"
    ] == pytest.approx(1.0)
    names = {path.name for path in quadratic.draw(record, tmp_path)}
    assert names == {
        f"quadratic-{n}.{e}"
        for n in ("average", "last", "advantage", "curve", "oscillation")
        for e in ("svg", "png")
    }
    average, last = quadratic.tables(record)
    assert average.rows[0][0] == "0.0001"
    assert "10.00 (50)" in average.rows[0]
    assert average.rows[-1][2:6] == ["diverges"] * 4
    assert len(last.rows) == len(quadratic.RATES)


@pytest.mark.slow
def test_chess_grows_at_the_rate_of_its_resonance(tmp_path):
    """In small, and drawn."""
    cells = [cell | {"steps": 1000, "runs": 2} for cell in chess.cells(False)]
    found = [(cell, chess.work(cell)) for cell in cells]
    summary = chess.summary(found, False)
    assert summary["chess"]["slope"] == pytest.approx(summary["slope of the resonance"], rel=1e-3)
    assert abs(summary["dp-sgd"]["slope"]) < 1e-4 * summary["chess"]["slope"]
    assert summary["chess"]["frobenius"] == pytest.approx(1000 * 1002 / 2)
    assert summary["dp-sgd"]["frobenius"] == pytest.approx(1000 * 1001 / 2)
    record = {
        "title": chess.TITLE,
        "settings": cells[0],
        "summary": summary,
        "cells": [{"settings": cell, "result": result} for cell, result in found],
    }
    assert len(chess.draw(record, tmp_path)) == 4
    (table,) = chess.tables(record)
    assert [row[0] for row in table.rows] == ["PGD (DP-SGD)", "Chess"]
