"""Time of a private training step beside Opacus."""

import pytest

from benchmarks import step as benchmark


@pytest.mark.issue(6)
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name, setting in benchmark.SETTINGS.items() if setting[-1] is not None]
)
@pytest.mark.alone
def test_a_step_costs_hardly_more_than_opacus(shown, name):
    row, whole = benchmark.stepped(name), benchmark.SETTINGS[name][-1]
    asked = f"≤ {whole}" + ("; ≤ 1.3" if "cnn" in name else "")
    shown(
        f"{name}: a step; the optimizer alone",
        f"{row['ratio']:.3f}; {row['optimizer_ratio']:.3f}",
        asked,
    )
    assert row["ratio"] <= whole
    assert row["optimizer_ratio"] <= 1.3 or "cnn" not in name


@pytest.mark.issue(9)
@pytest.mark.long
@pytest.mark.study
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_throughput_beside_opacus(shown, mode):
    """The paper's network at batch 500; steps of both sides alternate."""
    row = benchmark.stepped(f"cnn, batch 500, {mode}")
    ours, theirs = 500 / row["antiphase"], 500 / row["opacus"]
    shown(
        f"550,570 parameters, batch 500, {mode}",
        f"{ours:.0f} images a second, Opacus {theirs:.0f}, ratio {ours / theirs:.3f}",
        "beside Opacus'; ratio ≥ 0.95",
    )
    assert ours / theirs >= 0.95
