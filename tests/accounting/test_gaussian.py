import math

import mpmath
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian

from antiphase import accounting as ac
from antiphase.accounting import gaussian, poisson
from tests import reference


def exact_delta(s, epsilon):
    """The formula itself, with fifty digits."""
    with mpmath.workdps(50):
        s, epsilon = mpmath.mpf(s), mpmath.mpf(epsilon)
        return mpmath.ncdf(1 / (2 * s) - epsilon * s) - mpmath.exp(epsilon) * mpmath.ncdf(
            -1 / (2 * s) - epsilon * s
        )


def draws(count, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield 10 ** rng.uniform(-3, 4), 10 ** rng.uniform(-30, math.log10(0.5))


@pytest.mark.parametrize(("setting", "value"), reference.NOISE_MULTIPLIERS.items())
def test_noise_multipliers_of_the_reference(setting, value):
    assert ac.gaussian_noise_multiplier(*setting) == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize(("s", "value"), reference.EPSILONS.items())
def test_the_papers_stack_overflow_epsilons(s, value):
    assert ac.gaussian_epsilon(s, 1e-6) == pytest.approx(value, rel=1e-8)


def test_rounding_is_always_to_the_safe_side():
    """Over ε from 1e-3 to 1e4 and δ from 1e-30 to 0.5, against fifty digits: never below the truth."""
    for epsilon, delta in draws(300):
        s = ac.gaussian_noise_multiplier(epsilon, delta)
        assert exact_delta(s, epsilon) <= delta
        assert ac.gaussian_epsilon(s, delta) <= epsilon
        assert exact_delta(s, epsilon) <= ac.gaussian_delta(s, epsilon)
        assert ac.gaussian_delta(s, epsilon) == pytest.approx(
            float(exact_delta(s, epsilon)), rel=1e-6
        )


def test_epsilon_is_rounded_up_by_twice_what_is_needed():
    """Against fifty digits: half of the rounding is to spare."""
    for epsilon, delta in draws(100):
        s = ac.gaussian_noise_multiplier(epsilon, delta)
        assert (
            exact_delta(s, ac.gaussian_epsilon(s, delta) * (1 - gaussian.LOSS_MARGIN / 2)) <= delta
        )


def test_more_noise_is_more_private():
    s = np.geomspace(0.05, 50, 40)
    epsilons = [ac.gaussian_epsilon(x, 1e-6) for x in s]
    assert (np.diff(epsilons) < 0).all()
    assert ac.gaussian_epsilon(10.0, 0.4) == 0.0


def test_gdp_and_zcdp():
    """Never below 1/s and 1/(2s²), and above by less than 1e-9."""
    for s in (0.3, 2.0, 7.0):
        assert 1 / s < ac.gdp(s) < (1 + 1e-9) / s
        assert 1 / (2 * s * s) < ac.zcdp(s) < (1 + 1e-9) / (2 * s * s)


def test_hardly_any_noise():
    """Where δ is near 1, another formula: safe, and right to the seventh digit, also of 1 − δ."""
    for s in np.geomspace(0.01, 0.2, 12):
        for x in (-30.0, -9.0, -6.0, -5.001, -4.999, -4.0, -2.0):  # in the formula, Φ(−x) − …
            epsilon = (x + 0.5 / s) / s
            if epsilon >= 0:
                true = exact_delta(s, epsilon)
                assert true <= ac.gaussian_delta(s, epsilon) <= 1
                assert 1 - ac.gaussian_delta(s, epsilon) == pytest.approx(
                    float(1 - true), rel=1e-7, abs=2e-10
                )


def test_agreement_with_dp_accounting():
    for epsilon, delta in [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-6), (30.0, 1e-9)]:
        assert ac.gaussian_noise_multiplier(epsilon, delta) == pytest.approx(
            get_sigma_gaussian(epsilon, delta), rel=1e-6
        )
        assert ac.gaussian_epsilon(1.7, delta) == pytest.approx(
            get_epsilon_gaussian(1.7, delta), rel=1e-6
        )


@pytest.mark.slow
def test_poisson_samples_are_amplified_and_calibration_is_safe():
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
    """Private as tabulated finely; with 1e-4 less noise it would not be."""
    options = {"sampling_rate": rate, "steps": steps}
    s = ac.poisson_noise_multiplier(epsilon, delta, **options)
    assert ac.poisson_epsilon(s, delta, **options) <= epsilon
    assert ac.poisson_epsilon(s * (1 - 1.001e-4), delta, **options) > epsilon
    assert known is None or s == pytest.approx(known, rel=1e-4)


def poisson_stand_in(monkeypatch, shape, coarse=0.0):
    """In place of dp-accounting's tables, which take seconds: ε = shape(s), and by so much more in the coarse table.
    Returns how often the fine one was asked."""
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
def test_the_search_for_noise_ends_at_the_edge(monkeypatch, shape, coarse):
    """Whatever the curve: private as the fine table has it, not with 1e-4 less noise, and after few fine tables."""
    asked = poisson_stand_in(monkeypatch, shape, coarse)
    smooth = shape is not SHAPES["a cliff"] and coarse <= 0.003
    for epsilon in (0.01, 0.5, 1.0, 3.0, 30.0):
        asked.clear()
        s = ac.poisson_noise_multiplier(epsilon, 1e-6, sampling_rate=0.25, steps=9)
        assert shape(s) <= epsilon
        assert s == poisson.MIN_POISSON_NOISE_MULTIPLIER or shape(s * (1 - 1.001e-4)) > epsilon
        assert s >= poisson.MIN_POISSON_NOISE_MULTIPLIER
        assert len(asked) <= (5 if smooth else 25)


