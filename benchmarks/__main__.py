"""Measure antiphase and its peers on the same work, in one run.

python -m benchmarks [QUESTION …] [--full] [--json] [--output results/benchmarks.json] [--page]

Exit codes: 1 if a claim does not hold, 2 if a peer could not be measured.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

os.environ["ANTIPHASE_CACHE"] = "off"  # designs are computed, not read from the cache

from rich.console import Console
from rich.table import Table as Rich

from antiphase._util import files
from benchmarks import page
from benchmarks.peers import PeerError
from benchmarks.question import Run

QUESTIONS = ("design", "epochs", "memory", "families", "noise", "step", "accounting", "starting")
LONGEST, ON_ONE_CORE = "epochs", ("design", "memory", "families", "accounting", "starting")
ROOT = Path(__file__).parents[1]


def question(name):
    return importlib.import_module(f"benchmarks.{name}")


class RecordFile:
    """The records of this run and earlier ones; each is written as soon as it is measured."""

    def __init__(self, path, full):
        self._path, self._full, self._writing = path, full, threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)

    def keep(self, name, record):
        with self._writing:
            records = json.loads(self._path.read_text())["questions"] if self._path.exists() else {}
            records[name] = record
            machine = {
                "cores": os.cpu_count(),
                "processor": platform.machine(),
                "python": platform.python_version(),
            }
            content = {
                "command": "python -m benchmarks" + " --full" * self._full,
                "date": time.strftime("%Y-%m-%d"),
                "machine": machine,
                "questions": {name: records[name] for name in QUESTIONS if name in records},
            }
            text = json.dumps(content, ensure_ascii=False, indent=1)
            files.write_bytes(self._path, text.encode())


class OnLastCore:
    """A question measured by its own process on the last core, while others use the first."""

    def __init__(self, name, full, keep):
        self.name, self._keep, self._before = name, keep, os.sched_getaffinity(0)
        self._folder = tempfile.TemporaryDirectory()
        command = [
            sys.executable,
            "-m",
            "benchmarks",
            name,
            "--json",
            "--output",
            f"{self._folder.name}/record.json",
        ]
        os.sched_setaffinity(0, {max(self._before)})  # inherited by the process
        self._process = subprocess.Popen(
            command + ["--full"] * full, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        os.sched_setaffinity(0, {min(self._before)})
        self._record = None
        self._waiting = threading.Thread(target=self._wait)
        self._waiting.start()

    def _wait(self):
        output, _ = self._process.communicate()
        self._folder.cleanup()
        if self._process.returncode in (0, 1):
            self._record = json.loads(output)[self.name]
            self._keep(self.name, self._record)

    def record(self):
        """Wait for the record."""
        self._waiting.join()
        os.sched_setaffinity(0, self._before)
        if self._record is None:
            raise PeerError(f"its process ended with code {self._process.returncode}")
        return self._record


def measure(names, full, console, keep):
    """Measure questions; returns their records in order, and the names of those that failed.

    The peer's designs for several epochs take longer than all other measurements together, on one
    core. So they run on a core of their own, and measurements that need a quiet machine follow.
    ``keep`` is called with each record as soon as it is measured.
    """
    several = (
        len(set(names) - {LONGEST}) > 0
        and hasattr(os, "sched_getaffinity")
        and len(os.sched_getaffinity(0)) > 1
    )
    if LONGEST not in names or not several:
        return _in_turn(names, full, console, keep)
    longest = OnLastCore(LONGEST, full, keep)
    records, failed = _in_turn([name for name in names if name in ON_ONE_CORE], full, console, keep)
    try:
        with console.status(question(LONGEST).TITLE):
            records[LONGEST] = longest.record()
    except PeerError as error:
        failed.append(LONGEST)
        console.print(f"{question(LONGEST).TITLE}: not measured. {error}")
    alone = [name for name in names if name not in (*ON_ONE_CORE, LONGEST)]
    more, more_failed = _in_turn(alone, full, console, keep)
    records |= more
    return {name: records[name] for name in names if name in records}, failed + more_failed


def _in_turn(names, full, console, keep):
    records, failed = {}, []
    for name in names:
        asked = question(name)
        with console.status(asked.TITLE) as status:
            run = Run(
                full,
                lambda doing, title=asked.TITLE, status=status: status.update(f"{title}: {doing}"),
            )
            began = time.perf_counter()
            try:
                records[name] = asked.measure(run)
            except PeerError as error:
                failed.append(name)
                console.print(f"{asked.TITLE}: not measured. {error}")
                continue
            records[name]["took"] = round(time.perf_counter() - began, 1)
            keep(name, records[name])
        console.print(f"{asked.TITLE}: {records[name]['took']:.0f} s")
    return records, failed


def show(records, console):
    """Print tables and claims; returns whether all claims hold."""
    holds = True
    for name, record in records.items():
        asked = question(name)
        for table in asked.tables(record):
            rich = Rich(*table.headings, title=table.title, title_justify="left")
            for column in rich.columns[1:]:
                column.justify = "right"
            for row in table.rows:
                rich.add_row(*row)
            console.print(rich)
        for claim in asked.claims(record):
            holds &= claim.holds
            mark = "[green]holds[/]" if claim.holds else "[red]DOES NOT HOLD[/]"
            console.print(
                f"  {claim.what}: measured {claim.measured}; asked {claim.asked}: {mark}",
                highlight=False,
            )
    return holds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(QUESTIONS)}; default: all"
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="larger sizes and more repetitions; takes hours, most of them the peers'",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "results" / "benchmarks.json",
        help="file of the record",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="write docs/benchmarks.md and its figures from the record",
    )
    parser.add_argument(
        "--page-only", action="store_true", help="write the page without measuring anything"
    )
    arguments = parser.parse_args()
    names = arguments.questions or list(QUESTIONS)
    unknown = set(names) - set(QUESTIONS)
    if unknown:
        parser.error(f"{unknown.pop()}: no such question; there are {', '.join(QUESTIONS)}")
    console = Console(stderr=arguments.json)
    if arguments.page_only:
        page.write(json.loads(arguments.output.read_text()), ROOT / "docs")
        return 0
    record_file = RecordFile(arguments.output, arguments.full)
    records, failed = measure(names, arguments.full, Console(stderr=True), record_file.keep)
    if arguments.page:
        page.write(json.loads(arguments.output.read_text()), ROOT / "docs")
    if arguments.json:
        print(json.dumps(records, ensure_ascii=False))
        holds = all(
            claim.holds for name in records for claim in question(name).claims(records[name])
        )
    else:
        holds = show(records, console)
    return 2 if failed else 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
