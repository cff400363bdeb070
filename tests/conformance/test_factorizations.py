"""Every mechanism of `MECHANISMS` has the guarantees of a factorization."""

import dataclasses

import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.streaming import Streaming
from antiphase.objective import Average, Damped, Restarts
from antiphase.sensitivity import sensitivity
from tests import brute_force

pytestmark = pytest.mark.slow

T = 8
RATES = np.linspace(1, 0.2, T)

MECHANISMS = {
    "dp-sgd": ("dp-sgd", {}),
    "anti-pgd": ("anti-pgd", {}),
    "chess": ("chess", {}),
    "fourier": ("fourier", {}),
    "tree full": ("tree", {"estimator": "full"}),
    "tree online": ("tree", {"estimator": "online"}),
    "tree plain": ("tree", {"estimator": "plain"}),
    "tree by nodes": ("tree", {"estimator": "online", "sensitivity": "nodes"}),
    "sqrt": ("sqrt-toeplitz", {"normalized": False}),
    "sqrt normalised": ("sqrt-toeplitz", {"normalized": True}),
    "sqrt, 3 bands": ("sqrt-toeplitz", {"bands": 3}),
    "bisr": ("bisr", {"bands": 3}),
    "lambda-cgd": ("lambda-cgd", {}),
    "toeplitz": ("toeplitz", {}),
    "toeplitz, 6 bands, damped": ("toeplitz", {"bands": 6, "objective": Damped(0.8)}),
    "banded": ("banded", {"bands": 3}),
    "banded, wide": ("banded", {"bands": 6, "objective": Average(final_weight=2.0)}),
    "blt": ("blt", {"buffers": 2}),
    "epoch restarts": ("epoch-restarts", {}),
    "epoch restarts, damped": ("epoch-restarts", {"objective": Damped(0.8)}),
    "dp-mf": ("dp-mf", {}),
    "dp-mf exact": ("dp-mf", {"buffers": "exact"}),
    "dp-mf weighted": ("dp-mf", {"weights": np.arange(1, T + 1.0), "final_weight": 2.0}),
    "dp-mf+": ("dp-mf+", {"tau": 3}),
    "dp-mf+ whole": ("dp-mf+", {}),
    "dp-mf+ final": ("dp-mf+", {"tau": 4, "include_final": True}),
    "dp-mf+ anchored": ("dp-mf+", {"tau": 3, "anchor": "end", "weight": 0.3}),
    "dp-mf+ exact": ("dp-mf+", {"tau": 3, "buffers": "exact"}),
    "damped exact": ("damped", {"rho": 0.8, "final_weight": 2.0, "buffers": "exact"}),
    "damped": ("damped", {"rho": 0.8, "final_weight": 2.0}),
    "curvature": ("curvature", {"spectrum": [0.1, 0.5, 1.0], "learning_rate": 0.5}),
    "optimal": ("optimal", {"objective": Restarts(2)}),
    "dp-mf, 2 buffers": ("dp-mf", {"buffers": 2}),
}
WORKLOADS = {
    "prefix sums": ap.Workload.sgd(T),
    "momentum and schedule": ap.Workload.sgd(
        T, momentum=0.8, learning_rates=RATES, weight_decay=0.05
    ),
    "nesterov, averaged": ap.Workload.sgd(T, momentum=0.5, nesterov=True).with_ema(0.5),
    "idle steps": ap.Workload.sgd(T, delay=2, learning_rates=[1, 1, 1, 0, 1, 1, 1, 0]),
    "matrix": ap.Workload.from_matrix(np.tril(np.arange(1, 1 + T * T).reshape(T, T) % 7 + 1.0)),
}
PARTICIPATIONS = {
    "once": ap.once(),
    "epochs": ap.epochs(2, every=4),
    "short last epoch": ap.epochs(3, every=3),
    "apart": ap.min_separation(2, 3),
}


def cases():
    for m, (name, options) in MECHANISMS.items():
        for w, workload in WORKLOADS.items():
            for p, participation in PARTICIPATIONS.items():
                if name == "anti-pgd" and w == "idle steps":
                    continue  # C = A is singular there; that it is refused is tested below
                if w == "matrix" and (
                    name == "banded" or (name != "blt" and options.get("buffers") == 2)
                ):
                    continue  # no short recurrence; refused too
                yield pytest.param(name, options, workload, participation, id=f"{m}/{w}/{p}")


@pytest.fixture(scope="module")
def designed():
    known = {}

    def get(name, options, workload, participation):
        key = (name, str(options), workload, participation)
        if key not in known:
            known[key] = ap.design(name, workload=workload, participation=participation, **options)
        return known[key]

    return get


