"""Averages and the page of trainings."""

import math
from types import SimpleNamespace

import pytest

from antiphase.reporting import page, training_report


def outcome(accuracy, seed=0):
    recipe = SimpleNamespace(
        name="none",
        model="logistic",
        epochs=1,
        batch_size=8,
        is_private=False,
        is_sampled=False,
        delta=None,
    )
    return SimpleNamespace(
        recipe=recipe,
        dataset="digits",
        seed=seed,
        accuracy=accuracy,
        loss=0.5,
        curve=[(1, accuracy / 2, 1.0), (2, accuracy, 0.5)],
        steps=2,
        seconds=0.1,
        statement=None,
    )


def test_mean_and_standard_error():
    outcomes = [outcome(value) for value in (0.5, 0.6, 0.7)]
    assert training_report.mean_accuracy(outcomes) == pytest.approx(0.6)
    assert training_report.standard_error(outcomes) == pytest.approx(0.1 / math.sqrt(3))
    assert training_report.standard_error(outcomes[:1]) is None


def test_the_page_states_the_mean_and_that_nothing_is_private():
    made = training_report.page([outcome(0.5), outcome(0.7, seed=1)], "antiphase train")
    assert "60.0 ± 10 % on test data" in made.answer
    assert made.notes == ["Not private: there was neither clipping nor noise."]
    (curve,) = made.charts[0].series
    assert curve.y.tolist() == [30, 60]
    assert "no privacy on digits" in page.render(made)


@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("mechanism", "sampled", "expected"),
    [
        ("dp-sgd", True, "DP-SGD, Poisson batches"),
        ("dp-sgd", False, "DP-SGD, fixed order"),
        ("dp-mf", False, "DP-MF"),
    ],
)
def test_dp_sgd_is_labelled_by_its_batches(mechanism, sampled, expected):
    """The curve on random batches has diamonds."""
    trained = outcome(0.5)
    vars(trained.recipe).update(name=mechanism, is_private=True, is_sampled=sampled)
    (curve,) = training_report.curves([trained]).series
    assert (curve.label, curve.sampled) == (expected, sampled)
    assert curve.marker == ("diamond" if sampled else "circle")
