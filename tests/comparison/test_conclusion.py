"""Conclusions of a comparison: the best mechanism, against DP-SGD of both kinds."""

import pytest

from antiphase.comparison import (
    Candidate,
    Setting,
    batches_needed,
    compare,
    conclusion,
    dp_sgd_candidates,
)

pytestmark = pytest.mark.issue(23)


def compared(setting, *names):
    candidates = [*dp_sgd_candidates(setting), *map(Candidate, names)]
    found = compare(setting, candidates, measure=False)
    return found, {entry.label: entry.final for entry in found.entries}


@pytest.mark.slow
def test_correlated_noise_is_compared_with_poisson_dp_sgd_and_then_with_the_fixed_order():
    found, final = compared(Setting.of(64, 4, epsilon=8.0, delta=1e-6), "dp-mf")
    poisson = final["DP-MF"] / final["DP-SGD, Poisson batches"]
    fixed = final["DP-MF"] / final["DP-SGD, fixed order"]
    assert poisson < 1
    assert conclusion(found) == (
        f"DP-MF leaves least noise in the final model: {poisson:.0%} of that of DP-SGD (Poisson "
        f"batches) and {fixed:.0%} of that of DP-SGD in a fixed order, at the same privacy."
    )


@pytest.mark.slow
def test_poisson_dp_sgd_is_named_the_best_where_it_is():
    found, final = compared(Setting.of(64, epsilon=0.5, delta=1e-6), "dp-mf")
    poisson = final["DP-MF"] / final["DP-SGD, Poisson batches"]
    assert poisson > 1
    text = conclusion(found)
    assert text.startswith("DP-SGD, Poisson batches leaves least noise in the final model: ")
    assert f"On ordinary batches DP-MF leaves least: {poisson:.0%} of that of DP-SGD (Poi" in text
    assert text.index("(Poisson batches)") < text.rindex("DP-SGD in a fixed order")


def test_a_comparison_without_a_budget_is_with_the_fixed_order():
    found, final = compared(Setting.of(64), "dp-mf")
    fixed = final["DP-MF"] / final["DP-SGD, fixed order"]
    assert f": {fixed:.0%} of that of DP-SGD in a fixed order, at" in conclusion(found)
    assert "(Poisson batches)" not in conclusion(found)
    alone = compare(Setting.of(8), [Candidate("dp-mf")], measure=False)
    assert conclusion(alone) == "DP-MF leaves least noise in the final model."
    same = compare(Setting.of(1), [Candidate("dp-sgd"), Candidate("dp-mf")], measure=False)
    assert conclusion(same) == "All of them leave the same noise in the final model."


@pytest.mark.slow
def test_the_batches_that_each_row_needs_are_named():
    found, _ = compared(Setting.of(64, epsilon=0.5, delta=1e-6), "dp-mf")
    assert batches_needed(found) == (
        "Rows with Poisson batches need true Poisson sampling: random batches, drawn anew and in "
        "secret in every step. All other rows work with ordinary batches in a fixed order."
    )
