"""The design cache: where it is, and that it can be disabled."""

import pytest

from antiphase._util import cache


@pytest.mark.parametrize("setting", ["off", "OFF", "0", "no"])
def test_the_environment_can_disable_it(monkeypatch, setting):
    monkeypatch.setenv("ANTIPHASE_CACHE", setting)
    assert cache.directory() is None
    assert cache.entry_path("abc") is None


def test_the_environment_can_move_it(monkeypatch, tmp_path):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    assert cache.entry_path("abc") == tmp_path / "cache" / "abc.antiphase"
    assert (tmp_path / "cache").is_dir()


def test_a_directory_that_cannot_be_created_is_no_cache(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "file"))
    assert cache.entry_path("abc") is None


def test_links_and_missing_files_are_not_trusted(tmp_path):
    (tmp_path / "entry").touch(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "entry")
    assert cache.is_trusted(tmp_path / "entry")
    assert not cache.is_trusted(tmp_path / "link")
    assert not cache.is_trusted(tmp_path / "missing")
