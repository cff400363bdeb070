import numpy as np
import pytest

from antiphase.participation import Epochs, Once, epochs, from_epochs, min_separation, once


@pytest.mark.parametrize(
    ("participation", "steps"),
    [(once(), 7), (epochs(3, 4), 12), (epochs(3, 4), 10), (min_separation(3, 2), 11)],
)
def test_patterns_partition_the_steps(participation, steps):
    assert sorted(np.concatenate(participation.patterns(steps)).tolist()) == list(range(steps))


def test_a_short_last_epoch_has_shorter_patterns():
    assert [len(c) for c in epochs(3, 4).patterns(10)] == [3, 3, 2, 2]


def test_evenly_spaced_participations_are_allowed_by_a_minimum_separation():
    for count, apart, steps in [(3, 2, 20), (3, 10, 20), (1, 4, 9)]:
        for pattern in min_separation(count, apart).patterns(steps):
            assert len(pattern) <= count
            assert (np.diff(pattern) >= apart).all()


@pytest.mark.parametrize(
    "participation",
    [once(), epochs(1, 20), epochs(3, 7), min_separation(3, 7), min_separation(1, 4)],
)
def test_patterns_keep_the_limits_that_the_participation_states(participation):
    patterns = participation.patterns(20)
    assert max(map(len, patterns)) <= participation.max_participations
    assert all((np.diff(pattern) >= participation.separation).all() for pattern in patterns)
    evenly_spaced = participation.evenly_spaced(20)
    assert evenly_spaced.fixed_order
    assert list(map(list, evenly_spaced.patterns(20))) == list(map(list, patterns))
    if participation.fixed_order:
        assert evenly_spaced == participation
        assert participation.steps_per_epoch in (None, participation.separation)


def test_from_epochs():
    assert from_epochs(10, 1) == Once()
    assert from_epochs(12, 3) == Epochs(3, 4)
    assert from_epochs(11, 3) == Epochs(3, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epochs(0, 3), "count = 0"),
        (lambda: epochs(2, every=0), "every = 0"),
        (lambda: epochs(2.0, 3), "count = 2.0"),
        (lambda: epochs(2, 3).patterns(7), "2 epochs of 3 steps covers 6 of 7 steps"),
        (lambda: min_separation(2, 0), "apart = 0"),
        (lambda: from_epochs(3, 5), "epochs = 5"),
        (lambda: from_epochs(10, 6), "epochs = 6"),
        (lambda: from_epochs(10, 0), "epochs = 0"),
        (lambda: once().patterns(0), "steps = 0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
