"""Options that several commands share."""

import pytest

from antiphase.cli import options


def test_options_with_an_underscore_or_a_hyphen():
    assert options.parse_options(["final-weight=2"]) == {"final_weight": 2}
    with pytest.raises(Exception, match="must be name=value"):
        options.parse_options(["=2"])
