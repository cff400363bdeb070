"""The command line: the tour, and the example of every command's help."""

import time

import pytest

from tests.cli import test_help as cli
from tests.cli.conftest import plain, process, run  # noqa: F401

pytestmark = [pytest.mark.issue(7), pytest.mark.slow]


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
