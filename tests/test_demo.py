"""The demo's headlines: the best private result, against DP-SGD of both kinds, in this order."""

import json

import pytest

from antiphase import demo
from antiphase.reporting import page
from antiphase.torch.recipe import Outcome

pytestmark = pytest.mark.issue(23)


def outcome(label, epsilon, accuracy):
    return Outcome(
        recipe=demo._recipe(label, epsilon),
        dataset="digits",
        seed=0,
        accuracy=accuracy,
        loss=0.5,
        finite=True,
        curve=((10, accuracy / 2, 1.0), (20, accuracy, 0.5)),
        steps=20,
        seconds=0.1,
        statement=None,
        weights={},
    )


def result(accuracies, spread=0.01, epsilon=1.0, stopped=False):
    """Two trainings of each mechanism, whose mean is the accuracy."""
    return demo.DemoResult(
        {
            (label, epsilon): [outcome(label, epsilon, mean + d) for d in (-spread, spread)]
            for label, mean in accuracies.items()
        },
        stopped,
    )


def test_poisson_dp_sgd_is_named_the_best_where_it_is():
    found = result({demo.POISSON: 0.89, demo.FIXED_ORDER: 0.6, "DP-MF": 0.85, "DP-MF⁺": 0.88})
    assert found.best(1.0) == demo.POISSON
    assert found.best(1.0, ordinary=True) == "DP-MF⁺"
    # the standard error of two values, a spread to each side of their mean, is the spread
    assert found.headline(1.0) == (
        "The best private result at ε = 1 is 89.0 %, by DP-SGD, Poisson batches. On ordinary "
        "batches it is 88.0 %, by DP-MF⁺: level, −1.0 ± 1.4 points against DP-SGD (Poisson "
        "batches), +28.0 ± 1.4 points against DP-SGD in a fixed order."
    )


def test_correlated_noise_is_compared_with_poisson_dp_sgd_first():
    found = result({demo.POISSON: 0.86, demo.FIXED_ORDER: 0.6, "DP-MF": 0.9})
    assert found.headline(1.0) == (
        "The best private result at ε = 1 is 90.0 %, by DP-MF, on ordinary batches: "
        "+4.0 ± 1.4 points against DP-SGD (Poisson batches), +30.0 ± 1.4 points against DP-SGD in "
        "a fixed order."
    )


def test_a_demo_that_was_stopped_states_what_there_is():
    found = result({demo.POISSON: 0.86}, stopped=True)
    assert found.headline(1.0) == (
        "The best private result at ε = 1 is 86.0 %, by DP-SGD, Poisson batches."
    )
    assert found.headline(8.0) == "No training at ε = 8 was finished."
    assert found.statement is None
    assert found.statements == []


def test_the_page_states_the_headline_and_marks_the_sampler(tmp_path):
    found = result({demo.POISSON: 0.89, demo.FIXED_ORDER: 0.6, "DP-MF": 0.85})
    paths = demo.write(tmp_path / "demo", found)
    text = paths[0].read_text()
    assert str(page.unbroken(found.headline(1.0))) in text
    assert "89.0 ± 1.0" in text  # in one cell
    assert '<span class="dot c0 diamond" aria-hidden="true">' in text
    rows = json.loads(paths[1].read_text())["results"]
    assert [row["label"] for row in rows] == [demo.POISSON, demo.FIXED_ORDER, "DP-MF"]
