"""The progress bar of scripts and notebooks: one line, only where somebody looks, removed."""

import io
import sys
import time

import pytest

from antiphase._util import progress
from antiphase._util.progress import ProgressReport, TextBar, shown


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
        (Terminal(), [3], False, False),
        (Terminal(), [1.9], True, False),
        (io.StringIO(), [3], True, False),
        (None, [3], True, False),
    ],
    ids=["silenced", "quick work", "a file", "no stream"],
)
def test_it_is_shown_where_somebody_looks(clock, monkeypatch, stream, seconds, shown, visible):
    monkeypatch.setattr(sys, "stderr", stream)
    search(clock, seconds, shown=shown)
    assert stream is None or bool(stream.getvalue()) == visible


@pytest.mark.issue(23)
def test_in_a_notebook_it_is_on_standard_output(clock, monkeypatch):
    """Standard error has the colour of errors there."""
    notebook, errors = NotebookStream(), NotebookStream()
    monkeypatch.setattr(sys, "stdout", notebook)
    monkeypatch.setattr(sys, "stderr", errors)
    search(clock, [3])
    assert notebook.getvalue()
    assert not errors.getvalue()


@pytest.mark.issue(23)
def test_the_seconds_go_on_without_reports(monkeypatch):
    """A calibration of seconds makes no report; nothing is written once the bar is removed."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_TICKS", 0.01)
    with TextBar("comparing") as bar:
        bar(ProgressReport(0, 4, task="dp-mf"))
        time.sleep(1.2)
    ended = terminal.getvalue()
    seen = terminal.lines()
    assert seen[0] == "comparing dp-mf: [....................] 0 of 4, 0 s"
    assert "comparing dp-mf: [....................] 0 of 4, 1 s" in seen
    assert seen[-1] == ""
    time.sleep(0.3)
    assert terminal.getvalue() == ended


@pytest.mark.issue(23)
def test_a_bar_a_function_or_nothing_is_shown(monkeypatch):
    """For True, for a function, and for False; all else is named."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    with shown(True, "comparing") as bar:
        assert bar._stream is sys.stderr
    with shown(False, "comparing") as bar:
        assert bar._stream is None
    with shown(print, "comparing") as function:
        assert function is print
    with pytest.raises(TypeError, match="progress = 3 must be True or False"), shown(3, ""):
        pass


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
