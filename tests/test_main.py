"""The command ``antiphase`` in a plain install."""

import os
import subprocess
import sys

import pytest

import antiphase

CLI_MISSING = "error: the command line needs Typer and Rich: pip install 'antiphase[cli]'\n"


def command(*arguments, without=()):
    """Run ``antiphase`` in a process in which some modules are not installed."""
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({list(without)!r})); "
        f"sys.argv = ['antiphase', *{list(arguments)!r}]; "
        "runpy.run_module('antiphase', run_name='__main__', alter_sys=True)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "80"},
    )


@pytest.mark.issue(23)
@pytest.mark.parametrize("missing", [(), ("typer",), ("typer", "rich", "jinja2", "PIL")])
def test_the_version_needs_no_extra(missing):
    done = command("--version", without=missing)
    assert (done.returncode, done.stdout) == (0, f"antiphase {antiphase.__version__}\n")


@pytest.mark.issue(23)
@pytest.mark.parametrize("missing", ["typer", "rich"])
@pytest.mark.parametrize("arguments", [(), ("--help",), ("design", "dp-mf", "--steps", "8")])
def test_other_commands_say_what_to_install(missing, arguments):
    """In one line, with exit code 2."""
    done = command(*arguments, without=(missing,))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", CLI_MISSING)


@pytest.mark.issue(23)
@pytest.mark.slow
def test_training_without_the_extra_torch_says_what_to_install():
    done = command("demo", "--trials", "1", without=("torch",))
    assert done.returncode == 2
    assert done.stderr == (
        "error: antiphase.torch needs PyTorch and Opacus: pip install 'antiphase[torch]'\n"
    )


def test_python_runs_the_package_as_the_command():
    done = command("design", "dp-sgd", "--steps", "4", "--json")
    assert done.returncode == 0
    assert '"dp-sgd"' in done.stdout
