"""The certified optimum for a workload, an objective and a participation: the cheapest way that applies, and the
cache."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from antiphase import cache, files
from antiphase.errors import FileFormatError
from antiphase.factorization.base import Factorization, restore
from antiphase.factorization.blocks import block_optimum, decouples
from antiphase.factorization.dense import dense_optimum
from antiphase.factorization.dual import Progress
from antiphase.objective import Objective
from antiphase.participation import Once, Participation
from antiphase.values import digest
from antiphase.workload import Workload

ALGORITHM = 1  # part of the cache's key: raise it when the same question would get another answer
WORTH_KEEPING = 0.1  # seconds


def optimal(
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    name: str = "optimal",
    options: dict[str, Any] | None = None,
    tolerance: float = 1e-9,
    progress: Progress | None = None,
) -> Factorization:
    """The factorization of least error, with a certified bound on how far from least it can be.   [G5]"""
    blocks = isinstance(participation, Once) and decouples(workload, objective)
    question = {
        "algorithm": ALGORITHM,
        "form": "blocks" if blocks else "dense",
        "workload": workload,
        "objective": objective,
        "participation": participation,
        "tolerance": tolerance,
    }
    path = cache.entry(digest(question))
    if path is not None and path.exists():
        try:
            return replace(restore(files.read(path), path), name=name, options=options or {})
        except (FileFormatError, OSError):
            path.unlink(missing_ok=True)  # damaged: as good as none
    began = time.perf_counter()
    solve: Any = block_optimum if blocks else dense_optimum
    found: Factorization = solve(
        name,
        workload,
        objective,
        participation,
        options=options or {},
        tolerance=tolerance,
        progress=progress,
    )
    if path is not None and time.perf_counter() - began > WORTH_KEEPING:
        with suppress(OSError):  # a full disk costs time next time, nothing else
            found.save(path)
    return found
