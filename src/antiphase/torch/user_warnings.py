"""Warnings that point at the user's code, not at a line of antiphase."""

from __future__ import annotations

import sys
import warnings

from antiphase.errors import AntiphaseWarning

LIBRARIES = ("antiphase", "opacus", "torch", "lightning", "pytorch_lightning", "transformers")


def warn(message: str) -> None:
    """Issue an `AntiphaseWarning` at the innermost frame outside of the training libraries."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _package(frame.f_globals) in LIBRARIES:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, AntiphaseWarning, stacklevel=level)


def _package(namespace: dict[str, object]) -> str:
    return str(namespace.get("__name__", "")).partition(".")[0]
