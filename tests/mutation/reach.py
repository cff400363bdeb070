"""Which tests execute which lines, and how long they take."""

import ast
import sys
import time

import coverage
from _pytest.runner import runtestprotocol

from tests.mutation.mutate import PACKAGE


class Reach:
    """A pytest plugin that measures the seconds of every test, and the lines of `files` it runs."""

    def __init__(self, files):
        self.paths = {file: str(PACKAGE / file) for file in files}
        self.tests = {}  # {node id: (seconds, {file: lines})}
        self.imported = {}  # {file: lines executed while tests were collected}
        self.red = []  # node ids of tests that fail without a mutant
        self.failed = False  # whether tests could not be collected
        self.collecting = self._measure()
        self.collecting.start()

    def pytest_runtestloop(self, session):
        self.collecting.stop()
        self.imported = self._lines(self.collecting)
        self.failed = bool(session.testsfailed)
        for item in session.items:
            measure = self._measure()
            began = time.process_time()
            with measure.collect():
                passed = green(item)
            if passed:
                self.tests[item.nodeid] = time.process_time() - began, self._lines(measure)
            else:
                self.red.append(item.nodeid)
            forget()
        return True

    def found(self):
        return {name: getattr(self, name) for name in ("tests", "imported", "red", "failed")}

    def _measure(self):
        paths = list(self.paths.values())
        return coverage.Coverage(data_file=None, include=paths, config_file=False)

    def _lines(self, measure):
        data = measure.get_data()
        return {file: set(data.lines(path) or ()) for file, path in self.paths.items()}


def reaching(mutant, tests, imported, texts):
    """The tests that execute what was changed, the quickest first.

    Args:
        mutant: the mutant.
        tests: {node id: (seconds, {file: lines})}.
        imported: {file: lines executed while tests were collected}.
        texts: {path of a test file: its text}.
    """
    lines = executed_with(mutant.source, mutant.line)
    kernel = kernel_at(mutant.source, mutant.line)
    at_import = lines is None or (not kernel and not lines.isdisjoint(imported[mutant.file]))

    def reaches(test):
        if at_import or not lines.isdisjoint(tests[test][1][mutant.file]):
            return True
        return kernel is not None and f".{kernel}(" in texts[test.split("::")[0]]

    found = list(filter(reaches, tests))
    if kernel and not found:  # called by other kernels, in which no line is seen
        found = list(tests)
    return sorted(found, key=lambda test: tests[test][0])


def executed_with(source, line):
    """Lines that are executed if the statement in this one is.

    These are its own (of a compound one, its head), those of the body for the head of a function,
    and for a compiled function, which no tracer sees, the calls of it. None if it is executed on
    import.
    """
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
    around = statements_around(ast.parse(source), line)
    functions = [node for node in around if isinstance(node, ast.FunctionDef)]
    compiled = functions and any("njit" in ast.unparse(d) for d in functions[0].decorator_list)
    return functions[0].name if compiled else None


def statements_around(tree, line):
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return [node for node in statements if node.lineno <= line <= node.end_lineno]


def green(item):
    return not any(report.failed for report in runtestprotocol(item, nextitem=None, log=False))


def forget():
    """Clear the caches of antiphase, so that the next test runs the functions behind them, too."""
    for module in [module for name, module in sys.modules.items() if name.startswith("antiphase")]:
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
