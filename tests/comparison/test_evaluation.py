"""`compare`: every figure is what the parts give one by one."""

import numpy as np
import pytest

import antiphase as ap
from antiphase import accounting
from antiphase._util.progress import ProgressReport
from antiphase.comparison import Candidate, Setting, candidates, compare, noise_cost
from antiphase.sampling import BallsInBins, CyclicPoisson, FixedOrder, Poisson

BUDGET = {"epsilon": 2.0, "delta": 1e-6}


@pytest.mark.slow
def test_poisson_batches_have_the_noise_multiplier_of_their_accountant():
    (e,) = compare(
        Setting.of(64, 4, **BUDGET), [Candidate("dp-sgd", sampling=Poisson(1 / 16))], measure=False
    ).entries
    assert e.mechanism.noise_multiplier == accounting.poisson_noise_multiplier(
        **BUDGET, sampling_rate=1 / 16, steps=64
    )
    # prefix sums of independent noise: the last iterate has √64 times a step's, at sensitivity 1
    assert e.final == pytest.approx(8 * e.mechanism.noise_multiplier)
    assert e.mechanism.epsilon() <= 2


@pytest.mark.slow
def test_poisson_batches_can_beat_the_optimum_of_a_fixed_order():
    found = compare(
        Setting.of(64, epsilon=0.5, delta=1e-6),
        [Candidate("dp-sgd", sampling=Poisson(1 / 64)), Candidate("dp-mf")],
        measure=False,
    )
    assert found.entries[0].over_optimum < 1 <= found.entries[1].over_optimum
    assert found.baseline is found.entries[0]
    assert found.to_dict()["baseline"] == "DP-SGD, Poisson batches"
    assert found.to_dict()["mechanisms"][0]["average_relative"] == 1


def test_the_learning_rate_scales_the_noise():
    plain, half = (
        compare(Setting.of(16, optimizer={"learning_rates": r}), measure=False) for r in (1.0, 0.5)
    )
    for a, b in zip(plain.entries, half.entries, strict=True):
        np.testing.assert_allclose(b.deviation, a.deviation / 2, rtol=1e-2)


def test_a_candidate_that_cannot_be_designed_is_listed_with_the_reason():
    candidates = [
        Candidate("dp-mf+", {"tau": 0}),
        Candidate("dp-sgd"),
        Candidate("dp-mf", {"nope": 1}),
    ]
    found = compare(Setting.of(8), candidates, measure=False)
    assert [e.name for e in found.entries] == ["dp-sgd"]
    assert "tau = 0" in found.refused["DP-MF⁺, τ = 0"]
    assert "no such option" in found.refused["DP-MF, nope = 1"]
    assert found.optimum == pytest.approx(
        ap.design("dp-mf", steps=8).error, rel=2e-3
    )  # asked for, though not shown


def test_equal_candidates_appear_once():
    assert len(compare(Setting.of(8), [Candidate("dp-sgd")] * 3, measure=False).entries) == 1


