"""The worker of JAX Privacy, in its own environment: as documented, at its defaults."""

import os
import sys
import time

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import banded, buffered_toeplitz, dense, toeplitz

import worker_protocol

FOLDER = sys.argv[1]
STREAMS = {}


def dense_design(steps, epochs):
    return np.asarray(dense.optimize(steps, epochs=epochs))


def banded_design(steps, bands):
    return np.asarray(banded.optimize(steps, bands=bands).materialize())


def toeplitz_design(steps, bands):
    coefficients = toeplitz.optimize_banded_toeplitz(steps, bands)
    return np.asarray(toeplitz.materialize_lower_triangular(coefficients, steps))


def blt_design(steps, buffers, epochs=1):
    blt = buffered_toeplitz.optimize(
        n=steps, min_sep=steps // epochs, max_participations=epochs, error="mean",
        min_buffers=buffers, max_buffers=buffers,
    )  # fmt: skip
    return np.asarray(blt.materialize(steps))


def timed_design(work, settings):
    designs = {
        "dense": dense_design,
        "banded": banded_design,
        "toeplitz": toeplitz_design,
        "blt": blt_design,
    }
    began = time.perf_counter()
    with jax.enable_x64():
        encoder = designs[work](**settings)
    taken = time.perf_counter() - began
    path = os.path.join(FOLDER, "encoder.npy")
    np.save(path, encoder)
    return {"seconds": taken, "encoder": path}


def stream(name, steps, parameters, vectors=4):
    """Start a noise stream for a gradient of so many parameters, and draw its first row."""
    if name == "blt":
        with jax.enable_x64():
            found = buffered_toeplitz.optimize(
                n=steps, error="mean", min_buffers=vectors, max_buffers=vectors
            )
        # As its own error message advises for streams in single precision.
        made = buffered_toeplitz.BufferedToeplitz.build(
            buf_decay=np.asarray(found.buf_decay),
            output_scale=np.asarray(found.output_scale),
            dtype=jnp.float32,
        ).inverse_as_streaming_matrix()
    elif name == "toeplitz":
        coefficients = toeplitz.optimal_max_error_strategy_coefs(vectors + 1)
        made = toeplitz.inverse_as_streaming_matrix(
            coefficients / jnp.linalg.norm(coefficients), steps
        )
    elif name == "banded":
        made = banded.ColumnNormalizedBanded.default(
            steps, vectors + 1
        ).inverse_as_streaming_matrix()
    else:
        made = None
    gradient = jnp.zeros(parameters, dtype=jnp.float32)
    if made is None:
        privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=0)
    else:
        privatizer = noise_addition.matrix_factorization_privatizer(
            made, stddev=1.0, prng_key=0, dtype=jnp.float32
        )
    began = time.perf_counter()
    state, update = privatizer.init(gradient), jax.jit(privatizer.update)
    STREAMS[name, parameters] = [gradient, update, state]
    row(name, parameters)
    return {"seconds": time.perf_counter() - began}


def row(name, parameters):
    gradient, update, state = STREAMS[name, parameters]
    began = time.perf_counter()
    noised, state = update(gradient, state)
    jax.block_until_ready((noised, state))
    taken = time.perf_counter() - began
    STREAMS[name, parameters][2] = state
    return {"seconds": taken}


def answer(work, **settings):
    if work == "stream":
        return stream(**settings)
    if work == "row":
        return row(**settings)
    return timed_design(work, settings)


if __name__ == "__main__":
    worker_protocol.serve({"version": jax_privacy.__version__, "jax": jax.__version__}, answer)
