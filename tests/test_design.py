import numpy as np
import pytest

import antiphase as ap
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.dense import Dense
from antiphase.objective import Average, Curvature, Maximum, Restarts


def test_the_same_design_is_not_paid_for_twice(cache, monkeypatch):
    calls = []
    monkeypatch.setattr("antiphase.solvers.design_cache.MIN_SECONDS", 0.0)
    monkeypatch.setattr("antiphase.solvers.streaming.maximise_dual", counted(calls))
    first = ap.design("dp-mf", steps=30)
    assert len(calls) == 1
    again = ap.design("dp-mf", steps=30)
    assert len(calls) == 1
    np.testing.assert_array_equal(again.encoder(), first.encoder())
    assert (again.error, again.lower_bound, again.name) == (first.error, first.lower_bound, "dp-mf")
    assert ap.design("dp-sgd", steps=30).lower_bound == first.lower_bound
    assert len(calls) == 1
    ap.design("dp-mf", steps=30, workload=ap.Workload.sgd(30, momentum=0.1))
    assert len(calls) == 2
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:-8])  # damaged: as good as none
    assert ap.design("dp-mf", steps=30).error == first.error
    assert len(calls) == 3


def counted(calls):
    from antiphase.solvers.single_participation import maximise_dual

    def maximise_and_count(*args, **kwargs):
        calls.append(args)
        return maximise_dual(*args, **kwargs)

    return maximise_and_count


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANTIPHASE_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("antiphase.solvers.design_cache.MIN_SECONDS", 0.0)
    assert ap.design("dp-mf", steps=5).gap < 1e-3


def test_progress_is_told_of_every_iteration():
    seen = []
    ap.design("dp-mf", steps=30, epochs=2, progress=seen.append)
    assert [report.done for report in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].gap <= 1e-9
    seen.clear()
    ap.design("dp-mf", steps=30, progress=seen.append)
    assert [report.done for report in seen] == list(range(len(seen)))


def test_damped_from_learning_rate_and_smoothness_or_from_nothing():
    assert ap.design("damped", steps=6, learning_rate=0.1, smoothness=2.0).options[
        "rho"
    ] == pytest.approx(0.9)
    with pytest.warns(UserWarning, match="rho = 1"):
        f = ap.design("damped", steps=9, buffers="exact")
    whole = ap.design("dp-mf+", steps=9, buffers="exact")
    assert f.error == pytest.approx(
        9 * whole.error, rel=1e-8
    )  # diag(1, …, √T) is √T times DP-MF⁺'s at τ = T


def test_tau_defaults_to_steps():
    assert ap.design("dp-mf+", steps=7).objective == Restarts(7)


def test_baselines_can_be_judged_by_any_objective():
    f = ap.design("tree", steps=16, objective=Restarts(4))
    assert f.error == ap.design("tree", steps=16).error_under(Restarts(4))


@pytest.mark.slow
def test_dense_matrices_that_do_not_fit_are_refused():
    f = ap.design("dp-mf+", steps=300_000, tau=10, buffers="exact")
    assert f.error == pytest.approx(30_000 * 4.412975709100825, rel=1e-9)
    for ask in (f.encoder, f.decoder, f.noising):
        with pytest.raises(ap.TooLargeError, match="steps = 300000"):
            ask()
    with pytest.raises(ap.TooLargeError):
        ap.design("dp-mf", steps=300_000, epochs=2)


