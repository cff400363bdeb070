"""Band selection: estimates agree with the accountant, and the search misses nothing."""

import math

import numpy as np
import pytest

import antiphase as ap
from antiphase import accounting, band_selection
from antiphase.accounting import poisson
from antiphase.sampling import CyclicPoisson, Poisson
from antiphase.sensitivity import sensitivity

pytestmark = pytest.mark.slow

RATE = 0.02
BUDGET = {"epsilon": 1.0, "delta": 1e-6}  # tables of the privacy loss are short for large noise


@pytest.fixture(scope="module")
def found():
    return ap.select_bands(steps=32, sampling=CyclicPoisson(RATE), **BUDGET)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "rounds", "epsilon", "delta"),
    [(0.01, 2048, 1.0, 1e-6), (0.08, 256, 1.0, 1e-6), (1.0, 3, 2.0, 1e-5)],
)
def test_estimates_agree_with_the_accountant(rate, rounds, epsilon, delta):
    s = accounting.poisson_noise_multiplier(epsilon, delta, sampling_rate=rate, steps=rounds)
    assert band_selection.estimated_noise_multiplier(epsilon, delta, rate, rounds) == pytest.approx(
        s, rel=2e-4
    )


def test_an_estimate_is_never_below_what_the_accountant_tabulates():
    assert (
        band_selection.estimated_noise_multiplier(1000.0, 0.1, 0.5, 1)
        == poisson.MIN_POISSON_NOISE_MULTIPLIER
    )
    with pytest.raises(ValueError, match="out of reach"):
        band_selection.estimated_noise_multiplier(1e-9, 1e-300, 1.0, 100)


def test_the_mechanism_and_the_trials_are_correct(found):
    m = found.mechanism
    assert (m.sampling, m.factorization.bands) == (CyclicPoisson(RATE), found.bands)
    assert 0.99 * BUDGET["epsilon"] < m.epsilon() <= BUDGET["epsilon"]
    assert [t.bands for t in found.trials] == sorted({t.bands for t in found.trials})
    assert found.expected_noise == min(t.expected_noise for t in found.trials)
    for t in found.trials:  # by the matrices: columns of norm at most 1
        f = ap.design("toeplitz", steps=32, bands=t.bands)
        column = sensitivity(f.encoder(), ap.once())
        assert t.error == pytest.approx(column**2 * (f.decoder() ** 2).sum(), rel=1e-6)


def test_expected_noise_agrees_with_compare(found):
    from antiphase.comparison import Candidate, Setting, compare

    setting = Setting.of(32, sampling=CyclicPoisson(RATE), **BUDGET)
    (entry,) = compare(
        setting, [Candidate("toeplitz", {"bands": found.bands})], measure=False
    ).entries
    assert entry.mechanism.digest == found.mechanism.digest
    assert 32 * entry.average**2 == pytest.approx(found.expected_noise, rel=1e-9)


def test_the_best_is_better_than_its_neighbours(found):
    by_bands = {t.bands: t.expected_noise for t in found.trials}
    assert 1 < found.bands < 32
    assert {found.bands - 1, found.bands + 1, 1} <= set(by_bands)
    assert by_bands[1] > 1.2 * found.expected_noise


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(band_selection.BAND_OPTIONS))
def test_the_search_finds_the_best_of_all_numbers(name, monkeypatch):
    """Against all numbers of bands by the same estimates; the steps have many divisors."""
    monkeypatch.setattr(
        band_selection,
        "estimated_noise_multiplier",
        lambda e, d, rate, rounds: math.sqrt(rounds * rate**1.6),
    )
    steps = 40 if name == "banded" else 60
    workload, judge = ap.Workload.sgd(steps), ap.objective.Average()
    search = band_selection._Search(name, workload, judge, 0.01, 1.0, 1e-5, None)
    best = search.best(steps)
    tried = len(search.trials)
    assert best.expected_noise == min(search.attempt(p).expected_noise for p in range(1, steps + 1))
    assert tried < steps / 2


@pytest.mark.slow
def test_one_band_is_dp_sgd_with_poisson_sampling():
    """For so small an ε amplification gains more than correlation."""
    found = ap.select_bands(steps=16, sampling=CyclicPoisson(0.1), epsilon=0.3, delta=1e-3)
    assert (found.bands, found.mechanism.factorization.name, found.mechanism.sampling) == (
        1,
        "dp-sgd",
        Poisson(0.1),
    )
    assert found.mechanism.noise_multiplier == accounting.poisson_noise_multiplier(
        0.3, 1e-3, sampling_rate=0.1, steps=16
    )


