"""The command `python -m experiments`: run studies of the paper, and draw their figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphase._util.progress import ProgressReport
from antiphase.errors import AntiphaseError
from experiments import NAMES, runner

ALL = "all"
FAILED, INTERRUPTED = 2, 130  # exit codes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the studies that the command line names.

    Returns:
        The exit code: 0 done, 2 a study failed, 130 stopped by Ctrl-C.
    """
    options = _parsed(arguments)
    names = NAMES if ALL in options.names else tuple(dict.fromkeys(options.names))
    records = []
    for name in names:
        study = runner.load_study(name)
        try:
            record = _record(study, options)
        except KeyboardInterrupt:
            kept = options.output / f"{name}.jsonl"
            _say(f"stopped by Ctrl-C: finished cells are in {kept}; run the command again to go on")
            return INTERRUPTED
        except (AntiphaseError, OSError) as error:
            _say(f"error: {error}")
            return FAILED
        paths = [options.output / f"{name}.json", *study.draw(record, options.output)]
        records.append(record | {"files": [str(path) for path in paths]})
        if not options.json:
            print("\n\n".join(table.text() for table in study.tables(record)), end="\n\n")
            print("\n".join(f"Written to {path}" for path in paths))
    if options.json:
        without_cells = [{k: v for k, v in record.items() if k != "cells"} for record in records]
        print(json.dumps(without_cells, indent=2, ensure_ascii=False, allow_nan=False))
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Run the paper's experiments: results as JSON, figures and tables from them. "
        "A study that was stopped continues where it was.",
        epilog="Example: python -m experiments matrices",
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        choices=(*NAMES, ALL),
        help=f"one or more of {', '.join(NAMES)}; or {ALL}",
    )
    parser.add_argument(
        "--full", action="store_true", help="everything the paper did, where the default is less"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("results"),
        help="folder for results and figures (results)",
    )
    parser.add_argument("--jobs", type=int, help="number of processes (one per core)")
    parser.add_argument(
        "--figures-only", action="store_true", help="run nothing; draw from earlier results"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON to standard output, and nothing else there"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    options = parser.parse_args(arguments)
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs = {options.jobs} must be at least 1")
    return options


def _record(study: runner.Study, options: argparse.Namespace) -> dict[str, Any]:
    if options.figures_only:
        return runner.read(study, options.output)
    progress = None if options.quiet or options.json else _Progress(study.NAME)
    try:
        record = runner.run(study, options.output, options.full, options.jobs, progress)
    finally:
        if progress is not None:
            progress.clear()
    if stale := record["stale"]:
        _say(f"note: {study.NAME}: {stale} earlier result(s) of another version are not used")
    return record


class _Progress:
    """A line on standard error that is written over with every report, if that is a terminal."""

    def __init__(self, name: str) -> None:
        self._name, self._terminal = name, sys.stderr.isatty()

    def __call__(self, report: ProgressReport) -> None:
        if self._terminal:
            line = f"{self._name}: {report.done} of {report.total} cells  {report.task}"
            sys.stderr.write(f"\r\x1b[K{line[:100]}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._terminal:
            sys.stderr.write("\r\x1b[K")


def _say(message: str) -> None:
    print(message, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
