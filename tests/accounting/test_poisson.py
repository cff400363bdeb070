"""Poisson subsampling: dp-accounting's tables, and the search for a noise multiplier."""

import math

import pytest

from antiphase import accounting as ac
from antiphase.accounting import poisson


@pytest.mark.slow
def test_poisson_sampling_is_amplified_and_calibration_is_safe():
    options = {"sampling_rate": 0.01, "steps": 500}
    assert ac.poisson_epsilon(1.0, 1e-6, **options) < 0.5 * ac.gaussian_epsilon(
        1.0 / math.sqrt(500), 1e-6
    )
    s = ac.poisson_noise_multiplier(2.0, 1e-6, **options)
    assert 1.99 < ac.poisson_epsilon(s, 1e-6, **options) <= 2.0
    assert ac.poisson_delta(s, 2.0, **options) <= 1e-6
    whole = ac.poisson_epsilon(2.0, 1e-6, sampling_rate=1.0, steps=1)
    assert whole == pytest.approx(ac.gaussian_epsilon(2.0, 1e-6), rel=1e-3)
    assert whole >= ac.gaussian_epsilon(2.0, 1e-6) * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps", "known"),
    [
        pytest.param(
            8.0, 1e-6, 1 / 128, 2048, 0.628154, marks=pytest.mark.long
        ),  # by dp_accounting's own, tol=1e-5
        (1.0, 1e-6, 1 / 128, 2048, 1.687332),  # likewise
        (3.0, 1e-5, 0.02, 300, None),
    ],
)
def test_poisson_calibration_is_safe_and_tight(epsilon, delta, rate, steps, known):
    """Private by the fine table; not private with 1e-4 less noise."""
    options = {"sampling_rate": rate, "steps": steps}
    s = ac.poisson_noise_multiplier(epsilon, delta, **options)
    assert ac.poisson_epsilon(s, delta, **options) <= epsilon
    assert ac.poisson_epsilon(s * (1 - 1.001e-4), delta, **options) > epsilon
    assert known is None or s == pytest.approx(known, rel=1e-4)


def poisson_stand_in(monkeypatch, shape, coarse=0.0):
    """Replace dp-accounting's tables, which take seconds, by ``ε = shape(s)``.

    The coarse table gives a relative ``coarse`` more. Returns the list of calls of the fine one.
    """
    asked = []

    def account(s, rate, steps, interval=poisson.FINE):
        assert (rate, steps) == (0.25, 9)
        assert interval in (1e-4, 1e-3), "a coarser table would not tell where to look"
        asked.extend([s] * (interval == poisson.FINE))
        return lambda delta: shape(s) * (1.0 if interval == poisson.FINE else 1 + coarse), None

    monkeypatch.setattr(poisson, "_loss_distribution", account)
    return asked


SHAPES = {
    "a power": lambda s: 5 / s,
    "a steep power": lambda s: 300 * s**-4,
    "two powers": lambda s: 0.1 / s + 40 / s**3,
    "an exponential": lambda s: math.expm1(min(9 / s, 700)),
    "a cliff": lambda s: 1e-3 if s > 4.567 else 50.0,
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("coarse", [0.0, 1e-4, 0.003, 0.05, 0.5])
def test_the_search_returns_the_smallest_private_noise_multiplier(monkeypatch, shape, coarse):
    """For any curve: private by the fine table, not with 1e-4 less noise, after few fine tables."""
    asked = poisson_stand_in(monkeypatch, shape, coarse)
    smooth = shape is not SHAPES["a cliff"] and coarse <= 0.003
    for epsilon in (0.01, 0.5, 1.0, 3.0, 30.0):
        asked.clear()
        s = ac.poisson_noise_multiplier(epsilon, 1e-6, sampling_rate=0.25, steps=9)
        assert shape(s) <= epsilon
        assert s == poisson.MIN_POISSON_NOISE_MULTIPLIER or shape(s * (1 - 1.001e-4)) > epsilon
        assert s >= poisson.MIN_POISSON_NOISE_MULTIPLIER
        assert len(asked) <= (5 if smooth else 25)


def test_the_search_continues_below_the_bracket_of_the_coarse_table(monkeypatch):
    """From 3 to 4 the curve is flat and just private, which the coarse table does not show."""
    poisson_stand_in(monkeypatch, lambda s: 9 / s if s < 3 else 1.0 if s < 4 else 2 / s, coarse=0.5)
    assert ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.25, steps=9) == pytest.approx(
        3.0, rel=1e-4
    )


