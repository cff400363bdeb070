"""The parts of `make mutants`, which itself takes minutes and is in tests/acceptance/test_11_mutants.py."""

import os
from dataclasses import replace

import numpy as np

from antiphase import once
from antiphase.sensitivity import sensitivity
from tests.mutants.__main__ import REASONS, TESTS, executed_with
from tests.mutants.apply import put_in
from tests.mutants.mutate import PACKAGE, Mutant, mutants_in

SOURCE = """\
LIMIT = 3

def inside(x: int | None, *, high=LIMIT) -> bool:
    if (x < high
            and x > 0):
        x += 1
    return not x == 2

@numba.njit(cache=True)
def kernel(x):
    return x * 2

def use(x):
    return kernel(x)
"""


def test_small_changes_one_at_a_time():
    changes = {(mutant.before, mutant.after) for mutant in mutants_in(SOURCE, "a.py")}
    assert {
        ("LIMIT = 3", "LIMIT = 4"), ("if (x < high", "if (x <= high"), ("and x > 0):", "or x > 0):"),
        ("x += 1", "x -= 1"), ("return not x == 2", "return not x != 2"), ("return x * 2", "return x / 2"),
    } <= changes  # fmt: skip
    assert not any("| None" in before for before, _ in changes), "annotations are not executed, nor do stars multiply"


def test_which_lines_are_executed_with_a_change():
    lines = {number: executed_with(SOURCE, number) for number in range(1, 15)}
    assert lines[1] is None
    assert lines[3] == {4, 5, 6, 7}
    assert lines[4] == lines[5] == {4, 5}
    assert lines[6] == {6}
    assert lines[11] == {14}, "where the kernel is called"


def test_a_mutant_takes_the_place_of_what_is_imported():
    """In a process of its own, as always."""
    source = (PACKAGE / "sensitivity.py").read_text(encoding="utf-8")
    whole = Mutant("sensitivity.py", 0, "", "", source)
    smallest = replace(
        whole, source=source.replace("np.max(columns.squared_norms())", "np.min(columns.squared_norms())")
    )
    C = np.diag([1.0, 3.0])
    child = os.fork()
    if not child:
        code = 1
        try:
            same = put_in(whole) == set() and sensitivity(C, once()) == 3.0
            changed = put_in(smallest) == {"_squared"} and sensitivity(C, once()) == 1.0
            code = int(not (same and changed))
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_reasons_are_for_lines_that_are_there():
    assert REASONS
    texts = {file: " ".join((PACKAGE / file).read_text(encoding="utf-8").split()) for file in TESTS}
    for (file, before, after), reason in REASONS.items():
        assert before in texts[file], f"{file} has no {before!r} any more: take it out of survivors.md"
        assert after != before
        assert reason
