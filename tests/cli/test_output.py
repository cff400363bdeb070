"""Results go to standard output, all else to standard error; exit codes are 0, 1 and 2."""

import math
import shlex
import subprocess
import sys

import pytest

from antiphase.cli import output
from tests.cli.conftest import process, strict_json

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
def test_a_closed_pipe_gives_no_traceback(tmp_path):
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m antiphase.cli data digits --json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr
