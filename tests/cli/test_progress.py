"""The share of a search that is done is estimated from its gap."""

import math

import pytest

from antiphase.cli.progress import SearchProgress


def test_the_share_is_logarithmic_in_the_gap():
    search = SearchProgress(target=1e-4)
    assert search.share(1.0) == 0
    assert search.share(1e-2) == pytest.approx(0.5)
    assert search.share(1e-4) == pytest.approx(1)
    assert search.share(1e-9) == 1


def test_a_gap_that_says_nothing_is_no_progress():
    search = SearchProgress(target=1e-4)
    assert [search.share(gap) for gap in (None, math.inf, math.nan, 0.0)] == [0, 0, 0, 0]
    assert search.share(1e-5) == 1  # below the target from the start
