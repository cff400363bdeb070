"""Hostile input: errors that name the problem; no crash, no code run, no stray files."""

import io

import numpy as np
import pytest

from antiphase import data
from antiphase.errors import DataError
from tests.adversarial import calls, damage


@pytest.mark.slow
def test_generated_calls_return_or_name_the_problem():
    found = calls.run(400, seed=22)
    assert not found["failures"], "\n".join(found["failures"])
    assert found["calls"] == 400
    assert found["made"] > 40, "some of them are valid"
    assert found["refused"] > 200


@pytest.mark.slow
def test_damaged_files_are_refused(tmp_path):
    found = damage.run(tmp_path, 150, seed=14)
    assert set(found["whole"].values()) == {"loaded"}, "the originals are good"
    assert not found["failures"], "\n".join(found["failures"])
    assert found["strays"] == []
    assert found["refused"] > 120


@pytest.mark.slow
def test_an_archive_that_would_fill_the_memory_is_refused_unread(tmp_path):
    """260 kB unpack to a quarter of a gigabyte of zeros; real data do not compress like that."""
    (tmp_path / "bomb.npz").write_bytes(damage.bombs()[0])
    with pytest.raises(DataError, match="would unpack to 268435"):
        data.load(tmp_path / "bomb.npz")
    stream = io.BytesIO()
    rng = np.random.default_rng(0)
    np.savez_compressed(
        stream, x=rng.integers(0, 2, size=(5000, 1, 28, 28)).astype(np.uint8), y=np.arange(5000) % 3
    )
    (tmp_path / "fine.npz").write_bytes(stream.getvalue())
    assert data.load(tmp_path / "fine.npz").shape == (1, 28, 28)


def test_a_table_of_one_example_is_refused(tmp_path):
    """The split makes the only example test data."""
    (tmp_path / "one.csv").write_text("a,label\n0.5,1\n")
    with pytest.raises(DataError, match="is left for training"):
        data.load(tmp_path / "one.csv")
