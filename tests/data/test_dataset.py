"""Data sets: the rule that splits them, and their digest."""

import numpy as np

from antiphase.data.dataset import Dataset, Split, train_test_split


def test_the_split_takes_a_fifth_of_each_class_in_any_regular_order():
    for order in (
        np.arange(1000) // 100,
        np.arange(1000) % 10,
        np.arange(1000) % 5,
        np.arange(1000) % 7,
    ):
        train, test = train_test_split(np.arange(1000.0)[:, None], order)
        assert len(train) + len(test) == 1000
        share = np.bincount(test.targets) / np.bincount(order)
        assert 0.17 <= share.min() <= share.max() <= 0.23
    assert [len(part) for part in train_test_split(np.zeros((2, 1)), np.arange(2))] == [1, 1]


def test_the_digest_depends_on_arrays_shapes_and_classes():
    def make(x=0.0, y=0, shape=(4, 2), classes=("a", "b")):
        split = Split(np.full(shape, x, np.float32), np.array([y, 1, 0, 1]))
        return Dataset("d", split, split, classes).digest

    assert make() == make()
    assert (
        len({make(), make(x=1.0), make(y=1), make(shape=(4, 1, 2)), make(classes=("a", "c"))}) == 5
    )
