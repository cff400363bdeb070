"""The mechanisms on the frontier of `antiphase compare`."""

import json

import pytest

from tests.cli.conftest import process

pytestmark = pytest.mark.issue(13)


@pytest.mark.slow
def test_the_frontier_is_what_brute_force_leaves(tmp_path, shown):
    """256 steps: every pair of (noise, memory) and (noise, time) is compared with every other."""
    words = ["compare", "--steps", "256", "--epochs", "4", "--family", "--json"]
    rows = json.loads(process(*words, cwd=tmp_path).stdout)["mechanisms"]
    said = []
    for cost, mark in (("noise_bytes", "memory_frontier"), ("step_seconds", "time_frontier")):
        points = [(row["average"], row[cost]) for row in rows]
        beaten = [any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points) for p in points]
        left = [row["label"] for row, worse in zip(rows, beaten, strict=True) if not worse]
        marked = [row["label"] for row in rows if row[mark]]
        said.append(f"{mark.replace('_', ' ')}: {'; '.join(marked)}")
        assert marked == left
        assert 0 < len(marked) < len(rows)
    shown(
        f"frontier of {len(rows)} mechanisms",
        " | ".join(said),
        "what no other beats, by brute force",
    )
