"""What make_private says about the mechanism before training: log, progress, cost of the noise."""

import logging
import re
import sys

import numpy as np
import pytest
import torch
from torch import nn

import antiphase as ap
from antiphase._util import progress
from antiphase.errors import AntiphaseWarning
from antiphase.torch import PrivacyEngine, planned_mechanism
from tests._util.test_progress import Terminal
from tests.torch.setting import make_private

WORKLOAD = ap.Workload.sgd(100, learning_rates=np.full(100, 0.1))
BEST = ap.design("dp-mf", workload=WORKLOAD, epochs=20)  # dense


def private(name="dp-mf", options=None, **arguments):
    """The engine after make_private for 100 steps in 20 epochs."""
    engine = PrivacyEngine(mechanism=name, **(options or {}))
    make_private(engine, None, epochs=20, **arguments)
    return engine


def messages(caplog):
    assert {record.name for record in caplog.records} == {"antiphase"}
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    return [record.getMessage() for record in caplog.records]


@pytest.mark.issue(23)
def test_the_log_says_what_is_about_to_be_done(caplog):
    """Mechanism, steps, epochs, then how the design went, and what the noise costs."""
    with caplog.at_level(logging.INFO, "antiphase"):
        private()
    plan, found, noise = messages(caplog)
    assert plan == "dp-mf: noise for 100 steps (20 epochs of 5 steps)"
    assert re.fullmatch(r"dp-mf: designed in [\d.]+ s, certified gap \de-\d+", found)
    assert re.fullmatch(
        r"dp-mf: noise multiplier 1, clip norm 1; the noise of 4,096 numbers keeps 1.64 MB from "
        r"step to step and takes about [\d.e-]+ s for each step",
        noise,
    )


@pytest.mark.issue(23)
def test_a_long_design_is_announced_with_its_time(caplog, monkeypatch):
    monkeypatch.setattr(planned_mechanism, "DESIGN_SECONDS", 1e4)
    with caplog.at_level(logging.INFO, "antiphase"):
        private()
    assert messages(caplog)[0].endswith("; if the design is dense, it can take about 32 s")


@pytest.mark.issue(23)
def test_a_cached_design_says_so(caplog, monkeypatch, tmp_path):
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path))
    monkeypatch.setattr("antiphase.solvers.design_cache.MIN_SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "antiphase"):
        private()
        first = messages(caplog)
        private()
    again = messages(caplog)[len(first) :]
    assert not any("cache" in message for message in first)
    assert again[1].startswith(f"the design is from the cache ({tmp_path}")


@pytest.mark.issue(23)
def test_nothing_is_measured_if_nobody_listens(monkeypatch):
    monkeypatch.setattr(planned_mechanism, "row_seconds", None)
    private()


@pytest.mark.issue(23)
@pytest.mark.parametrize("shown", [True, False])
def test_a_long_design_shows_its_progress_unless_silenced(monkeypatch, shown):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    private(progress=shown)
    lines = terminal.lines()
    assert bool(lines) == shown
    if shown:
        assert re.fullmatch(r"designing dp-mf: \d+ iterations, gap \de[-+]\d+, \d+ s", lines[0])
        assert lines[-1] == ""


@pytest.mark.issue(23)
def test_where_dense_noise_is_slow_a_stream_is_used_and_says_what_it_costs(monkeypatch, shown):
    """The excess over the best possible is certified. The choice is the same in every process."""
    assert private().mechanism.factorization.as_stream() is None
    monkeypatch.setattr(planned_mechanism, "MAX_ROW_SECONDS", 1e-9)
    with pytest.warns(AntiphaseWarning, match="dense noise would take about") as seen:
        engine = private()
    stream = engine.mechanism.factorization
    excess = np.sqrt(stream.error / BEST.lower_bound) - 1
    shown("noise of the stream above the best possible", f"{excess:.1%}", "< 10 %, as it says")
    assert 0 < excess < 0.1
    text = re.sub("about .* s of", "about … s of", str(seen[0].message))
    assert text == (
        "dp-mf: dense noise would take about … s of one core for every step. A stream of 8 buffers "
        f"is used instead, with noise at most {excess:.1%} above the best possible (certified). To "
        'choose the form: PrivacyEngine(mechanism="dp-mf", buffers=…), a number or "auto"'
    )
    with pytest.warns(AntiphaseWarning):
        assert private().mechanism.digest == engine.mechanism.digest


@pytest.mark.issue(23)
def test_a_form_that_was_asked_for_is_kept(monkeypatch, recwarn):
    monkeypatch.setattr(planned_mechanism, "MAX_ROW_SECONDS", 1e-9)
    assert private(options={"buffers": "auto"}).mechanism.factorization.as_stream() is None
    few = private(options={"buffers": 3}).mechanism.factorization
    assert few.as_stream() is not None
    maximum = private(options={"objective": "maximum"}, name="optimal")  # has no few buffers
    assert maximum.mechanism.factorization.as_stream() is None
    assert not [w for w in recwarn if issubclass(w.category, AntiphaseWarning)]


@pytest.mark.issue(23)
def test_where_dense_noise_does_not_fit_a_smaller_stream_is_used():
    with pytest.warns(AntiphaseWarning, match=r"does not fit into memory = 60kB. A stream of 2 bu"):
        engine = private(memory="60kB")
    assert engine.mechanism.factorization.as_stream().buffers == 2


@pytest.mark.issue(23)
def test_noise_that_does_not_fit_is_refused_by_make_private():
    with pytest.raises(
        ValueError, match=r"^memory = '1kB': the noise of dp-mf keeps 0.0655 MB fro"
    ):
        private(memory="1kB")


@pytest.mark.issue(23)
def test_the_estimate_of_dense_noise_grows_with_the_model_and_the_steps():
    """Seconds for 25 million parameters, 1,000 steps and 2 GB; a tenth of them is within limits."""

    class Sized(nn.Module):
        def __init__(self, numbers):
            super().__init__()
            self.weight = nn.Parameter(torch.empty(numbers, device="meta"))

    class Asked:
        memory = "2GB"

        def __init__(self, numbers):
            self.optimizer = torch.optim.SGD(Sized(numbers).parameters(), lr=0.1)

    dense = ap.design("sqrt-toeplitz", steps=1000)
    cost = planned_mechanism._too_costly
    assert cost(dense, Asked(25_000_000)).startswith("dense noise would take about 2.7 s")
    assert cost(dense, Asked(2_500_000)) == ""
    assert cost(ap.design("bisr", steps=1000, bands=4), Asked(10**9)) == ""
    assert cost(dense, Asked(10**9)).startswith("dense noise does not fit into memory = 2GB")
