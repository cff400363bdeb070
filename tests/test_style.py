"""Size and style of the package, in one table beside what was asked and how it was before.

Before: commit 9f80ff4, counted in the same way.
"""

import ast
import io
import re
import statistics
import tokenize
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "antiphase"

MAX_CODE_LINES = 23_000  # keeps the package from growing; the table has what is asked
MAX_COLUMNS = 100
LONG_FUNCTION = 45  # lines, without the docstring
MAX_LONG_FUNCTIONS = 8
DUPLICATE = 6  # lines

# Libraries of extras. Importing antiphase must work without them.
EXTRAS = {
    "IPython", "PIL", "accelerate", "click", "flwr", "jax", "jax_privacy", "jinja2", "lightning",
    "matplotlib", "opacus", "optax", "pandas", "peft", "ray", "rich", "sklearn", "torch",
    "transformers", "triton", "typer",
}  # fmt: skip
# Imports within functions, besides those of extras: {reason: {file or folder: modules}}.
LATE_IMPORTS = {
    "the command line answers --help without loading the library": {"cli/": ["*"]},
    "antiphase --version works without the extra `cli`": {"__main__.py": ["antiphase"]},
    "compiled kernels: importing antiphase must not import Numba": {
        "comparison/noise_cost.py": ["antiphase.noise.generators", "antiphase.noise.normals"],
        "factorizations/banded.py": ["antiphase.linalg"],
        "factorizations/segments.py": ["antiphase.linalg"],
        "mechanism.py": ["antiphase.noise.stream"],
        "torch/sharding.py": ["antiphase.noise.normals", "antiphase.noise.stream"],
        "solvers/banded.py": ["antiphase.linalg"],
        "solvers/few_buffers.py": ["antiphase.linalg"],
        "solvers/single_participation.py": ["antiphase.linalg"],
        "solvers/streaming.py": ["antiphase.linalg"],
    },
    "dp-accounting takes longer to import than antiphase": {
        "accounting/poisson.py": ["dp_accounting"],
        "verification.py": ["dp_accounting", "dp_accounting.pld"],
    },
    "scipy.sparse takes long to import": {"solvers/spectrum.py": ["scipy.sparse.linalg"]},
    "reporting imports what it shows": {"_util/display.py": ["antiphase.reporting"]},
    "figures need Matplotlib, an extra": {"reporting/display.py": ["antiphase.reporting"]},
    "solvers import factorizations": {"factorizations/base.py": ["antiphase.solvers.dispatch"]},
}


@dataclass
class Style:
    """What is counted in a folder of Python files.

    Attributes:
        lengths: {file: lines}.
        code: lines without blank lines, comments and docstrings.
        isinstance_calls: calls of isinstance.
        wide: "file:line" of lines over MAX_COLUMNS.
        long_functions: {"file:line name": lines without the docstring} of those over LONG_FUNCTION.
        late_imports: (file, module, line) of imports within functions.
        undocumented: "file:line name" of public names without a docstring.
        duplicates: "file:line" of blocks of DUPLICATE lines of code that stand somewhere else, too.
    """

    lengths: dict = field(default_factory=dict)
    code: int = 0
    isinstance_calls: int = 0
    wide: list = field(default_factory=list)
    long_functions: dict = field(default_factory=dict)
    late_imports: list = field(default_factory=list)
    undocumented: list = field(default_factory=list)
    duplicates: list = field(default_factory=list)


def measure(folder):
    """Count everything in the Python files of a folder."""
    style, blocks = Style(), defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        file, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.splitlines()
        code = code_lines(text, tree)
        style.lengths[file] = len(lines)
        style.code += len(code)
        style.wide += [f"{file}:{n}" for n, line in enumerate(lines, 1) if is_wide(line)]
        if not ast.get_docstring(tree):
            style.undocumented.append(file)
        visit(tree, file, style, public=True, inside_function=False)
        for first in range(len(code) - DUPLICATE + 1):
            numbers = code[first : first + DUPLICATE]
            block = tuple(lines[n - 1].strip() for n in numbers)
            if not all(line.startswith(("import ", "from ")) or len(line) < 2 for line in block):
                blocks[block].append(f"{file}:{numbers[0]}")
    style.duplicates = [place for places in blocks.values() if len(places) > 1 for place in places]
    return style


def is_wide(line):
    """Whether a line is too long without the notes to linters at its end, as ruff counts it."""
    return len(re.sub(r"  # (noqa|type: ignore).*", "", line)) > MAX_COLUMNS


def code_lines(text, tree):
    """The numbers of lines with code: no blank lines, comments and docstrings."""
    lines, docstrings = set(), set()
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout | {tokenize.ENDMARKER}:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return sorted(lines - docstrings)


