"""Gaussian mechanism: exact formulas, rounding and extreme arguments."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian, get_sigma_gaussian

from antiphase import accounting as ac
from antiphase.accounting import gaussian
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
def test_noise_multipliers_match_the_reference(setting, value):
    assert ac.gaussian_noise_multiplier(*setting) == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize(("s", "value"), reference.EPSILONS.items())
def test_epsilons_match_the_stack_overflow_figures_of_the_paper(s, value):
    assert ac.gaussian_epsilon(s, 1e-6) == pytest.approx(value, rel=1e-8)


def test_rounding_is_always_to_the_safe_side():
    """ε from 1e-3 to 1e4 and δ from 1e-30 to 0.5, against fifty digits: never below the truth."""
    for epsilon, delta in draws(300):
        s = ac.gaussian_noise_multiplier(epsilon, delta)
        assert exact_delta(s, epsilon) <= delta
        assert ac.gaussian_epsilon(s, delta) <= epsilon
        assert exact_delta(s, epsilon) <= ac.gaussian_delta(s, epsilon)
        assert ac.gaussian_delta(s, epsilon) == pytest.approx(
            float(exact_delta(s, epsilon)), rel=1e-6
        )


def test_epsilon_is_rounded_up_by_twice_what_is_needed():
    """Against fifty digits: half of the margin would be enough."""
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


def test_delta_near_one_is_safe_and_accurate():
    """Another formula is used there: safe, and correct to the seventh digit, also of 1 − δ."""
    for s in np.geomspace(0.01, 0.2, 12):
        for x in (-30.0, -9.0, -6.0, -5.001, -4.999, -4.0, -2.0):  # in the formula, Φ(−x) − …
            epsilon = (x + 0.5 / s) / s
            if epsilon >= 0:
                true = exact_delta(s, epsilon)
                assert true <= ac.gaussian_delta(s, epsilon) <= 1
                assert 1 - ac.gaussian_delta(s, epsilon) == pytest.approx(
                    float(1 - true), rel=1e-7, abs=2e-10
                )


def test_results_agree_with_dp_accounting():
    for epsilon, delta in [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-6), (30.0, 1e-9)]:
        assert ac.gaussian_noise_multiplier(epsilon, delta) == pytest.approx(
            get_sigma_gaussian(epsilon, delta), rel=1e-6
        )
        assert ac.gaussian_epsilon(1.7, delta) == pytest.approx(
            get_epsilon_gaussian(1.7, delta), rel=1e-6
        )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ac.gaussian_epsilon(0.0, 1e-6), "noise_multiplier = 0.0"),
        (lambda: ac.gaussian_epsilon(math.nan, 1e-6), "noise_multiplier = nan"),
        (lambda: ac.gaussian_epsilon(1.0, 1.0), "delta = 1 must be below 1"),
        (lambda: ac.gaussian_epsilon(1.0, 0.0), "delta = 0.0"),
        (lambda: ac.gaussian_epsilon(1.0, "small"), "delta = 'small'"),
        (lambda: ac.gaussian_noise_multiplier(-1.0, 1e-6), "epsilon = -1.0"),
        (lambda: ac.gaussian_noise_multiplier(math.inf, 1e-6), "epsilon = inf"),
        (lambda: ac.gaussian_delta(1.0, -0.1), "epsilon = -0.1"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


@pytest.mark.parametrize("s", [1e3, 1e5, 1e7, 1e9, 1e12])
@pytest.mark.parametrize("delta", [1e-6, 1e-12, 1e-20])
def test_large_noise_multipliers_are_rounded_up(s, delta):
    """1/s nearly cancels in the difference there, which made δ too small by 2e-8 at s = 1e7.

    It is not rounded up by much more than the rounding error of that difference.
    """
    epsilon = ac.gaussian_epsilon(s, delta)
    true = exact_delta(s, epsilon)
    assert true <= delta
    assert (
        true <= ac.gaussian_delta(s, epsilon) <= true * (1 + 1e-9 + 4e-15 * s * (1 + epsilon * s))
    )


def test_extreme_numbers_give_a_bound_or_a_refusal():
    """At the limits of floats: a bound that holds, or a refusal."""
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
def test_log_delta_near_zero_is_accurate(s, epsilon):
    """Against fifty digits: as accurate as logarithms of numbers near 1 can be."""
    assert epsilon * s - 0.5 / s < -5
    exact = exact_delta(s, epsilon)
    assert gaussian._log_delta(s, epsilon) == pytest.approx(
        float(mpmath.log(exact)), rel=1e-6, abs=3e-16
    )
    assert ac.gaussian_delta(s, epsilon) >= exact
