"""How a study runs: cell by cell, in several processes, and never the same cell twice.

A study is a module of this package with the names of `Study`. Its cells are units of work small
enough to lose. Every finished cell is a line of ``NAME.jsonl``, and a run continues from the lines
that exist. When all cells are done, ``NAME.json`` holds their results, the summary, and the
versions that produced them. Tables and figures are made from ``NAME.json`` alone.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import platform
import signal
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from antiphase import __version__
from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.progress import Progress, ProgressReport
from antiphase._util.values import digest
from antiphase.errors import AntiphaseError
from experiments import NAMES

Cell = dict[str, Any]  # the settings of one unit of work, as JSON
Result = dict[str, Any]  # its result, as JSON: without NaN and infinity; None where it diverged
Results = list[tuple[Cell, Result]]  # in the order of `cells`

# Limits on threads; torch obeys OMP's.
THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# Libraries whose versions are recorded, where a cell imported them.
LIBRARIES = ("numpy", "scipy", "numba", "torch", "opacus", "sklearn")
WIDTH = 100  # columns of the notes below tables


class StudyError(AntiphaseError, RuntimeError):
    """Cells of a study failed, or there are no results to draw. Finished cells are kept."""


class Study(Protocol):
    """The names of a module that is a study."""

    NAME: str  # the word after `python -m experiments`, and the name of its files
    TITLE: str
    REVISION: int  # raised by hand with every change of the code that changes a result

    def cells(self, full: bool) -> list[Cell]:
        """List the units of work: the paper's if ``full``, otherwise the default ones."""

    def work(self, cell: Cell) -> Result:
        """Compute a cell: a pure function of its settings, in its own process, on one thread."""

    def summary(self, results: Results, full: bool) -> dict[str, Any]:
        """Compute means, standard errors and verdicts for tables and figures, as JSON."""

    def draw(self, record: dict[str, Any], folder: Path) -> list[Path]:
        """Draw the figures from the record alone; returns their paths."""

    def tables(self, record: dict[str, Any]) -> list[Table]:
        """Make the tables from the record alone."""


@dataclass(frozen=True)
class Table:
    """A first column of words, other columns of numbers, and a note below."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        """The table for a terminal.

        >>> print(Table("Errors", ["γ", "average"], [["0.1", "3.2"], ["0.03", "14.1"]]).text())
        Errors
        γ     average
        0.1       3.2
        0.03     14.1
        """
        headings = [heading.split("\n") for heading in self.headings]
        height = max(map(len, headings))
        lines = [*zip(*([""] * (height - len(h)) + h for h in headings), strict=True), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = [self.title]
        for first, *numbers in lines:
            cells = [first.ljust(widths[0])]
            cells += [
                number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)
            ]
            text.append("  ".join(cells).rstrip())
        return "\n".join([*text, *textwrap.wrap(self.note, WIDTH)])

    def markdown(self) -> str:
        """The table for a Markdown page.

        >>> print(Table("", ["γ", "average"], [["0.1", "3.2"]]).markdown())
        | γ | average |
        |---|---:|
        | 0.1 | 3.2 |
        """
        lines = [self.headings, *self.rows]
        text = ["| " + " | ".join(" ".join(cell.split()) for cell in line) + " |" for line in lines]
        return "\n".join([text[0], "|---|" + "---:|" * (len(self.headings) - 1), *text[1:]])


def load_study(name: str) -> Study:
    """Import the study of that name."""
    return cast(Study, importlib.import_module(f"experiments.{check.choice('name', name, NAMES)}"))


def run(
    study: Study | ModuleType,
    folder: Path,
    full: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run the cells of a study that ``folder`` has no results of, and write its record.

    Guarantee: a finished cell is on the disk before the next one is awaited, and never runs again,
    however the run ends. Results of other settings, another version of antiphase or another
    revision of the study are never used. The record is written atomically, when every cell is done.

    Args:
        study: the study.
        folder: folder of its results.
        full: whether to run everything the paper did.
        jobs: number of processes; one per core if None.
        progress: called with a report after every cell.

    Returns:
        The record, as it is in ``NAME.json``.

    Raises:
        StudyError: cells failed; raised when all others are done.
    """
    study = cast(Study, study)
    began = time.perf_counter()
    jobs = _cores() if jobs is None else check.whole_number("jobs", jobs)
    folder.mkdir(parents=True, exist_ok=True)
    log = _ResultLog(folder / f"{study.NAME}.jsonl", version(study))
    cells = study.cells(full)
    open_cells = [cell for cell in cells if log.line(cell) is None]
    total, reused = len(cells), len(cells) - len(open_cells)
    same = _shared(cells)

    def report(done: int, cell: Cell) -> None:
        if progress is not None:
            progress(ProgressReport(reused + done, total, task=_describe(cell, same)))

    report(0, {})
    failed = []
    if open_cells:
        failed = _run_cells(study, open_cells, min(jobs, len(open_cells)), log, report)
    if failed:
        errors = folder / f"{study.NAME}.errors"
        files.write_bytes(errors, "\n".join(f"{cell}\n{trace}" for cell, trace in failed).encode())
        cell, trace = failed[0]
        raise StudyError(
            f"{study.NAME}: {len(failed)} of {total} cells failed, the first "
            f"({_describe(cell, same)}) with {trace.strip().splitlines()[-1]}. {errors} has all "
            "tracebacks. Finished cells are kept; run the command again to continue"
        )
    record = _record(study, [cast(Cell, log.line(cell)) for cell in cells], full)
    record["seconds"]["wall"] = round(time.perf_counter() - began, 2)
    record["reused"] = reused
    record["stale"] = log.stale
    files.write_bytes(folder / f"{study.NAME}.json", _json(record).encode())
    return record


