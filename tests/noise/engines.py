"""A factorization for every engine and every special case of one."""

import numpy as np

import antiphase as ap
from antiphase.factorizations.dense import Dense
from antiphase.factorizations.segments import Segment
from antiphase.factorizations.streaming import Streaming
from antiphase.noise.generators import (
    BandedInverseEngine,
    BufferEngine,
    RegenerationEngine,
    RingBufferEngine,
    TreeEngine,
)
from antiphase.objective import Average, Restarts
from antiphase.problem import Problem
from antiphase.solvers.block_diagonal import block_diagonal_optimum

T, D = 32, 20_000
RUN = "0123456789abcdef" * 2


AVERAGED = ap.Workload.sgd(T, momentum=0.9).with_ema(0.9)  # three vectors a node
NESTEROV = ap.Workload.sgd(
    T, momentum=0.9, nesterov=True, delay=2, learning_rates=[1.0] * (T - 3) + [0.0] * 3
)
GAPS = ap.Workload.sgd(T, learning_rates=[1.0, 0.0, 1.0, 1.0] * (T // 4), weight_decay=0.1)


def exactly(workload):
    """With momentum each buffer has several vectors, unlike in streams of few buffers."""
    return ap.design("dp-mf", workload=workload, buffers="exact")


def blocks(tau):
    problem = Problem(ap.Workload.sgd(T), Restarts(tau), ap.once())
    return block_diagonal_optimum(problem, tolerance=1e-9)


def banded():
    C = np.eye(T) + 0.5 * np.eye(T, k=-1) - 0.2 * np.eye(T, k=-3)
    C[5, 4], C[9, 8] = -1.0, 1.0  # not passed over, as zeros are
    return Dense("banded", ap.Workload.sgd(T), Average(), ap.once(), C)


def diagonals(count):
    """An encoder of one or two diagonals whose rows all differ."""
    C = np.diag(np.linspace(0.5, 1.0, T)) + (count - 1) * np.diag(
        np.linspace(-0.4, 0.3, T - 1), k=-1
    )
    return Dense("banded", ap.Workload.sgd(T), Average(), ap.once(), C)


def two_segments():
    """The last step feeds the buffers too, which must not be carried over."""
    rng, shape = np.random.default_rng(5), (T // 2, 2, 1)
    r, g, move = (rng.uniform(0.2, 0.6, size=shape) for _ in range(3))
    segment = Segment(T // 2, np.arange(T // 2), rng.uniform(0.5, 1.0, size=T // 2), r, g, move)
    return Streaming("dp-mf", ap.Workload.sgd(T), Average(), ap.once(), (segment,), (0, 0))


ENGINES = {  # name: (factorization, the engine it must get, diagonals up to which a ring is used)
    "independent": (lambda: ap.design("dp-sgd", steps=T), RingBufferEngine, 64),
    "ring": (banded, RingBufferEngine, 64),
    "ring, one diagonal": (lambda: diagonals(1), RingBufferEngine, 64),
    "ring, two diagonals": (lambda: diagonals(2), RingBufferEngine, 64),
    "ring, whole": (lambda: ap.design("dp-mf", steps=T, epochs=4), RingBufferEngine, 64),
    "ring, blocks": (lambda: blocks(5), RingBufferEngine, 64),
    "ring, toeplitz": (lambda: ap.design("sqrt-toeplitz", steps=T), RingBufferEngine, 64),
    "regenerated": (lambda: ap.design("dp-mf", steps=T, epochs=4), RegenerationEngine, 1),
    "regenerated, blocks": (lambda: blocks(7), RegenerationEngine, 1),
    "regenerated, anti": (lambda: ap.design("anti-pgd", steps=T), RegenerationEngine, 1),
    "buffers": (lambda: ap.design("dp-mf", steps=T), BufferEngine, 64),
    "buffers, exact": (lambda: ap.design("dp-mf", steps=T, buffers="exact"), BufferEngine, 64),
    "buffers, restarts": (lambda: ap.design("dp-mf+", steps=T, tau=5), BufferEngine, 64),
    "buffers, two segments": (two_segments, BufferEngine, 64),
    "buffers, momentum": (lambda: exactly(ap.Workload.sgd(T, momentum=0.9)), BufferEngine, 64),
    "buffers, momentum and average": (lambda: exactly(AVERAGED), BufferEngine, 64),
    "buffers, nesterov and idle steps": (lambda: exactly(NESTEROV), BufferEngine, 64),
    "buffers, idle steps": (lambda: ap.design("dp-mf", workload=GAPS), BufferEngine, 64),
    "buffers, windows": (
        lambda: ap.design("dp-mf", steps=T, epochs=4, buffers=3),
        BufferEngine,
        64,
    ),
    "buffers, blt": (lambda: ap.design("blt", steps=T, buffers=2), BufferEngine, 64),
    "ring, banded": (lambda: ap.design("banded", steps=T, epochs=4, bands=6), RingBufferEngine, 64),
    "moving, drawn again": (lambda: ap.design("lambda-cgd", steps=T), BandedInverseEngine, 64),
    "moving, three drawn again": (
        lambda: ap.design("bisr", steps=T, bands=4),
        BandedInverseEngine,
        64,
    ),
    "moving, kept": (lambda: ap.design("bisr", steps=T, bands=9), BandedInverseEngine, 64),
    "tree, full": (lambda: ap.design("tree", steps=T), BufferEngine, 64),
    "tree, full, 27 steps": (lambda: ap.design("tree", steps=27), BufferEngine, 64),
    "tree, online": (lambda: ap.design("tree", steps=T, estimator="online"), TreeEngine, 64),
    "tree, plain": (lambda: ap.design("tree", steps=T, estimator="plain"), TreeEngine, 64),
}


def rows_of(mechanism, dimension=D, seed=1, run=RUN, **options):
    return np.array(list(mechanism.noise(dimension, key=ap.Key.insecure(seed), run=run, **options)))


def normals(stream, step, lane=0):
    out = np.empty(1024, np.float32)
    stream._pieces[0].normals.fill(step, 0, out, lane=lane)
    return out
