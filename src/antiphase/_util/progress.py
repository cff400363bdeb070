"""Progress reports of long operations and the callback that receives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ProgressReport:
    """State of a long operation at one moment.

    Attributes:
        done: units finished so far: iterations, trials, bytes or steps.
        total: units in all, or None if this is not known.
        gap: relative gap (or decrease) of a search so far, or None where there is no search.
        task: what the operation works on at the moment.
        metrics: newest measurements of a training run, such as ``accuracy`` and ``loss``.

    Example:
        >>> ProgressReport(3, total=10, task="blt").done
        3
    """

    done: int
    total: int | None = None
    gap: float | None = None
    task: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)


Progress = Callable[[ProgressReport], object]
"""Callback for progress reports; a search that can be stopped early stops if this returns True."""