@pytest.mark.parametrize(("name", "options", "workload", "participation"), list(cases()))
def test_conformance(designed, name, options, workload, participation, tmp_path):
    f = designed(name, options, workload, participation)
    C, B, inverse, A = f.encoder(), f.decoder(), f.noising(), workload.dense()

    # A = B C with a lower-triangular encoder whose noise can be made, and C⁻¹ is its inverse
    np.testing.assert_allclose(B @ C, A, atol=1e-9 * np.abs(A).max())
    np.testing.assert_allclose(inverse @ C, np.eye(T), atol=1e-9)
    for matrix in (C, B, inverse):
        assert not np.triu(matrix, 1).any()
    assert (np.diagonal(C) > 0).all()

    # sensitivity is never below brute force, and equal to it where that is claimed
    true = brute_force.sensitivity(C, participation, np.random.default_rng(0))
    assert f.sensitivity >= true * (1 - 1e-12)
    if f.sensitivity_is_exact and options.get("sensitivity") != "nodes":
        assert f.sensitivity == pytest.approx(true, rel=1e-8)
    assert f.sensitivity >= sensitivity(C, participation) * (1 - 1e-12)

    # the error, recomputed from nothing but the encoder
    root = f.objective.root(workload)
    gram = np.linalg.inv(C.T @ C)
    dense = f.sensitivity**2 * np.trace(root.T @ root @ gram)
    assert f.error == pytest.approx(dense, rel=1e-9)
    assert f.error_under(f.objective) == pytest.approx(f.error, rel=1e-12)
    assert f.noise_per_iterate.sum() == pytest.approx(f.error_under(Average()), rel=1e-9)

    # certified
    assert 0 < f.lower_bound <= f.error * (1 + 1e-12)
    assert f.gap >= 0
    designed_to_be_optimal = f.bound is not None
    if designed_to_be_optimal and not isinstance(participation, ap.participation.MinSeparation):
        idle_in_epochs = workload.idle.any() and not isinstance(
            participation, ap.participation.Once
        )
        few_buffers = isinstance(f, Streaming) and options.get("buffers") != "exact"
        few = 1.0 if options.get("buffers") == 2 else 1e-3  # one node of two vectors, with momentum
        assert f.gap <= (few if idle_in_epochs or few_buffers else 1e-8)
        assert f.sensitivity == pytest.approx(1.0, abs=1e-12)

    # save and load
    mark = f.save(tmp_path / "f.antiphase")
    g = ap.load(tmp_path / "f.antiphase")
    assert type(g) is type(f)
    np.testing.assert_array_equal(g.encoder(), C)
    assert (g.workload, g.objective, g.participation) == (f.workload, f.objective, f.participation)
    assert (g.error, g.sensitivity, g.bound, g.name) == (f.error, f.sensitivity, f.bound, f.name)
    assert g.save(tmp_path / "g.antiphase") == mark

    # one line says what it is; nothing about it can be changed
    assert repr(f).startswith(f"<Factorization {name}")
    assert "\n" not in repr(f)
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.name = "other"
    with pytest.raises(ValueError, match="read-only"):
        f.encoder()[0, 0] = 2.0


@pytest.mark.parametrize("name", ["dp-mf", "dp-mf+"])
def test_no_factorization_beats_a_certified_bound(name):
    """1,000 random encoders at each workload: none has an error below the bound."""
    rng = np.random.default_rng(0)
    for participation in (ap.once(), ap.epochs(2, every=4)):
        f = ap.design(name, steps=T, participation=participation)
        root = f.objective.root(f.workload)
        for _ in range(1000):
            C = f.encoder() + rng.choice([0.003, 0.1, 1.0]) * np.tril(rng.normal(size=(T, T)))
            if (np.abs(np.diagonal(C)) < 1e-3).any():
                continue
            error = sensitivity(C, participation) ** 2 * np.square(root @ np.linalg.inv(C)).sum()
            assert error >= f.lower_bound


def test_anti_pgd_is_refused_where_steps_do_not_move_their_iterate():
    with pytest.raises(ValueError, match="anti-pgd has C = A"):
        ap.design("anti-pgd", workload=WORKLOADS["idle steps"])


def test_few_buffers_are_refused_where_there_is_no_recurrence():
    for participation in (ap.once(), ap.epochs(2, every=4)):
        with pytest.raises(
            ValueError, match="buffers = 2: this design has no form with few buffers"
        ):
            ap.design("dp-mf", workload=WORKLOADS["matrix"], participation=participation, buffers=2)
