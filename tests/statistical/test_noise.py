"""Noise streams: their covariance, their precision, and that they continue exactly."""

import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from scipy.linalg import solve_triangular

import antiphase as ap
from antiphase.noise import generators
from tests.noise import test_stream as streams
from tests.noise.engines import RUN, normals
from tests.statistical import whitening

pytestmark = pytest.mark.slow

LONGEST = {
    "curvature": 1500,
    "dp-mf, averages": 1000,
}  # steps: searches whose time grows with their cube


@pytest.mark.issue(3)
@pytest.mark.parametrize("name", streams.ENGINES)
def test_noise_has_the_covariance_of_its_mechanism(shown, name, monkeypatch):
    make, _, longest = streams.ENGINES[name]
    monkeypatch.setattr(generators, "MAX_RING_BANDS", longest)
    m = ap.calibrate(make(), noise_multiplier=1.3, delta=1e-6)
    rows = streams.rows_of(m, seed=2)
    C, scale = m.factorization.encoder(), m.noise_scale
    right = whitening.worst(rows, C, scale)[0]
    reused = rows.copy()
    reused[20] = reused[11]
    half = len(rows) // 2
    wrong = {
        "× 0.98": rows * 0.98,
        "a reused row": reused,
        "a restart": np.concatenate([rows[:half], rows[: len(rows) - half]]),
        "a shared stream": np.concatenate([rows[:, : streams.D // 2]] * 2, axis=1),
    }
    if name != "independent":
        wrong["independent noise"] = np.random.default_rng(0).normal(size=rows.shape) * rows.std()
    red = {kind: whitening.worst(bad, C, scale)[0] for kind, bad in wrong.items()}
    listed = ", ".join(f"{kind} {z:.0f}" for kind, z in red.items())
    shown(
        f"whitening, {name}",
        f"|z| ≤ {right:.2f}; planted: {listed}",
        "< 6.5, and > 6.5 for each planted",
    )
    assert right < whitening.LIMIT
    assert min(red.values()) > whitening.LIMIT


@pytest.mark.issue(3)
@pytest.mark.long
def test_float32_at_10000_steps(shown):
    with ProcessPoolExecutor(
        1, get_context("spawn")
    ) as own:  # whose memory, gigabytes for dense ones, goes with it
        steps = [LONGEST.get(name, 10_000) for name in streams.FAMILIES]
        found = dict(
            zip(streams.FAMILIES, own.map(streams.drift, streams.FAMILIES, steps), strict=True)
        )
    shown(
        "float32 at T = 10,000, worst family",
        f"{max(found.values()):.1e} standard deviations",
        "≤ 1e-5",
    )
    for name, worst in found.items():
        steps = f" at T = {LONGEST[name]:,}" if name in LONGEST else ""
        shown(f"  {name}{steps}", f"{worst:.1e}", "≤ 1e-5")
    assert max(found.values()) <= 1e-5


@pytest.mark.issue(3)
def test_256_streams(shown):
    d, rows = 4096, []
    m = ap.calibrate(ap.design("dp-sgd", steps=8), noise_multiplier=1.0)
    for seed in range(4):
        for run in range(4):
            noise = m.noise(
                shapes={"a": (d,), "b": (d,)}, key=ap.Key.insecure(100 + seed), run=f"{run:032x}"
            )
            rows += [row[name] for row in noise for name in "ab"]
    most = np.abs(np.corrcoef(np.array(rows, dtype=np.float64)) - np.eye(256)).max() * np.sqrt(d)
    shown("256 streams over keys, runs, steps, tensors", f"max |corr|·√d = {most:.2f}", "< 6")
    assert len(rows) == 256
    assert most < 6


@pytest.mark.issue(3)
def test_two_runs_and_reseeding(shown):
    m = ap.calibrate(ap.design("dp-mf", steps=6), noise_multiplier=1.0)
    key = ap.Key.generate()
    first, second = (np.array(list(m.noise(10_000, key=key))) for _ in range(2))
    equal = int((first == second).sum())
    shown(
        "two runs under one key",
        f"{equal} of {first.size} numbers equal by chance",
        "differ everywhere",
    )
    assert equal < 10
    streams.test_no_global_generator_is_read_or_written()
    shown("reseeding NumPy and torch between rows", "no bit changed", "changes nothing")


@pytest.mark.issue(3)
def test_streams_are_restored_at_every_step(shown, tmp_path, monkeypatch):
    for name, (make, _, longest) in streams.ENGINES.items():
        monkeypatch.setattr(generators, "MAX_RING_BANDS", longest)
        m = ap.calibrate(make(), noise_multiplier=1.0)
        key = ap.Key.insecure(1)
        whole = np.array(list(m.noise(1500, key=key, run=streams.RUN)))
        for stop in range(len(whole)):
            stream = m.noise(1500, key=key, run=streams.RUN)
            stream.skip(stop)
            again = m.resume(json.loads(json.dumps(stream.state())), key=key)
            np.testing.assert_array_equal(again.next(), whole[stop], err_msg=name)
    shown(f"{len(streams.ENGINES)} engines, stopped at every step", "bit for bit", "bit for bit")
    streams.test_a_stream_continues_in_another_process(tmp_path)
    shown("in another process", "bit for bit", "bit for bit")
    streams.test_another_mechanisms_state_is_refused()
    shown("another mechanism's state", "refused", "refused")


STREAMS = {
    "prefix sums": ("dp-mf", {"steps": 200}),
    "restarts": ("dp-mf+", {"steps": 200, "tau": 30}),
    "momentum": ("dp-mf", {"workload": ap.Workload.sgd(200, momentum=0.9)}),
    "nesterov": ("dp-mf", {"workload": ap.Workload.sgd(200, momentum=0.9, nesterov=True)}),
    "momentum and EMA": ("dp-mf", {"workload": ap.Workload.sgd(200, momentum=0.9).with_ema(0.9)}),
    "damped": ("damped", {"steps": 200, "rho": 0.98}),
}


@pytest.mark.issue(4)
@pytest.mark.parametrize("kind", STREAMS)
def test_streamed_noise_is_dense_noise(shown, kind):
    name, options = STREAMS[kind]
    m = ap.calibrate(ap.design(name, **options), noise_multiplier=1.0)
    stream = m.noise(64, key=ap.Key.insecure(1), run=RUN)
    rows = np.array(list(stream), dtype=np.float64)
    Z = np.array([normals(stream, t)[:64] for t in range(m.steps)], dtype=np.float64)
    dense = m.noise_scale * solve_triangular(m.factorization.encoder(), Z, lower=True)
    worst = np.abs(rows - dense).max()
    many = np.array(list(m.noise(20_000, key=ap.Key.insecure(2), run=RUN)))
    z = whitening.worst(many, m.factorization.encoder(), m.noise_scale)[0]
    shown(
        f"streamed against dense, {kind}", f"{worst:.1e}, whitening |z| ≤ {z:.2f}", "≤ 1e-5, < 6.5"
    )
    assert worst <= 1e-5
    assert z < whitening.LIMIT


@pytest.mark.issue(4)
@pytest.mark.long
def test_a_stream_of_a_million_rows(shown):
    """1,000 coordinates; the first and last hundred rows beside float64 from the same normals."""
    d, steps = 1000, 1_000_000
    m = ap.calibrate(ap.design("dp-mf", steps=steps), noise_multiplier=1.0)
    (segment,) = m.factorization.distinct
    stream = m.noise(d, key=ap.Key.insecure(1), run=RUN)
    S = np.zeros((segment.r.shape[1], d))
    worst, began = 0.0, time.perf_counter()
    for t in range(steps):
        row = stream.next()
        z = m.noise_scale * normals(stream, t)[:d]
        y = (z - segment.r[t, :, 0] @ S) / segment.delta[t]
        if t + 1 < steps:
            S = segment.move[t + 1] * S + np.outer(segment.g[t, :, 0], y)
        if t < 100 or t >= steps - 100:
            worst = max(worst, float(np.abs(row - y).max()))
    took = time.perf_counter() - began
    shown(
        "T = 1,000,000, first and last 100 rows",
        f"within {worst:.1e} of float64, {took:.0f} s",
        "match",
    )
    assert stream.remaining == 0
    assert worst < 1e-5
