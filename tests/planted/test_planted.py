"""Tests of the tests: every bug of `bugs`, put in alone, is noticed by the test that is named for it.

That takes minutes, and is in tests/acceptance/test_11_promises.py.
"""

import ast
import json
import os
import subprocess
import sys
import time

from tests.planted.bugs import BUGS
from tests.planted.plant import ROOT, put_in


def put_in_all(folder):
    """Each bug alone: pytest's verdicts on the whole package and on each broken one; the time it took, and the time
    of processors."""
    began, before = time.perf_counter(), os.times()
    command = [sys.executable, "-m", "tests.planted.plant", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    whole, *rest = map(json.loads, done.stdout.splitlines())
    after = os.times()
    worked = after.children_user + after.children_system - before.children_user - before.children_system
    return whole, rest, (time.perf_counter() - began, worked)


def table(found):
    lines = [f"  {'row':>3}  {'planted bug':52}  {'noticed by':98}  {'':6}"]
    for bug, one in zip(BUGS, found, strict=True):
        verdict = "red" if one["red"] else "MISSED"
        lines.append(
            f"  {bug.row:>3}  {bug.name:52}  {bug.test.removeprefix('tests/'):98}  {verdict} {one['seconds']:.1f} s"
        )
    return "\n".join(lines)


def test_every_bug_has_one_place_and_its_test_is_there(tmp_path):
    """So that a change of the code does not leave bugs behind that can no longer be put in."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 25
    assert sum(bool(bug.seen) for bug in BUGS) >= 25
    for bug in BUGS:
        package = tmp_path / str(BUGS.index(bug))
        (package / bug.file).parent.mkdir(parents=True)
        (package / bug.file).write_text((ROOT / "src" / "antiphase" / bug.file).read_text())
        put_in(bug, package)
        file, function = bug.test.split("[")[0].split("::")
        tree = ast.parse((ROOT / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, bug.test
