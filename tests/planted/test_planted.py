"""Planted bugs can be planted, and every line that privacy rests on has one.

test_all_noticed.py, which takes minutes, checks that the tests named for them fail.
"""

import ast
import json
import os
import subprocess
import sys
import time

import pytest

from tests.planted.bugs import BUGS, Bug
from tests.planted.lines import EXTRAS, LINES
from tests.planted.plant import CHANGES, ROOT, places, put_in

PACKAGE = ROOT / "src" / "antiphase"


def put_in_all(folder, which):
    """Plant each change of ``plant.CHANGES[which]`` alone and run its test.

    Returns:
        A table of the verdicts, the logs of changes that were not noticed, the number of those that
        were, the seconds it took, and the processor time.
    """
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "tests.planted.plant", str(folder), which]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    whole, *rest = map(json.loads, done.stdout.splitlines())
    after = os.times()
    worked = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    assert whole["green"], whole["log"]
    pairs = list(zip(CHANGES[which], rest, strict=True))
    missed = [
        f"{change.name} (exit code {one['code']})\n{one['log']}"
        for change, one in pairs
        if not one["red"]
    ]
    return table(pairs), missed, len(pairs) - len(missed), time.perf_counter() - began, worked


def table(pairs):
    rows = [f"  {'':118}  {'noticed by':98}"]
    for change, one in pairs:
        verdict = f"{'red' if one['red'] else 'MISSED'} {one['seconds']:.1f} s"
        rows.append(f"  {what(change):118}  {change.test.removeprefix('tests/'):98}  {verdict}")
    return "\n".join(rows)


def what(change):
    """A bug by its name with the row of the hazard; a line by its mark."""
    if isinstance(change, Bug):
        return f"{change.row:>3}  {change.name}"
    return f"{change.file}: {marks(change.file)[nearest(change)]}"


def marks(file):
    """{line: text of its PRIVACY mark} of a file of the package."""
    lines = enumerate((PACKAGE / file).read_text().splitlines(), 1)
    return {
        k: text.split("# PRIVACY: ")[1].split("   [")[0]
        for k, text in lines
        if "# PRIVACY: " in text
    }


def nearest(change):
    """The line of the mark that a change is about: within it, or else the nearest."""
    source = (PACKAGE / change.file).read_text()
    start, stop = places(change.old, source)[0]
    first, last = source[:start].count("\n") + 1, source[:stop].count("\n") + 1
    head = source.splitlines()[last - 1].endswith(":")
    marked = marks(change.file)
    within = [k for k in marked if first <= k <= last + head]
    above, below = (
        [k for k in marked if first - 10 <= k < first],
        [k for k in marked if last < k <= last + 10],
    )
    return next(iter([*within, *above[::-1], *below]), None)


@pytest.mark.slow
def test_every_bug_has_one_place_and_a_test(tmp_path):
    """Changes of the code must not leave bugs behind that can no longer be planted."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 25
    assert sum(bool(bug.seen) for bug in BUGS) >= 25
    for number, change in enumerate([*BUGS, *LINES, *EXTRAS]):
        package = tmp_path / str(number)
        (package / change.file).parent.mkdir(parents=True)
        (package / change.file).write_text((PACKAGE / change.file).read_text())
        put_in(change, package)
        file, *within, function = change.test.split("[")[0].split("::")
        tree = ast.parse((ROOT / file).read_text())
        for name in within:
            tree = next(
                node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name
            )
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
            change.test
        )


def test_every_privacy_line_is_undone():
    """Every PRIVACY mark has a planted bug or a change of `lines`, and so a test that notices."""
    undone = {(change.file, nearest(change)) for change in [*BUGS, *LINES, *EXTRAS]}
    files = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")]
    assert [
        (file, mark) for file in files for mark in marks(file) if (file, mark) not in undone
    ] == []


def test_undoing_lines_of_the_integrations_is_noticed(tmp_path):
    """Runs in `make test-integrations`, which installs the extras."""
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    assert not put_in_all(tmp_path, "extras")[1]
