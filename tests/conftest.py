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
def shown(request):
    """Prints what was measured beside what was asked, when the test has ended; also if another process ran it."""

    def show(claim, measured, asked):
        request.node.user_properties.append(
            ("shown", f"{claim}: measured {measured}; asked {asked}")
        )

    return show


class Shown:
    def __init__(self, terminal):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            for line in [text for name, text in report.user_properties if name == "shown"]:
                self.terminal.write(f"\n  {line}")


@pytest.hookimpl(trylast=True)  # when there is a terminal
def pytest_configure(config):
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Shown(terminal))
