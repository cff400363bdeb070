"""Ctrl-C that waits for a good moment."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def first_ctrl_c(wanted: bool = True) -> Iterator[Callable[[], bool]]:
    """Within it, the first Ctrl-C only makes what is yielded say True; a second one interrupts as ever.

    Does nothing outside the main thread, which alone gets signals, and where Ctrl-C has another meaning already.
    """
    pressed = False

    def remember(*_: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    ours = False
    try:
        ours = wanted and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ours:
            signal.signal(signal.SIGINT, remember)
    except ValueError:
        ours = False
    try:
        yield lambda: pressed
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
