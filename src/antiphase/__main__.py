"""The command ``antiphase``, also as ``python -m antiphase``; starts without the extra `cli`."""

from __future__ import annotations

import sys

from antiphase import __version__
from antiphase._util.extras import optional


def main() -> None:
    """Run the command line; without the extra `cli`, only ``--version`` works."""
    if sys.argv[1:] == ["--version"]:
        print(f"antiphase {__version__}")
        return
    try:
        with optional("cli", "the command line", "Typer and Rich"):
            import rich  # noqa: F401
            import typer  # noqa: F401
        from antiphase import cli
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    cli.main()


if __name__ == "__main__":
    main()
