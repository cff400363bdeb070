"""Memory and time of noise: those of the stream itself."""

import math

import pytest

import antiphase as ap
from antiphase.comparison import Candidate, Setting, compare


@pytest.mark.parametrize("steps", [64, 200])
def test_memory_is_what_a_stream_keeps(steps):
    """For regenerated rows and for vectors that are kept."""
    candidates = [
        *(Candidate(name) for name in ("dp-sgd", "tree", "dp-mf")),
        Candidate("dp-mf+", {"tau": steps // 4}),
    ]
    found = compare(Setting.of(steps, 4, parameters=5000), candidates)
    for e in found.entries:
        assert e.noise_bytes == e.mechanism.noise(5000, key=ap.Key.insecure(0)).memory
        assert 0 < e.step_seconds < 1


def test_large_models_are_measured_at_small_ones():
    """A billion parameters: nothing of that size is allocated, and nothing is refused."""
    found = compare(
        Setting.of(100, 4, parameters=10**9),
        [Candidate("dp-sgd"), Candidate("tree"), Candidate("dp-mf")],
    )
    assert found.refused == {}
    assert [e.noise_bytes // 10**9 for e in found.entries] == [0, 28, 16]
    assert all(e.step_seconds > 0.1 for e in found.entries)


def test_unmeasured_times_are_nan():
    found = compare(Setting.of(8), [Candidate("dp-sgd")], measure=False)
    assert math.isnan(found.entries[0].step_seconds)
