"""The shape of the code: who may import whom, and that every promise is kept somewhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "antiphase"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
ROW = r"^\| (G\d+) \| [^|]* \| ([^|]*) \|"

# From left to right, as in docs/architecture.md: a module imports only what stands before it.
ORDER = [
    "errors", "_util", "data", "linalg", "workload", "objective", "participation",
    "sensitivity", "problem", "factorizations", "solvers", "design", "accounting",
    "sampling", "noise", "ledger", "statement", "mechanism", "band_selection", "verification",
    "comparison", "auditing", "theory", "recommendation", "federated",
    "torch", "reporting", "demo", "cli", "__main__",
]  # fmt: skip
# Imports of what stands after, within functions: the file and the folder.
LATE = {("base.py", "solvers"), ("display.py", "reporting")}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_dependencies_point_left(path):
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] != "torch" or own == "torch", f"{path} imports torch"
        assert parts[0] != "flwr" or path.name == "flower.py", f"{path} imports Flower"
        if parts[0] == "antiphase" and len(parts) > 1 and parts[1] in ORDER and own != "__init__":
            assert ORDER.index(parts[1]) <= ORDER.index(own) or (path.name, parts[1]) in LATE, (
                f"{path} imports {name}"
            )


def test_public_names_import_no_torch_and_no_figures():
    """And Numba only the stream of noise, which is made of compiled kernels."""
    heavy = (
        "torch",
        "matplotlib",
        "rich",
        "numba",
        "dp_accounting",
        "scipy.special",
        "scipy.fft",
        "scipy.linalg",
    )
    code = (
        "import sys, antiphase as ap; [getattr(ap, n) for n in ap.__all__ if n != 'NoiseStream']; "
        f"print(sorted(m for m in {heavy} if m in sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_numba_is_imported_with_the_first_row_of_noise():
    """It takes a tenth of the time to import PyTorch and Opacus."""
    code = "import sys, antiphase.torch; print('numba' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


def tree():
    """The modules with the first line of their docstrings, as docs/architecture.md shows them."""
    lines = []
    for path in sorted(
        SOURCE.rglob("*.py"), key=lambda p: (p.relative_to(SOURCE).parent != Path(), p)
    ):
        name = path.relative_to(SOURCE)
        summary = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
        if name.name == "__init__.py":
            if name.parent != Path():
                lines += ["", f"{name.parent.as_posix()}/  {summary}"]
        else:
            indent = "  " if name.parent != Path() else ""
            lines.append(f"{indent}{name.name:<28}{summary}")
    return "\n".join(lines)


def test_the_tree_in_the_architecture_is_that_of_the_code():
    """`python -m tests.test_architecture` writes it."""
    assert f"```text\n{tree()}\n```" in ARCHITECTURE.read_text()


def test_every_promise_in_the_code_is_in_the_guarantees_and_the_other_way_round():
    listed = (ROOT / "docs" / "guarantees.md").read_text()
    promised = set(re.findall(r"^\| (G\d+) ", listed, re.MULTILINE))
    claimed = {
        g for path in SOURCE.rglob("*.py") for g in re.findall(r"\[(G\d+)\]", path.read_text())
    }
    assert claimed == promised


def test_every_test_that_the_guarantees_name_exists():
    listed = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", listed)
    assert len(named) >= 6
    for file, function in named:
        assert f"def {function}(" in (ROOT / file).read_text(), f"{file}::{function}"
    for file in re.findall(r"`(src/[\w/]+\.py)`", listed):
        assert (ROOT / file).exists(), file


def files_of(guarantee):
    """The files that name a guarantee, as its row in docs/guarantees.md lists them."""
    found = [path for path in sorted(SOURCE.rglob("*.py")) if f"[{guarantee}]" in path.read_text()]
    return ", ".join(f"`{path.relative_to(ROOT).as_posix()}`" for path in found)


def test_the_guarantees_list_the_files_that_name_them():
    """`python -m tests.test_architecture` writes these lists."""
    for guarantee, files in re.findall(ROW, GUARANTEES.read_text(), re.MULTILINE):
        assert files == files_of(guarantee), guarantee


def test_every_line_that_privacy_rests_on_names_its_guarantee():
    for path in SOURCE.rglob("*.py"):
        lines = path.read_text().splitlines()
        for i, line in enumerate(lines):
            if "# PRIVACY:" in line:
                comment = line
                while i + 1 < len(lines) and lines[i + 1].lstrip().startswith("#"):
                    i += 1
                    comment += lines[i]
                assert re.search(r"\[(G\d+)\]", comment), f"{path}: {line.strip()}"


def test_the_repository_speaks_of_the_project_alone():
    """No paths of a machine, no hosts of package registries."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in tracked:
        if name != "LICENSE" and Path(name) != Path(__file__).relative_to(ROOT):
            text = (ROOT / name).read_text(errors="ignore")
            assert not re.search(r"/root/|/work/|/opt/|pypi\.org|npmjs|pythonhosted", text), name


if __name__ == "__main__":
    page = ARCHITECTURE.read_text()
    ARCHITECTURE.write_text(
        re.sub(
            r"```text\n.*?\n```",
            lambda _: f"```text\n{tree()}\n```",
            page,
            count=1,
            flags=re.DOTALL,
        )
    )
    GUARANTEES.write_text(
        re.sub(
            r"^(\| (G\d+) \| [^|]* \| )[^|]* \|",
            lambda row: f"{row[1]}{files_of(row[2])} |",
            GUARANTEES.read_text(),
            flags=re.MULTILINE,
        )
    )