@pytest.mark.slow
def test_no_group_is_asked_for_more_than_it_has():
    assert band_selection._max_bands(1000, 469 / 60_000, None) == 127
    assert [band_selection._max_bands(1000, 1 / n, None) for n in (1, 3, 49, 100)] == [
        1,
        3,
        49,
        100,
    ]
    assert all(p * (1 / p) <= 1 for p in range(1, 200))
    assert band_selection._max_bands(64, 0.001, None) == 64
    assert band_selection._max_bands(64, 0.001, 5) == 5
    told = []
    found = ap.select_bands(
        steps=16,
        sampling=CyclicPoisson(0.1),
        max_bands=3,
        progress=told.append,
        epsilon=0.3,
        delta=1e-3,
    )
    assert found.bands <= 3
    assert {report.task for report in told} == {"1 bands", "2 bands", "3 bands"}


@pytest.mark.slow
def test_workload_and_objective_are_respected():
    """With momentum, and with most weight on the last iterate."""
    workload = ap.Workload.sgd(24, momentum=0.9)
    last = ap.objective.Average(final_weight=10.0)
    found = ap.select_bands(
        "toeplitz", workload=workload, objective=last, sampling=CyclicPoisson(0.04), **BUDGET
    )
    f = found.mechanism.factorization
    assert f.workload == workload
    norm = sensitivity(f.encoder(), ap.once())
    rows = (f.decoder() ** 2).sum(axis=1) * np.r_[np.ones(23), 100.0]
    expected = (found.mechanism.noise_multiplier * norm) ** 2 * rows.sum()
    assert found.expected_noise == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"name": "blt"}, ValueError, "name = 'blt'"),
        ({"steps": None}, TypeError, "steps = None"),
        ({"sampling": 0.1}, TypeError, "sampling = 0.1 must be a CyclicPoisson"),
        ({"sampling": Poisson(0.1)}, TypeError, "must be a CyclicPoisson"),
        ({"epsilon": -1.0}, ValueError, "epsilon"),
        ({"delta": 1.0}, ValueError, "delta"),
        ({"max_bands": 0}, ValueError, "max_bands = 0"),
        ({"adjacency": "replace-one", "max_bands": 1}, ValueError, "replace-one"),
        (
            {"name": "dp-mf+", "steps": None, "workload": ap.Workload.sgd(8, momentum=0.9)},
            ValueError,
            "has 8 bands",
        ),
        ({"objective": "last"}, TypeError, "objective"),
    ],
)
def test_bad_input_is_named(more, error, said):
    with pytest.raises(error, match=said):
        ap.select_bands(**({"steps": 8, "sampling": CyclicPoisson(0.1), **BUDGET} | more))


def test_powers_of_two_and_the_limit_are_tried_first():
    assert list(band_selection._powers_of_two(1)) == [1]
    assert list(band_selection._powers_of_two(8)) == [1, 2, 4, 8]
    assert list(band_selection._powers_of_two(20)) == [1, 2, 4, 8, 16, 20]


def test_candidates_are_neighbours_middles_and_corners():
    """Two neighbours on either side, middles of the gaps, and two corners of ⌈steps/p⌉."""
    neighbours = {6, 7, 8, 9, 10}
    corners = {math.ceil(100 / rounds) for rounds in (11, 12, 13, 14, 15)}
    assert band_selection._near(8, 100, [1, 2, 4, 8, 16, 32]) == neighbours | corners | {6, 12}
    assert 24 in band_selection._near(16, 100, [8, 16, 32]), "the gap above the last but one"
    assert band_selection._near(1, 100, [1, 2, 50]) == {-1, 0, 1, 2, 3}, "nothing is below 1"
    corners = {math.ceil(1000 / rounds) for rounds in range(1, 5)}
    assert band_selection._near(500, 1000, [1, 250, 500]) == {*range(498, 503), 375, 500} | corners


@pytest.mark.parametrize(("epsilon", "rounds"), [(8.0, 1), (20.0, 2), (50.0, 3)])
def test_estimates_below_one_are_accurate(epsilon, rounds):
    """At rate 1 rounds are Gaussian mechanisms, whose noise has a closed form."""
    likely = band_selection.estimated_noise_multiplier(epsilon, 1e-5, 1.0, rounds)
    exact = accounting.gaussian_noise_multiplier(epsilon, 1e-5) * math.sqrt(rounds)
    assert poisson.MIN_POISSON_NOISE_MULTIPLIER < likely < 1
    assert likely == pytest.approx(exact, rel=1e-3)
