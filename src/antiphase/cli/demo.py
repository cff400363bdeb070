"""``antiphase demo``: four mechanisms on handwritten digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from antiphase._util.progress import ProgressReport
from antiphase.cli import errors, options, output
from antiphase.cli.progress import progress_bar


def demo(
    *,
    folder: Annotated[Path, Option("--output", "-o", help="Folder to write.")] = Path("demo"),
    trials: Annotated[int, Option(help="Seeds for each point.", min=1)] = 10,
    display: options.Display,
) -> None:
    """Compare five mechanisms on digits.

    Train at ε = 1 and 8 and write a page; takes two minutes.

    Example: antiphase demo --trials 1 --output demo
    """
    options.require_writable(folders=(folder,))
    from antiphase import demo as study

    bar = progress_bar(display.silent, "training", "{task.fields[task_name]}", task_name="")
    with bar as update:

        def report(now: ProgressReport) -> None:
            update(completed=now.done, total=now.total, task_name=now.task)

        result = study.run(trials, report)
    paths = study.write(folder, result)
    if display.as_json:
        output.print_json(result.to_dict())
    else:
        rows = [[label, *cells] for label, cells in result.rows().items()]
        headings = [f"ε = {epsilon:g}" for epsilon in study.EPSILONS]
        table = output.number_table("mechanism", *headings, title=study.TITLE, rows=rows)
        output.print_table(table)
        spread = f"mean ± standard error of {trials} seeds" if trials > 1 else "one seed"
        output.print_note(f"Accuracy on test data in percent, {spread}.")
        for epsilon in study.EPSILONS:
            output.print_text()
            output.print_paragraph(result.headline(epsilon))
        print(f"\n{result.statement or ''}\n")
        output.print_files(paths)
    if result.stopped:
        errors.interrupted("by Ctrl-C; these are the results so far")
