"""Graceful Ctrl-C: finish the current unit of work, then stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def graceful_interrupt(enabled: bool = True) -> Iterator[Callable[[], bool]]:
    """Context in which the first Ctrl-C sets a flag; a second one interrupts as usual.

    Outside the main thread, which alone receives signals, and where Ctrl-C already has another
    handler, the context changes nothing.

    Args:
        enabled: False changes nothing, so that the caller needs no second code path.

    Yields:
        A function that returns whether Ctrl-C was pressed.
    """
    pressed = False

    def set_flag(*_: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        enabled = enabled and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if enabled:
            signal.signal(signal.SIGINT, set_flag)
    except ValueError:  # not the main thread
        enabled = False
    try:
        yield lambda: pressed
    finally:
        if enabled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
