"""How a study is run: cell by cell, in several processes, and never the same cell twice.

A study is a module of this package with the names of `Study`. Its cells are units of work that one can afford to lose.
Every finished cell is a line of ``NAME.jsonl``, and a run takes up the lines that are there; once all cells are done,
``NAME.json`` has their results, what follows from them, and what made them. Tables and figures come from it alone.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import platform
import signal
import sys
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
from antiphase.errors import StudyError
from experiments import NAMES

Cell = dict[str, Any]  # the settings of one unit of work, as JSON has them
Result = dict[
    str, Any
]  # what came of it, likewise: no NaN, no infinity; say None for what diverged
Found = list[tuple[Cell, Result]]  # in the order of `cells`

ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)  # torch heeds OMP's
LIBRARIES = (
    "numpy",
    "scipy",
    "numba",
    "torch",
    "opacus",
    "sklearn",
)  # whose versions are kept, where they were used


class Study(Protocol):
    """What a module of this package has to be a study."""

    NAME: str  # the word after `antiphase reproduce`, and the name of its files
    TITLE: str
    REVISION: int  # raised by hand with every change of the code that changes a result

    def cells(self, full: bool) -> list[Cell]:
        """The units of work: of all that the paper did if ``full``, of what is run by default otherwise."""

    def work(self, cell: Cell) -> Result:
        """One of them: a pure function of its settings. It runs in a process of its own, on one thread."""

    def summary(self, found: Found, full: bool) -> dict[str, Any]:
        """What tables and figures need: means, standard errors, verdicts; of JSON alone."""

    def draw(self, record: dict[str, Any], folder: Path) -> list[Path]:
        """Figures, from the record alone."""

    def words(self, record: dict[str, Any]) -> list[Table]:
        """What the terminal shows, from the record alone."""


@dataclass(frozen=True)
class Table:
    """A first column of words, others of numbers, and small print below."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        """
        >>> print(Table("", ["γ", "average"], [["0.1", "3.2"]]).markdown())
        | γ | average |
        |---|---:|
        | 0.1 | 3.2 |
        """
        lines = [self.headings, *self.rows]
        text = ["| " + " | ".join(" ".join(cell.split()) for cell in line) + " |" for line in lines]
        return "\n".join([text[0], "|---|" + "---:|" * (len(self.headings) - 1), *text[1:]])


def study(name: str) -> Study:
    """The study of that name."""
    return cast(Study, importlib.import_module(f"experiments.{check.choice('name', name, NAMES)}"))


# ---- running -----------------------------------------------------------------------------------------------


def run(
    study: Study | ModuleType,
    folder: Path,
    full: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The record of the study, from what is in ``folder`` already and the cells that are not, in ``jobs`` processes.

    Guarantee: a finished cell is on the disk before the next is waited for, and is not done again, whatever ends the
    run; results of other settings, another version of antiphase or another revision of the study are never taken up.
    The record is written when every cell is there, whole or not at all. Raises `StudyError` if cells failed, after all others.
    """
    study = cast(Study, study)
    began = time.perf_counter()
    jobs = _cores() if jobs is None else check.whole_number("jobs", jobs)
    folder.mkdir(parents=True, exist_ok=True)
    book = _Book(folder / f"{study.NAME}.jsonl", version(study))
    cells = study.cells(full)
    open_cells = [cell for cell in cells if book.line(cell) is None]
    total, reused = len(cells), len(cells) - len(open_cells)

    same = _shared(cells)

    def report(done: int, cell: Cell) -> None:
        if progress is not None:
            progress(ProgressReport(reused + done, total, task=_in_words(cell, same)))

    report(0, {})
    failed = (
        _work_off(study, open_cells, min(jobs, len(open_cells)), book, report) if open_cells else []
    )
    if failed:
        errors = folder / f"{study.NAME}.errors"
        files.write_bytes(errors, "\n".join(f"{cell}\n{trace}" for cell, trace in failed).encode())
        cell, trace = failed[0]
        raise StudyError(
            f"{study.NAME}: {len(failed)} of {total} cells failed, the first ({_in_words(cell, same)}) with "
            f"{trace.strip().splitlines()[-1]}; all are in {errors}. The others are kept, and the same command goes on"
        )
    record = _record(study, [cast(Cell, book.line(cell)) for cell in cells], full)
    record["seconds"]["wall"] = round(time.perf_counter() - began, 2)
    record["reused"] = reused
    record["stale"] = book.stale
    files.write_bytes(folder / f"{study.NAME}.json", _json(record).encode())
    return record


