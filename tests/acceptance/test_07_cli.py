"""Issue 7, the command line: what it must show. Each test prints what was measured beside what was asked."""

import json
import os
import time

import pytest

from tests.cli import test_help as cli
from tests.cli.conftest import plain, process, run  # noqa: F401

pytestmark = pytest.mark.slow


@pytest.mark.long  # tests/cli/test_help.py runs each of them in make test
def test_every_help_has_an_example_that_runs(run, shown):  # noqa: F811
    ended = {
        name: run(*cli.example(run(name, "--help").out)) for name in cli.COMMANDS if name != "demo"
    }
    good = [name for name, done in ended.items() if done.code == 0 and done.out]
    if [
        "antiphase",
        *cli.example(run("demo", "--help").out),
    ] in cli.tour():  # which the next test runs
        good.append("demo")
    shown(
        "examples in --help that run",
        f"{len(good)} of {len(cli.COMMANDS)}: {', '.join(good)}",
        "every command's --help",
    )
    assert sorted(good) == sorted(cli.COMMANDS)


def test_the_ten_commands_of_the_tour(tmp_path, shown):
    began = time.perf_counter()
    printed = cli.run_the_tour(tmp_path)
    seconds = time.perf_counter() - began
    shown(
        "docs/tour.md",
        f"{len(printed)} commands ran, in {seconds:.0f} s, and print what is shown",
        "ten commands",
    )
    assert len(printed) == 10


@pytest.mark.long  # half a minute, alone
@pytest.mark.alone
def test_compare_2048_steps_on_one_core(tmp_path, shown):
    """With nothing cached, and compiled code as an installation has it after its first use."""
    words = [
        "compare",
        "--steps",
        "2048",
        "--epochs",
        "16",
        "--epsilon",
        "8",
        "--delta",
        "1e-6",
        "--json",
    ]
    process(
        "compare", "--steps", "32", "--epochs", "4", "--quiet", cwd=tmp_path, ANTIPHASE_CACHE="off"
    )
    before = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    began = time.perf_counter()
    try:
        if before is not None:
            os.sched_setaffinity(0, {min(before)})  # which the process inherits
        done = process(
            *words, cwd=tmp_path, ANTIPHASE_CACHE=str(tmp_path / "empty"), OPENBLAS_NUM_THREADS="1"
        )
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
    seconds = time.perf_counter() - began
    found = json.loads(done.stdout)
    gaps = {row["label"]: row["gap"] for row in found["mechanisms"] if row["gap"] is not None}
    shown(
        "compare --steps 2048 --epochs 16 --epsilon 8 --delta 1e-6, one core, nothing cached",
        f"{seconds:.1f} s, {len(found['mechanisms'])} mechanisms, gaps ≤ {max(gaps.values()):.0e}",
        "< 60 s, gap 1e-3",
    )
    assert seconds < 60
    assert max(gaps.values()) <= 1e-3
    assert found["refused"] == {}
