"""``antiphase demo``: four mechanisms on handwritten digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from antiphase._util.progress import ProgressReport
from antiphase.cli import console
from antiphase.cli.console import Json, Quiet, out


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the page and the results.")
    ] = Path("demo"),
    trials: Annotated[int, typer.Option(help="Seeds for each point.", min=1)] = 10,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on digits at ε = 1 and 8 with four mechanisms, and write a page about it. Takes about two minutes.

    Example: antiphase demo --trials 1 --output demo
    """
    from antiphase import demo as study

    with console.bar(quiet or as_json, "{task.fields[what]}") as progress:
        task = progress.add_task("training", total=None, what="")

        def report(now: ProgressReport) -> None:
            progress.update(task, completed=now.done, total=now.total, what=now.task)

        found = study.run(trials, report)
    paths = study.write(output, found)
    if as_json:
        console.print_json(found.to_dict())
        return
    rows = [[label, *cells] for label, cells in found.rows().items()]
    console.show(
        console.columns(
            "mechanism", *(f"ε = {e:g}" for e in study.EPSILONS), title=study.TITLE, rows=rows
        )
    )
    spread = f"mean ± standard error of {trials} seeds" if trials > 1 else "one seed"
    console.explain(f"Accuracy on test data in percent, {spread}.")
    out.print()
    print(found.statement)
    out.print()
    for path in paths:
        out.print(f"Written to {path}")
    if found.stopped:
        console.stop("by Ctrl-C: this is what there was")
