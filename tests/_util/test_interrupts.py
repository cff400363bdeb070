"""Graceful Ctrl-C: the first press sets a flag, the second interrupts."""

import os
import signal
import threading

import pytest

from antiphase._util.interrupts import graceful_interrupt


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_press_sets_a_flag_and_the_second_interrupts():
    with graceful_interrupt() as interrupted:
        assert not interrupted()
        press()
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            press()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_disabled_it_changes_nothing():
    with graceful_interrupt(False) as interrupted, pytest.raises(KeyboardInterrupt):
        press()
    assert not interrupted()


def test_another_handler_stays(monkeypatch):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with graceful_interrupt() as interrupted:
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [1]
    assert not interrupted()


def test_another_thread_is_left_alone():
    flags = []

    def work():
        with graceful_interrupt() as interrupted:
            flags.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert flags == [False]
