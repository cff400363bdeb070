"""The command line: ``antiphase COMMAND``, one file for each command."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from antiphase import __version__
from antiphase.cli import (
    audit,
    calibrate,
    compare,
    data,
    demo,
    design,
    options,
    recommend,
    statement,
    train,
    verify,
)
from antiphase.cli.errors import (
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    USAGE_ERROR,
    exit_codes,
    suggestion,
    usage_error,
)


class Commands(TyperGroup):
    """All commands: one that does not exist is an error with a suggestion."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with."""
        if args[0] not in self.commands:
            similar = suggestion(args[0], self.commands)
            raise usage_error(f"antiphase has no command {args[0]}{similar}")
        return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A command, whose errors name it."""

    allow_extra_args = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; refuse more of them than the command takes."""
        try:
            super().parse_args(ctx, args)
            if ctx.args and not ctx.resilient_parsing:
                raise usage_error(f"unexpected argument {' '.join(ctx.args)}")
        except USAGE_ERROR as error:
            error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return []


app = typer.Typer(
    name="antiphase",
    cls=Commands,
    help="Differentially private training with correlated noise.",
    epilog="Exit codes: 0 done; 1 the answer is no (a check of verify fails, audit has an alarm); "
    "2 error (wrong usage, invalid value, missing or damaged file, bug); 130 Ctrl-C. "
    "ANTIPHASE_TRACEBACK=1 in the environment shows the traceback of every error.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
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
        print(context.get_help(), end="")
        raise typer.Exit(EXIT_ERROR)


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
    app.command(cls=Command, help=options.help_text(command))(options.expand_groups(command))


def main() -> None:
    """Run the ``antiphase`` command."""
    with exit_codes():
        code = app(prog_name="antiphase", standalone_mode=False) or 0
        if code == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)


if __name__ == "__main__":
    main()