def read(study: Study, folder: Path) -> dict[str, Any]:
    """Read the record that `run` wrote."""
    path = folder / f"{study.NAME}.json"
    if not path.exists():
        raise StudyError(
            f"{path}: there are no results yet; run python -m experiments {study.NAME} first"
        )
    return cast(dict[str, Any], json.loads(path.read_text()))


def _record(study: Study, lines: list[Cell], full: bool) -> dict[str, Any]:
    cells = [line["cell"] for line in lines]
    versions: dict[str, set[str]] = {}
    for line in lines:
        for name, version in line["versions"].items():
            versions.setdefault(name, set()).add(version)
    return {
        "study": study.NAME,
        "title": study.TITLE,
        "command": f"python -m experiments {study.NAME}" + (" --full" if full else ""),
        "full": full,
        "seeds": sorted({cell["seed"] for cell in cells if "seed" in cell}),
        "versions": {name: ", ".join(sorted(several)) for name, several in versions.items()},
        "machine": {"cores": _cores(), "processor": platform.machine()},
        "seconds": {"compute": round(sum(line["seconds"] for line in lines), 2)},
        "settings": _shared(cells),
        "summary": study.summary([(line["cell"], line["result"]) for line in lines], full),
        "cells": [
            {"settings": line["cell"], "result": line["result"], "seconds": line["seconds"]}
            for line in lines
        ],
    }


def _run_cells(
    study: Study, cells: list[Cell], jobs: int, log: _ResultLog, report: Callable[[int, Cell], None]
) -> list[tuple[Cell, str]]:
    """Run the cells and log each when it is finished; returns those that failed with tracebacks."""
    failed = []
    others = set(multiprocessing.active_children())
    with _one_thread(), log:
        pool = ProcessPoolExecutor(
            jobs, multiprocessing.get_context("spawn"), initializer=_start_worker
        )
        try:
            futures: dict[Future[Cell], Cell] = {
                pool.submit(_timed, study.work, cell): cell for cell in cells
            }
            for done, future in enumerate(as_completed(futures), start=1):
                cell, error = futures[future], future.exception()
                if error is None:
                    log.add(cell, future.result())
                else:
                    failed.append((cell, "".join(traceback.format_exception(error))))
                report(done, cell)
        except BaseException:  # mostly Ctrl-C: do not wait for a cell that takes minutes
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return failed


def _start_worker() -> None:
    """Leave Ctrl-C to the parent process, and end when the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow_parent, daemon=True).start()


def _timed(work: Callable[[Cell], Result], cell: Cell) -> Cell:
    began = time.process_time()  # the cost, however busy the machine is
    result = work(cell)
    seconds = round(time.process_time() - began, 3)
    _json(result)  # a result that is not JSON fails this cell alone
    used = {name: str(sys.modules[name].__version__) for name in LIBRARIES if name in sys.modules}
    versions = {"antiphase": __version__, "python": platform.python_version(), **used}
    return {"result": result, "seconds": seconds, "versions": versions}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit processes that start within to one thread: one process per core, the same sums."""
    before = {name: os.environ.get(name) for name in THREAD_LIMITS}
    os.environ.update(dict.fromkeys(THREAD_LIMITS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _ResultLog:
    """The finished cells of a study, one per line of a file whose last line may be torn."""

    def __init__(self, path: Path, version: str) -> None:
        self.path, self._version = path, version
        self.stale = 0  # lines of another version
        self._lines: dict[str, Cell] = {}
        for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # torn: the run was killed while writing
            if line.get("version") == version:
                self._lines[digest(line["cell"])] = line
            else:
                self.stale += 1

    def line(self, cell: Cell) -> Cell | None:
        return self._lines.get(digest(cell))

    def __enter__(self) -> _ResultLog:
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self._file = self.path.open("a")
        self._file.write("\n" if torn else "")
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def add(self, cell: Cell, done: Cell) -> None:
        line = {"cell": cell, "version": self._version, **done}
        self._file.write(_json(line) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._lines[digest(cell)] = json.loads(_json(line))


def version(study: Study) -> str:
    """The version of antiphase and the revision of the study; results of others are not used."""
    return f"{__version__}/{study.REVISION}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _shared(cells: list[Cell]) -> Cell:
    """The settings that all cells share."""
    return {k: v for k, v in cells[0].items() if all(k in cell and cell[k] == v for cell in cells)}


def _describe(cell: Cell, same: Cell) -> str:
    """The settings that distinguish a cell."""
    return ", ".join(
        f"{name} {value}" for name, value in cell.items() if name not in same and value is not False
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
