"""Timings in alternation, so that other load on the machine affects both sides alike."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds; ``first`` is the first call, which loads and compiles, and is not in the others."""

    first: float
    median: float
    low: float  # quartiles
    high: float
    count: int

    @classmethod
    def of(cls, first, seconds):
        low, _, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
        return cls(first, statistics.median(seconds), low, high, len(seconds))

    def json(self):
        return asdict(self)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def take_turns(
    works: dict[str, Callable[[], object]], repetitions: int, warm: int = 1
) -> dict[str, Timing]:
    """Time functions in alternation, ``repetitions`` times after ``warm`` calls that do not count.

    A function that returns a float has measured itself.
    """

    def once(work):
        began = time.perf_counter()
        result = work()
        return result if isinstance(result, float) else time.perf_counter() - began

    first = {name: once(work) for name, work in works.items()}
    for _ in range(warm - 1):
        for work in works.values():
            once(work)
    taken = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            taken[name].append(once(work))
    return {name: Timing.of(first[name], times) for name, times in taken.items()}


class OnOneCore:
    """Run this process and those it starts on one core."""

    def __enter__(self):
        self._before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        if self._before:
            os.sched_setaffinity(0, {min(self._before)})

    def __exit__(self, *_):
        if self._before:
            os.sched_setaffinity(0, self._before)


def format_seconds(taken: float) -> str:
    """Seconds with a unit.

    >>> format_seconds(0.00123), format_seconds(0.5), format_seconds(75.0)
    ('1.23 ms', '500 ms', '75.0 s')
    """
    if taken < 1:
        return f"{1e3 * taken:.3g} ms"
    return f"{taken:.1f} s" if taken < 300 else f"{taken / 60:.1f} min"


def format_ratio(ratio: float) -> str:
    """A ratio with as many digits as matter.

    >>> format_ratio(0.9512), format_ratio(12.34), format_ratio(1234.5)
    ('0.95 ×', '12.3 ×', '1,234 ×')
    """
    return (
        f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:.1f} ×" if ratio < 100 else f"{ratio:,.0f} ×"
    )