def visit(node, file, style, *, public, inside_function):
    """Count the definitions, imports and calls below a node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{file}:{child.lineno} {child.name}"
            is_public = public and not child.name.startswith("_") and not inside_function
            if is_public and not ast.get_docstring(child):
                style.undocumented.append(name)
            is_function = not isinstance(child, ast.ClassDef)
            if is_function:
                docstring = ast.get_docstring(child, clean=False)
                length = child.end_lineno - child.lineno + 1
                length -= len(docstring.splitlines()) if docstring else 0
                if length > LONG_FUNCTION:
                    style.long_functions[name] = length
            visit(
                child, file, style, public=is_public, inside_function=inside_function or is_function
            )
            continue
        if inside_function and isinstance(child, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in child.names]
            if isinstance(child, ast.ImportFrom):
                modules = [child.module or ""]
            style.late_imports += [(file, module, child.lineno) for module in modules]
        if isinstance(child, ast.Call) and getattr(child.func, "id", None) == "isinstance":
            style.isinstance_calls += 1
        visit(child, file, style, public=public, inside_function=inside_function)


def reason_for(file, module):
    """Why a module is imported within a function of a file; None if there is no reason."""
    if module.split(".")[0] in EXTRAS:
        return "an extra"
    for reason, places in LATE_IMPORTS.items():
        for place, modules in places.items():
            if _covers(place, file) and (module in modules or "*" in modules):
                return reason
    return None


def _covers(place, file):
    return file == place or (place.endswith("/") and file.startswith(place))


@pytest.fixture(scope="module")
def style():
    return measure(PACKAGE)


@pytest.mark.issue(22)
def test_size_and_style_beside_what_is_asked(style, record_property):
    lengths = sorted(style.lengths.values())
    unexplained = [entry for entry in style.late_imports if reason_for(*entry[:2]) is None]
    rows = [
        ("", "now", "asked", "before"),
        ("lines of code", f"{style.code:,}", "≤ 14,500", "17,483"),
        ("files", len(lengths), "", "136"),
        ("median length of a file", f"{statistics.median(lengths):g}", "", "152.5"),
        ("longest file", lengths[-1], "", "498"),
        ("functions over 45 lines", len(style.long_functions), "≤ 8", "22"),
        ("isinstance calls", style.isinstance_calls, "fewer", "243"),
        ("imports within functions", len(style.late_imports), "", "77"),
        ("  without a reason", len(unexplained), "0", ""),
        ("public names without docstring", len(style.undocumented), "0", "258"),
        ("lines over 100 columns", len(style.wide), "0", "2,588"),
        ("blocks of 6 lines that repeat", len(style.duplicates), "fewer", "38"),
    ]
    table = [f"  {name:32}{now!s:>8}{asked:>12}{before:>9}" for name, now, asked, before in rows]
    record_property("shown", "\n".join(["size and style of src/antiphase", *table]))


def test_lines_of_code(style):
    assert style.code <= MAX_CODE_LINES


def test_lines_have_at_most_100_columns(style):
    assert style.wide == []


def test_public_names_have_docstrings(style):
    assert style.undocumented == []


def test_few_functions_are_long(style):
    """Counted without the docstring."""
    assert len(style.long_functions) <= MAX_LONG_FUNCTIONS, style.long_functions


def test_imports_within_functions_have_a_reason(style):
    """They are of an extra or in LATE_IMPORTS, which has no entries that are out of date."""
    assert [entry for entry in style.late_imports if reason_for(*entry[:2]) is None] == []
    entries = [
        (place, module)
        for places in LATE_IMPORTS.values()
        for place, modules in places.items()
        for module in modules
    ]
    assert [
        (place, module)
        for place, module in entries
        if not any(_covers(place, f) and module in ("*", name) for f, name, _ in style.late_imports)
    ] == []


def test_what_is_counted(tmp_path):
    """On a file with one of each."""
    (tmp_path / "one.py").write_text(
        '"""About."""\n\nimport os  # code\n# a comment\n\n\n'
        "def bare(x):\n    import json\n\n    return isinstance(x, json.JSONEncoder)\n\n\n"
        'def documented():\n    """Do it."""\n'
        + "    pass\n" * 46
        + "\n\ndef _hidden():\n    pass\n"
    )
    style = measure(tmp_path)
    assert style.code == 1 + 3 + 1 + 46 + 2
    assert style.isinstance_calls == 1
    assert style.late_imports == [("one.py", "json", 8)]
    assert style.undocumented == ["one.py:7 bare"]
    assert style.long_functions == {"one.py:13 documented": 47}
    assert len(style.duplicates) == 41
