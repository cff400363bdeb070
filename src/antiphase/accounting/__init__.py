"""Accountants: conversions between noise multipliers and (ε, δ), rounded to the safe side."""

from antiphase.accounting.accountant import Accountant
from antiphase.accounting.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    gdp,
    zcdp,
)
from antiphase.accounting.poisson import poisson_delta, poisson_epsilon, poisson_noise_multiplier

__all__ = [
    "Accountant",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise_multiplier",
    "gdp",
    "poisson_delta",
    "poisson_epsilon",
    "poisson_noise_multiplier",
    "zcdp",
]
