"""Times that compare: both sides take turns, so that what else the machine does hits both alike."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds. ``first`` is the first call, with whatever it loads and compiles; the others leave it out."""

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


def in_turn(
    works: dict[str, Callable[[], object]], repetitions: int, warm: int = 1
) -> dict[str, Timing]:
    """Of each work, which are done in turn, ``repetitions`` times after ``warm`` times that do not count.

    A work that returns a float says how long it took; of others the call is timed.
    """

    def once(work):
        began = time.perf_counter()
        said = work()
        return said if isinstance(said, float) else time.perf_counter() - began

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
    """Within it this process, and those it starts, run on one core: one thread's worth of work at a time."""

    def __enter__(self):
        self._before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        if self._before:
            os.sched_setaffinity(0, {min(self._before)})

    def __exit__(self, *_):
        if self._before:
            os.sched_setaffinity(0, self._before)


def in_words(taken: float) -> str:
    """
    >>> in_words(0.00123), in_words(0.5), in_words(75.0)
    ('1.23 ms', '500 ms', '75.0 s')
    """
    if taken < 1:
        return f"{1e3 * taken:.3g} ms"
    return f"{taken:.1f} s" if taken < 300 else f"{taken / 60:.1f} min"


def ratio_in_words(ratio: float) -> str:
    """
    >>> ratio_in_words(0.9512), ratio_in_words(12.34), ratio_in_words(1234.5)
    ('0.95 ×', '12.3 ×', '1,234 ×')
    """
    return (
        f"{ratio:.2f} ×" if ratio < 10 else f"{ratio:.1f} ×" if ratio < 100 else f"{ratio:,.0f} ×"
    )
