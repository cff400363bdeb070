"""Rows of noise: their law, and that they depend on key, run, mechanism, step and name alone."""

import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.linalg import solve_banded, solve_triangular
from scipy.signal import lfilter

import antiphase as ap
from antiphase.factorizations.blt import Blt
from antiphase.factorizations.inverse_toeplitz import InverseToeplitz
from antiphase.factorizations.streaming import Streaming
from antiphase.factorizations.tree import Tree
from antiphase.noise import stream as module
from antiphase.noise.generators import (
    RegenerationEngine,
    engine_for,
)
from antiphase.noise.normals import CHUNK
from antiphase.noise.stream import MIN_THREADED_WIDTH, NoiseStream
from antiphase.objective import Restarts
from tests.noise.engines import ENGINES, RUN, D, T, banded, normals, rows_of
from tests.statistical import whitening

EVERY_ENGINE = pytest.mark.parametrize("name", ENGINES)


@EVERY_ENGINE
def test_rows_have_the_law_of_the_mechanism(mechanism):
    rows = rows_of(mechanism)
    assert rows.dtype == np.float32
    worst, which = whitening.worst(rows, mechanism.factorization.encoder(), mechanism.noise_scale)
    assert worst < whitening.LIMIT, which


@pytest.mark.parametrize("name", [name for name in ENGINES if not name.startswith("tree")])
def test_rows_agree_with_float64(mechanism):
    """From the same normals; a tree's noise has normals of its own for every node."""
    stream = mechanism.noise(CHUNK, key=ap.Key.insecure(1), run=RUN)
    rows = np.array(list(stream), dtype=np.float64)
    Z = np.array([normals(stream, t) for t in range(T)], dtype=np.float64)
    exact = mechanism.noise_scale * solve_triangular(
        mechanism.factorization.encoder(), Z, lower=True
    )
    np.testing.assert_allclose(rows, exact, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("name", ["tree, online", "tree, plain"])
def test_a_tree_is_the_sum_of_its_nodes(mechanism, name):
    """Each node has its own normal; online, its estimate weighs that and its children's."""
    stream = mechanism.noise(CHUNK, key=ap.Key.insecure(1), run=RUN)

    def node(last, level):
        own = normals(stream, last, level).astype(np.float64)
        if level == 0 or name == "tree, plain":
            return own
        weight = 1 / (2 - 2.0**-level)
        return weight * own + (1 - weight) * (
            node(last - 2 ** (level - 1), level - 1) + node(last, level - 1)
        )

    def total(count):
        """Of the first steps: a node for every bit of their number."""
        if count == 0:
            return np.zeros(CHUNK)
        level = (count & -count).bit_length() - 1
        return node(count - 1, level) + total(count - 2**level)

    exact = mechanism.noise_scale * np.array([total(t + 1) - total(t) for t in range(T)])
    np.testing.assert_allclose(list(stream), exact, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("name", ["ring, whole", "regenerated", "tree, online", "independent"])
def test_the_whitening_test_detects_wrong_noise(mechanism):
    """Noise × 0.98, a reused row, a restart, a shared stream and independent noise all fail."""
    C, scale = mechanism.factorization.encoder(), mechanism.noise_scale
    rows = rows_of(mechanism)
    reused = rows.copy()
    reused[20] = reused[11]
    restarted = np.concatenate([rows[:16], rows[:16]])
    shared = np.concatenate([rows[:, : D // 2], rows[:, : D // 2]], axis=1)
    independent = np.random.default_rng(0).normal(size=(T, D)) * rows.std()
    wrong = {"scaled": rows * 0.98, "reused": reused, "restarted": restarted, "shared": shared}
    if not np.array_equal(C, np.eye(T)):
        wrong["independent"] = independent
    for kind, bad in wrong.items():
        assert whitening.worst(bad, C, scale)[0] > whitening.LIMIT, kind


@EVERY_ENGINE
def test_threads_memory_and_length_change_no_bit(mechanism):
    plain = rows_of(mechanism, 5000, threads=1)
    np.testing.assert_array_equal(rows_of(mechanism, 5000, threads=3), plain)
    np.testing.assert_array_equal(rows_of(mechanism, 40_000, threads=2)[:, :5000], plain)
    engine = engine_for(mechanism.factorization, 1.0, 5120, 10**8)
    small = 4 * 5120 * 8 if isinstance(engine, RegenerationEngine) else max(engine.memory, 1)
    np.testing.assert_array_equal(rows_of(mechanism, 5000, memory=small), plain)


@pytest.mark.parametrize(
    "name", ["ring", "regenerated, blocks", "buffers, restarts", "tree, online"]
)
def test_long_rows_are_made_of_pieces(mechanism):
    """A row of 70 chunks, by one thread or several, equals its parts, each made alone."""
    key, length = ap.Key.insecure(1), 70 * CHUNK - 5
    whole = rows_of(mechanism, length, threads=1)[:9]
    assert len(np.unique(whole)) > 0.98 * whole.size
    for threads in (2, 3, 100):
        stream = mechanism.noise(length, key=key, run=RUN, threads=threads)
        np.testing.assert_array_equal([stream.next() for _ in range(9)], whole)
    for first, count in ((0, 1), (31, 3), (64, 6)):
        part = slice(first * CHUNK, min((first + count) * CHUNK, length))
        stream = NoiseStream(
            mechanism,
            shapes={"": (part.stop - part.start,)},
            first_chunks={"": first},
            key=key,
            run=RUN,
        )
        np.testing.assert_array_equal([stream.next()[""] for _ in range(9)], whole[:, part])


def test_threads_are_for_long_rows(monkeypatch):
    m = ap.calibrate(ap.design("dp-sgd", steps=2), noise_multiplier=1.0)

    def threads(length, cores):
        monkeypatch.setattr(module.os, "cpu_count", lambda: cores)
        return m.noise(length, key=ap.Key.insecure(1))._threads

    assert [threads(63 * 1024, cores) for cores in (None, 1, 8)] == [1, 1, 1]
    assert [threads(63 * 1024 + 1, cores) for cores in (None, 1, 2, 3, 4, 8)] == [1, 1, 2, 3, 4, 4]
    stream = m.noise(70 * CHUNK, key=ap.Key.insecure(1), threads=3)
    stream.next()
    assert stream._pool._max_workers == 2, "besides the one that asks"


@EVERY_ENGINE
def test_a_restored_stream_continues_bit_for_bit(mechanism):
    whole = rows_of(mechanism, 3000)
    key = ap.Key.insecure(1)
    for stop in (0, 1, 7, 19, len(whole) - 1, len(whole)):
        stream = mechanism.noise(3000, key=key, run=RUN)
        for _ in range(stop):
            stream.next()
        state = json.loads(json.dumps(stream.state()))
        again = mechanism.resume(state, key=key)
        assert again.position == stop
        rest = np.array(list(again)).reshape(-1, 3000)
        np.testing.assert_array_equal(rest, whole[stop:])
    stream = mechanism.noise(3000, key=key, run=RUN)
    stream.next()
    stream.skip(11)
    np.testing.assert_array_equal(stream.next(), whole[12])


@pytest.mark.slow
def test_a_stream_continues_in_another_process(tmp_path):
    m = ap.calibrate(ap.design("dp-mf", steps=T), noise_multiplier=1.0)
    key = ap.Key.generate()
    key.save(tmp_path / "key")
    m.save(tmp_path / "m")
    stream = m.noise(2000, key=key)
    for _ in range(9):
        stream.next()
    (tmp_path / "state").write_text(json.dumps(stream.state()))
    code = (
        "import antiphase as ap, json, sys, numpy as np\n"
        f"m, key = ap.load({str(tmp_path / 'm')!r}), ap.Key.load({str(tmp_path / 'key')!r})\n"
        f"s = m.resume(json.load(open({str(tmp_path / 'state')!r})), key=key)\n"
        f"np.save({str(tmp_path / 'rows.npy')!r}, np.array(list(s)))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), np.array(list(stream)))


@EVERY_ENGINE
def test_past_the_horizon_nothing_is_drawn(mechanism):
    key, steps = ap.Key.insecure(1), mechanism.steps
    stream = mechanism.noise(10, key=key, run=RUN)
    for _ in range(steps):
        stream.next()
    for stopped in (stream, mechanism.resume(stream.state(), key=key)):
        for ask in (stopped.next, lambda s=stopped: s.skip(1)):
            with pytest.raises(ap.HorizonError, match="Nothing was drawn"):
                ask()
        assert stopped.position == steps
        assert stopped.remaining == 0


def test_named_tensors_have_independent_noise():
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0)
    key = ap.Key.insecure(1)
    shapes = {"weight": (30, 70), "bias": (70,), "scale": ()}
    rows = list(m.noise(shapes=shapes, key=key, run=RUN))
    assert {n: r.shape for n, r in rows[0].items()} == {n: tuple(s) for n, s in shapes.items()}
    bias = np.concatenate([r["bias"] for r in rows])
    weight = np.concatenate([r["weight"].ravel()[:70] for r in rows])
    assert not np.isin(bias, weight).any()
    alone = list(m.noise(shapes={"bias": (70,)}, key=key, run=RUN))
    np.testing.assert_array_equal(np.concatenate([r["bias"] for r in alone]), bias)


def test_rows_are_written_to_out():
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0)
    key = ap.Key.insecure(1)
    expected = rows_of(m, 100)
    stream = m.noise(100, key=key, run=RUN)
    out = np.empty(100, np.float32)
    assert stream.next(out) is out
    np.testing.assert_array_equal(out, expected[0])
    tensor = torch.empty(100)
    stream.next(tensor)
    np.testing.assert_array_equal(tensor.numpy(), expected[1])
    row = stream.next()
    assert torch.from_numpy(row).data_ptr() == row.ctypes.data
    named = m.noise(shapes={"w": (3, 5)}, key=key)
    tensors = {"w": torch.zeros(3, 5)}
    named.next(tensors)
    assert tensors["w"].abs().min() > 0
    fixed = np.empty(100, np.float32)
    fixed.flags.writeable = False
    for bad in (
        np.empty(99, np.float32),
        np.empty(100),
        torch.empty(100, dtype=torch.bfloat16).float()[:50],
        fixed,
    ):
        with pytest.raises(ValueError, match="out has shape"):
            stream.next(bad)
    with pytest.raises(
        ValueError, match=r"out\['w'\] has shape \(5, 3\) and type float32.* of shape \(3, 5\)"
    ):
        named.next({"w": np.empty((5, 3), np.float32)})
    assert stream.position == 3


FAMILIES = {
    "dp-sgd": ("dp-sgd", {}),
    "anti-pgd": ("anti-pgd", {}),
    "chess": ("chess", {}),
    "tree": ("tree", {}),
    "sqrt-toeplitz": ("sqrt-toeplitz", {}),
    "fourier": ("fourier", {}),
    "bisr": ("bisr", {"bands": 8}),
    "lambda-cgd": ("lambda-cgd", {}),
    "toeplitz": ("toeplitz", {"bands": 4}),
    "banded": ("banded", {"bands": 4}),
    "blt": ("blt", {"buffers": 2}),
    "epoch-restarts": ("epoch-restarts", {"epochs": 10}),
    "dp-mf": ("dp-mf", {}),
    "dp-mf, momentum": ("dp-mf", {"momentum": 0.9}),  # from 2,001 steps on with pairs a node
    "dp-mf, averages": (
        "dp-mf",
        {"momentum": 0.99, "ema": 0.99, "buffers": "exact"},
    ),  # three, that nearly cancel
    "dp-mf, windows": ("dp-mf", {"epochs": 10, "buffers": 2}),
    "dp-mf+": ("dp-mf+", {"tau": 50}),
    "dp-mf+, tau 200": ("dp-mf+", {"tau": 200}),
    "damped": ("damped", {"rho": 0.9}),
    "curvature": ("curvature", {"spectrum": [0.1, 0.5, 1.0], "learning_rate": 0.5}),
    "optimal": ("optimal", {"objective": Restarts(50)}),
}
FEWER_STEPS = {  # where 10,000 would take more than seconds
    "anti-pgd": 1500, "sqrt-toeplitz": 1500, "fourier": 1500, "curvature": 300,
    "dp-mf, windows": 1500, "dp-mf, momentum": 2100, "dp-mf, averages": 120,
}  # fmt: skip


def family(name, steps):
    kind, options = FAMILIES[name]
    options = dict(options)
    workload = ap.Workload.sgd(steps, momentum=options.pop("momentum", 0.0))
    if "ema" in options:
        workload = workload.with_ema(options.pop("ema"))
    return ap.design(kind, workload=workload, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_float32_rows_do_not_drift(name):
    """Over 10,000 steps they are within 1e-5 standard deviations of float64 with the same normals.

    Over fewer steps where there is no short recurrence, so that rows are made from all normals, and
    where the design takes long. tests/statistical/test_noise.py has them at full length.
    """
    assert {kind for kind, _ in FAMILIES.values()} == set(ap.designs()), "every family there is"
    assert drift(name, FEWER_STEPS.get(name, 10_000)) < 1e-5


def drift(name, steps, dimension=64):
    f = family(name, steps)
    m = ap.calibrate(f, noise_multiplier=1.0)
    stream = m.noise(dimension, key=ap.Key.insecure(1), run=RUN)
    rows = np.array(list(stream), dtype=np.float64)
    Z = np.array([normals(stream, t)[:dimension] for t in range(steps)], dtype=np.float64)
    exact = m.noise_scale * solved(f, Z)
    deviation = np.sqrt(np.square(exact).mean(axis=1, keepdims=True))
    return float((np.abs(rows - exact) / deviation).max())


def solved(f, Z):
    """``C⁻¹Z`` in float64, without a dense matrix where there is a short recurrence."""
    if isinstance(f, Tree | Blt | Streaming):
        return recurrence(f.as_stream(), Z)
    if isinstance(f, InverseToeplitz):
        return lfilter(f.inverse, [1.0], Z, axis=0)
    if f.bands <= 8:
        rows = f.band_rows(0, f.steps)
        columns = np.zeros((f.bands, f.steps))
        for back in range(f.bands):
            columns[back, : f.steps - back] = rows[back:, back]
        return solve_banded((f.bands - 1, 0), columns, Z)
    return solve_triangular(f.encoder(), Z, lower=True)


def recurrence(stream, Z):
    Y, S = np.empty_like(Z), None
    for t, z in enumerate(Z):
        segment, place = stream.at(t)
        if place == 0:
            S, i = np.zeros((*segment.r.shape[1:], len(z))), 0
        assert segment.live[i] == place, "no idle steps here"
        y = Y[t] = (z - np.tensordot(segment.r[i], S, 2)) / segment.delta[i]
        if (i := i + 1) < len(segment.live):
            first = (segment.move[i][:, :, None] * S).sum(axis=1)
            S = (
                np.concatenate([first[:, None], S[:, :-1]], axis=1)
                + segment.g[i - 1][:, :, None] * y
            )
    return Y


@pytest.mark.parametrize("name", FAMILIES)
def test_the_float64_reference_is_that_of_the_encoder(name):
    f = family(name, 60)
    Z = np.random.default_rng(0).normal(size=(60, 5))
    np.testing.assert_allclose(
        solved(f, Z), solve_triangular(f.encoder(), Z, lower=True), atol=1e-10
    )


def test_256_streams_are_uncorrelated():
    """Over keys, runs, steps and tensors: the largest |correlation|·√d is below 6."""
    d = 4096
    m = ap.calibrate(ap.design("dp-sgd", steps=8), noise_multiplier=1.0)
    rows = []
    for seed in range(4):
        for run in range(4):
            shapes = {"a": (d,), "b": (d,)}
            for row in m.noise(shapes=shapes, key=ap.Key.insecure(seed), run=f"{run:032x}"):
                rows += [row["a"], row["b"]]
    Z = np.array(rows, dtype=np.float64)
    assert len(Z) == 256
    correlation = np.corrcoef(Z) - np.eye(256)
    assert np.abs(correlation).max() * np.sqrt(d) < 6


def test_two_runs_under_one_key_differ_everywhere():
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0)
    key = ap.Key.insecure(1)
    first, second = (np.array(list(m.noise(5000, key=key))) for _ in range(2))
    assert (first != second).mean() > 0.999
    other = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0, clip_norm=1.0 + 1e-12)
    same_run = rows_of(other, 5000)
    assert np.abs(np.corrcoef(same_run.ravel(), rows_of(m, 5000).ravel())[0, 1]) < 0.05


def test_no_global_generator_is_read_or_written():
    m = ap.calibrate(ap.design("dp-mf", steps=6), noise_multiplier=1.0)
    expected = rows_of(m, 100)
    stream = m.noise(100, key=ap.Key.insecure(1), run=RUN)
    for row in expected:
        np.random.seed(0)  # noqa: NPY002
        torch.manual_seed(0)
        np.testing.assert_array_equal(stream.next(), row)
        assert np.random.random() == np.random.RandomState(0).random()  # noqa: NPY002
        assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_memory_is_reported_and_limited():
    d, width = 10_000, 10 * 1024
    m = ap.calibrate(banded(), noise_multiplier=1.0)
    assert m.noise(d, key=ap.Key.generate()).memory == 3 * width * 4
    dense = ap.calibrate(ap.design("sqrt-toeplitz", steps=100), noise_multiplier=1.0)
    assert dense.noise(d, key=ap.Key.generate(), memory="1MB").memory <= 1_000_000
    tree = ap.calibrate(ap.design("tree", steps=100_000, sensitivity="nodes"), noise_multiplier=1.0)
    stream = tree.noise(d, key=ap.Key.generate())
    assert stream.memory == 17 * width * 4
    stream.next()
    assert (
        ap.calibrate(ap.design("dp-sgd", steps=10**6), noise_multiplier=1.0)
        .noise(d, key=ap.Key.generate())
        .memory
        == 0
    )


@EVERY_ENGINE
def test_too_little_memory_is_refused_and_no_other_engine_takes_over(mechanism):
    """Another engine rounds differently; resuming with less memory must not change a bit."""
    kind = type(engine_for(mechanism.factorization, 1.0, 5120, 10**8))
    needed = (
        16 * 5120
        if kind is RegenerationEngine
        else engine_for(mechanism.factorization, 1.0, 5120, 10**8).memory
    )
    key = ap.Key.insecure(1)
    if needed:
        with pytest.raises(ValueError, match=f"memory = {needed - 1} bytes"):
            mechanism.noise(5000, key=key, memory=needed - 1)
    assert key.runs() == [], "no run was begun"
    stream = mechanism.noise(5000, key=key, memory=max(needed, 1))
    assert type(stream._engine) is kind
    assert stream.memory <= max(needed, 1)


def test_an_interrupted_row_breaks_the_stream(monkeypatch):
    m = ap.calibrate(ap.design("dp-mf", steps=6), noise_multiplier=1.0)
    stream = m.noise(100, key=ap.Key.insecure(1))
    stream.next()

    def interrupted(*args):
        raise KeyboardInterrupt

    skipped = m.noise(100, key=ap.Key.insecure(1))
    skipped.next()
    for broken, go_on in ((stream, stream.next), (skipped, lambda: skipped.skip(2))):
        monkeypatch.setattr(broken._engine, "work", interrupted)
        with pytest.raises(KeyboardInterrupt):
            go_on()
        for ask in (broken.next, lambda b=broken: b.skip(1)):
            with pytest.raises(RuntimeError, match="restore the stream"):
                ask()
        assert broken.position == 1


def test_another_mechanisms_state_is_refused():
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0)
    other = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.1)
    state = m.noise(10, key=ap.Key.generate()).state()
    with pytest.raises(
        ap.StateError, match=f"mechanism {m.digest[:16]}…, not to {other.digest[:16]}…"
    ):
        other.resume(state, key=ap.Key.generate())
    wrong = [{"position": p} for p in (-1, True, 1.0, "1", None)] + [
        {"version": 1},
        {"version": 3},
        {"shapes": 3},
    ]
    for damaged in (None, {}, "state", *({**state, **w} for w in wrong)):
        with pytest.raises(ap.StateError, match="not the state"):
            m.resume(damaged, key=ap.Key.generate())
    with pytest.raises(ap.HorizonError):
        m.resume({**state, "position": 5}, key=ap.Key.generate())


M = ap.calibrate(ap.design("sqrt-toeplitz", steps=100), noise_multiplier=1.0)
KEY = ap.Key.insecure(0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: M.noise(0, key=KEY), "dimension = 0"),
        (lambda: M.noise(2.0, key=KEY), "dimension = 2.0"),
        (lambda: M.noise(key=KEY), "dimension = None, shapes = None"),
        (lambda: M.noise(3, key=KEY, shapes={"a": (3,)}), "give one of the two"),
        (lambda: M.noise(shapes={}, key=KEY), "nothing to add noise to"),
        (lambda: M.noise(shapes={"a": (0,)}, key=KEY), r"shapes\['a'\] = 0"),
        (lambda: M.noise(shapes=[3], key=KEY), r"shapes = \[3\]"),
        (lambda: M.noise(shapes={3: (3,)}, key=KEY), "a name in shapes = 3"),
        (lambda: M.noise(3, key=b"secret"), "key = b'secret'"),
        (lambda: M.noise(3, key=KEY, run="7"), "run = '7'"),
        (lambda: M.noise(3, key=KEY, memory="much"), "memory = 'much'"),
        (
            lambda: M.noise(3, key=KEY, memory=100),
            "memory = 100 bytes: .* four rows of noise, 16384 bytes",
        ),
        (lambda: M.noise(3, key=KEY, threads=0), "threads = 0"),
        (lambda: M.noise(3, key=KEY).skip(-1), "count = -1"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_vectors_and_unnamed_tensors_are_distinguished_after_a_restart():
    key = ap.Key.insecure(1)
    for options in ({"dimension": 3}, {"shapes": {"": (3,)}}, {"shapes": {"": 3, "a": ()}}):
        stream = M.noise(key=key, run=RUN, **options)
        stream.next()
        again = M.resume(stream.state(), key=key)
        row, same = stream.next(), again.next()
        assert type(row) is type(same)
        assert again.state() == stream.state()
        for one, other in zip(
            *(r.values() if isinstance(r, dict) else [r] for r in (row, same)), strict=True
        ):
            np.testing.assert_array_equal(one, other)


class ElsewhereTensor:
    """Like a tensor on another device: its array is a copy."""

    def detach(self):
        return self

    def numpy(self):
        return np.zeros(4, np.float32)

    def data_ptr(self):
        return 0


class ListTensor(ElsewhereTensor):
    def numpy(self):
        return [0.0] * 4


def test_noise_is_written_in_place_and_to_no_place_twice():
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0)
    stream = m.noise(4, key=ap.Key.insecure(1))
    spread = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (4,), (0,))
    odd = [
        torch.zeros(4).to_sparse(),
        torch.zeros(4, dtype=torch.cfloat).conj(),
    ]  # torch refuses to show their memory
    for bad in (
        [np.float32(0)] * 4,
        torch.zeros(1).expand(4),
        spread,
        ElsewhereTensor(),
        ListTensor(),
        *odd,
    ):
        with pytest.raises(ValueError, match="its own memory"):
            stream.next(bad)
    assert stream.position == 0
    with pytest.raises(ValueError, match="its own memory"):
        m.noise(2, key=ap.Key.insecure(1)).next(torch.zeros(1).expand(2))
    alone = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.float32), (1,), (0,)
    )  # one place is one place
    assert m.noise(1, key=ap.Key.insecure(1)).next(alone)[0] != 0
    shared = torch.zeros(4)
    named = m.noise(shapes={"a": 4, "b": 4}, key=ap.Key.insecure(1))
    with pytest.raises(ValueError, match="share memory"):
        named.next({"a": shared, "b": shared})


