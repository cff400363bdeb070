"""``antiphase statement``: print the privacy statement of a mechanism file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

import antiphase as ap
from antiphase.cli import options, output
from antiphase.cli.errors import usage_error


def statement(
    file: options.MechanismFile,
    delta: options.Delta = None,
    released: Annotated[int | None, Option(help="Rows released so far.", min=0)] = None,
    as_json: options.Json = False,
) -> None:
    """Print the privacy statement of a mechanism.

    In words, or as JSON that can be checked. FILE is a mechanism that design or calibrate wrote.

    Example: antiphase statement plan.antiphase
    """
    mechanism = load_calibrated(file)
    if delta is None and mechanism.target_delta is None:
        raise usage_error(
            f"{file} was calibrated without δ: give --delta, well below one over the number of "
            "records"
        )
    made = mechanism.statement(delta, released=released)
    if as_json:
        print(made.to_json())
    else:
        output.print_statement(made, short=False)


def load_calibrated(file: Path | str) -> ap.Mechanism:
    """Load a mechanism; refuse a design that is not calibrated."""
    mechanism = ap.load(file)
    if not isinstance(mechanism, ap.Mechanism):
        raise ValueError(
            f"{file} is a design that is not calibrated, so it has no guarantee; first: antiphase "
            f"calibrate {file} --epsilon … --delta … -o …"
        )
    return mechanism
