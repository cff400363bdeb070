import numpy as np
import pytest

from antiphase.participation import Epochs, Once, epochs, from_epochs, min_separation, once


@pytest.mark.parametrize(
    ("participation", "steps"),
    [(once(), 7), (epochs(3, 4), 12), (epochs(3, 4), 10), (min_separation(3, 2), 11)],
)
def test_classes_partition_the_steps(participation, steps):
    assert sorted(np.concatenate(participation.classes(steps)).tolist()) == list(range(steps))


def test_a_short_last_epoch_leaves_some_out():
    assert [len(c) for c in epochs(3, 4).classes(10)] == [3, 3, 2, 2]


def test_evenly_spaced_participations_are_allowed_by_a_minimum_separation():
    for count, apart, steps in [(3, 2, 20), (3, 10, 20), (1, 4, 9)]:
        for pattern in min_separation(count, apart).classes(steps):
            assert len(pattern) <= count
            assert (np.diff(pattern) >= apart).all()


def test_steps_and_epochs_say_enough():
    assert from_epochs(10, 1) == Once()
    assert from_epochs(12, 3) == Epochs(3, 4)
    assert from_epochs(11, 3) == Epochs(3, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epochs(0, 3), "count = 0"),
        (lambda: epochs(2, every=0), "every = 0"),
        (lambda: epochs(2.0, 3), "count = 2.0"),
        (lambda: epochs(2, 3).classes(7), "2 epochs of 3 steps covers 6 of 7 steps"),
        (lambda: min_separation(2, 0), "apart = 0"),
        (lambda: from_epochs(3, 5), "epochs = 5"),
        (lambda: from_epochs(10, 6), "epochs = 6"),
        (lambda: from_epochs(10, 0), "epochs = 0"),
        (lambda: once().classes(0), "steps = 0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
