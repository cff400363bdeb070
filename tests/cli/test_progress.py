"""Progress: what is shown of designs and trainings, and how the time left is estimated."""

import io
import math
import re

import pytest
from rich.console import Console
from rich.progress import Progress as RichProgress

from antiphase._util.progress import ProgressReport
from antiphase.cli import output, progress
from antiphase.cli.progress import PhaseClock, SearchProgress


def test_the_share_is_logarithmic_in_the_gap():
    search = SearchProgress(target=1e-4)
    assert search.share(1.0) == 0
    assert search.share(1e-2) == pytest.approx(0.5)
    assert search.share(1e-4) == search.share(1e-9) == 0.99  # not done before it returns


def test_a_gap_that_says_nothing_is_no_progress():
    search = SearchProgress(target=1e-4)
    assert [search.share(gap) for gap in (None, math.inf, math.nan, 0.0)] == [0, 0, 0, 0]
    assert search.share(1e-5) == 0.99  # below the target from the start


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_is_that_of_the_phase(clock):
    """A training that is resumed at a half does its second half in the time it takes."""
    phases = PhaseClock()
    assert phases.left("designing", 0.0) == "-:--:--"
    clock[0] = 10.0
    assert phases.left("designing", 0.25) == "0:00:30"
    assert phases.left("training", 0.5) == "-:--:--"
    clock[0] = 70.0
    assert phases.left("training", 0.75) == "0:01:00"


@pytest.mark.issue(23)
def test_phases_are_named_and_times_labelled(monkeypatch, clock):
    """One bar: the time elapsed does not start again when the design is done."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, get_time=lambda: clock[0])
    monkeypatch.setattr(output, "err", console)
    update = RichProgress.update

    def update_at_once(self, *args, **values):
        update(self, *args, **values)
        self.refresh()

    monkeypatch.setattr(RichProgress, "update", update_at_once)
    with progress.training_bar(False, "designing", "dp-mf", 1, 1e-4) as report:
        report(ProgressReport(1, gap=1.0, task="designing"), trial=0)
        clock[0] = 60.0
        report(ProgressReport(2, gap=1e-2, task="designing"), trial=0)
        shown = last_line(screen)
        assert shown.startswith("designing dp-mf")
        assert shown.endswith("gap 1e-02 elapsed 0:01:00 left 0:01:00 + training")
        report(ProgressReport(3, gap=1e-9, task="designing"), trial=0)
        clock[0] = 120.0
        report(ProgressReport(1, 10, task="training"), trial=0)
        clock[0] = 150.0
        now = ProgressReport(2, 10, task="training", metrics={"accuracy": 0.5, "loss": 1.0})
        report(now, trial=0)
        shown = last_line(screen)
        assert shown.startswith("training dp-mf")
        assert shown.endswith("accuracy 50.0% elapsed 0:02:30 left 0:04:00")


def last_line(screen):
    """The newest state of the bar, without the bar, colours and blanks."""
    progress_text = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue())
    line = progress_text.replace("\r", "\n").strip().splitlines()[-1]
    return re.sub(r"[━╸╺ ]+", " ", line[1:]).strip()
