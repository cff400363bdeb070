import dataclasses

import numpy as np
import pytest

import antiphase as ap
from antiphase import accounting
from antiphase._util import files
from antiphase.errors import FileFormatError


@pytest.fixture(scope="module")
def f():
    return ap.design("dp-mf+", steps=24, epochs=3, tau=8)


def test_a_run_is_one_gaussian_mechanism(f):
    m = ap.calibrate(f, epsilon=3.0, delta=1e-6, clip_norm=0.5)
    assert m.noise_multiplier == accounting.gaussian_noise_multiplier(3.0, 1e-6)
    assert 2.999 < m.epsilon() <= 3.0
    assert m.delta(3.0) <= 1e-6
    assert m.noise_scale == m.noise_multiplier * 0.5 * f.sensitivity
    assert m.mu() == pytest.approx(1 / m.noise_multiplier)
    assert m.rho() == pytest.approx(0.5 / m.noise_multiplier**2)


def test_the_scale_of_the_encoder_does_not_matter():
    """A doubled encoder doubles sensitivity and uncorrelated noise, and leaves the same noise."""
    f = ap.design("anti-pgd", steps=9)
    assert ap.calibrate(f, noise_multiplier=1.0).noise_scale == pytest.approx(3.0)  # sens² = T
    assert ap.calibrate(f, noise_multiplier=1.0).epsilon(1e-6) == accounting.gaussian_epsilon(
        1.0, 1e-6
    )


def test_replacing_a_record_costs_twice(f):
    zero, replaced = (
        ap.calibrate(f, epsilon=1.0, delta=1e-6, adjacency=a) for a in ("zero-out", "replace-one")
    )
    assert replaced.noise_scale == pytest.approx(2 * zero.noise_scale)
    assert replaced.epsilon() <= 1.0
    assert ap.calibrate(f, noise_multiplier=1.0, adjacency="replace-one").epsilon(
        1e-6
    ) == pytest.approx(accounting.gaussian_epsilon(0.5, 1e-6))


