"""Run the tests on mutants of the code that privacy rests on.

    python -m tests.mutation              a seeded sample of 600, stratified by file
    python -m tests.mutation --all        every mutant
    python -m tests.mutation FILE…        every mutant of these files
    python -m tests.mutation --stale      list entries of survivors.md that are out of date

prints a table by file and the survivors. It fails if less than 90 % were killed, if survivors.md
has no reason for a survivor, or if a test fails without a mutant.

First, the lines that each test executes are measured. Then a forked process for each mutant
imports antiphase with it and runs the tests that execute its line until one fails: first those
that killed other mutants of its file, then the fastest. A mutant that no test has killed after
BUDGET seconds of processor time has survived.
"""

import argparse
import gc
import importlib.util
import math
import os
import pickle
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutation import fresh
from tests.mutation.mutate import PACKAGE, Mutant, mutants_of
from tests.mutation.reach import Reach, green, reaching
from tests.mutation.sample import sample
from tests.mutation.survivors import reasons, stale
from tests.mutation.table import TESTS, split_missing

ROOT = PACKAGE.parents[1]
MIN_KILLED = 0.90
SAMPLE_SIZE, SEED = 600, 1
SURVIVED, KILLED = 0, 1
BUDGET = 60  # seconds of processor time for the tests of one mutant
PROCESSES = len(os.sched_getaffinity(0))
OPTIONS = ["-q", "-s", "--tb=native", "-o", "addopts=--strict-markers --import-mode=importlib"]
OPTIONS += [f"-pno:{plugin}" for plugin in ("cacheprovider", "faulthandler", "doctest")]


@dataclass
class Result:
    mutant: object
    survived: bool
    endless: bool  # a test exceeded its time limit; counted as killed
    seconds: float


# ---- processes -----------------------------------------------------------------------------------


def forked(jobs):
    """Run jobs, {key: function}, in a process each; yields (key, status, seconds) as they end."""
    waiting, running = list(jobs.items()), {}
    while waiting or running:
        while waiting and len(running) < PROCESSES:
            key, body = waiting.pop(0)
            running[_start(body)] = key, time.perf_counter()
        child, status = os.wait()
        key, began = running.pop(child)
        yield key, status, time.perf_counter() - began


def _start(body):
    child = os.fork()
    if child:
        return child
    code = KILLED
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nowhere, number)
        code = body()
    finally:
        os._exit(code)


# ---- without a mutant ----------------------------------------------------------------------------


def measured(files, folder):
    """What each test reaches, {tests: Reach}, of files that are grouped by their tests."""
    groups = {}
    for file in files:
        groups.setdefault(TESTS[file], []).append(file)

    def job(tests, number):
        def body():
            plugin = Reach(groups[tests])
            pytest.main([*OPTIONS, *tests], plugins=[plugin])
            (folder / str(number)).write_bytes(pickle.dumps(plugin.found()))
            return SURVIVED

        return body

    longest_first = sorted(groups, key=lambda tests: -len(tests))
    jobs = {tests: job(tests, number) for number, tests in enumerate(longest_first)}
    paths = {tests: folder / str(number) for number, tests in enumerate(longest_first)}
    found = {}
    for tests, status, seconds in forked(jobs):
        ended = status == 0 and paths[tests].exists()
        found[tests] = pickle.loads(paths[tests].read_bytes()) if ended else None  # noqa: S301
        say(f"  measured in {seconds:.0f} s: {', '.join(groups[tests])}")
    return found


# ---- with a mutant -------------------------------------------------------------------------------


class Until:
    """A pytest plugin that runs given tests in their order until one is red."""

    def __init__(self, seconds, note, budget):
        self.seconds = seconds  # {node id: seconds}, in the order of the tests
        self.note = note  # the file for the name of the test that failed or exceeded its time
        self.budget = budget
        self.verdict = KILLED  # also if tests cannot be collected

    def pytest_runtestloop(self, session):
        if session.testsfailed:
            return True
        items, left = {item.nodeid: item for item in session.items}, self.budget
        for test, seconds in self.seconds.items():
            if left <= 0:
                break
            limit(10 + 5 * seconds, 90 + int(30 * seconds))
            self.note.write_text(test, encoding="utf-8")
            began = time.process_time()
            if test not in items or not green(items[test]):
                return True
            left -= time.process_time() - began
        self.verdict = SURVIVED
        return True


