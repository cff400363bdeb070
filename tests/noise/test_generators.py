"""Engines: which one a factorization gets, what it keeps, and what it makes again."""

import numpy as np
import pytest
from scipy.linalg import solve_triangular

import antiphase as ap
from antiphase.noise import generators
from antiphase.noise.generators import RegenerationEngine, RingBufferEngine, engine_for
from antiphase.noise.normals import CHUNK
from tests.noise.engines import ENGINES, RUN, T, normals


@pytest.mark.parametrize("name", ["sqrt-toeplitz", "anti-pgd"])
@pytest.mark.parametrize("rows", [4, 8, 36, 200])
def test_regenerated_rows_agree_with_float64_for_every_memory(name, rows):
    """150 steps that depend on all others, or only the last does; all fit in memory or not."""
    f = ap.design(name, steps=150)
    m = ap.calibrate(f, noise_multiplier=1.3)
    stream = m.noise(64, key=ap.Key.insecure(1), run=RUN, memory=4 * CHUNK * rows + 11)
    assert isinstance(stream._engine, RegenerationEngine)
    assert stream.memory == 4 * CHUNK * min(rows, 152)
    made = np.array(list(stream), dtype=np.float64)
    Z = np.array([normals(stream, t)[:64] for t in range(150)], dtype=np.float64)
    exact = m.noise_scale * solve_triangular(f.encoder(), Z, lower=True)
    np.testing.assert_allclose(made, exact, atol=1e-5 * m.noise_scale)


def test_earlier_normals_are_drawn_once_for_many_rows():
    engine = engine_for(ap.design("sqrt-toeplitz", steps=150), 1.0, CHUNK, 4 * CHUNK * 8)
    assert [t for t in range(150) if engine.begin(t)] == list(range(0, 150, 8))


@pytest.mark.parametrize(
    ("name", "restarts"),
    [
        ("independent", lambda step: step),
        ("ring", lambda step: 0),
        ("ring, blocks", lambda step: step // 5 * 5),
        ("buffers, restarts", lambda step: step // 5 * 5),
        ("regenerated", lambda step: step),
        ("tree, plain", lambda step: 0),
        ("moving, kept", lambda step: max(step - 8, 0)),
        ("moving, drawn again", lambda step: step),
    ],
)
def test_rows_are_made_again_from_the_last_restart_on(mechanism, restarts):
    engine = engine_for(mechanism.factorization, 1.0, CHUNK, 10**8)
    assert [engine.restart(step) for step in range(T)] == [restarts(step) for step in range(T)]


def test_the_memory_of_each_engine():
    """In rows: p − 1 for p diagonals, one for each level or buffer; 0 for independent noise."""
    kept = {
        "independent": 0, "ring": 3, "ring, one diagonal": 0, "ring, two diagonals": 1,
        "ring, blocks": 4, "ring, whole": T - 1, "tree, plain": 6, "tree, online": 6,
        "regenerated": T, "regenerated, blocks": 8,
    }  # fmt: skip
    for name, vectors in kept.items():
        make, kind, longest = ENGINES[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(generators, "MAX_RING_BANDS", longest)
            engine = engine_for(make(), 1.0, 3 * CHUNK, 10**8)
        assert isinstance(engine, kind), name
        assert engine.memory == vectors * 4 * 3 * CHUNK, name
        assert engine.regenerates == name.startswith("regenerated")
    streamed = ap.design("dp-mf", steps=T)
    assert engine_for(streamed, 1.0, 3 * CHUNK, 10**8).memory == streamed.buffers * 4 * 3 * CHUNK


def test_four_earlier_normals_are_drawn_again_and_five_are_kept():
    """Also where there is memory for no more than that."""
    for bands, rows in ((2, 0), (5, 0), (6, 5)):
        needed = rows * 4 * CHUNK
        assert (
            engine_for(ap.design("bisr", steps=T, bands=bands), 1.0, CHUNK, needed).memory == needed
        )
    with pytest.raises(ValueError, match=f"an inverse of 6 diagonals takes {needed} bytes"):
        engine_for(ap.design("bisr", steps=T, bands=6), 1.0, CHUNK, needed - 1)


def test_64_diagonals_are_kept_and_65_are_drawn_again():
    for steps, kind in ((63, RingBufferEngine), (64, RingBufferEngine), (65, RegenerationEngine)):
        assert isinstance(
            engine_for(ap.design("sqrt-toeplitz", steps=steps), 1.0, CHUNK, 10**8), kind
        )


def test_accumulate_stays_within_bounds():
    """Numba does not check bounds; the numbers behind the rows must stay as they are."""
    rng = np.random.default_rng(5)
    c, z = (rng.normal(size=shape).astype(np.float32) for shape in ((12, 8), (2, 8, CHUNK)))
    whole = np.zeros((2, 32, CHUNK), np.float32)
    generators.accumulate(c, z, whole[:, :8], 4)
    np.testing.assert_allclose(whole[:, 4:8], c[:4] @ z, atol=1e-5)
    assert not whole[:, :4].any()
    assert not whole[:, 8:].any()
