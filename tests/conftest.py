"""Every test has a design cache of its own, empty at the start of the run: nothing is remembered from another."""

import os
import signal
import threading

import pytest

os.environ["ANTIPHASE_CACHE"] = "off"
if threading.current_thread() is threading.main_thread():
    # A shell lets its background jobs ignore Ctrl-C, and so would the tests of it and the commands they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A design cache in a temporary folder."""
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shown(capsys):
    """Prints what was measured beside what was asked, past pytest's capture."""

    def show(claim, measured, asked):
        with capsys.disabled():
            print(f"\n  {claim}: measured {measured}; asked {asked}", end="")

    return show