def limit(busy, waiting):
    """End this process after seconds of processor time, or of waiting for threads."""
    signal.setitimer(signal.ITIMER_PROF, busy)
    signal.alarm(waiting)


class Killers:
    """How many mutants of each file a test has killed."""

    def __init__(self):
        self._counts = {}  # {file: {node id: mutants}}

    def add(self, file, test):
        counts = self._counts.setdefault(file, {})
        counts[test] = counts.get(test, 0) + 1

    def first(self, file, tests):
        """The tests, those that killed most mutants of the file first."""
        counts = self._counts.get(file, {})
        return sorted(tests, key=lambda test: -counts.get(test, 0))


def trial(mutant, tests, seconds, killers, note, budget=BUDGET):
    """The job that runs one mutant through tests."""

    def body():
        if not tests:
            return SURVIVED
        limit(60, 300)
        fresh.install(mutant)
        plugin = Until(
            {test: seconds[test] for test in killers.first(mutant.file, tests)}, note, budget
        )
        files = dict.fromkeys(test.split("::")[0] for test in tests)
        pytest.main([*OPTIONS, *files], plugins=[plugin])
        return plugin.verdict

    return body


def tried(mutants, reached, folder):
    """The results of mutants, in their order; survivors are printed at once."""
    texts, jobs, killers = _Texts(), {}, Killers()
    for number, mutant in enumerate(mutants):
        found = reached[TESTS[mutant.file]]
        tests = reaching(mutant, found["tests"], found["imported"], texts)
        seconds = {test: found["tests"][test][0] for test in tests}
        jobs[number] = trial(mutant, tests, seconds, killers, folder / f"test {number}")
    results, began = {}, time.perf_counter()
    with suppress(KeyboardInterrupt):  # the table is printed of those that are done
        for number, status, seconds in forked(jobs):
            ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            endless = ended_by in (signal.SIGPROF, signal.SIGALRM)
            results[number] = Result(mutants[number], status == 0, endless, seconds)
            if status == 0:
                say(described(mutants[number]))
            elif (note := folder / f"test {number}").exists():
                killers.add(mutants[number].file, note.read_text(encoding="utf-8"))
            if len(results) % 50 == 0:
                passed = time.perf_counter() - began
                say(f"  {len(results)} of {len(mutants)} mutants in {passed:.0f} s")
    return [results[number] for number in sorted(results)]


def controls(reached, folder):
    """Groups of tests that fail for an unchanged file that is installed like a mutant.

    It must survive: otherwise mutants are killed by the way they are installed.
    """
    jobs, none = {}, Killers()
    for tests, found in reached.items():
        file = next(iter(found["imported"]))
        text = (PACKAGE / file).read_text(encoding="utf-8")
        itself = Mutant(file, 0, text, text)
        seconds = {test: taken for test, (taken, _) in found["tests"].items()}
        note = folder / f"control {len(jobs)}"
        jobs[tests] = trial(itself, sorted(seconds, key=seconds.get), seconds, none, note, math.inf)
    return [tests for tests, status, _ in forked(jobs) if status]


class _Texts(dict):
    def __missing__(self, path):
        self[path] = (ROOT / path).read_text(encoding="utf-8")
        return self[path]


# ---- report --------------------------------------------------------------------------------------


REASONS = reasons()


def described(mutant):
    reason = REASONS.get(mutant.name, "NO REASON IS GIVEN")
    where = f"survived: {mutant.file}:{mutant.line}: {reason}"
    return f"{where}\n- {mutant.file}: ``{mutant.before}`` → ``{mutant.after}``"


def table(results, counts):
    """A row for each file, and one for all."""
    rows = [
        f"  {'file':24} {'mutants':>8} {'tried':>6} {'killed':>7} {'(endless)':>9}"
        f" {'survived':>9} {'s/mutant':>9} {'share':>7}"
    ]
    for file in counts:
        rows.append(row(file, counts[file], [r for r in results if r.mutant.file == file]))
    return [*rows, row("together", sum(counts.values()), results)]


