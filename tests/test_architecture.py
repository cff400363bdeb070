"""The shape of the code: who may import whom, and that every promise is kept somewhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "antiphase"

# From left to right, as in docs/architecture.md: a module may import what stands before it, never what stands after.
ORDER = [
    "errors", "interrupts", "_checks", "values", "files", "cache", "data", "workload", "objective", "participation",
    "loading_cost", "sensitivity", "factorization", "design", "accounting", "balls", "amplification", "noise",
    "locks", "ledger", "statement", "mechanism", "bands", "verification",
    "candidates", "cost", "comparison", "audit", "theory", "federated", "torch", "report", "studies", "cli",
]  # fmt: skip


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_dependencies_point_left(path):
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] != "torch" or own == "torch", f"{path} imports torch"
        assert parts[0] != "flwr" or path.name == "flower.py", f"{path} imports Flower"
        if parts[0] == "antiphase" and len(parts) > 1 and parts[1] in ORDER and own != "__init__":
            assert ORDER.index(parts[1]) <= ORDER.index(own), f"{path} imports {name}"


def test_importing_antiphase_imports_no_torch_and_no_figures():
    heavy = ("torch", "matplotlib", "rich", "numba", "dp_accounting", "scipy.special", "scipy.fft", "scipy.linalg")
    code = f"import sys, antiphase; print(sorted(m for m in {heavy} if m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_module_is_in_the_table_of_the_architecture_and_the_other_way_round():
    """Within a row, a file without a folder is in that of the row's first name."""
    listed = []
    for row in re.findall(r"^\| (`.*) \|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE):
        files = re.findall(r"`([\w/]+\.py)`", row)
        folder = row.split("`")[1].rpartition("/")[0]
        listed += [file if "/" in file or not folder else f"{folder}/{file}" for file in files]
    modules = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    assert modules - set(listed) == set()
    assert set(listed) - modules == set()


def test_every_promise_in_the_code_is_in_the_guarantees_and_the_other_way_round():
    listed = (ROOT / "docs" / "guarantees.md").read_text()
    promised = set(re.findall(r"^\| (G\d+) ", listed, re.MULTILINE))
    claimed = {g for path in SOURCE.rglob("*.py") for g in re.findall(r"\[(G\d+)\]", path.read_text())}
    assert claimed == promised


def test_every_test_that_the_guarantees_name_exists():
    listed = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", listed)
    assert len(named) >= 6
    for file, function in named:
        assert f"def {function}(" in (ROOT / file).read_text(), f"{file}::{function}"
    for file in re.findall(r"`(src/[\w/]+\.py)`", listed):
        assert (ROOT / file).exists(), file


def test_every_line_that_privacy_rests_on_names_its_guarantee():
    """And the guarantee names the file."""
    rows = dict(
        re.findall(r"^\| (G\d+) \| .*? \| (.*?) \|", (ROOT / "docs" / "guarantees.md").read_text(), re.MULTILINE)
    )
    for path in SOURCE.rglob("*.py"):
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            if "# PRIVACY:" in line:
                comment = line
                while i + 1 < len(lines) and lines[i + 1].lstrip().startswith("#"):
                    i += 1
                    comment += lines[i]
                named = re.findall(r"\[(G\d+)\]", comment)
                assert named, f"{path}: {line.strip()}"
                for guarantee in named:
                    assert f"`{path.relative_to(ROOT).as_posix()}`" in rows[guarantee], f"{path}: {line.strip()}"


def test_the_repository_speaks_of_the_project_alone():
    """No paths of a machine, no hosts of package registries."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        if name != "LICENSE" and Path(name) != Path(__file__).relative_to(ROOT):
            text = (ROOT / name).read_text(errors="ignore")
            assert not re.search(r"/root/|/work/|/opt/|pypi\.org|npmjs|pythonhosted", text), name
