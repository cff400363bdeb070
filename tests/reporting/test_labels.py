"""Labels are inside the plot, near what they name, and do not overlap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphase.reporting.labels import beside, spread


@given(st.lists(st.floats(0, 1), max_size=10))
def test_labels_do_not_overlap_and_keep_their_order(heights):
    places = spread(heights, 0.07)
    assert all(
        b - a >= 0.07 - 1e-5 for a, b in zip(sorted(places), sorted(places)[1:], strict=False)
    )
    assert all(-1e-6 <= p <= 1 + 1e-6 for p in places)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    assert [places[i] for i in order] == sorted(places)


@pytest.mark.issue(23)
@given(st.lists(st.tuples(st.floats(0, 800), st.floats(0, 400)), min_size=1, max_size=9))
def test_labels_beside_points_are_near_and_inside(points):
    """Each begins or ends near its point, or is centred above or below it."""
    widths = [60.0 + 10 * i for i in range(len(points))]
    places = beside(np.array(points), widths, 18.0, (800.0, 400.0), np.empty((0, 2)))
    for (x, y), width, (left, middle) in zip(points, widths, places, strict=True):
        assert 0 <= left <= 800 - width
        assert 9 <= middle <= 391
        assert abs(middle - y) <= 5 * 18
        assert min(abs(left - x), abs(left + width - x), abs(left + width / 2 - x)) <= 18


@pytest.mark.issue(23)
def test_labels_beside_points_do_not_overlap():
    """Of nine points, four of them close together, and off the curve where there is room."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        points = rng.uniform((0, 0), (800, 400), (9, 2))
        points[:4] = rng.uniform((200, 150), (600, 250)) + rng.uniform(-40, 40, (4, 2))
        places = beside(points, [90.0] * 9, 18.0, (800.0, 400.0), np.empty((0, 2)))
        for i, (left, middle) in enumerate(places):
            for other_left, other_middle in places[:i]:
                assert abs(left - other_left) >= 90 or abs(middle - other_middle) >= 18
    level = np.column_stack([np.linspace(0, 800, 400), np.full(400, 200.0)])
    ((_, middle),) = beside(np.array([[100.0, 200.0]]), [90.0], 18.0, (800.0, 400.0), level)
    assert abs(middle - 200) >= 9