def test_ctrl_c_keeps_what_is_finished(monkeypatch):
    """In the third design, in the search for the optimum, and during measurements."""
    real = candidates.design

    def stopping(name, **options):
        if name == "dp-mf":
            raise KeyboardInterrupt
        return real(name, **options)

    monkeypatch.setattr(candidates, "design", stopping)
    found = compare(Setting.of(8), [Candidate("dp-sgd"), Candidate("chess"), Candidate("dp-mf")])
    assert [e.name for e in found.entries] == ["dp-sgd", "chess"]
    assert (found.stopped, found.optimum, found.entries[0].over_optimum) == (True, None, None)
    assert found.refused == {"DP-MF": "stopped"}
    found = compare(Setting.of(8), [Candidate("dp-sgd")])
    assert (found.stopped, found.optimum, found.refused) == (True, None, {})
    with pytest.raises(KeyboardInterrupt):
        compare(Setting.of(8), [Candidate("dp-mf")])
    monkeypatch.setattr(candidates, "design", real)
    monkeypatch.setattr(
        noise_cost, "_times", lambda stream, rows: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    found = compare(Setting.of(8), [Candidate("dp-sgd"), Candidate("dp-mf")])
    assert found.stopped
    assert [e.over_optimum >= 1 for e in found.entries] == [True, True]


def test_progress_reports_candidates_and_gaps(monkeypatch):
    told = []
    compare(
        Setting.of(64, 4),
        [Candidate("dp-sgd"), Candidate("dp-mf")],
        measure=False,
        progress=told.append,
    )
    assert told[0] == ProgressReport(0, 2, task="DP-SGD")
    assert told[-1] == ProgressReport(2, 2)
    gaps = [r.gap for r in told if r.task == "DP-MF" and r.gap is not None]
    assert gaps[-1] <= 1e-3


@pytest.fixture(scope="module")
def cyclic():
    """Large noise, which is quick; batches half as large as in the fixed order."""
    setting = Setting.of(32, 4, epsilon=0.5, delta=1e-6, sampling=CyclicPoisson(1 / 16))
    candidates = [
        Candidate("dp-sgd", sampling=FixedOrder()),
        Candidate("tree"),
        Candidate("sqrt-toeplitz"),
    ]
    candidates += [
        Candidate("dp-sgd"),
        Candidate("dp-mf+", {"tau": 2}),
        Candidate("dp-mf+", {"tau": 32}),
    ]
    return compare(setting, candidates, measure=False)


@pytest.mark.slow
def test_candidates_are_amplified_or_say_why_not(cyclic):
    by_label = {e.label: e for e in cyclic.entries}
    best = next(e for e in cyclic.entries if e.name == "sqrt-toeplitz")
    assert best.label == f"square root, bands = {best.factorization.bands}, cyclic Poisson"
    assert {e.label for e in cyclic.entries if e.amplified} == {
        best.label, "DP-SGD, Poisson batches", "DP-MF⁺, τ = 2, cyclic Poisson",
    }  # fmt: skip
    unamplified = accounting.gaussian_noise_multiplier(0.5, 1e-6)
    for label, said in {
        "tree, full Honaker": "few bands",
        "DP-MF⁺, τ = 32": "use fewer bands",
    }.items():
        assert said in by_label[label].unamplified
        assert by_label[label].mechanism.noise_multiplier == unamplified
    assert by_label["DP-SGD, fixed order"].unamplified == ""  # asked for so
    assert cyclic.dp_sgd("fixed-order") is by_label["DP-SGD, fixed order"]
    assert cyclic.baseline is by_label["DP-SGD, Poisson batches"]
    assert all(e.mechanism.epsilon() <= 0.5 for e in cyclic.entries)


@pytest.mark.slow
def test_amplified_noise_is_that_of_the_dense_decoder(cyclic):
    for e in cyclic.entries:
        C = e.factorization.encoder()
        scale = e.mechanism.noise_multiplier * e.mechanism.sensitivity
        if e.amplified:
            assert e.mechanism.sensitivity == pytest.approx(np.sqrt((C**2).sum(axis=0).max()))
        np.testing.assert_allclose(
            e.deviation, scale * np.sqrt((e.factorization.decoder() ** 2).sum(axis=1)), rtol=1e-6
        )
        over = (e.deviation**2).sum() / (
            accounting.gaussian_noise_multiplier(0.5, 1e-6) ** 2 * cyclic.optimum
        )
        assert e.over_optimum == pytest.approx(over)


@pytest.mark.slow
def test_balls_in_bins_amplify_what_has_no_negative_entries():
    setting = Setting.of(8, 2, epsilon=2.0, delta=1e-2, sampling=BallsInBins())
    found = compare(setting, [Candidate("sqrt-toeplitz"), Candidate("fourier")], measure=False)
    assert [e.label for e in found.entries] == ["square root, balls in bins", "Fourier"]
    assert [e.amplified for e in found.entries] == [True, False]
    assert "negative" in found.entries[1].unamplified


def test_a_requested_sampling_scheme_is_not_replaced():
    candidates = [Candidate("dp-sgd"), Candidate("fourier", sampling=BallsInBins())]
    found = compare(Setting.of(8, 2, **BUDGET), candidates, measure=False)
    assert "negative" in found.refused["Fourier, balls in bins"]
    options = [
        Candidate("dp-sgd"),
        Candidate("sqrt-toeplitz", {"normalized": False}, CyclicPoisson(0.1)),
    ]
    assert "only option" in " ".join(
        compare(Setting.of(8, 2, **BUDGET), options, measure=False).refused.values()
    )
