"""Every hazard has a test, and every planted bug turns one red."""

import ast
import re
from pathlib import Path

import pytest

from tests.planted.bugs import BUGS
from tests.planted.lines import LINES
from tests.planted.test_planted import put_in_all

pytestmark = pytest.mark.issue(11)

ROOT = Path(__file__).parents[2]


def functions(file):
    """The tests of a file, and whether each is long."""
    tree = ast.parse((ROOT / file).read_text())
    whole = any(
        isinstance(n, ast.Assign)
        and "pytestmark" in ast.unparse(n)
        and "mark.long" in ast.unparse(n)
        for n in tree.body
    )
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    return {
        n.name: whole or any("mark.long" in ast.unparse(d) for d in n.decorator_list) for n in found
    }


@pytest.mark.slow
def test_every_hazard_has_a_test_in_its_make_target(shown):
    """Rows 1 to 27 of docs/guarantees.md; those marked F have one that `make test` runs."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .* \| ([FN]) \| (.*) \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 28))
    tests = 0
    for number, when, named in rows:
        found = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", named)
        long = [functions(file)[function] for file, function in found]
        assert long, f"row {number} names no test"
        assert when == "N" or not all(long), f"row {number} is tested in make test-long alone"
        tests += len(found)
    fast = sum(when == "F" for _, when, _ in rows)
    shown(
        "hazards",
        f"{len(rows)} rows, {tests} tests, {fast} rows in make test",
        "rows 1–27, each by a test",
    )


@pytest.mark.long
@pytest.mark.alone
def test_planted_bugs_are_noticed(tmp_path, shown):
    table, missed, red, seconds, worked = put_in_all(tmp_path, "bugs")
    shown(
        f"planted bugs\n{table}\n  noticed",
        f"{red} of {len(BUGS)} in {seconds:.0f} s, {worked / 2:.0f} s on two idle cores",
        "25 of 25, in 180 s",
    )
    assert not missed
    assert seconds < 180


@pytest.mark.long
@pytest.mark.alone
def test_undoing_a_privacy_line_is_noticed(tmp_path, shown):
    table, missed, red, seconds, _ = put_in_all(tmp_path, "lines")
    claim = f"lines marked PRIVACY, each undone (others: planted bugs)\n{table}\n  noticed"
    shown(claim, f"{red} of {len(LINES)} in {seconds:.0f} s", "every one")
    assert not missed
