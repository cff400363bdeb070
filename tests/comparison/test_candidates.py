"""Settings and candidates of comparisons."""

import pytest

import antiphase as ap
from antiphase.comparison import (
    Candidate,
    Setting,
    batches_needed,
    compare,
    default_candidates,
)
from antiphase.comparison.candidates import no_poisson_reason
from antiphase.recommendation import recommend
from antiphase.sampling import BallsInBins, CyclicPoisson, FixedOrder, HashSlots, Poisson

BUDGET = {"epsilon": 2.0, "delta": 1e-6}


def test_the_default_candidates_in_order():
    assert labels(Setting.of(64, 4, **BUDGET)) == [
        "DP-SGD, Poisson batches",
        "DP-SGD, fixed order",
        "DP-λCGD",
        "tree, full Honaker",
        "square root",
        "inverse square root",
        "restarts with every epoch",
        "DP-MF",
        "DP-MF⁺, τ = 64",
    ]
    assert not any(c.amplified for c in default_candidates(Setting.of(64, 4)))  # nothing to amplify


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: compare(Setting.of(8), []), "nothing to compare"),
        (lambda: compare(Setting.of(8), [Candidate("dp-mf+", {"tau": 0})]), "tau = 0"),
        (
            lambda: compare(Setting.of(8), [Candidate("dp-sgd", sampling=Poisson(0.1))]),
            "depends on ε",
        ),
        (lambda: compare(Setting.of(8), "dp-mf"), r"must be a list, as in \['dp-mf'\]"),
        (lambda: compare(64), r"setting = 64 must be a Setting, such as Setting.of\(steps="),
        (lambda: recommend("dp-mf"), "setting = 'dp-mf' must be a Setting"),
        (lambda: Setting(64, ap.once()), "workload = 64 must be a Workload"),
        (lambda: Setting(ap.Workload.sgd(64), 4), "participation = 4 must be a Participation"),
        (lambda: Setting.of(8, momentum=0.9), 'momentum: .* optimizer={"momentum": 0.9}'),
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


def test_the_default_rate_is_that_of_the_fixed_order():
    assert Setting.of(64, 4).sampling_rate == 1 / 16
    assert Setting.of(64).sampling_rate == 1 / 64
    assert Setting(ap.Workload.sgd(64), ap.min_separation(2, 10)).sampling_rate == 1 / 32


def test_descriptions_of_settings():
    assert Setting.of(1).describe() == "1 step, once"
    assert (
        Setting.of(8, 2, **BUDGET).describe()
        == "8 steps, 2 epochs of 4 steps, ε = 2, δ = 1e-06 (zero-out)"
    )


def labels(setting, **more):
    return [c.label for c in default_candidates(setting, **more)]


def test_default_candidates_fit_the_sampling_scheme():
    plain, cyclic = (
        Setting.of(64, 4, sampling=sampling, **BUDGET)
        for sampling in (FixedOrder(), CyclicPoisson(1 / 16))
    )
    assert {"Toeplitz", "DP-MF⁺"} <= set(labels(cyclic)) - set(labels(plain))
    assert {"Toeplitz", "banded", "BLT", "DP-MF, buffers = 4"} <= set(
        labels(plain, family=True)
    ) - set(labels(plain))
    assert "restarts with every epoch" not in labels(Setting.of(64))  # the same as DP-MF


@pytest.mark.issue(23)
@pytest.mark.parametrize("sampling", [FixedOrder(), Poisson(1 / 16), CyclicPoisson(1 / 16)])
def test_dp_sgd_is_compared_on_poisson_batches_and_in_a_fixed_order(sampling):
    """DP-SGD on Poisson batches comes first, whatever the sampling scheme of the setting."""
    setting = Setting.of(64, 4, sampling=sampling, **BUDGET)
    assert labels(setting)[:2] == ["DP-SGD, Poisson batches", "DP-SGD, fixed order"]
    assert default_candidates(setting)[0].sampling == Poisson(1 / 16)
    bins = labels(Setting.of(64, 4, sampling=BallsInBins(), **BUDGET))
    assert bins[:3] == ["DP-SGD, Poisson batches", "DP-SGD, balls in bins", "DP-SGD, fixed order"]


@pytest.mark.issue(23)
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (Setting.of(64, 4), "depends on ε and δ"),
        (Setting(ap.Workload.sgd(16), ap.min_separation(2, 8), **BUDGET), "minimum separation"),
        (Setting.of(4, 4, **BUDGET), "all records"),
    ],
)
def test_dp_sgd_on_poisson_batches_is_missing_for_a_stated_reason(setting, reason):
    assert labels(setting)[0] == "DP-SGD, fixed order"
    assert reason in no_poisson_reason(setting)
    found = compare(setting, [Candidate("dp-sgd"), Candidate("dp-mf")], measure=False)
    assert f"DP-SGD on Poisson batches is not compared: {no_poisson_reason(setting)}" in (
        batches_needed(found)
    )


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
