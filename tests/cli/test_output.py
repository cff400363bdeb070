"""Results go to standard output, all else to standard error; exit codes are 0, 1 and 2."""

import math
import os
import re
import shlex
import subprocess

import pytest
from rich.console import Console

from antiphase import cli
from antiphase.cli import output
from tests.cli.conftest import ANTIPHASE, process, strict_json

COMMANDS = {
    "design": "design dp-mf --steps 8 --epsilon 8 --delta 1e-5",
    "compare": "compare --steps 16 --epochs 2 -m dp-sgd -m dp-mf -m dp-mf+:tau=0",
    "recommend": "recommend --steps 16 --epochs 2",
    "calibrate": "calibrate --epsilon 8 --delta 1e-5",
    "statement": "statement plan.antiphase",
    "verify": "verify plan.antiphase",
    "data": "data digits",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_with_json_there_is_nothing_else_on_standard_output(run, plan, command):
    done = run(command, "--json")
    assert done.code == 0, done.err
    assert strict_json(done.out)


def test_numbers_that_json_does_not_have_are_null(capsys):
    output.print_json({"a": math.nan, "b": [math.inf, 1.5]})
    assert strict_json(capsys.readouterr().out) == {"a": None, "b": [None, 1.5]}


def test_quiet_leaves_the_result(run, plan):
    for command in ("compare --steps 8", "recommend --steps 8", f"verify {plan}", "data digits"):
        done = run(command, "--quiet")
        assert (done.code, done.err) == (0, "")
        assert done.out


@pytest.mark.slow
def test_exit_codes_of_a_process(tmp_path):
    """0 done, 2 error; standard output is empty without a result."""
    for command, code in (
        ("calibrate --epsilon 1 --delta 1e-5", 0),
        ("statement absent.antiphase", 2),
        ("design dp-mf+ --steps 8 --tau 0", 2),
        ("design dp-mf", 2),
    ):
        done = process(*command.split(), cwd=tmp_path, check=False)
        assert done.returncode == code
        assert bool(done.stdout) == (code == 0)
        assert bool(done.stderr) == (code != 0)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("--help", "0 done; 1 the answer is no"),
        (
            "verify --help",
            "1: a check fails; 2: it could not be checked, because the file is missing or damaged",
        ),
        ("audit --help", "1: the claim is false; 2: there was no audit"),
    ],
)
def test_help_explains_the_exit_codes(run, command, expected):
    assert expected in " ".join(run(command).out.split())


@pytest.mark.slow
@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("command", "code"),
    [("data digits --json", 0), ("design nope --steps 8", 2), ("verify plan.antiphase --json", 0)],
)
def test_a_reader_that_leaves_changes_no_exit_code(plan, tmp_path, command, code):
    """Neither with ``| head``, nor with a pipe whose reader is gone already; nothing is said."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*ANTIPHASE, *command.split()],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    os.close(write)
    assert done.returncode == code, done.stderr
    assert len(done.stderr.splitlines()) == (code != 0)
    words = " ".join(map(shlex.quote, ANTIPHASE))
    piped = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{words} {command} 2>&1 | head -c 1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert piped.returncode == code
    assert len(piped.stdout) == 1
    assert piped.stderr == ""


@pytest.mark.issue(23)
@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_breaks_no_words_in_60_columns(run, monkeypatch, command):
    """Names, options and mechanisms with hyphens too; short help is not cut off."""
    wide = help_in(200, run, monkeypatch, command)
    narrow = help_in(60, run, monkeypatch, command)
    assert max(map(len, narrow.splitlines())) <= 60
    words = narrow.replace("\\\n", "").split()
    assert set(words) <= set(wide.replace("\\\n", "").split())
    assert "..." not in " ".join(words).replace("[ARGS]...", "")


def help_in(columns, run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    return run(command, "--help").out


@pytest.mark.issue(23)
def test_messages_break_between_words_in_a_terminal(monkeypatch, capsys):
    console = Console(stderr=True, force_terminal=True, no_color=True, width=60, soft_wrap=True)
    monkeypatch.setattr(output, "err", console)
    message = "the --noise-multiplier of " + "dp-mf+ " * 12
    output.print_error("error", message)
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().err).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    assert " ".join(lines).split()[1:] == message.split()


@pytest.mark.issue(23)
def test_checks_and_the_glossary_fit_a_narrow_terminal(run, plan, monkeypatch):
    """The glossary explains zero-out and encoder where they appear; --quiet leaves it out."""
    for name in ("out", "err"):
        console = Console(stderr=name == "err", force_terminal=True, no_color=True, width=60)
        monkeypatch.setattr(output, name, console)
    done = run("verify", plan)
    lines = re.sub(r"\x1b\[\d*m", "", done.out).splitlines()
    assert max(map(len, lines)) <= 60
    assert any(line.startswith("       ") for line in lines)
    words = "design dp-mf --steps 8 --epsilon 8 --delta 1e-5 -o m.antiphase"
    explained = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", run(words).err)
    assert " ".join(output.GLOSSARY.split()) in " ".join(explained.split())
    assert "zero-out" not in run(words, "--quiet").err
