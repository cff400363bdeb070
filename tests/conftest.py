"""Every test has a design cache of its own, empty at the start of the run, and the same luck in every run."""

import os
import random
import secrets
import signal
import sys
import threading

import pytest

os.environ["ANTIPHASE_CACHE"] = "off"
if threading.current_thread() is threading.main_thread():
    # A shell lets its background jobs ignore Ctrl-C, and so would the tests of it and the commands they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def luck(request, monkeypatch):
    """Keys, runs and torch's generator are those of the test's name: what fails once fails again.

    In the processes that a test starts, they are the system's.
    """
    drawn = random.Random(request.node.nodeid)
    monkeypatch.setattr(secrets, "token_bytes", drawn.randbytes)
    monkeypatch.setattr(secrets, "token_hex", lambda size: drawn.randbytes(size).hex())
    monkeypatch.setattr(secrets, "randbits", drawn.getrandbits)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(drawn.getrandbits(63))


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
