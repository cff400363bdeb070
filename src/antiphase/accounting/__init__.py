"""Accountants: ε, δ and noise multipliers, each rounded to the safe side."""

from antiphase.accounting.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_noise_multiplier,
    gdp,
    zcdp,
)
from antiphase.accounting.poisson import poisson_delta, poisson_epsilon, poisson_noise_multiplier

__all__ = [
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise_multiplier",
    "gdp",
    "poisson_delta",
    "poisson_epsilon",
    "poisson_noise_multiplier",
    "zcdp",
]
