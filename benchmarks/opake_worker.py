"""The worker of opake, in its own environment: as documented, at its defaults."""

import os
import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from opake import dpftrl
from opake.random import key
from opake.types import ClippedPytree

import worker_protocol

FOLDER = sys.argv[1]
STREAMS = {}


def recipe(work, bands=None, buffers=None):
    return (
        dpftrl.blt_strategy(max_buffers=buffers)
        if work == "blt"
        else dpftrl.band_mf_strategy(bands=bands)
    )


def timed_design(work, steps, epochs=1, **settings):
    """The encoder from its coefficients (it is Toeplitz); opake caches designs in this process."""
    began = time.perf_counter()
    found = recipe(work, **settings).coefficients(
        n_steps=steps, min_sep=steps // epochs, max_participations=epochs
    )
    taken = time.perf_counter() - began
    c = np.zeros(steps)
    c[: len(found)] = np.asarray(found, dtype=np.float64)[:steps]
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    path = os.path.join(FOLDER, "encoder.npy")
    np.save(path, np.where(lag >= 0, c[lag], 0.0))
    return {"seconds": taken, "encoder": path}


def stream(name, steps, parameters, vectors=4):
    """Start a noise stream for a gradient of so many parameters, and draw its first row."""
    made = recipe("blt", buffers=vectors) if name == "blt" else recipe("banded", bands=vectors + 1)
    gradient = {"weight": torch.zeros(parameters)}
    began = time.perf_counter()
    noise, state = dpftrl.mf_gaussian_noise(
        gradient,
        made,
        n_steps=steps,
        min_sep=steps,
        max_participations=1,
        noise_multiplier=1.0,
        key=key(0),
    )
    STREAMS[name, parameters] = [gradient, noise, state]
    row(name, parameters)
    return {"seconds": time.perf_counter() - began}


def row(name, parameters):
    gradient, noise, state = STREAMS[name, parameters]
    began = time.perf_counter()
    _, state = noise(ClippedPytree(gradient, 1.0), state)
    taken = time.perf_counter() - began
    STREAMS[name, parameters][2] = state
    return {"seconds": taken}


def answer(work, **settings):
    return {"stream": stream, "row": row}.get(work, lambda **rest: timed_design(work, **rest))(
        **settings
    )


if __name__ == "__main__":
    worker_protocol.serve({"version": version("opake"), "torch": torch.__version__}, answer)
