"""The command line: ``antiphase design``, ``compare``, ``calibrate``, ``statement``, ``verify``, ``audit``, ``recommend``,
``train``, ``data``, ``demo``.

Exit codes: 0 done, and a claim that was looked at stands; 1 the answer is no (`verify`, `audit`); 2 could not be
done, whatever the reason; 130 stopped by Ctrl-C. Results go to standard output, everything else to standard error.
What takes long is imported when a command needs it.
"""

from __future__ import annotations

import sys

import typer

from antiphase.cli import (
    audit,
    calibrate,
    compare,
    data,
    demo,
    design,
    recommend,
    statement,
    train,
    verify,
)
from antiphase.cli.console import INTERRUPTED, failures

app = typer.Typer(
    name="antiphase",
    help="Differentially private training with noise that cancels itself over the steps.",
    epilog="Exit codes: 0 done; 1 the answer is no (a check of verify fails, audit has an alarm); "
    "2 could not be done (not understood, a bad value, a file that is missing or damaged, an error); 130 Ctrl-C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from antiphase import __version__

        print(f"antiphase {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


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
    app.command()(command)


def main() -> None:
    """What the ``antiphase`` command runs."""
    with failures():
        code = app(prog_name="antiphase", standalone_mode=False) or 0
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)


if __name__ == "__main__":
    main()
