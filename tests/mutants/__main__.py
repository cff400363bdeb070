"""Which mutants of the code that privacy rests on do the tests notice?

    python -m tests.mutants [FILE…]

prints a table by file and the survivors; fails if fewer than nine in ten were killed, or if one survived for which
survivors.md has no reason. Tests are collected once. Each mutant gets a process forked after that, and the tests that
reach its line, the quickest first, until one of them goes red.
"""

import ast
import gc
import itertools
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import coverage
import numba
import numpy as np
import pytest
from _pytest.runner import runtestprotocol
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.mutants.mutate import PACKAGE, Mutant, mutants_of

ROOT = PACKAGE.parents[1]
ASKED = 0.90
QUICK, ALL = ["-m", "not slow and not long"], ["-m", "not long"]
TESTS = {  # by file: those that are about it
    "sensitivity.py": ["tests/test_sensitivity.py", *QUICK],
    "accounting.py": ["tests/test_accounting.py", *QUICK],
    "ledger.py": ["tests/test_ledger.py", *ALL],
    "noise/key.py": ["tests/noise/test_key.py", *QUICK],
    "noise/normals.py": ["tests/noise/test_normals.py", *ALL],
    "noise/engines.py": ["tests/noise/test_stream.py", *QUICK],
    "noise/stream.py": ["tests/noise/test_stream.py", *QUICK],
}
SURVIVED, KILLED = 0, 1
PROCESSES = len(os.sched_getaffinity(0))


class Trial:
    """A pytest plugin that instead of running the tests lets mutants run through them."""

    def __init__(self, files):
        self.files = files  # all with the same tests
        self.mutants, self.survivors = [], []
        self.endless = []  # those that were ended because a test took far too long

    def pytest_runtestloop(self, session):
        if session.testsfailed:
            raise session.Failed("some tests could not be collected")
        self.items = session.items
        self.mutants = [mutant for file in self.files for mutant in mutants_of(file)]
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            self.reach = self.reached()
            warm_up()
            gc.freeze()  # so that no process looks through all that was imported
            self.all()
        return True

    def reached(self):
        """Seconds, and lines of each file, for every test, without a mutant; all must be green."""
        paths, tests = {file: str(PACKAGE / file) for file in self.files}, self.folder / "reached"

        def body():
            from tests.mutants.apply import put_in

            for file, path in paths.items():
                whole = Mutant(file, 0, "", "", Path(path).read_text())
                assert not put_in(whole), "the file itself is no mutant"
            found = {}
            for number, item in enumerate(self.items):
                measure = coverage.Coverage(data_file=None, include=list(paths.values()), config_file=False)
                began = time.process_time()
                with measure.collect():
                    if not green(item):
                        print(f"{item.nodeid} is red without a mutant", file=sys.stderr)
                        return KILLED
                seconds, data = time.process_time() - began, measure.get_data()
                found[number] = seconds, {file: data.lines(path) or [] for file, path in paths.items()}
                forget()
            tests.write_text(repr(found))
            return SURVIVED

        child = self.start(body, quiet=False)
        if os.waitpid(child, 0)[1]:
            raise pytest.UsageError(f"{self.files}: the tests are not green without a mutant")
        return ast.literal_eval(tests.read_text())

    def all(self):
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, transient=True, auto_refresh=False) as progress:  # no thread: processes are forked
            bar = progress.add_task(" ".join(self.files), total=len(self.mutants))
            waiting, running = list(self.mutants), {}
            while waiting or running:
                while waiting and len(running) < PROCESSES:
                    mutant = waiting.pop(0)
                    running[self.start(lambda m=mutant: self.through(m))] = mutant
                child, status = os.wait()
                mutant = running.pop(child)
                if status == SURVIVED:
                    self.survivors.append(mutant)
                    print(in_words(mutant), flush=True)
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM):
                    self.endless.append(mutant)
                progress.update(bar, advance=1, refresh=True)

    def start(self, body, quiet=True):
        child = os.fork()
        if child:
            return child
        code = KILLED
        try:
            if quiet:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(self.folder)
            code = body()
        finally:
            os._exit(code)

    def through(self, mutant):
        """Whether a test of those that reach it notices the mutant; what takes far too long is noticed, too."""
        from tests.mutants.apply import put_in

        if not put_in(mutant):
            return SURVIVED
        for number in self.reaching(mutant):
            seconds = self.reach[number][0]
            signal.setitimer(signal.ITIMER_PROF, 10 + 5 * seconds)  # of processor time; ends the process
            signal.alarm(90 + int(30 * seconds))  # threads may wait for one another for ever
            if not green(self.items[number]):
                return KILLED
        return SURVIVED

    def reaching(self, mutant):
        """The tests that execute what was changed, the quickest first; all of them, where none was seen to."""
        lines, kernel = executed_with(mutant.source, mutant.line), kernel_at(mutant.source, mutant.line)

        def reaches(number):
            if lines is None or not lines.isdisjoint(self.reach[number][1][mutant.file]):
                return True
            return kernel is not None and f".{kernel}(" in self.items[number].path.read_text()

        numbers = list(filter(reaches, self.reach)) or list(self.reach)
        return sorted(numbers, key=lambda number: self.reach[number][0])


