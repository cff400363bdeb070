"""The command line: ``antiphase COMMAND``, one file for each command."""

from __future__ import annotations

import sys

import typer
from typer import Option

from antiphase import __version__
from antiphase.cli import output
from antiphase.cli.commands import Commands
from antiphase.cli.errors import EXIT_ERROR, EXIT_INTERRUPTED, exit_codes

app = typer.Typer(
    name="antiphase",
    cls=Commands,
    help="Differentially private training with correlated noise.",
    epilog=output.unbroken(
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


# The help of all commands shows these lines without importing them.
COMMANDS = {
    "design": "Design a mechanism and write it to a file.",
    "compare": "Compare mechanisms at equal privacy.",
    "recommend": "Recommend a mechanism for a setting.",
    "calibrate": "Calibrate a design to ε, or compute its ε.",
    "statement": "Print the privacy statement of a mechanism.",
    "verify": "Check a mechanism file by other methods.",
    "audit": "Test a privacy claim by an attack.",
    "train": "Train a model with differential privacy.",
    "data": "Download, check and describe a data set.",
    "demo": "Compare five mechanisms on digits.",
}
for name, summary in COMMANDS.items():
    app.command(name, help=summary)(lambda: None)


def main() -> None:
    """Run the ``antiphase`` command."""
    with output.readers_may_leave(), exit_codes():
        code = app(prog_name="antiphase", standalone_mode=False) or 0
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)


if __name__ == "__main__":
    main()
