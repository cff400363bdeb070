"""Every command's help has an example that works, and the tour shows what is printed."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from antiphase import cli
from antiphase.design import designs
from tests.cli.conftest import process

ROOT = Path(__file__).parents[2]
COMMANDS = list(cli.COMMANDS)


def example(text):
    """The words of the example in a help text, which may be continued by backslashes."""
    (found,) = re.findall(r"^ *Example: (antiphase (?:.*\\ *\n)*.*)$", text, re.MULTILINE)
    return shlex.split(re.sub(r"\\ *\n", " ", found))[1:]


def tour():
    """The commands of docs/tour.md."""
    blocks = re.findall(
        r"^```console\n(.*?)^```", (ROOT / "docs" / "tour.md").read_text(), re.DOTALL | re.MULTILINE
    )
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]


def run_the_tour(folder):
    """Run the tour in an empty folder and return what was printed.

    It must be what docs/tour.md shows, except for times, noise and omissions.
    """
    printed = [
        process(*words[1:], cwd=folder, ANTIPHASE_CACHE=str(folder / "cache")).stdout
        for words in tour()
    ]
    shown = re.findall(
        r"^\$ .*?\n(.*?)^```", (ROOT / "docs" / "tour.md").read_text(), re.DOTALL | re.MULTILINE
    )
    for words, block, text in zip(tour(), shown, printed, strict=True):
        for line in filter(None, re.split(r"\n|…\n", block)):
            assert _without_random_parts(line) in _without_random_parts(text), (
                f"{shlex.join(words)}: {line}"
            )
    return printed


@pytest.mark.slow
def test_the_tour_shows_the_output_for_sampled_batches(run):
    (block,) = re.findall(
        r"^```text\n(antiphase .*?)^```",
        (ROOT / "docs" / "tour.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    command, _, shown = block.partition("\n")
    assert run(*shlex.split(command)[1:], "--quiet").out == shown.lstrip("\n")


def test_the_commands():
    first = [
        "design",
        "compare",
        "recommend",
        "calibrate",
        "statement",
        "verify",
        "audit",
        "train",
        "data",
        "demo",
    ]
    assert first == COMMANDS


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "demo"])
def test_help_has_an_example_that_runs(run, name):
    """As help is shown in a terminal of 80 columns, so that it can be copied."""
    words = example(run(name, "--help").out)
    assert words[0] == name
    if "plan.antiphase" in words and name != "design":
        assert run(*example(run("design", "--help").out)).code == 0
    done = run(*words)
    assert done.code == 0, done.err
    assert done.out


def test_the_example_of_demo_is_in_the_tour(run):
    assert ["antiphase", *example(run("demo", "--help").out)] in tour()


def test_the_tour_has_ten_commands_of_every_kind():
    assert len(tour()) == 10
    # `audit` has a page of its own
    assert {words[1] for words in tour()} == set(COMMANDS) - {"audit"}


def _without_random_parts(text):
    """A text without blanks and without what differs between runs or machines.

    Between runs: times, accuracies and noise. Between machines: digests, which depend on the last
    bit of every number.
    """
    text = re.sub(r"\b[0-9a-f]{16}(?:[0-9a-f]{48}\b|…)", "#", text)
    text = re.sub(
        r"\d[\d.]* m?s\b(?: \*)?|\d+\.\d+%|found [\d.]+ of it, at most [\d.]+|0\.\d{4}  ", "#", text
    )
    return re.sub(r"\s+", "", text).rstrip("…").replace("─", "")


def test_antiphase_alone_shows_help(run):
    done = run()
    assert done.code == 2
    assert "Usage: antiphase" in done.out + done.err
    assert run("--version").out.startswith("antiphase 0.")
    assert run("--help").code == 0


def test_help_names_every_mechanism(run):
    text = " ".join(run("design", "--help").out.split())
    assert ", ".join(designs()) in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("antiphase de", ["demo", "design"]),
        ("antiphase design --st", ["--steps"]),
        ("antiphase design dp-mf", ["dp-mf", "dp-mf+"]),
        ("antiphase compare --mechanism da", ["damped"]),
        ("antiphase train --schedule c", ["constant", "cosine"]),
    ],
)
def test_the_shell_completes(tmp_path, typed, offered):
    count = str(len(typed.split()) - 1)
    done = process(
        cwd=tmp_path, _ANTIPHASE_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=count
    )
    assert sorted(done.stdout.split()) == offered


@pytest.mark.slow
def test_completion_can_be_installed(tmp_path):
    # Under make the shell that would be detected is sh, which has no completion.
    done = process(
        "--show-completion", "bash", cwd=tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert (
        "_antiphase_completion" in done.stdout.replace("-m antiphase.cli", "antiphase")
        or "complete" in done.stdout
    )


def test_the_list_of_commands_has_the_first_line_of_each_help():
    """It is shown without importing the modules of the commands."""
    for name, summary in cli.COMMANDS.items():
        function = getattr(importlib.import_module(f"antiphase.cli.{name}"), name)
        assert function.__doc__.splitlines()[0] == summary
