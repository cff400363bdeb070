"""Properties of every encoder, guarantee and stream, on examples found by hypothesis."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase import accounting
from antiphase.sensitivity import is_exact, sensitivity

# Always the same 60, so that a failure belongs to a commit; `make test-long` draws new ones.
MANY = int(os.environ.get("ANTIPHASE_EXAMPLES", "0"))
QUICK = settings(
    max_examples=MANY or 60, derandomize=not MANY, deadline=None, database=None, print_blob=True
)
SEEDS = st.integers(0, 2**32 - 1)
RUN = "cd" * 16


@st.composite
def encoders(draw):
    steps = draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(SEEDS))
    return np.tril(rng.normal(size=(steps, steps)) * 10.0 ** draw(st.integers(-3, 3)))


@st.composite
def participations(draw):
    kind = draw(st.sampled_from([ap.once, ap.epochs, ap.min_separation]))
    return kind() if kind is ap.once else kind(8, draw(st.integers(1, 8)))


# Sensitivity


@pytest.mark.slow
@QUICK
@given(encoders(), participations(), SEEDS)
def test_rotations_change_no_sensitivity_and_more_rows_never_lower_it(C, participation, seed):
    """Only CᵀC matters: outputs may be rotated, and more outputs never lower the sensitivity.

    The bound stays above what equal gradients attain without the new rows. A bound that is not
    attained may itself become tighter.
    """
    rng = np.random.default_rng(seed)
    whole = sensitivity(C, participation)
    turn = np.linalg.qr(rng.normal(size=(len(C), len(C))))[0]
    assert sensitivity(turn @ C, participation) == pytest.approx(whole, rel=1e-9)
    more = sensitivity(np.vstack([C, rng.normal(size=(2, len(C)))]), participation)
    attained = [
        np.linalg.norm(C[:, pattern].sum(axis=1)) for pattern in participation.patterns(len(C))
    ]
    assert more >= (whole if is_exact(C, participation) else max(attained)) * (1 - 1e-9)
    assert sensitivity(3 * C, participation) == pytest.approx(3 * whole, rel=1e-12)


@QUICK
@given(encoders(), participations(), SEEDS)
def test_no_record_moves_the_output_further(C, participation, seed):
    """Gradients of norm 1 in allowed steps, each in its own direction."""
    rng = np.random.default_rng(seed)
    for pattern in participation.patterns(len(C)):
        G = np.zeros((len(C), 3))
        G[pattern] = rng.normal(size=(len(pattern), 3))
        G[pattern] /= np.linalg.norm(G[pattern], axis=1, keepdims=True)
        assert np.linalg.norm(C @ G) <= sensitivity(C, participation) * (1 + 1e-12)


@QUICK
@given(encoders(), st.integers(1, 4), st.integers(1, 4))
def test_more_and_sooner_participations_cost_no_less(C, count, apart):
    cost = sensitivity(C, ap.min_separation(count, apart))
    assert sensitivity(C, ap.min_separation(count + 1, apart)) >= cost * (1 - 1e-12)
    assert sensitivity(C, ap.min_separation(count, apart + 1)) <= cost * (1 + 1e-12)


# Accounting


@QUICK
@given(st.floats(0.05, 20), st.floats(1e-12, 0.4), st.floats(1.0, 3.0))
def test_more_noise_and_more_delta_cost_less_epsilon(s, delta, factor):
    epsilon = accounting.gaussian_epsilon(s, delta)
    assert accounting.gaussian_epsilon(s * factor, delta) <= epsilon * (1 + 1e-9)
    assert accounting.gaussian_epsilon(s, min(delta * factor, 0.9)) <= epsilon * (1 + 1e-9)
    if epsilon > 1e-6:
        assert accounting.gaussian_delta(s, epsilon) <= delta * (1 + 1e-6)
        again = accounting.gaussian_noise_multiplier(epsilon, delta)
        assert accounting.gaussian_epsilon(again, delta) <= epsilon
        assert again == pytest.approx(s, rel=1e-5)


@QUICK
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.sampled_from(["dp-sgd", "dp-mf", "tree"]),
)
def test_runs_add_up_to_no_less_than_each_and_no_more_than_all_in_one(runs, name):
    m = ap.calibrate(ap.design(name, steps=9), noise_multiplier=1.0, delta=1e-5)
    together = m.epsilon_of_runs(runs)
    assert together >= max(m.epsilon(rows=rows) for rows in runs) * (1 - 1e-9)
    assert together <= accounting.gaussian_epsilon(1 / np.sqrt(len(runs)), 1e-5) * (1 + 1e-9)
    assert m.epsilon_of_runs(runs[::-1]) == pytest.approx(together, rel=1e-9)


# Streams

MECHANISMS = {
    name: ap.calibrate(ap.design(name, steps=11), noise_multiplier=1.0)
    for name in ("dp-sgd", "dp-mf", "tree", "chess")
}
WHOLE = {name: list(m.noise(37, key=ap.Key.insecure(1), run=RUN)) for name, m in MECHANISMS.items()}


@QUICK
@given(
    st.sampled_from(sorted(MECHANISMS)),
    st.lists(st.integers(0, 5), max_size=5),
    st.integers(1, 37),
    st.booleans(),
)
def test_rows_of_a_stream_do_not_depend_on_the_order_of_calls(name, moves, width, restored):
    """Rows are skipped or taken, and the stream may be restored from its state in between."""
    m, key = MECHANISMS[name], ap.Key.insecure(1)
    stream = m.noise(width, key=key, run=RUN)
    for move in moves:
        if move > stream.remaining:
            with pytest.raises(ap.HorizonError):
                stream.skip(move)
            continue
        stream.skip(move)
        if restored:
            stream = m.resume(stream.state(), key=key)
        if stream.remaining:
            at = stream.position
            np.testing.assert_array_equal(stream.next(), WHOLE[name][at][:width])


@pytest.mark.long
def test_two_thousand_new_examples_of_each():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not long", __file__]
    done = subprocess.run(
        command, env=os.environ | {"ANTIPHASE_EXAMPLES": "2000"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
