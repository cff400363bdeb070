"""Issue 3, line by line: what it must show. Each test prints what was measured beside what was asked."""

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian

import antiphase as ap
from antiphase import accounting as ac
from antiphase.noise import stream as module
from tests import reference
from tests.accounting.test_gaussian import draws, exact_delta
from tests.noise import test_stream as streams
from tests.statistical import whitening

pytestmark = pytest.mark.slow  # `make check` has the unit tests of the same claims
LONGEST = {
    "curvature": 1500,
    "dp-mf, averages": 1000,
}  # steps: searches whose time grows with their cube


def test_noise_multipliers(shown):
    pairs = [
        (ac.gaussian_noise_multiplier(*setting), value)
        for setting, value in reference.NOISE_MULTIPLIERS.items()
    ]
    pairs += [(ac.gaussian_epsilon(s, 1e-6), value) for s, value in reference.EPSILONS.items()]
    worst = max(abs(a / b - 1) for a, b in pairs)
    shown(
        f"noise multipliers and ε of the reference ({len(pairs)} values)", f"{worst:.1e}", "≤ 1e-8"
    )
    assert worst <= 1e-8
    shown(
        "the paper's Stack Overflow ε",
        [round(ac.gaussian_epsilon(0.341 * 2**i, 1e-6), 2) for i in range(5)],
        "17.65 … 0.76",
    )


def test_calibration_is_safe_and_agrees(shown):
    f = ap.design("dp-mf", steps=8)
    above = 0.0
    for epsilon, delta in draws(1000, seed=3):
        above = max(above, ap.calibrate(f, epsilon=epsilon, delta=delta).epsilon() / epsilon - 1)
    shown("ε(calibrate(ε₀))/ε₀ − 1 over 1,000 draws", f"at most {above:.1e}", "≤ 0")
    assert above <= 0
    ours, theirs, exact = [], [], []
    for epsilon, delta in draws(1000, seed=4):
        s = ac.gaussian_noise_multiplier(epsilon, delta)
        exact.append(abs(float(exact_delta(s, epsilon)) / ac.gaussian_delta(s, epsilon) - 1))
    rng = np.random.default_rng(5)
    for s, delta in zip(
        10 ** rng.uniform(-1, 1.5, 1000), 10 ** rng.uniform(-15, -2, 1000), strict=True
    ):
        ours.append(ac.gaussian_epsilon(s, delta))
        theirs.append(get_epsilon_gaussian(s, delta))
    difference = max(abs(a - b) / max(b, 1e-3) for a, b in zip(ours, theirs, strict=True))
    shown(f"δ against mpmath ({len(exact)} draws)", f"{max(exact):.1e}", "≤ 1e-6")
    shown(f"ε against dp-accounting ({len(ours)} draws)", f"{difference:.1e}", "≤ 1e-6")
    assert max(exact) <= 1e-6
    assert difference <= 1e-6


@pytest.mark.parametrize("name", streams.ENGINES)
def test_whitening(shown, name, monkeypatch):
    make, _, longest = streams.ENGINES[name]
    monkeypatch.setattr(module, "LONGEST_RING", longest)
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


def test_stopped_anywhere_and_restored(shown, tmp_path, monkeypatch):
    for name, (make, _, longest) in streams.ENGINES.items():
        monkeypatch.setattr(module, "LONGEST_RING", longest)
        m = ap.calibrate(make(), noise_multiplier=1.0)
        key = ap.Key.insecure(1)
        whole = np.array(list(m.noise(1500, key=key, run=streams.RUN)))
        for stop in range(len(whole)):
            stream = m.noise(1500, key=key, run=streams.RUN)
            stream.skip(stop)
            again = m.resume(json.loads(json.dumps(stream.state())), key=key)
            np.testing.assert_array_equal(again.next(), whole[stop], err_msg=name)
    shown(f"{len(streams.ENGINES)} engines, stopped at every step", "bit for bit", "bit for bit")
    streams.test_a_stream_goes_on_in_another_process(tmp_path)
    shown("in another process", "bit for bit", "bit for bit")
    streams.test_another_mechanisms_state_is_refused()
    shown("another mechanism's state", "refused", "refused")


@pytest.mark.long  # make test has these tests without -O
def test_bad_input(shown):
    tests = Path(__file__).parents[1]
    files = [tests / "test_accounting.py", tests / "test_mechanism.py", tests / "noise"]
    command = [
        sys.executable,
        "-O",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "bad_input or damaged or others_read",
    ]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    shown("bad input, also under python -O", done.stdout.strip().splitlines()[-1], "named errors")
    assert done.returncode == 0, done.stdout