def test_another_version_of_the_noise_is_like_another_key(monkeypatch):
    """Its rows would not cancel, so states and checkpoints (by the fingerprint) are refused."""
    key, mechanism = (
        ap.Key.insecure(1),
        ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0),
    )
    stream = mechanism.noise(4, key=key)
    stream.next()
    state, known = stream.state(), key.fingerprint()
    monkeypatch.setattr("antiphase.noise.key.NOISE_VERSION", 3)
    monkeypatch.setattr("antiphase.noise.stream.NOISE_VERSION", 3)
    assert key.fingerprint() != known
    with pytest.raises(ap.StateError, match="version 2"):
        mechanism.resume(state, key=key)


def test_a_stream_is_not_copied():
    stream = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0).noise(
        4, key=ap.Key.insecure(1)
    )
    for clone in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            clone(stream)


@pytest.mark.parametrize("name", ["dp-sgd", "dp-mf", "tree", "sqrt-toeplitz"])
def test_a_row_prepared_in_the_background_is_the_same(name):
    mechanism = ap.calibrate(ap.design(name, steps=12), noise_multiplier=1.0)
    key, run, d = ap.Key.insecure(1), "0" * 32, MIN_THREADED_WIDTH + 5

    def stream():
        return mechanism.noise(d, key=key, run=run)

    plain, ahead = stream(), stream()
    rows = [plain.next() for _ in range(12)]
    ahead.prepare()
    assert ahead._ahead is not None
    assert ahead.position == 0, "nothing was given out"
    assert np.array_equal(ahead.next(), rows[0])
    ahead.prepare()
    ahead.prepare()  # once is enough
    state = ahead.state()
    assert state["position"] == 1
    assert np.array_equal(mechanism.resume(state, key=key).next(), rows[1])
    assert np.array_equal(ahead.next(), rows[1])
    ahead.prepare()
    ahead.skip(1)
    assert np.array_equal(ahead.next(), rows[3])
    ahead.prepare()
    ahead.skip(3)
    ahead.prepare()
    assert np.array_equal(ahead.next(), rows[7])
    ahead.skip(ahead.remaining)
    ahead.prepare()
    with pytest.raises(ap.HorizonError):
        ahead.next()


