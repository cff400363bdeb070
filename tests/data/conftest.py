"""Tests of data use a cache and servers of their own."""

import pytest

from tests.data import site


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Folder of the tiny data set in the cache of the test."""
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANTIPHASE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "data" / "tiny"


@pytest.fixture
def mirror():
    """A server with all files of the tiny data set."""
    with site.serving(site.packed()) as running:
        yield running
