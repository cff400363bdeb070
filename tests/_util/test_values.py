"""Values: compared and hashed by content, and restored through their constructors."""

import numpy as np
import pytest

import antiphase as ap
from antiphase._util.values import Value, digest
from antiphase.errors import FileFormatError
from antiphase.participation import Participation


def test_values_with_the_same_content_are_equal():
    assert ap.epochs(2, 3) == ap.epochs(2, 3)
    assert len({ap.epochs(2, 3), ap.epochs(2, 3), ap.epochs(3, 2)}) == 2


def test_a_value_is_restored_from_its_spec():
    value = ap.min_separation(2, 3)
    assert value.spec() == {"kind": "MinSeparation", "count": 2, "apart": 3}
    assert Participation.restore(value.spec()) == value


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("Epochs", "dictionary with a 'kind'"),
        ({"kind": 3}, "dictionary with a 'kind'"),
        ({"kind": "Weekly"}, "'Weekly' is not a kind of Participation"),
        ({"kind": "Workload"}, "'Workload' is not a kind of Participation"),
        ({"kind": "Epochs", "count": 0, "every": 1}, "stored Epochs is not valid: count = 0"),
        ({"kind": "Epochs", "more": 1}, "stored Epochs is not valid"),
    ],
)
def test_other_specs_are_refused(spec, message):
    with pytest.raises(FileFormatError, match=message):
        Participation.restore(spec)


def test_a_digest_depends_on_content_and_not_on_key_order():
    content = {"a": 1, "b": [np.arange(3), ap.once()]}
    same = {"b": (np.arange(3), ap.once()), "a": 1}
    assert digest(content) == digest(same)
    others = [
        content | {"a": 2},
        content | {"b": [np.arange(3.0), ap.once()]},
        content | {"b": [np.arange(3)[:, None], ap.once()]},
        content | {"b": [np.arange(3), ap.epochs(1, 1)]},
    ]
    assert len({digest(other) for other in [content, *others]}) == 5
    assert isinstance(ap.once(), Value)
