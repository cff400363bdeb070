"""``antiphase reproduce``: the paper's experiments, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from antiphase._util.progress import ProgressReport
from antiphase.cli import console
from antiphase.cli.console import Json, Quiet, out
from experiments import NAMES

ALL = "all"


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            help=f"One or more of {', '.join(NAMES)}; or {ALL}.",
            metavar="NAME...",
            click_type=console.one_of(*NAMES, ALL),
            show_default=False,
        ),
    ],
    full: Annotated[
        bool, typer.Option("--full", help="All that the paper did, where less is the default.")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for results and figures.")
    ] = Path("results"),
    jobs: Annotated[
        int | None, typer.Option(help="Processes at work; the cores, if not given.", min=1)
    ] = None,
    figures_only: Annotated[
        bool, typer.Option("--figures-only", help="Run nothing: draw what was found before.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's experiments again: results as JSON, figures drawn from it. What was stopped goes on.

    Example: antiphase reproduce matrices
    """
    from experiments import runner

    studies = [runner.study(name) for name in (NAMES if ALL in names else dict.fromkeys(names))]
    found = []
    for study in studies:
        record = (
            runner.read(study, output)
            if figures_only
            else _run(study, output, full, jobs, quiet or as_json)
        )
        paths = [output / f"{study.NAME}.json", *study.draw(record, output)]
        found.append(record | {"files": [str(path) for path in paths]})
        if not as_json:
            _print(study.words(record), paths)
    if as_json:
        console.print_json([{k: v for k, v in record.items() if k != "cells"} for record in found])


def _run(study: Any, output: Path, full: bool, jobs: int | None, quiet: bool) -> dict[str, Any]:
    from experiments import runner

    task: Any = None
    try:
        with console.bar(
            quiet, "{task.completed:.0f} of {task.total:.0f}", "{task.fields[what]}"
        ) as progress:

            def report(now: ProgressReport) -> None:
                nonlocal task
                if task is None:  # what was there already is not counted as speed
                    task = progress.add_task(
                        study.NAME, total=now.total, completed=now.done, what=""
                    )
                progress.update(task, completed=now.done, what=now.task)

            record = runner.run(study, output, full, jobs, report)
    except KeyboardInterrupt:
        kept = output / f"{study.NAME}.jsonl"
        console.stop(
            f"by Ctrl-C: what was finished is in {kept}; the same command goes on from there"
        )
    if record["stale"]:
        lines = f"{record['stale']} earlier result{'s' * (record['stale'] > 1)}"
        console.warn(f"{study.NAME}: {lines} of another version left out")
    return record


def _print(tables: Any, paths: list[Path]) -> None:
    for table in tables:
        console.show(
            console.columns(
                *table.headings, title=table.title, rows=[list(row) for row in table.rows]
            )
        )
        if table.note:
            console.explain(table.note)
        out.print()
    for path in paths:
        out.print(f"Written to {path}")
