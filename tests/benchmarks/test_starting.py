"""Time to start, as ratios in one run."""

import resource
import subprocess
import sys

import pytest

TURNS = 7


def processor_time(arguments):
    """Processor time of a Python process in seconds, which other processes hardly change."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.issue(23)
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(
    ("ours", "theirs", "asked"),
    [
        ("-c|import antiphase", "-c|import numpy, scipy.linalg", 1.5),
        # With all modules that the public names need, but for Numba.
        (
            "-c|import antiphase as ap; [getattr(ap, n) for n in ap.__all__ if n != 'NoiseStream']",
            "-c|import numpy, scipy.linalg",
            1.5,
        ),
        ("-m|antiphase|--help", "-c|import typer", 2.5),
        ("-c|import antiphase.torch", "-c|import opacus", 1.15),
    ],
)
def test_starting_takes_hardly_longer_than_the_libraries_below(shown, ours, theirs, asked):
    """The best of several turns, in which both alternate."""
    turns = range(TURNS if "opacus" not in theirs else 4)
    times = [[processor_time(a.split("|")) for a in (ours, theirs)] for _ in turns]
    one, other = map(min, zip(*times, strict=True))
    shown(
        f"{ours.replace('|', ' ')[:40]} beside {theirs.replace('|', ' ')}",
        f"{one:.3f} s / {other:.3f} s = {one / other:.2f}",
        f"≤ {asked}",
    )
    assert one <= asked * other
