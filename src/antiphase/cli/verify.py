"""``antiphase verify``: check a mechanism file by other methods than those that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

import antiphase as ap
from antiphase import verification
from antiphase.cli import errors, options, output
from antiphase.cli.progress import progress_bar


def verify(
    file: options.MechanismFile,
    *,
    statement: Annotated[Path | None, Option(help="A statement in JSON to check.")] = None,
    delta: options.Delta = None,
    full: Annotated[bool, Option("--full", help="Compute the bound again, too.")] = False,
    display: options.Display,
) -> None:
    """Check a mechanism file by other methods.

    Sensitivity, noise and ε are computed again. FILE is a mechanism or a design. Exit code 0: every
    check holds; 1: a check fails; 2: it could not be checked, because the file is missing or
    damaged. Rely on it only after 0.

    Example: antiphase verify plan.antiphase
    """
    loaded = ap.load(file)
    claims = verification.read_statement(statement) if statement is not None else None
    with progress_bar(display.silent, f"verifying {file}"):
        checks = verification.verify(loaded, claims, delta=delta, full=full)
    failed = [check.name for check in checks if not check.holds]
    if display.as_json:
        result = {"file": file, "holds": not failed, "checks": [vars(check) for check in checks]}
        output.print_json(result)
    else:
        _print(checks)
    if failed:
        subject = str(file)
        if statement is not None and failed == [checks[-1].name]:
            subject = f"{statement} is not a statement of {file}"
        output.print_error(
            "error", f"{subject}: {len(failed)} of {len(checks)} checks fail. Do not rely on it."
        )
        raise typer.Exit(errors.EXIT_NO)
    if not display.as_json:
        output.print_text(f"{file}: all {len(checks)} checks hold.")
    if loaded.steps > verification.MAX_ENCODER_STEPS:
        output.print_warning(
            f"{loaded.steps:,} steps exceed {verification.MAX_ENCODER_STEPS:,}: the encoder was "
            "not checked entry by entry, and no noise was drawn"
        )


def _print(checks: list[verification.Check]) -> None:
    for check in checks:
        mark = ("holds", "green") if check.holds else ("FAILS", "bold red")
        text = f"{check.name}: claimed {check.claimed}; found {check.computed}"
        output.print_marked(*mark, text)
