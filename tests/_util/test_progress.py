"""The progress bar of scripts and notebooks: one line, only where somebody looks, removed."""

import io
import sys

import pytest

from antiphase._util import progress
from antiphase._util.progress import ProgressReport, TextBar


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def lines(self):
        """What is visible in each moment: a carriage return starts the line again."""
        line, seen = "", []
        for part in self.getvalue().split("\r")[1:]:
            line = part + line[len(part) :]
            seen.append(line.rstrip())
        return seen


class NotebookStream(io.StringIO):
    """As ipykernel's, which is no terminal."""

    __module__ = "ipykernel.iostream"


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def search(clock, seconds, total=None, shown=True):
    """A report at each of these seconds."""
    with TextBar("designing dp-mf", shown) as bar:
        for done, second in enumerate(seconds, 1):
            clock[0] = 100 + second
            assert bar(ProgressReport(done, total, gap=0.1**done)) is None, "the search goes on"


@pytest.mark.issue(23)
def test_one_line_is_rewritten_after_two_seconds_and_removed(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    search(clock, [0.5, 1.9, 2.1, 2.2, 12.5])
    assert terminal.lines() == [
        "designing dp-mf: 3 iterations, gap 1e-03, 2 s",
        "designing dp-mf: 5 iterations, gap 1e-05, 12 s",  # the report 0.1 s after is left out
        "",
        "",
    ]
    assert "\n" not in terminal.getvalue()


@pytest.mark.issue(23)
def test_a_known_total_is_shown_as_a_bar(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    search(clock, [0, 3], total=4)
    assert terminal.lines()[0] == "designing dp-mf: [##########..........] 2 of 4, gap 1e-02, 3 s"


@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("stream", "seconds", "shown", "visible"),
    [
        (NotebookStream(), [3], True, True),
        (Terminal(), [3], False, False),
        (Terminal(), [1.9], True, False),
        (io.StringIO(), [3], True, False),
        (None, [3], True, False),
    ],
    ids=["a notebook", "silenced", "quick work", "a file", "no stream"],
)
def test_it_is_shown_where_somebody_looks(clock, monkeypatch, stream, seconds, shown, visible):
    monkeypatch.setattr(sys, "stderr", stream)
    search(clock, seconds, shown=shown)
    assert stream is None or bool(stream.getvalue()) == visible


def test_the_line_is_removed_if_the_work_fails(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def fail():
        with TextBar("designing") as bar:
            clock[0] += 3
            bar(ProgressReport(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert terminal.lines() == ["designing: 1 iterations, 3 s", "", ""]