@pytest.mark.parametrize("name", ["dp-sgd", "dp-mf", "dp-mf+", "tree", "sqrt-toeplitz"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_first_rows_cost_no_more_than_the_plan(name, epochs):
    m = ap.calibrate(ap.design(name, steps=12, epochs=epochs), epsilon=2.0, delta=1e-6)
    spent = [m.epsilon(rows=rows) for rows in range(13)]
    assert spent[0] == 0.0
    assert spent[-1] == m.epsilon()
    assert (np.diff(spent) >= -1e-12).all()
    assert_rows_are_paid_for(m, exact=True)


@pytest.mark.parametrize("estimator", ["full", "online", "plain"])
def test_epsilon_of_a_tree_charged_by_nodes_covers_its_first_rows(estimator):
    f = ap.design("tree", steps=13, estimator=estimator, sensitivity="nodes", epochs=2)
    assert_rows_are_paid_for(ap.calibrate(f, epsilon=2.0, delta=1e-6), exact=False)


def assert_rows_are_paid_for(m, exact):
    """ε of the first rows is at least that of the leading block of the encoder."""
    f = m.factorization
    for rows in range(1, f.steps):
        # the safe bound of a leading block may exceed that of the whole, which holds for it too
        sens = min(ap.sensitivity(f.encoder()[:rows, :rows], f.participation), f.sensitivity)
        least = accounting.gaussian_epsilon(m.noise_multiplier * f.sensitivity / sens, 1e-6)
        spent = m.epsilon(rows=rows)
        assert spent >= least * (1 - 1e-9)
        if exact:
            assert spent == pytest.approx(least, rel=1e-9)


def test_blocks_know_what_their_first_rows_cost():
    f = ap.design("dp-mf+", steps=20, tau=6)
    for rows in range(1, 21):
        dense = ap.sensitivity(f.encoder()[:rows, :rows], ap.once())
        assert f.sensitivity_of(rows) == pytest.approx(dense, rel=1e-12)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_runs_with_independent_noise_compose(f, adjacency):
    """Runs compose to one Gaussian mechanism with noise multiplier ``(Σ 1/s²)^-½``."""
    m = ap.calibrate(f, noise_multiplier=1.5, delta=1e-6, adjacency=adjacency)
    for runs in ([24, 7], [24, 24, 24], [3, 24, 0, 11]):
        ratios = [
            1.5 / m.adjacency_factor * f.sensitivity / f.sensitivity_of(rows)
            for rows in runs
            if rows
        ]
        together = accounting.gaussian_epsilon(np.sum(np.power(ratios, -2.0)) ** -0.5, 1e-6)
        assert m.epsilon_of_runs(runs) == pytest.approx(together, rel=1e-9)
        assert m.epsilon_of_runs(runs) > together, "rounded up"
    assert m.epsilon_of_runs([24, 24, 24, 24]) == pytest.approx(
        accounting.gaussian_epsilon(0.75 / m.adjacency_factor, 1e-6)
    )
    assert m.epsilon_of_runs([24]) == m.epsilon()
    assert m.epsilon_of_runs([7, 0]) == m.epsilon(rows=7)
    assert m.epsilon_of_runs([]) == m.epsilon_of_runs([0, 0]) == 0.0
    with pytest.raises(ValueError, match="rows = 25"):
        m.epsilon_of_runs([24, 25])


@pytest.mark.slow
def test_poisson_samples():
    f = ap.design("dp-sgd", steps=100, epochs=10)
    m = ap.calibrate(
        f, epsilon=2.0, delta=1e-6, sampling=ap.sampling.Poisson(0.05), adjacency="add-remove"
    )
    assert m.epsilon() <= 2.0
    assert m.noise_scale == m.noise_multiplier  # each step stands for itself: no √k
    assert m.epsilon(rows=10) < m.epsilon()
    assert m.epsilon_of_runs([60, 40]) == m.epsilon()
    assert (m.mu(), m.rho()) == (None, None)
    assert m.noise_multiplier < ap.calibrate(f, epsilon=2.0, delta=1e-6).noise_scale


def test_delta_is_the_inverse_of_epsilon_also_for_the_first_rows(f):
    """δ at the ε of some rows is the δ it was computed for; it is 0 for no rows."""
    m = ap.calibrate(f, noise_multiplier=1.5, delta=1e-6)
    for rows in (1, 8, 9, 24):
        epsilon = m.epsilon(rows=rows)
        assert m.delta(epsilon, rows=rows) == pytest.approx(1e-6, rel=1e-6)
    assert (
        m.delta(0.5) == m.delta(0.5, rows=24) > m.delta(0.5, rows=1) > m.delta(0.5, rows=0) == 0.0
    )
    assert m.delta(0.5) == pytest.approx(accounting.gaussian_delta(1.5, 0.5), rel=1e-9)


def test_defaults_are_a_clip_norm_of_1_and_numbers_are_floats(f):
    """Numbers are stored as floats, so that the digest does not depend on their type."""
    m = ap.Mechanism(f, np.float32(2), target_delta=np.float64(1e-6))
    assert m.clip_norm == 1.0
    assert ap.calibrate(f, noise_multiplier=2.0).clip_norm == 1.0
    assert {type(v) for v in (m.noise_multiplier, m.clip_norm, m.target_delta)} == {float}
    assert m.digest == ap.calibrate(f, noise_multiplier=2, clip_norm=1, delta=1e-6).digest


def test_mechanisms_are_compared_by_identity_and_can_be_keys(f):
    """Compare digests instead: equality of arrays has no single truth value."""
    one, other = (ap.calibrate(f, noise_multiplier=1.0) for _ in range(2))
    assert one == one
    assert one != other
    assert one.digest == other.digest
    assert len({one, other}) == 2


def test_a_damaged_mechanism_is_refused_as_a_file_error(f, tmp_path):
    """The error names the path, whatever is missing or superfluous."""
    content = ap.calibrate(f, noise_multiplier=1.0)._content()
    for change, words in (
        ({"noise_multiplier": -1.0}, "not a valid mechanism"),
        ({"adjacency": "swap"}, "not a valid mechanism"),
        ({"sampler": "shuffle"}, "not a valid mechanism .*sampler = 'shuffle'"),
        ({"sampler": None}, "not a valid mechanism"),
        ({"sampling_rate": 0.1}, "not a valid mechanism .*has no sampling rate"),
        ({"sampler": "poisson"}, "not a valid mechanism .*sampling_rate = None"),
        ({"sampler": "poisson", "sampling_rate": "small"}, "not a valid mechanism"),
        ({"factorization": {"what": "factorization"}}, "m: "),
        ({"what": "model"}, "holds a 'model'"),
    ):
        files.write(tmp_path / "m", content | change)
        with pytest.raises(FileFormatError, match=words) as caught:
            ap.load(tmp_path / "m")
        assert str(caught.value).count("not a valid mechanism") <= 1
        if "factorization" in change:
            assert "not a valid mechanism" not in str(caught.value), "the inner error is unchanged"


def test_save_and_load(f, tmp_path):
    m = ap.calibrate(f, epsilon=3.0, delta=1e-6, clip_norm=0.5, unit="user")
    assert m.save(tmp_path / "m") == m.digest
    again = ap.load(tmp_path / "m")
    assert isinstance(again, ap.Mechanism)
    assert again.digest == m.digest
    assert (again.noise_scale, again.epsilon(), again.unit) == (m.noise_scale, m.epsilon(), "user")
    f.save(tmp_path / "f")
    assert isinstance(ap.load(tmp_path / "f"), ap.Factorization)


def test_the_digest_covers_everything_the_noise_depends_on(f):
    m = ap.calibrate(f, noise_multiplier=1.0, delta=1e-6)
    others = [
        dataclasses.replace(m, noise_multiplier=1.1),
        dataclasses.replace(m, clip_norm=2.0),
        dataclasses.replace(m, adjacency="replace-one"),
        dataclasses.replace(m, unit="user"),
        ap.calibrate(
            ap.design("dp-mf+", steps=24, epochs=3, tau=7), noise_multiplier=1.0, delta=1e-6
        ),
    ]
    assert len({m.digest, *(o.digest for o in others)}) == 6
    assert ap.calibrate(f, noise_multiplier=1.0, delta=1e-6).digest == m.digest


def test_a_mechanism_is_frozen_and_has_a_readable_repr(f):
    m = ap.calibrate(f, epsilon=3.0, delta=1e-6)
    with pytest.raises(dataclasses.FrozenInstanceError):
        m.noise_multiplier = 0.1
    assert repr(m) == (
        f"<Mechanism dp-mf+, 24 steps, 3 epochs of 8 steps: noise multiplier "
        f"{m.noise_multiplier:.6g}, clip norm 1, "
        "ε = 3 at δ = 1e-06, zero-out>"
    )
    assert "μ = 1" in repr(ap.calibrate(f, noise_multiplier=1.0))
    sampled = ap.calibrate(SGD, noise_multiplier=1.0, sampling=ap.sampling.Poisson(0.1))
    assert "clip norm 1, poisson, sampling rate 0.1, zero-out>" in repr(sampled)


SGD = ap.design("dp-sgd", steps=8)
MF = ap.design("dp-mf", steps=8)
BAD = [
    (lambda: ap.calibrate(MF), "epsilon = None, noise_multiplier = None"),
    (
        lambda: ap.calibrate(MF, epsilon=1.0, noise_multiplier=1.0, delta=1e-6),
        "give one of the two",
    ),
    (lambda: ap.calibrate(MF, epsilon=1.0), "delta = None"),
    (lambda: ap.calibrate(MF, epsilon=0.0, delta=1e-6), "epsilon = 0.0"),
    (lambda: ap.calibrate(MF, epsilon=float("nan"), delta=1e-6), "epsilon = nan"),
    (lambda: ap.calibrate(MF, epsilon=1.0, delta=1.0), "delta = 1"),
    (lambda: ap.calibrate(MF, epsilon=1.0, delta=1e-6, clip_norm=0.0), "clip_norm = 0.0"),
    (lambda: ap.calibrate(MF, noise_multiplier=-1.0), "noise_multiplier = -1.0"),
    (
        lambda: ap.calibrate(MF, noise_multiplier=1.0, clip_norm=1e-40),
        "1e-40 must be between 1e-30 and 1e30",
    ),
    (
        lambda: ap.calibrate(MF, noise_multiplier=1.0, clip_norm=1e40),
        "1e.40 must be between 1e-30 and 1e30",
    ),
    (
        lambda: ap.calibrate(MF, noise_multiplier=1e-20, clip_norm=1e-20),
        "1e-40 must be between 1e-30 and 1e30",
    ),
    (lambda: ap.calibrate("dp-mf", noise_multiplier=1.0), "factorization = 'dp-mf'"),
    (lambda: ap.calibrate(MF, noise_multiplier=1.0, unit="person"), "unit = 'person'"),
    (lambda: ap.calibrate(MF, noise_multiplier=1.0, adjacency="swap"), "adjacency = 'swap'"),
    (
        lambda: ap.calibrate(MF, noise_multiplier=1.0, adjacency="add-remove"),
        "an added record would shift",
    ),
    (
        lambda: ap.calibrate(MF, noise_multiplier=1.0, sampling="poisson"),
        "sampling = 'poisson' must be a Sampling",
    ),
    (lambda: ap.Mechanism(MF, 1.0, sampling=0.1), "sampling = 0.1 must be a Sampling"),
    (
        lambda: ap.calibrate(MF, noise_multiplier=1.0, sampling=ap.sampling.Poisson(0.1)),
        "independent noise",
    ),
    (
        lambda: ap.calibrate(SGD, noise_multiplier=1.0, sampling=ap.sampling.Poisson(2.0)),
        "sampling_rate = 2.0",
    ),
    (
        lambda: ap.calibrate(
            SGD, noise_multiplier=1.0, sampling=ap.sampling.Poisson(0.1), adjacency="replace-one"
        ),
        "replace-one",
    ),
    (lambda: ap.calibrate(MF, noise_multiplier=1.0).epsilon(), "delta = None"),
    (lambda: ap.calibrate(MF, noise_multiplier=1.0).epsilon(1e-6, rows=9), "rows = 9"),
    (lambda: ap.calibrate(MF, noise_multiplier=1.0).epsilon(1e-6, rows=-1), "rows = -1"),
    (lambda: ap.calibrate(MF, noise_multiplier=1.0).delta(1.0, rows=9), "rows = 9"),
    (
        lambda: ap.calibrate(MF, noise_multiplier=1.0).epsilon_of_runs(8, 1e-6),
        "runs = 8 must be a list",
    ),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_add_remove_is_allowed_with_hash_slots():
    m = ap.calibrate(
        MF, noise_multiplier=1.0, adjacency="add-remove", sampling=ap.sampling.HashSlots()
    )
    assert m.epsilon(1e-6) == accounting.gaussian_epsilon(1.0, 1e-6)