def test_one_thread_may_work_in_the_background():
    stream = ap.calibrate(ap.design("dp-sgd", steps=2), noise_multiplier=1.0).noise(
        MIN_THREADED_WIDTH, key=ap.Key.insecure(1), threads=1
    )
    stream.prepare()
    assert stream._pool._max_workers == 1, "and no more"
    assert stream.next().all(), "no normal is zero"


def test_a_failure_in_the_background_is_raised(monkeypatch):
    stream = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0).noise(
        MIN_THREADED_WIDTH, key=ap.Key.insecure(1)
    )
    monkeypatch.setattr(stream._engine, "work", lambda *_: 1 / 0)
    stream.prepare()
    assert stream._ahead is not None
    with pytest.raises(ZeroDivisionError):
        stream.next()
    begun = stream._ahead
    stream.prepare()
    assert stream._ahead is begun, "nothing more is begun"
    with pytest.raises(RuntimeError, match="interrupted"):
        stream.next()


def test_short_rows_are_not_prepared():
    stream = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0).noise(
        63 * CHUNK, key=ap.Key.insecure(1)
    )
    stream.prepare()
    assert stream._ahead is None
    assert stream._pool is None


def test_a_stream_in_one_line():
    """The rows drawn, their length, what is kept, and whether the noise can be guessed."""
    m = ap.calibrate(ap.design("dp-mf", steps=4), noise_multiplier=1.0)
    stream = m.noise(17, key=ap.Key.generate())
    assert stream.memory == 8192
    assert repr(stream) == (
        "<NoiseStream dp-mf: 0 of 4 rows drawn, 17 numbers each, 0.00819 MB kept>"
    )
    stream = m.noise(shapes={"a": (3, 5), "b": (2,)}, key=ap.Key.insecure(1))
    stream.next()
    assert repr(stream).startswith("<NoiseStream dp-mf: 1 of 4 rows drawn, 17 numbers each, ")
    assert repr(stream).endswith(" MB kept, INSECURE>")
