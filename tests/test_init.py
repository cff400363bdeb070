"""The public names, which are imported when they are first used."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import antiphase

PACKAGE = Path(antiphase.__file__).parent


def in_new_process(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_every_public_name_is_there():
    code = "from antiphase import *; print(sorted(n for n in globals() if n[0] != '_'))"
    assert in_new_process(code) == f"{sorted(antiphase.__all__)}\n"
    assert set(antiphase.__all__) <= set(dir(antiphase))
    for name in antiphase.__all__:
        assert getattr(antiphase, name).__name__.rpartition(".")[-1] == name


def test_the_names_that_type_checkers_see_are_those_at_run_time():
    """The block for type checkers imports the same names from the same modules."""
    tree = ast.parse(Path(antiphase.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: getattr(importlib.import_module(node.module), alias.name)
        for node in block.body
        for alias in node.names
    }
    assert sorted(seen) == sorted(antiphase.__all__)
    assert all(getattr(antiphase, name) is value for name, value in seen.items())


@pytest.mark.parametrize("name", ["design", "sensitivity"])
@pytest.mark.parametrize("before", ["", "ap.{0}; "])
def test_functions_hide_the_modules_of_their_names(name, before):
    """Whether the module is imported before the function is first used, or after it."""
    code = f"import antiphase as ap; {before}import antiphase.{{0}}; print(callable(ap.{{0}}))"
    assert in_new_process(code.format(name)) == "True\n"


def test_modules_are_imported_on_first_use():
    assert in_new_process("import antiphase as ap; print(ap.solvers.__name__)") == (
        "antiphase.solvers\n"
    )


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'antiphase' has no attribute 'desing'"):
        _ = antiphase.desing
    assert not hasattr(antiphase, "__wrapped__")


@pytest.mark.long
@pytest.mark.slow
def test_every_module_can_be_imported_first():
    """So that no module depends on what was imported before it."""
    for library in ("numba", "torch", "opacus", "typer", "matplotlib", "jinja2", "flwr.app"):
        pytest.importorskip(library)
    failures = in_new_process(f"""
import importlib, os, pathlib
import flwr.app, flwr.serverapp, jinja2, matplotlib, numba, opacus, rich.console, scipy.linalg

package = pathlib.Path({os.fspath(PACKAGE)!r})
for path in sorted(package.rglob("*.py")):
    parts = path.relative_to(package.parent).with_suffix("").parts
    module = ".".join(parts).removesuffix(".__init__")
    if path.stem != "__main__" and os.fork() == 0:
        try:
            importlib.import_module(module)
        except BaseException as error:
            print(module, repr(error), flush=True)
        os._exit(0)
    if path.stem != "__main__":
        os.wait()
""")
    assert failures == ""
