"""What the noise of a mechanism costs a model of so many parameters: bytes from step to step, seconds for a row."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from antiphase.mechanism import Mechanism
from antiphase.noise import Key

if TYPE_CHECKING:
    from antiphase.noise.stream import NoiseStream

MEASURED = 8192  # numbers a row of noise has where making it takes long: the time is proportional
ENOUGH = 128  # rows of such a stream that are timed
WIDEST = (
    1 << 21
)  # numbers a row has that is timed elsewhere; for larger models, too, the time is proportional
MEMORY = 512_000_000  # bytes that noise keeps, where it has a choice; and bytes that a measurement may take


def padded(parameters: int) -> int:
    from antiphase.noise.normals import CHUNK

    return -(-parameters // CHUNK) * CHUNK


def kept_bytes(mechanism: Mechanism, parameters: int) -> int:
    """What the noise keeps from step to step: seen at a small model, for it is proportional."""
    from antiphase.noise.generators import engine_for

    whole, width = padded(parameters), min(padded(parameters), MEASURED)
    needed = (
        engine_for(mechanism.factorization, mechanism.noise_scale, width, 1 << 60).memory
        // width
        * whole
    )
    if _is_regenerated(mechanism):  # as many rows as there is room for, at least four
        return min(needed, max(MEMORY // (16 * whole), 1) * 16 * whole)
    return needed


def _is_regenerated(mechanism: Mechanism) -> bool:
    from antiphase.noise.generators import engine_for
    from antiphase.noise.normals import CHUNK

    engine = engine_for(mechanism.factorization, mechanism.noise_scale, CHUNK, 1 << 60)
    return engine.regenerates


def seconds_a_row(mechanism: Mechanism, parameters: int, memory: int) -> float:
    """Seconds for a row of noise, where it takes longest; measured at a smaller model where this one is large."""

    def stream(width: int, budget: int = 2 * MEMORY) -> NoiseStream:
        return mechanism.noise(width, key=Key.insecure(0), memory=budget)  # nothing is released

    whole = padded(parameters)
    if not _is_regenerated(mechanism):
        width = max(min(parameters, WIDEST, MEMORY * whole // max(memory, 1)), 1)
        stream(width).next()  # what takes time but once
        return (
            parameters / width * float(np.median(_times(stream(width), min(mechanism.steps, 12))))
        )
    # All earlier normals are drawn again for a block of rows: the last block takes longest.
    rows = min(mechanism.steps, ENOUGH, memory // (4 * whole))
    width = min(whole, MEASURED)
    last = stream(width, 4 * width * max(rows, 4))
    last.skip(mechanism.steps - rows)
    return whole / width * sum(_times(last, rows)) / rows


def _times(stream: NoiseStream, rows: int) -> list[float]:
    times = []
    for _ in range(rows):
        began = time.perf_counter()
        stream.next()
        times.append(time.perf_counter() - began)
    return times
