"""Comparing mechanisms: every figure is what the parts give when they are asked one by one."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase import accounting, comparison
from antiphase._util.progress import ProgressReport
from antiphase.comparison import Candidate, Setting, candidates, compare, evaluation, noise_cost
from antiphase.sampling import BallsInBins, CyclicPoisson, FixedOrder, HashSlots, Poisson

PROMISE = {"epsilon": 2.0, "delta": 1e-6}


@pytest.fixture(scope="module")
def found():
    """All of the usual ones but that with Poisson batches, which take seconds to calibrate."""
    setting = Setting.of(64, 4, **PROMISE)
    return compare(
        setting,
        [c for c in comparison.default_candidates(setting) if not c.amplified],
        measure=False,
    )


def test_the_usual_mechanisms_are_there_in_order(found):
    assert [c.label for c in comparison.default_candidates(found.setting)] == [
        "DP-SGD", "DP-SGD, Poisson batches", "DP-λCGD", "tree, full Honaker", "square root", "inverse square root",
        "restarts with every epoch", "DP-MF", "DP-MF⁺, τ = 64",
    ]  # fmt: skip
    assert not any(
        c.amplified for c in comparison.default_candidates(Setting.of(64, 4))
    )  # nothing to amplify
    assert len(found.entries) == 8
    assert found.refused == {}
    assert found.baseline is found.entries[0]


@pytest.mark.parametrize("name", ["dp-sgd", "tree", "sqrt-toeplitz", "dp-mf", "dp-mf+"])
def test_noise_is_that_of_the_dense_decoder(found, name):
    """σ·sens(C)·‖rows of A C⁻¹‖, from matrices that are multiplied out."""
    f = ap.design(
        name, steps=64, epochs=4, **({"tolerance": 1e-3} if name.startswith("dp-mf") else {})
    )
    s = accounting.gaussian_noise_multiplier(**PROMISE)
    deviation = s * f.sensitivity * np.sqrt((f.decoder() ** 2).sum(axis=1))
    e = next(e for e in found.entries if e.name == name)
    assert e.mechanism.noise_multiplier == s
    np.testing.assert_allclose(e.deviation, deviation, rtol=1e-6)
    assert e.final == pytest.approx(deviation[-1], rel=1e-6)
    assert e.average == pytest.approx(math.sqrt((deviation**2).mean()), rel=1e-6)
    row = e.to_dict(found.baseline)
    assert row["average_relative"] == pytest.approx(e.average / found.entries[0].average)
    assert row["digest"] == e.mechanism.digest


def test_nothing_unamplified_is_below_the_optimum(found):
    """The optimum itself is bracketed: the bound is below the error of a design that is solved to 1e-9."""
    best = ap.design("dp-mf", steps=64, epochs=4)
    assert found.optimum <= best.error * (1 + 1e-9)
    assert found.optimum >= best.error * (1 - 2e-3)
    for e in found.entries:
        assert e.over_optimum >= 1
        if e.name != "dp-mf+":  # which has an objective of its own
            error = ap.design(e.name, steps=64, epochs=4).error
            assert e.over_optimum == pytest.approx(error / found.optimum, rel=1e-3)


@pytest.mark.slow
def test_poisson_batches_have_the_noise_multiplier_of_their_accountant():
    (e,) = compare(
        Setting.of(64, 4, **PROMISE), [Candidate("dp-sgd", sampling=Poisson(1 / 16))], measure=False
    ).entries
    assert e.mechanism.noise_multiplier == accounting.poisson_noise_multiplier(
        **PROMISE, sampling_rate=1 / 16, steps=64
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
    assert found.baseline is None
    assert found.to_dict()["mechanisms"][0]["average_relative"] is None


def test_the_learning_rate_scales_the_noise():
    plain, half = (
        compare(Setting.of(16, optimizer={"learning_rates": r}), measure=False) for r in (1.0, 0.5)
    )
    for a, b in zip(plain.entries, half.entries, strict=True):
        np.testing.assert_allclose(b.deviation, a.deviation / 2, rtol=1e-2)


def test_one_that_cannot_be_had_is_listed_and_others_go_on():
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


def test_one_named_twice_appears_once():
    assert len(compare(Setting.of(8), [Candidate("dp-sgd")] * 3, measure=False).entries) == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compare(Setting.of(8), []), "nothing to compare"),
        (lambda: compare(Setting.of(8), [Candidate("dp-mf+", {"tau": 0})]), "tau = 0"),
        (
            lambda: compare(Setting.of(8), [Candidate("dp-sgd", sampling=Poisson(0.1))]),
            "depends on ε",
        ),
        (lambda: Candidate("nope"), "name = 'nope'"),
        (lambda: Candidate("dp-mf", sampling=Poisson(0.1)), "dp-sgd alone"),
        (lambda: Candidate("dp-mf", sampling=CyclicPoisson(0.1)), "few bands"),
        (lambda: Candidate("dp-mf", sampling="poisson"), "sampling = 'poisson' must be"),
        (lambda: Setting.of(8, sampling=Poisson(0.1)), "depends on ε"),
        (lambda: Setting.of(8, sampling=HashSlots()), r"sampling = HashSlots\(\)"),
        (lambda: Setting.of(8, sampling="poisson"), "sampling = 'poisson' must be"),
        (lambda: Setting.of(8, epsilon=1.0), "delta = None"),
        (lambda: Setting.of(8, epsilon=1.0, delta=2.0), "delta = 2"),
        (lambda: Setting.of(8, epsilon=-1.0, delta=1e-5), "epsilon = -1"),
        (lambda: Setting.of(8, parameters=0), "parameters = 0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_a_rate_is_that_of_batches_as_large_as_in_the_fixed_order():
    assert Setting.of(64, 4).sampling_rate == 1 / 16
    assert Setting.of(64).sampling_rate == 1 / 64
    assert Setting(ap.Workload.sgd(64), ap.min_separation(2, 10)).sampling_rate == 1 / 32


@pytest.mark.parametrize("steps", [64, 200])
def test_memory_is_what_a_stream_keeps(steps):
    """With few diagonals all rows are kept, with many as many as fit; a tree and a stream keep vectors."""
    candidates = [
        *(Candidate(name) for name in ("dp-sgd", "tree", "dp-mf")),
        Candidate("dp-mf+", {"tau": steps // 4}),
    ]
    found = compare(Setting.of(steps, 4, parameters=5000), candidates)
    for e in found.entries:
        assert e.noise_bytes == e.mechanism.noise(5000, key=ap.Key.insecure(0)).memory
        assert 0 < e.step_seconds < 1


def test_large_models_are_measured_at_small_ones():
    """A billion numbers: nothing of that size is made, and nothing is refused for its size."""
    found = compare(
        Setting.of(100, 4, parameters=10**9),
        [Candidate("dp-sgd"), Candidate("tree"), Candidate("dp-mf")],
    )
    assert found.refused == {}
    assert [e.noise_bytes // 10**9 for e in found.entries] == [0, 28, 16]
    assert all(e.step_seconds > 0.1 for e in found.entries)


def test_unmeasured_times_are_no_numbers():
    found = compare(Setting.of(8), [Candidate("dp-sgd")], measure=False)
    assert math.isnan(found.entries[0].step_seconds)


def test_ctrl_c_keeps_what_is_finished(monkeypatch):
    """In the third design, in the search for the optimum, and while measuring."""
    real = evaluation.design

    def stopping(name, **options):
        if name == "dp-mf":
            raise KeyboardInterrupt
        return real(name, **options)

    for module in (candidates, evaluation):
        monkeypatch.setattr(module, "design", stopping)
    found = compare(Setting.of(8), [Candidate("dp-sgd"), Candidate("chess"), Candidate("dp-mf")])
    assert [e.name for e in found.entries] == ["dp-sgd", "chess"]
    assert (found.stopped, found.optimum, found.entries[0].over_optimum) == (True, None, None)
    assert found.refused == {"DP-MF": "stopped"}
    found = compare(Setting.of(8), [Candidate("dp-sgd")])
    assert (found.stopped, found.optimum, found.refused) == (True, None, {})
    with pytest.raises(KeyboardInterrupt):
        compare(Setting.of(8), [Candidate("dp-mf")])
    for module in (candidates, evaluation):
        monkeypatch.setattr(module, "design", real)
    monkeypatch.setattr(
        noise_cost, "_times", lambda stream, rows: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    found = compare(Setting.of(8), [Candidate("dp-sgd"), Candidate("dp-mf")])
    assert found.stopped
    assert [e.over_optimum >= 1 for e in found.entries] == [True, True]


def test_progress_says_what_is_done_and_how_far(monkeypatch):
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


def test_words():
    assert Setting.of(1).describe() == "1 step, once"
    assert (
        Setting.of(8, 2, **PROMISE).describe()
        == "8 steps, 2 epochs of 4 steps, ε = 2, δ = 1e-06 (zero-out)"
    )


# ---- what a sampler allows ---------------------------------------------------------------------------------


def labels(setting, **more):
    return [c.label for c in comparison.default_candidates(setting, **more)]


def test_the_usual_ones_are_those_that_a_sampler_can_have():
    plain, cyclic, bins = (
        Setting.of(64, 4, sampling=sampling, **PROMISE)
        for sampling in (FixedOrder(), CyclicPoisson(1 / 16), BallsInBins())
    )
    assert labels(cyclic)[1] == "DP-SGD, Poisson batches"  # which is what one group is
    assert {"Toeplitz", "DP-MF⁺"} <= set(labels(cyclic)) - set(labels(plain))
    assert labels(bins)[1] == "DP-SGD, balls in bins"
    assert {"Toeplitz", "banded", "BLT", "DP-MF, buffers = 4"} <= set(
        labels(plain, family=True)
    ) - set(labels(plain))
    assert "restarts with every epoch" not in labels(Setting.of(64))  # which there is DP-MF


@pytest.fixture(scope="module")
def cyclic():
    """Large noise, so that it is quick; batches half as large as in the fixed order."""
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
def test_what_the_sampler_allows_is_amplified_and_the_rest_says_why_not(cyclic):
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
    assert by_label["DP-SGD"].unamplified == ""  # asked for so
    assert cyclic.baseline is by_label["DP-SGD"]
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


def test_a_sampler_that_was_asked_for_by_name_is_not_replaced():
    candidates = [Candidate("dp-sgd"), Candidate("fourier", sampling=BallsInBins())]
    found = compare(Setting.of(8, 2, **PROMISE), candidates, measure=False)
    assert "negative" in found.refused["Fourier, balls in bins"]
    options = [
        Candidate("dp-sgd"),
        Candidate("sqrt-toeplitz", {"normalized": False}, CyclicPoisson(0.1)),
    ]
    assert "only option" in " ".join(
        compare(Setting.of(8, 2, **PROMISE), options, measure=False).refused.values()
    )


# ---- the frontier ------------------------------------------------------------------------------------------


def test_the_frontier_is_what_nothing_dominates():
    rng = np.random.default_rng(3)
    for _ in range(200):
        points = [
            tuple(map(float, p)) for p in rng.integers(0, 6, (rng.integers(1, 12), 2))
        ]  # with many ties
        beaten = [any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points) for p in points]
        assert comparison.pareto_front(points) == [not b for b in beaten]


def test_rows_say_which_are_on_the_frontier(found):
    rows = {row["label"]: row for row in found.rows()}
    assert rows["DP-MF"]["memory_frontier"]  # nothing has less noise
    assert rows["DP-λCGD"]["memory_frontier"]  # nor memory
    assert not rows["DP-SGD"]["memory_frontier"]
    assert not any(row["time_frontier"] for row in rows.values())  # nothing was measured
    assert [e.label for e in found.memory_frontier] == [
        label for label, row in rows.items() if row["memory_frontier"]
    ]
    assert found.to_dict()["mechanisms"] == list(rows.values())
    assert rows["DP-MF"]["vectors"] == 63


@pytest.mark.parametrize("sampling", [Poisson(0.1), CyclicPoisson(0.1), BallsInBins()])
def test_random_batches_keep_no_separation(sampling):
    apart = {
        "workload": ap.Workload.sgd(16),
        "participation": ap.min_separation(2, 8),
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    with pytest.raises(ValueError, match="random batches keep none"):
        Setting(**apart, sampling=sampling)
    found = compare(Setting(**apart))
    assert not any(row.mechanism.amplified for row in found.entries)
