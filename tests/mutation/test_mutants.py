"""The parts of `make mutants`; test_make_targets.py runs all of it."""

import os

from tests.mutation import fresh
from tests.mutation.__main__ import REASONS
from tests.mutation.fresh import affected
from tests.mutation.mutate import PACKAGE, Mutant, mutants_in
from tests.mutation.reach import executed_with
from tests.mutation.sample import sample
from tests.mutation.survivors import stale
from tests.mutation.table import LEFT_OUT, TESTS

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
        ("LIMIT = 3", "LIMIT = 4"),
        ("if x < high and x > 0:", "if x <= high and x > 0:"),
        ("if x < high and x > 0:", "if x < high or x > 0:"),
        ("x += 1", "x -= 1"),
        ("return not x == 2", "return not x != 2"),
        ("return x * 2", "return x / 2"),
    } <= changes
    assert not any("| None" in before for before, _ in changes), (
        "annotations are not executed, nor do stars multiply"
    )


def test_which_lines_are_executed_with_a_change():
    lines = {number: executed_with(SOURCE, number) for number in range(1, 15)}
    assert lines[1] is None
    assert lines[3] == {4, 5, 6, 7}
    assert lines[4] == lines[5] == {4, 5}
    assert lines[6] == {6}
    assert lines[11] == {14}, "where the kernel is called"


def exit_code(body):
    """Of a forked process, as every mutant has one of its own."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = int(not body())
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def test_a_mutant_applies_wherever_its_names_are_imported():
    """It is in force in functions, constants, subclasses, and modules that import from the file."""
    source = (PACKAGE / "accounting/accountant.py").read_text(encoding="utf-8")
    changed = source.replace("return 2.0 if", "return 3.0 if")
    assert changed != source

    def body():
        fresh.install(Mutant("accounting/accountant.py", 0, source, changed))
        from antiphase import design
        from antiphase.mechanism import Mechanism

        mechanism = Mechanism(design("dp-sgd", steps=4), 1.0, adjacency="replace-one")
        return mechanism.adjacency_factor == 3.0

    assert exit_code(body) == 0


def test_changed_kernels_are_compiled_again():
    """A constant that only an inner kernel reads makes the outer kernel another one, too."""
    source = (PACKAGE / "noise/normals.py").read_text(encoding="utf-8")
    assert affected("noise/normals.py", source) == set()
    constant = next(line for line in source.splitlines() if line.startswith("CHUNK = "))
    names = affected("noise/normals.py", source.replace(constant, "CHUNK = 7"))
    assert {"CHUNK", "HALF", "draw"} <= names, names


def test_a_sample_is_seeded_and_stratified():
    def mutants(file, count):
        return [Mutant(file, line, f"x = {line}", f"x = {line + 1}") for line in range(count)]

    everything = {
        "a.py": mutants("a.py", 700),
        "b.py": mutants("b.py", 280),
        "c.py": mutants("c.py", 3),
    }
    first, again, other = (sample(everything, 100, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert {file: len(those) for file, those in first.items()} == {
        "a.py": 69,
        "b.py": 28,
        "c.py": 3,
    }
    assert sample(everything, 10_000, 1) == everything
    grown = sample(everything | {"b.py": mutants("b.py", 290)}, 100, 1)
    assert len(set(grown["a.py"]) & set(first["a.py"])) >= 68, (
        "a change of one file leaves the others theirs"
    )


def test_every_file_of_torch_has_mutants_or_a_reason():
    files = {path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / "torch").glob("*.py")}
    assert files <= set(TESTS) | set(LEFT_OUT), files - set(TESTS) - set(LEFT_OUT)
    assert not set(TESTS) & set(LEFT_OUT)


def test_exceptions_of_other_modules_are_mutated():
    source = "try:\n    f()\nexcept (OSError, zlib.error):\n    pass\n"
    changes = {mutant.after for mutant in mutants_in(source, "a.py")}
    assert "except (OSError, CosmicRayTestingException):" in changes
    assert "except (CosmicRayTestingException, zlib.error):" in changes


def test_reasons_are_for_statements_of_the_package():
    """An entry of survivors.md whose statement has changed is taken out, or changed with it."""
    assert REASONS
    for (_, before, after), reason in REASONS.items():
        assert after != before
        assert reason
    assert stale(REASONS) == {}


def test_an_entry_that_is_out_of_date_is_found_with_what_replaced_it():
    file, before, _ = next(iter(REASONS))
    changed = before + " # changed"
    assert stale([(file, before, "")]) == {}
    assert stale([(file, changed, "")]) == {(file, changed): before}
    assert stale([("no_such_file.py", before, "")]) == {("no_such_file.py", before): None}