def row(name, count, results):
    tried, survived = len(results), sum(r.survived for r in results)
    endless = f"({sum(r.endless for r in results)})"
    figures = f"{count:8} {tried:6} {tried - survived:7} {endless:>9} {survived:9}"
    seconds = sum(r.seconds for r in results) / max(tried, 1)
    return f"  {name:24} {figures} {seconds:9.1f} {1 - survived / max(tried, 1):7.1%}"


def say(text):
    print(text, flush=True)


# ---- the run -------------------------------------------------------------------------------------


def main(arguments):
    options = parsed(arguments)
    if options.stale:
        return list_stale()
    os.chdir(ROOT)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # a thread a process; read when torch is imported
    imported = importlib.util.find_spec("antiphase").origin
    if not imported.startswith(str(PACKAGE)):
        sys.exit(f"error: {imported} would be tested; set PYTHONPATH={PACKAGE.parent}")
    began = time.perf_counter()
    files, missing = split_missing(options.files or TESTS)
    with ProcessPoolExecutor(PROCESSES) as pool:
        mutants = dict(zip(files, pool.map(mutants_of, files), strict=True))
    counts = {file: len(those) for file, those in mutants.items()}
    if options.sample:
        mutants = sample(mutants, options.sample, options.seed)
    number = sum(map(len, mutants.values()))
    say(f"  {sum(counts.values())} mutants of {len(files)} files, {number} of them tried")
    faults = [f"missing: {file} is in table.py and not in the package" for file in missing]
    results = run(mutants, faults)
    say("\n".join(table(results, counts)))
    share = 1 - sum(r.survived for r in results) / max(len(results), 1)
    unexplained = sum(r.survived and r.mutant.name not in REASONS for r in results)
    say(
        f"  asked: {MIN_KILLED:.0%} killed, and a reason for each survivor; {unexplained} have none"
    )
    for fault in faults:
        say(f"  {fault}")
    say(f"  {time.perf_counter() - began:.0f} s with {PROCESSES} process(es)")
    return int(share < MIN_KILLED or unexplained > 0 or bool(faults) or not results)


def list_stale():
    """Print the entries of survivors.md whose statement has changed; 1 if there are any."""
    entries = stale(REASONS)
    for (file, before), alike in entries.items():
        say(f"{file}: ``{before}``\n  most like it: " + (f"``{alike}``" if alike else "none"))
    say(f"{len(entries)} statements of survivors.md are no longer in the package")
    return int(bool(entries))


def run(mutants, faults):
    """The results of {file: mutants}; adds problems without a mutant to `faults`."""
    fresh.warm_up()
    gc.freeze()  # so that collections in the processes skip what was imported
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        reached = measured(list(mutants), Path(folder))
        for tests, found in reached.items():
            if found is None or found["failed"]:
                faults.append(f"not collected: {' '.join(tests)}")
            red = found["red"] if found else []
            faults += [f"red without a mutant, and left out: {test}" for test in red]
        reached = {tests: found for tests, found in reached.items() if found}
        for tests in controls(reached, Path(folder)):
            faults.append(f"red for the file as it is, as a mutant: {' '.join(tests)}")
        for fault in faults:
            say(f"  {fault}")
        tryable = [m for those in mutants.values() for m in those if TESTS[m.file] in reached]
        results = tried(tryable, reached, Path(folder))
        if len(results) < len(tryable):
            faults.append(f"stopped after {len(results)} of {len(tryable)} mutants")
        return results


def parsed(arguments):
    about = __doc__.split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=about)
    parser.add_argument("files", nargs="*", metavar="FILE", help="within src/antiphase")
    parser.add_argument("--all", action="store_true", help="every mutant of every file")
    parser.add_argument("--sample", type=int, metavar="N", help=f"a sample of N ({SAMPLE_SIZE})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the sample ({SEED})")
    parser.add_argument("--stale", action="store_true", help="list entries out of date, and stop")
    options = parser.parse_args(arguments)
    if unknown := set(options.files) - set(TESTS):
        parser.error(f"{', '.join(sorted(unknown))}: not in tests/mutation/table.py")
    if options.sample is None and not options.all and not options.files:
        options.sample = SAMPLE_SIZE
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
