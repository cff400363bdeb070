"""Run commands, in this process or in one of their own."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

import pytest

from antiphase import cli
from antiphase.cli import output

ANTIPHASE = [sys.executable, "-m", "antiphase.cli"]


@dataclass
class Done:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


def strict_json(text):
    """Parse JSON that follows the standard: no NaN, no Infinity, nothing around it."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run ``run("design dp-mf", "--steps 8")`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def go(*words):
        arguments = " ".join(map(str, words)).split()
        monkeypatch.setattr(sys, "argv", ["antiphase", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return Done(end.value.code, said.out, said.err)

    return go


@pytest.fixture
def refused(run, tmp_path):
    """Run a command that must end with a one-line error and leave no file behind."""

    def go(*words, code):
        before = sorted(tmp_path.rglob("*"))
        done = run(*words)
        assert done.code == code, done
        assert done.out == ""
        assert len(done.err.splitlines()) == 1, done.err
        assert done.err.startswith("error: ")
        assert sorted(tmp_path.rglob("*")) == before
        return done.err

    return go


@pytest.fixture(scope="session")
def plans(tmp_path_factory):
    """A calibrated mechanism, the design it was made from, and its statement."""
    import antiphase as ap

    folder = tmp_path_factory.mktemp("plans")
    f = ap.design("dp-mf+", steps=32, epochs=4)
    f.save(folder / "design.antiphase")
    m = ap.calibrate(f, epsilon=8.0, delta=1e-5)
    m.save(folder / "plan.antiphase")
    (folder / "statement.json").write_text(m.statement().to_json())
    return folder


@pytest.fixture
def plan(plans, tmp_path):
    """Copy `plans` into the folder where commands run."""
    shutil.copytree(plans, tmp_path, dirs_exist_ok=True)
    return "plan.antiphase"


def process(*words, cwd, check=True, **environment):
    """Run a command in a process of its own, on one thread."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [*ANTIPHASE, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Replace the consoles by wide ones that write where pytest captures."""
    from rich.console import Console

    for name in ("out", "err"):
        console = Console(stderr=name == "err", highlight=False, soft_wrap=True, width=400)
        monkeypatch.setattr(output, name, console)
