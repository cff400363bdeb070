"""``antiphase statement``: the privacy statement of a mechanism file."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphase.cli.calibrate import File
from antiphase.cli.console import Delta, Json, misused


def statement(
    file: File,
    delta: Delta = None,
    released: Annotated[
        int | None, typer.Option(help="How many rows have been released so far.", min=0)
    ] = None,
    as_json: Json = False,
) -> None:
    """What a mechanism promises, in words, or as JSON that anybody can re-derive.

    FILE is a mechanism that design or calibrate wrote.

    Example: antiphase statement plan.antiphase
    """
    import antiphase as ap

    mechanism = ap.load(file)
    if not isinstance(mechanism, ap.Mechanism):
        raise ValueError(
            f"{file} holds a design that is not calibrated, and promises nothing; first: antiphase calibrate {file} "
            "--epsilon … --delta … -o …"
        )
    if delta is None and mechanism.target_delta is None:
        raise misused(
            f"{file} was made without δ: give --delta, well below one over the number of records"
        )
    made = mechanism.statement(delta, released=released)
    print(made.to_json() if as_json else made)