def executed_with(source, line):
    """Lines that are executed if the statement in this one is: its own (of a compound one, its head), those of the body
    for the head of a function, and for a compiled function, which no tracer sees, the calls of it. None if it is
    executed on import."""
    tree = ast.parse(source)
    around = statements_around(tree, line)
    if not any(isinstance(node, ast.FunctionDef) for node in around):
        return None
    if kernel := kernel_at(source, line):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        return {call.lineno for call in calls if getattr(call.func, "id", None) == kernel}
    inner = max(around, key=lambda node: node.lineno)
    if isinstance(inner, ast.FunctionDef):
        return set(range(inner.body[0].lineno, inner.end_lineno + 1))
    last = inner.body[0].lineno - 1 if hasattr(inner, "body") else inner.end_lineno
    return set(range(inner.lineno, max(last, inner.lineno) + 1))


def kernel_at(source, line):
    """The name of the compiled function that this line is in, if it is in one."""
    functions = [n for n in statements_around(ast.parse(source), line) if isinstance(n, ast.FunctionDef)]
    compiled = functions and any("njit" in ast.unparse(decorator) for decorator in functions[0].decorator_list)
    return functions[0].name if compiled else None


def statements_around(tree, line):
    return [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= line <= n.end_lineno]


def warm_up():
    """What Numba does before it compiles its first function, here and not once a mutant."""

    @numba.njit
    def first(numbers):
        bits = numbers.view(np.int32)
        for i in range(len(bits)):
            bits[i] >>= np.int32(1)
        return np.sqrt(abs(numbers[0]))

    first(np.zeros(4, np.float32))


def green(item):
    return not any(report.failed for report in runtestprotocol(item, nextitem=None, log=False))


def forget():
    """What functions of ours remember, so that the next test executes them, too."""
    for module in [module for name, module in sys.modules.items() if name.startswith("antiphase")]:
        for thing in vars(module).values():
            if hasattr(thing, "cache_clear"):
                thing.cache_clear()


def reasons():
    """{(file, before, after): reason} of survivors.md, where every reason is a heading."""
    found, reason = {}, ""
    for line in (Path(__file__).parent / "survivors.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            reason = line.removeprefix("## ")
        elif entry := re.fullmatch(r"- (\S+): ``(.*)`` → ``(.*)``", line):
            found[entry.groups()] = reason
    return found


REASONS = reasons()


def trial(files):
    """All mutants of these files, which have the same tests, tried."""
    plugin = Trial(files)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--tb=native"]  # little to write down
    code = pytest.main([*options, *TESTS[files[0]]], plugins=[plugin])
    if code or not plugin.mutants:
        sys.exit(f"{files}: no trial of their mutants was made ({code!r})")
    return plugin


def main(files):
    os.chdir(ROOT)
    began, total = time.perf_counter(), Counter()
    rows = [f"  {'file':18} {'mutants':>8} {'killed':>7} {'(endless)':>9} {'survived':>9} {'share':>7}"]
    for _, alike in itertools.groupby(files or TESTS, TESTS.get):
        tried = trial(together := list(alike))
        for file in together:
            kinds = {"mutants": tried.mutants, "survived": tried.survivors, "endless": tried.endless}
            figures = {kind: sum(mutant.file == file for mutant in those) for kind, those in kinds.items()}
            rows.append(row(file, figures))
            total.update(figures)
        total["unexplained"] += sum(mutant.name not in REASONS for mutant in tried.survivors)
    share = 1 - total["survived"] / total["mutants"]
    print("\n".join([*rows, row("together", total)]))
    print(f"  asked: {ASKED:.0%} killed, and a reason for each that survives; {total['unexplained']} have none")
    print(f"  {time.perf_counter() - began:.0f} s with {PROCESSES} process(es)")
    return int(share < ASKED or total["unexplained"] > 0)


def row(name, figures):
    mutants, survived = figures["mutants"], figures["survived"]
    killed = f"{mutants - survived:7} {'(' + str(figures['endless']) + ')':>9}"
    return f"  {name:18} {mutants:8} {killed} {survived:9} {1 - survived / mutants:7.1%}"


def in_words(mutant):
    reason = REASONS.get(mutant.name, "NO REASON IS GIVEN")
    return f"survived: {mutant.file}:{mutant.line}: {reason}\n- {mutant.file}: ``{mutant.before}`` → ``{mutant.after}``"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
