"""Made-up inputs: ways to call a model with a batch, and random values in the range of the data."""

import pytest
import torch

from antiphase.torch.probe_inputs import _possible_calls, _random

pytestmark = pytest.mark.issue(21)


def batch(size):
    """Three tensors of different shapes, by name."""
    names = ("x", "mask", "labels")
    return {name: torch.zeros(size, width) for width, name in enumerate(names, 1)}


def sizes(call):
    """(examples, width) of each argument, by position or name."""
    args, kwargs = call
    arguments = dict(enumerate(args)) | kwargs
    return {name: tuple(tensor.shape) for name, tensor in arguments.items()}


def calls(several, one):
    """The arguments of each possible call, which are the same for several examples and for one."""
    found = []
    for of_several, of_one in _possible_calls(several, several, one):
        widths = {name: width for name, (_, width) in sizes(of_several).items()}
        assert sizes(of_several) == {name: (4, width) for name, width in widths.items()}
        assert sizes(of_one) == {name: (1, width) for name, width in widths.items()}
        found.append(widths)
    return found


def test_batches_by_name_are_tried_without_labels_first():
    assert calls(batch(4), batch(1)) == [
        {"x": 1, "mask": 2},
        {"x": 1, "mask": 2, "labels": 3},
        {"x": 1},
        {0: 1},
    ]


def test_of_a_list_the_first_all_but_the_last_and_all_are_tried():
    several, one = (list(batch(size).values()) for size in (4, 1))
    assert calls(several, one) == [{0: 1}, {0: 1, 1: 2}, {0: 1, 1: 2, 2: 3}]


def test_a_tensor_is_the_only_argument():
    assert calls(torch.zeros(4, 2), torch.zeros(1, 2)) == [{0: 2}]


def random(like, *values):
    return _random(like, list(values), torch.Generator().manual_seed(0))


def test_integers_are_uniform_from_the_smallest_to_the_largest():
    """For tokens and classes, every value of the range comes up, and no other."""
    found = random(torch.zeros(3000, dtype=torch.long), torch.tensor([6, 5]), torch.tensor([7]))
    values, counts = found.unique(return_counts=True)
    assert values.tolist() == [5, 6, 7]
    assert 850 <= int(counts.min()) <= int(counts.max()) <= 1150, "1000 each, with sd 26"


def test_numbers_are_uniform_from_the_smallest_to_the_largest():
    found = random(torch.zeros(3000), torch.tensor([-1.0, 2.0]), torch.tensor([3.0]))
    assert -1 <= float(found.min()) <= -0.99
    assert 2.99 <= float(found.max()) <= 3
    assert float(found.mean()) == pytest.approx(1.0, abs=0.1)


def test_what_has_no_range_is_kept_or_zero():
    bools, complex_numbers = torch.tensor([True, False]), torch.ones(2, dtype=torch.complex64)
    assert random(bools, bools).tolist() == [True, False]
    assert random(complex_numbers, complex_numbers).tolist() == [0, 0]
    assert random(torch.ones(2)).tolist() == [0, 0]
