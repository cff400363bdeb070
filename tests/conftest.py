"""Fixtures of all tests: no design cache, reproducible randomness, printed measurements."""

import os
import random
import secrets
import signal
import sys
import threading

import pytest

os.environ["ANTIPHASE_CACHE"] = "off"
if threading.current_thread() is threading.main_thread():
    # Background jobs of a shell ignore Ctrl-C; tests of Ctrl-C and their processes must not.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def reproducible_randomness(request, monkeypatch):
    """Seed keys, runs and torch by the test's name, so that a failure repeats.

    Processes that a test starts use the system's randomness.
    """
    generator = random.Random(request.node.nodeid)
    monkeypatch.setattr(secrets, "token_bytes", generator.randbytes)
    monkeypatch.setattr(secrets, "token_hex", lambda size: generator.randbytes(size).hex())
    monkeypatch.setattr(secrets, "randbits", generator.getrandbits)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(generator.getrandbits(63))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A design cache in a temporary folder."""
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shown(request):
    """``shown(claim, measured, asked)``: print a measurement when the test has ended.

    It is printed whichever process ran the test.
    """

    def show(claim, measured, asked):
        request.node.user_properties.append(
            ("shown", f"{claim}: measured {measured}; asked {asked}")
        )

    return show


class Shown:
    """Prints measurements."""

    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            for name, text in report.user_properties:
                if name == "shown":
                    self.terminal.write(f"\n  {text}")


@pytest.hookimpl(trylast=True)  # after the terminal reporter is registered
def pytest_configure(config):
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Shown(terminal))
