"""Memory and time of a mechanism's noise, for a model of a given size."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from antiphase.mechanism import Mechanism
from antiphase.noise import Key

if TYPE_CHECKING:
    from antiphase.factorizations.base import Factorization
    from antiphase.noise.generators import Engine
    from antiphase.noise.stream import NoiseStream

MAX_REGENERATED_WIDTH = 8192  # numbers in a row that is timed if rows are regenerated
MAX_REGENERATED_ROWS = 128  # rows that are timed then
MAX_WIDTH = 1 << 21  # numbers in a row that is timed otherwise
MAX_ROWS = 12  # rows that are timed otherwise
MAX_BYTES = 512_000_000  # that noise keeps if it has a choice, and that a measurement may take
ENOUGH_BYTES = 1 << 60  # memory limit that no generator reaches


def padded(parameters: int) -> int:
    """Numbers in a row of noise for so many parameters."""
    from antiphase.noise.normals import CHUNK  # slow to import: see antiphase.noise

    return -(-parameters // CHUNK) * CHUNK


def redraws(factorization: Factorization) -> bool:
    """Whether earlier normals are drawn again for every block of rows: dense noise."""
    return _engine(factorization, padded(1)).regenerates


def kept_bytes(factorization: Factorization, parameters: int) -> int:
    """Bytes that the noise keeps from step to step; scaled up from a small model."""
    row = padded(parameters)
    width = min(row, MAX_REGENERATED_WIDTH)
    engine = _engine(factorization, width)
    needed = engine.memory // width * row
    if engine.regenerates:  # as many rows as fit, at least four
        return min(needed, max(MAX_BYTES // (16 * row), 1) * 16 * row)
    return needed


def row_seconds(mechanism: Mechanism, parameters: int, memory: int) -> float:
    """Seconds for the slowest row of noise; scaled up from a smaller model if this one is large.

    Args:
        mechanism: whose noise it is.
        parameters: number of parameters of the model.
        memory: what `kept_bytes` returned.
    """

    def stream(width: int, limit: int = 2 * MAX_BYTES) -> NoiseStream:
        return mechanism.noise(width, key=Key.insecure(0), memory=limit)  # nothing is released

    row = padded(parameters)
    if not redraws(mechanism.factorization):
        width = max(min(parameters, MAX_WIDTH, MAX_BYTES * row // max(memory, 1)), 1)
        stream(width).next()  # compiles
        times = _times(stream(width), min(mechanism.steps, MAX_ROWS))
        return parameters / width * float(np.median(times))
    # All earlier normals are drawn again for a block of rows: the last block takes longest.
    rows = min(mechanism.steps, MAX_REGENERATED_ROWS, memory // (4 * row))
    width = min(row, MAX_REGENERATED_WIDTH)
    last = stream(width, 4 * width * max(rows, 4))
    last.skip(mechanism.steps - rows)
    return row / width * sum(_times(last, rows)) / rows


def _engine(factorization: Factorization, width: int) -> Engine:
    from antiphase.noise.generators import engine_for

    return engine_for(factorization, 1.0, width, ENOUGH_BYTES)


def _times(stream: NoiseStream, rows: int) -> list[float]:
    times = []
    for _ in range(rows):
        began = time.perf_counter()
        stream.next()
        times.append(time.perf_counter() - began)
    return times
