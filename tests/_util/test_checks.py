"""Argument checks: the clean value, or an error with the name and the value."""

import numpy as np
import pytest

from antiphase._util import checks as check


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: check.whole_number("n", np.int64(3)), 3),
        (lambda: check.real_number("x", np.float32(0.5), minimum=0.5, below=1), 0.5),
        (lambda: check.positive_number("x", 2), 2.0),
        (lambda: check.flag("f", np.True_), True),
        (lambda: check.choice("c", "a", ("a", "b")), "a"),
        (lambda: check.instance("i", 3, int), 3),
        (lambda: check.name_or_path("p", "a"), "a"),
        (lambda: check.function("f", len), len),
    ],
)
def test_a_good_value_is_returned(call, value):
    assert call() == value
    assert type(call()) is type(value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: check.whole_number("n", 0), ValueError, "n = 0 must be at least 1"),
        (lambda: check.whole_number("n", True), TypeError, "n = True must be a whole number"),
        (lambda: check.whole_number("n", 3.0), TypeError, "n = 3.0 must be a whole number"),
        (lambda: check.real_number("x", 10**400), ValueError, "must be finite"),
        (
            lambda: check.real_number("x", 1.0, minimum=0, below=1),
            ValueError,
            "x = 1.0 must be finite, at least 0, below 1",
        ),
        (lambda: check.real_number("x", "1"), TypeError, "x = '1' must be a number, not str"),
        (lambda: check.positive_number("x", 0), ValueError, "x = 0 must be positive"),
        (lambda: check.flag("f", 1), TypeError, "f = 1 must be True or False"),
        (lambda: check.choice("c", "z", ("a", "b")), ValueError, "c = 'z' must be one of a, b"),
        (lambda: check.choice("c", 1, ("a", "b")), TypeError, "c = 1 must be a string"),
        (lambda: check.instance("i", "3", int), TypeError, "i = '3' must be a int"),
        (lambda: check.name_or_path("p", 3), TypeError, "p = 3 must be a name or a path"),
        (lambda: check.function("f", 3), TypeError, "f = 3 must be a function"),
        (lambda: check.real_array("a", [1j], ndim=1), TypeError, "a has complex entries"),
        (lambda: check.real_array("a", ["x"], ndim=1), TypeError, "cannot be read as an array"),
        (lambda: check.real_array("a", [1.0], ndim=2), ValueError, "with 2 axes is needed"),
        (lambda: check.real_array("a", [[1, np.inf]], ndim=2), ValueError, r"a\[0, 1\] = inf"),
        (lambda: check.per_step("r", [1, 2], 3), ValueError, "r has 2 entries for 3 steps"),
        (lambda: check.per_step("r", [1, -2], 2), ValueError, r"r\[1\] = -2.0 is negative"),
    ],
)
def test_a_bad_value_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_arrays_are_read_only_copies():
    given = np.ones(2)
    array = check.real_array("a", given, ndim=1)
    given[0] = 5
    assert array.tolist() == [1, 1]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2
    assert check.per_step("r", 0.5, 3).tolist() == [0.5] * 3


def test_memory_sizes_are_parsed():
    assert [check.parse_memory(s) for s in ("1KB", "2 MiB", "1.5gb", "7", 9)] == [
        1000,
        2 << 20,
        1_500_000_000,
        7,
        9,
    ]
