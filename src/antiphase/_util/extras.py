"""Optional dependencies: the extra to install where one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def missing(extra: str, what: str, needs: str) -> str:
    """Return the message that ``what`` needs libraries of an extra, and how to install it.

    Example:
        >>> missing("data", "data = 'digits'", "scikit-learn")
        "data = 'digits' needs scikit-learn: pip install 'antiphase[data]'"
    """
    return f"{what} needs {needs}: pip install 'antiphase[{extra}]'"


@contextmanager
def optional(
    extra: str, what: str, needs: str, error: type[Exception] = ImportError
) -> Iterator[None]:
    """Turn a failed import within the block into an error that names the extra to install.

    Args:
        extra: the extra that has the libraries.
        what: what needs them.
        needs: their names.
        error: class of the error.
    """
    try:
        yield
    except ImportError as cause:
        raise error(missing(extra, what, needs)) from cause
