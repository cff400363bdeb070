"""Exit codes, and how errors and warnings of a command are shown."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from antiphase._util.suggestions import suggestion
from antiphase.cli import output
from antiphase.errors import AntiphaseError, AntiphaseWarning

EXIT_NO = 1  # the answer of verify or audit is no; never used for anything else
EXIT_ERROR = 2  # the command could not be carried out: there is no answer
EXIT_INTERRUPTED = 130  # by Ctrl-C, as in shells

# How the package reports invalid input. Every other exception is a bug.
INPUT_ERRORS = (AntiphaseError, ValueError, TypeError, ImportError, MemoryError)


# The base class of Typer's errors about the command line, which Typer does not export.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


class UserCodeError(Exception):
    """Code of the user raised the exception that is the cause of this one."""


class _OwnMessage(typer.BadParameter):
    def format_message(self) -> str:
        return self.message


def usage_error(message: str) -> typer.BadParameter:
    """Return an error for a command line that is wrong; it points to ``--help``."""
    return _OwnMessage(message)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn exceptions into one message on standard error and an exit code.

    Invalid input ends with one line. A bug keeps its traceback, and so does code of the user. Set
    ``ANTIPHASE_TRACEBACK=1`` to see the traceback of every error.
    """
    try:
        with warnings.catch_warnings():
            # Warnings of libraries are for their callers, not for users of the command line.
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", AntiphaseWarning)
            warnings.showwarning = _show_warning
            yield
    except USAGE_ERROR as error:
        message = " ".join(_usage_message(error).split())
        end = "" if message.endswith("?") else "."
        fail(f"{message.rstrip('.')}{end} See: {_command(error)} --help")
    except (KeyboardInterrupt, typer.Abort):
        interrupted("by Ctrl-C")
    except UserCodeError as error:
        traceback.print_exception(error.__cause__)
        fail(str(error))
    except OSError as error:
        _print_traceback_if_asked()
        if isinstance(error, IsADirectoryError) and error.filename is not None:
            fail(f"{error.filename}: is a folder; give a file")
        if error.strerror and error.filename is not None:
            fail(f"{error.filename}: {error.strerror}")
        fail(str(error) or type(error).__name__)
    except INPUT_ERRORS as error:
        _print_traceback_if_asked()
        if isinstance(error, MemoryError) and not str(error):
            fail("not enough memory")
        fail(str(error) or type(error).__name__)
    except Exception:
        traceback.print_exc()
        sys.exit(EXIT_ERROR)


def _command(error: Any) -> str:
    return "antiphase" if error.ctx is None else str(error.ctx.command_path)


def _usage_message(error: Any) -> str:
    """Say what is wrong with the command line, in the same words with every version of Typer."""
    kind = type(error).__name__
    if kind == "NoSuchOption":
        known = [option for parameter in error.ctx.command.params for option in parameter.opts]
        name = error.option_name
        if not name.startswith("--"):  # Typer reads -steps as -s
            name = next((word for word in sys.argv[1:] if word.startswith(name)), name)
        similar = suggestion("--" + name.strip("-"), known)
        return f"{_command(error)} has no option {name}{similar}"
    if kind == "MissingParameter":
        # Typer on Click 8.5 loses the help of arguments.
        meaning = (error.param.help or "").replace(output.HYPHEN, "-")
        what = f": {meaning[0].lower()}{meaning[1:]}" if meaning else ""
        return f"{_name(error.param)} is missing{what}"
    if kind == "BadOptionUsage":
        needs = "requires" in error.message
        return f"{error.option_name} {'needs a value' if needs else 'does not take a value'}"
    if getattr(error, "param", None) is not None:
        return f"{_name(error.param)} {error.message}"
    return str(error.format_message())


def _name(parameter: Any) -> str:
    """Return the name of a parameter as it is typed, or as it stands in the usage line."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(next(name for name in parameter.opts if name.startswith("--")))


def fail(message: str) -> NoReturn:
    """Print an error and exit."""
    output.print_error("error", message)
    sys.exit(EXIT_ERROR)


def interrupted(message: str, command: str = "") -> NoReturn:
    """Print what Ctrl-C interrupted, and a command to go on with on a line of its own; exit."""
    output.print_error("interrupted", message)
    if command:
        output.print_hint(command, quiet=False)
    sys.exit(EXIT_INTERRUPTED)


def _print_traceback_if_asked() -> None:
    if os.environ.get("ANTIPHASE_TRACEBACK"):
        traceback.print_exc()


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    output.print_warning(str(message))
