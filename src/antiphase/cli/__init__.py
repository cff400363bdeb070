"""The command line: ``antiphase COMMAND``, one file for each command."""

from __future__ import annotations

import sys

import typer
from typer import Option

from antiphase import __version__
from antiphase.cli import (
    audit,
    calibrate,
    compare,
    data,
    demo,
    design,
    options,
    output,
    recommend,
    statement,
    train,
    verify,
)
from antiphase.cli.commands import Command, Commands, expand_groups, help_text, unbroken
from antiphase.cli.errors import EXIT_ERROR, EXIT_INTERRUPTED, exit_codes

app = typer.Typer(
    name="antiphase",
    cls=Commands,
    help="Differentially private training with correlated noise.",
    epilog=unbroken(
        "Exit codes: 0 done; 1 the answer is no (a check of verify fails, audit has an alarm); "
        "2 error (wrong usage, invalid value, missing or damaged file, bug); 130 Ctrl-C. "
        "ANTIPHASE_TRACEBACK=1 in the environment shows the traceback of every error."
    ),
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"antiphase {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(EXIT_ERROR)


# Commands whose options or results have the words of the glossary.
WITH_GLOSSARY = (
    design.design,
    compare.compare,
    calibrate.calibrate,
    statement.statement,
    verify.verify,
    train.train,
)

for command in (
    design.design,
    compare.compare,
    recommend.recommend,
    calibrate.calibrate,
    statement.statement,
    verify.verify,
    audit.audit,
    train.train,
    data.data,
    demo.demo,
):
    epilog = unbroken(options.GLOSSARY) if command in WITH_GLOSSARY else None
    app.command(cls=Command, help=help_text(command), epilog=epilog)(expand_groups(command))


def main() -> None:
    """Run the ``antiphase`` command."""
    with output.readers_may_leave(), exit_codes():
        code = app(prog_name="antiphase", standalone_mode=False) or 0
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)


if __name__ == "__main__":
    main()
