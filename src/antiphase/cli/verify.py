"""``antiphase verify``: checks a mechanism file by other methods than those that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from antiphase.cli import console
from antiphase.cli.calibrate import File
from antiphase.cli.console import Delta, Json, Quiet, err, out


def verify(
    file: File,
    statement: Annotated[
        Path | None, typer.Option("--statement", help="A statement in JSON that is to match it.")
    ] = None,
    delta: Delta = None,
    full: Annotated[
        bool, typer.Option("--full", help="Solve for the bound again, too: may take long.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check that a mechanism file is what it claims: sensitivity, noise and ε computed again, by other ways.

    FILE is a mechanism or a design. Exit code 0: all that was checked holds; 1: a check fails; 2: it could not be
    checked, as a file that is missing, or damaged so that it does not fit its own digest. Rely on it only after 0.

    Example: antiphase verify plan.antiphase
    """
    import antiphase as ap
    from antiphase import verification

    loaded = ap.load(file)
    claims = verification.read_statement(statement) if statement is not None else None
    with console.bar(quiet or as_json) as progress:
        progress.add_task(f"verifying {file}", total=None)
        checks = verification.verify(loaded, claims, delta=delta, full=full)
    good = all(check.holds for check in checks)
    if as_json:
        console.print_json(
            {"file": str(file), "holds": good, "checks": [vars(check) for check in checks]}
        )
    else:
        for check in checks:
            mark = "[green]holds[/]" if check.holds else "[bold red]FAILS[/]"
            out.print(
                f"{mark}  {escape(f'{check.what}: claimed {check.claimed}; found {check.found}')}"
            )
    if not good:
        wrong = [check.what for check in checks if not check.holds]
        whose = (
            f"{statement} is no statement of {file}"
            if wrong == [checks[-1].what] and statement
            else str(file)
        )
        err.print(
            f"[bold red]refused:[/] {escape(whose)}: {len(wrong)} of {len(checks)} checks fail. Do not rely on it."
        )
        raise typer.Exit(console.NO)
    if not as_json:
        out.print(f"{escape(str(file))}: all {len(checks)} checks hold.")
    if loaded.steps > verification.LARGEST:
        console.warn(
            f"{loaded.steps:,} steps are more than {verification.LARGEST:,}: the encoder was not looked at entry by "
            "entry, and no noise was made"
        )