def test_the_search_goes_on_below_what_the_coarse_table_sees(monkeypatch):
    """From 3 to 4 the curve is flat and just private, of which the coarse table knows nothing."""
    poisson_stand_in(monkeypatch, lambda s: 9 / s if s < 3 else 1.0 if s < 4 else 2 / s, coarse=0.5)
    assert ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.25, steps=9) == pytest.approx(
        3.0, rel=1e-4
    )


def test_where_hardly_any_noise_is_needed_the_least_is_given(monkeypatch):
    assert poisson.MIN_POISSON_NOISE_MULTIPLIER == 0.125
    for needed in (0.0, 1e-3, 0.11, 0.125):
        poisson_stand_in(monkeypatch, lambda s, needed=needed: needed / s)
        assert (
            ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.25, steps=9)
            == poisson.MIN_POISSON_NOISE_MULTIPLIER
        )


def test_noise_beyond_reach_is_refused(monkeypatch):
    """Tables have a floor below which no noise brings ε."""
    poisson_stand_in(monkeypatch, lambda s: 2.0 + 1 / s)
    with pytest.raises(
        ValueError, match="epsilon = 1 at delta = 1e-06 is out of reach of a PLD with 9 steps"
    ):
        ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.25, steps=9)
    poisson_stand_in(monkeypatch, lambda s: 5e5 / s)
    assert ac.poisson_noise_multiplier(1.0, 1e-6, sampling_rate=0.25, steps=9) == pytest.approx(
        5e5, rel=1e-4
    )


def test_poisson_samples_of_everyone_once_are_the_gaussian_mechanism():
    """Never below the closed formula, and above by no more than the table is coarse; half of the records cost less."""
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
    """Every record in every batch is the Gaussian mechanism; where hardly any noise is needed, the search ends."""
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
        (lambda: ac.gaussian_epsilon(0.0, 1e-6), "noise_multiplier = 0.0"),
        (lambda: ac.gaussian_epsilon(math.nan, 1e-6), "noise_multiplier = nan"),
        (lambda: ac.gaussian_epsilon(1.0, 1.0), "delta = 1 must be below 1"),
        (lambda: ac.gaussian_epsilon(1.0, 0.0), "delta = 0.0"),
        (lambda: ac.gaussian_epsilon(1.0, "small"), "delta = 'small'"),
        (lambda: ac.gaussian_noise_multiplier(-1.0, 1e-6), "epsilon = -1.0"),
        (lambda: ac.gaussian_noise_multiplier(math.inf, 1e-6), "epsilon = inf"),
        (lambda: ac.gaussian_delta(1.0, -0.1), "epsilon = -0.1"),
        (lambda: ac.poisson_epsilon(1.0, 1e-6, sampling_rate=1.5, steps=3), "sampling_rate = 1.5"),
        (lambda: ac.poisson_epsilon(1.0, 1e-6, sampling_rate=0.1, steps=0), "steps = 0"),
        (lambda: ac.poisson_delta(1.0, -0.1, sampling_rate=0.1, steps=3), "epsilon = -0.1"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


@pytest.mark.parametrize("s", [1e3, 1e5, 1e7, 1e9, 1e12])
@pytest.mark.parametrize("delta", [1e-6, 1e-12, 1e-20])
def test_a_great_deal_of_noise_is_rounded_up_too(s, delta):
    """1/s is nearly lost in the difference there; a review found δ too small by 2e-8 at s = 1e7. Nor is it rounded up
    by much more than a float of that difference may be off."""
    epsilon = ac.gaussian_epsilon(s, delta)
    true = exact_delta(s, epsilon)
    assert true <= delta
    assert (
        true <= ac.gaussian_delta(s, epsilon) <= true * (1 + 1e-9 + 4e-15 * s * (1 + epsilon * s))
    )


def test_numbers_that_no_training_has_end_somewhere():
    """Where floats end: a bound that holds, or a refusal; never an accident."""
    for s, delta in [(7e-12, 0.28), (1e-60, 1e-5), (1e-70, 0.5)]:  # ε = 1/(2s²), and a little for δ
        assert ac.gaussian_epsilon(s, delta) == pytest.approx(0.5 / s**2, rel=1e-6)
    assert ac.gaussian_noise_multiplier(1e250, 1e-5) == pytest.approx(0.5**0.5 * 1e-125, rel=1e-6)
    assert ac.gaussian_noise_multiplier(1e-300, 1e-5) == pytest.approx(39894.228, rel=1e-6)
    with pytest.raises(ValueError, match="noise_multiplier = 1e-76 is too small"):
        ac.gaussian_epsilon(1e-76, 1e-5)
    with pytest.raises(ValueError, match="the noise multiplier overflows float64"):
        ac.gaussian_noise_multiplier(1e-320, 1e-320)
    assert ac.gaussian_delta(1e300, 1e300) == 0.0
    assert ac.gaussian_delta(1e-300, 1e300) == ac.gaussian_delta(1e-300, 0.0) == 1.0


@pytest.mark.parametrize(
    ("s", "epsilon"), [(0.05, 90.0), (0.05, 30.0), (0.08, 10.0), (0.01, 4000.0)]
)
def test_where_delta_is_near_one(s, epsilon):
    """Against fifty digits: as close as logarithms of numbers near 1 can be."""
    assert epsilon * s - 0.5 / s < -5
    exact = exact_delta(s, epsilon)
    assert gaussian._log_delta(s, epsilon) == pytest.approx(
        float(mpmath.log(exact)), rel=1e-6, abs=3e-16
    )
    assert ac.gaussian_delta(s, epsilon) >= exact
