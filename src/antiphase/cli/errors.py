"""Exit codes, and how errors and warnings of a command are shown."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from antiphase.cli import output
from antiphase.errors import AntiphaseError, AntiphaseWarning

EXIT_NO = 1  # the answer of verify or audit is no; never used for anything else
EXIT_ERROR = 2  # the command could not be carried out: there is no answer
EXIT_INTERRUPTED = 130  # by Ctrl-C, as in shells

# How the package reports invalid input. Every other exception is a bug.
INPUT_ERRORS = (AntiphaseError, ValueError, TypeError, ImportError, MemoryError)


class UserCodeError(Exception):
    """Code of the user raised the exception that is the cause of this one."""


def usage_error(message: str) -> click.UsageError:
    """Return an error for a command line that is wrong; it points to ``--help``."""
    return click.UsageError(message, click.get_current_context(silent=True))


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
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(EXIT_ERROR)
    except click.UsageError as error:
        command = "antiphase" if error.ctx is None else error.ctx.command_path
        message = " ".join(error.format_message().split()).rstrip(".")
        fail(f"{message}. See: {command} --help")
    except (KeyboardInterrupt, click.Abort):
        interrupted("by Ctrl-C")
    except UserCodeError as error:
        traceback.print_exception(error.__cause__)
        fail(str(error))
    except OSError as error:
        _print_traceback_if_asked()
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


def fail(message: str) -> NoReturn:
    """Print an error and exit."""
    output.print_error("error", message)
    sys.exit(EXIT_ERROR)


def interrupted(message: str) -> NoReturn:
    """Print what Ctrl-C interrupted and exit."""
    output.print_error("interrupted", message)
    sys.exit(EXIT_INTERRUPTED)


def _print_traceback_if_asked() -> None:
    if os.environ.get("ANTIPHASE_TRACEBACK"):
        traceback.print_exc()


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    output.print_warning(str(message))
