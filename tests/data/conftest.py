"""No test of data reads or writes the user's cache, or asks a server that is not its own."""

import pytest

from tests.data import site


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """The folder of the tiny data set in a cache of the test's own."""
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ANTIPHASE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path / "cache" / "data" / "tiny"


@pytest.fixture
def mirror():
    with site.serving(site.packed()) as running:
        yield running