BAD = [
    (lambda: ap.design("dp-mf"), "steps = None"),
    (lambda: ap.design("dp-mf", steps=0), "steps = 0"),
    (lambda: ap.design("dp-mf", steps=3.0), "steps = 3.0"),
    (lambda: ap.design("dpmf", steps=3), "name = 'dpmf'"),
    (lambda: ap.design(3, steps=3), "name = 3"),
    (lambda: ap.design("dp-mf+", steps=3, tau=0), "tau = 0"),
    (
        lambda: ap.design("dp-mf+", steps=3, tua=2),
        "tua = 2: dp-mf\\+ has no such option; it takes tau",
    ),
    (lambda: ap.design("dp-sgd", steps=3, tau=2), "tau = 2"),
    (lambda: ap.design("dp-mf", steps=3, tolerance=0.0), "tolerance = 0.0"),
    (lambda: ap.design("dp-mf", steps=3, weights=[1, np.nan, 1]), r"weights\[1\] = nan"),
    (lambda: ap.design("dp-mf", steps=3, weights=[0, 0, 1]), r"weights\[0\] = 0"),
    (lambda: ap.design("dp-mf", steps=3, weights=[1, 1]), "weights has 2 entries for 3 steps"),
    (lambda: ap.design("dp-mf", steps=9, participation=ap.epochs(2, 4)), "covers 8 of 9 steps"),
    (lambda: ap.design("dp-mf", steps=9, participation="once"), "participation = 'once'"),
    (lambda: ap.design("dp-mf", steps=9, participation=ap.once(), epochs=2), "epochs = 2"),
    (lambda: ap.design("dp-mf", steps=9, epochs=0), "epochs = 0"),
    (lambda: ap.design("dp-mf", steps=9, epochs=20), "epochs = 20"),
    (lambda: ap.design("dp-mf", steps=9, workload=ap.Workload.sgd(8)), "steps = 9"),
    (lambda: ap.design("dp-mf", workload=np.eye(3)), "workload ="),
    (lambda: ap.design("dp-mf", steps=9, buffers=0), "buffers = 0"),
    (lambda: ap.design("dp-mf", steps=9, buffers="few"), "buffers = 'few'"),
    (lambda: ap.design("dp-mf", steps=9, buffers=2.5), "buffers = 2.5"),
    (
        lambda: ap.design(
            "dp-mf", workload=ap.Workload.from_matrix(np.eye(9)), epochs=3, buffers=4
        ),
        "buffers = 4: this design has no form with few",
    ),
    (lambda: ap.design("tree", steps=3, estimator="best"), "estimator = 'best'"),
    (lambda: ap.design("tree", steps=3, sensitivity="low"), "sensitivity = 'low'"),
    (lambda: ap.design("sqrt-toeplitz", steps=3, normalized=1), "normalized = 1"),
    (lambda: ap.design("sqrt-toeplitz", steps=3, bands=0), "bands = 0"),
    (lambda: ap.design("toeplitz", steps=3, bands=2.0), "bands = 2.0"),
    (lambda: ap.design("toeplitz", steps=3, buffers=2), "buffers = 2: toeplitz has no such option"),
    (lambda: ap.design("banded", steps=3, bands=0), "bands = 0"),
    (
        lambda: ap.design("banded", steps=3, objective=Curvature([1.0])),
        "banded needs a workload that is a short",
    ),
    (lambda: ap.design("blt", steps=3, buffers=9), "buffers = 9: at most 8"),
    (lambda: ap.design("blt", steps=3, buffers="auto"), "buffers = 'auto'"),
    (lambda: ap.design("bisr", steps=3, bands=-1), "bands = -1"),
    (lambda: ap.design("lambda-cgd", steps=3, correlation=1.0), "correlation = 1.0"),
    (
        lambda: ap.design("epoch-restarts", steps=3, tau=1),
        "tau = 1: epoch-restarts has no such option",
    ),
    (lambda: ap.design("damped", steps=3, rho=2.0), "rho = 2.0"),
    (lambda: ap.design("damped", steps=3, learning_rate=0.1), "smoothness = None"),
    (
        lambda: ap.design("damped", steps=3, learning_rate=1.0, smoothness=3.0),
        "learning_rate × smoothness = 3",
    ),
    (lambda: ap.design("damped", steps=3, rho=0.5, learning_rate=0.1, smoothness=1.0), "rho = 0.5"),
    (lambda: ap.design("curvature", steps=3), "curvature needs spectrum"),
    (lambda: ap.design("optimal", steps=3, objective="average"), "objective = 'average'"),
]


@pytest.mark.parametrize(("call", "words"), BAD)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.ones((2, 2)), "above the diagonal"),
        (np.diag([1.0, 0.0]), "diagonal that is not positive"),
        (np.diag([1.0, np.nan]), "not finite"),
        (np.eye(3), "shape"),
    ],
)
def test_an_encoder_that_could_not_serve_is_refused(matrix, words):
    with pytest.raises(ValueError, match=words):
        Dense("mine", ap.Workload.sgd(2), Average(), ap.once(), matrix)
    assert issubclass(Dense, Factorization)


def test_objectives_have_names():
    by_name = ap.design("toeplitz", steps=16, objective="maximum")
    assert by_name.error == ap.design("toeplitz", steps=16, objective=Maximum()).error
    assert ap.design("blt", steps=16, objective="mean").error == ap.design("blt", steps=16).error
    with pytest.raises(ValueError, match="objective = 'least' must be one of mean, maximum"):
        ap.design("blt", steps=16, objective="least")


@pytest.mark.parametrize(
    ("name", "options"), [("banded", {"bands": 4}), ("epoch-restarts", {"epochs": 2})]
)
def test_what_is_not_searched_for_the_maximum_says_so(name, options):
    with pytest.warns(UserWarning, match="searched for the mean error, and judged by the largest"):
        ap.design(name, steps=16, objective=Maximum(), **options)