def read(study: Study, folder: Path) -> dict[str, Any]:
    """The record that `run` wrote."""
    path = folder / f"{study.NAME}.json"
    if not path.exists():
        raise StudyError(
            f"{path}: there are no results yet; run antiphase reproduce {study.NAME} first"
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
        "command": f"antiphase reproduce {study.NAME}" + (" --full" if full else ""),
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


def _work_off(
    study: Study, cells: list[Cell], jobs: int, book: _Book, report: Callable[[int, Cell], None]
) -> list[tuple[Cell, str]]:
    """Do the cells, write each down as it is finished, and return those that failed with their tracebacks."""
    failed = []
    others = set(multiprocessing.active_children())
    with _one_thread(), book:
        pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin)
        try:
            asked: dict[Future[Cell], Cell] = {
                pool.submit(_timed, study.work, cell): cell for cell in cells
            }
            for done, future in enumerate(as_completed(asked), start=1):
                cell, error = asked[future], future.exception()
                if error is None:
                    book.add(cell, future.result())
                else:
                    failed.append((cell, "".join(traceback.format_exception(error))))
                report(done, cell)
        except BaseException:  # Ctrl-C, mostly: nobody waits for a cell of minutes to end
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    return failed


# ---- in a worker -------------------------------------------------------------------------------------------


def _begin() -> None:
    """Ctrl-C is the parent's to answer; and when the parent is gone, nobody is left to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_it() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_it, daemon=True).start()


def _timed(work: Callable[[Cell], Result], cell: Cell) -> Cell:
    began = time.process_time()  # what it costs, however busy the machine is
    result = work(cell)
    seconds = round(time.process_time() - began, 3)
    _json(result)  # here, where what is no JSON fails this cell and no other
    used = {name: str(sys.modules[name].__version__) for name in LIBRARIES if name in sys.modules}
    versions = {"antiphase": __version__, "python": platform.python_version(), **used}
    return {"result": result, "seconds": seconds, "versions": versions}


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that start within it compute on one thread each: as many processes as cores, and the same sums."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# ---- what is kept ------------------------------------------------------------------------------------------


class _Book:
    """The finished cells of a study in a file of lines, of which the last may be torn."""

    def __init__(self, path: Path, version: str) -> None:
        self.path, self._version = path, version
        self.stale = 0  # lines of another version
        self._lines: dict[str, Cell] = {}
        for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
            try:
                line = json.loads(text)
            except ValueError:
                continue  # torn: the run was killed while it wrote
            if line.get("version") == version:
                self._lines[digest(line["cell"])] = line
            else:
                self.stale += 1

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, cell: Cell) -> Cell | None:
        return self._lines.get(digest(cell))

    def __enter__(self) -> _Book:
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
    """The version of antiphase and the revision of the study: results of another are not reused."""
    return f"{__version__}/{study.REVISION}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _shared(cells: list[Cell]) -> Cell:
    """The settings that are the same in all of them."""
    return {k: v for k, v in cells[0].items() if all(k in cell and cell[k] == v for cell in cells)}


def _in_words(cell: Cell, same: Cell) -> str:
    """What sets a cell apart."""
    return ", ".join(
        f"{name} {value}" for name, value in cell.items() if name not in same and value is not False
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