def test_the_smallest_noise_multiplier_is_returned_where_less_suffices(monkeypatch):
    assert poisson.MIN_POISSON_NOISE_MULTIPLIER == 0.125
    for needed in (0.0, 1e-3, 0.11, 0.125):
        poisson_stand_in(monkeypatch, lambda s, needed=needed: needed / s)
        assert (
            ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.25, steps=9)
            == poisson.MIN_POISSON_NOISE_MULTIPLIER
        )


def test_an_epsilon_that_no_noise_reaches_is_refused(monkeypatch):
    """The ε of a table has a lower limit, however much noise there is."""
    poisson_stand_in(monkeypatch, lambda s: 2.0 + 1 / s)
    with pytest.raises(
        ValueError, match="epsilon = 1 at delta = 1e-06 is out of reach of a PLD with 9 steps"
    ):
        ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.25, steps=9)
    poisson_stand_in(monkeypatch, lambda s: 5e5 / s)
    assert ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.25, steps=9) == pytest.approx(
        5e5, rel=1e-4
    )


def test_sampling_every_record_is_the_gaussian_mechanism():
    """Not below the closed formula, above it by at most two intervals; half of the records less."""
    for s, delta in ((2.0, 1e-6), (5.0, 1e-3)):
        known = ac.gaussian_epsilon(s, delta)
        found = ac.poisson_epsilon(s, delta, sampling_rate=1.0, steps=1)
        assert known * (1 - 1e-9) <= found <= known + 2 * poisson.FINE
        assert ac.poisson_delta(s, known, sampling_rate=1.0, steps=1) == pytest.approx(
            delta, rel=1e-2
        )
        assert ac.poisson_epsilon(s, delta, sampling_rate=0.5, steps=1) < 0.8 * known
        twice = ac.poisson_epsilon(s, delta, sampling_rate=1.0, steps=2)
        assert twice == pytest.approx(ac.gaussian_epsilon(s / math.sqrt(2), delta), rel=1e-3)
    assert ac.poisson_delta(2.0, 0.0, sampling_rate=1.0, steps=1) == pytest.approx(
        ac.gaussian_delta(2.0, 0.0), rel=1e-2
    )


@pytest.mark.long
def test_poisson_calibration_at_the_edges():
    """Sampling every record is the Gaussian mechanism; hardly any noise is needed at tiny rates."""
    whole = ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=1.0, steps=4)
    assert whole == pytest.approx(2 * ac.gaussian_noise_multiplier(1.0, 1e-6), rel=2e-3)
    assert whole >= 2 * ac.gaussian_noise_multiplier(1.0, 1e-6) * (1 - 1e-9)
    seldom = ac.poisson_noise_multiplier(
        1.0, 1e-4, sampling_rate=1e-5, steps=1
    )  # δ covers being drawn at all
    assert seldom == poisson.MIN_POISSON_NOISE_MULTIPLIER


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: ac.poisson_noise_multiplier(0.0, 1e-6, sampling_rate=0.1, steps=3),
            "epsilon = 0.0",
        ),
        (lambda: ac.poisson_noise_multiplier(1.0, 1.0, sampling_rate=0.1, steps=3), "delta = 1"),
        (
            lambda: ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.0, steps=3),
            "sampling_rate = 0.0",
        ),
        (lambda: ac.poisson_epsilon(1.0, 1e-6, sampling_rate=1.5, steps=3), "sampling_rate = 1.5"),
        (lambda: ac.poisson_epsilon(1.0, 1e-6, sampling_rate=0.1, steps=0), "steps = 0"),
        (lambda: ac.poisson_delta(1.0, -0.1, sampling_rate=0.1, steps=3), "epsilon = -0.1"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()
