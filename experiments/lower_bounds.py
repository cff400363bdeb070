"""Exact noise of PGD and Anti-PGD on ``f = (L/2)‖x‖²``, and lower bounds on it.

The upper bounds cannot be improved. In `Constants`, ``noise_length`` is the paper's σ here.
"""

from __future__ import annotations

import math

from antiphase.theory.bounds import Constants, step_below_one


def pgd_noise(steps: int, constants: Constants) -> float:
    """Return the noise in ``E f(x_T)`` under PGD on ``f = (L/2)‖x‖²``, exactly (appendix E)."""
    return anti_pgd_lower_bound(constants) * _geometric((1 - constants.step) ** 2, steps)


def anti_pgd_noise(steps: int, constants: Constants) -> float:
    """Return the noise in ``E f(x_T)`` under Anti-PGD on ``f = (L/2)‖x‖²``, exactly.

    The coefficient of ``z_j`` in ``x_T`` is ``γ²L(1 − γL)^{T−1−j}`` for j < T (appendix E has
    another for ``z₁``).
    """
    earlier = constants.step**2 * _geometric((1 - constants.step) ** 2, steps - 1)
    return anti_pgd_lower_bound(constants) * (1 + earlier)


def pgd_virtual_noise(steps: int, constants: Constants) -> float:
    """Return the exact noise in ``E f(x̃_T)`` for PGD's plain virtual sequence.

    At least ``γ²Lσ²T/8`` for ``T ≥ 2 log 4/(γL)`` (appendix E): it grows without limit, while that
    of ``x_T`` does not.
    """
    rho = 1 - constants.step
    total = (
        (steps - 1) - 2 * rho * _geometric(rho, steps - 1) + rho**2 * _geometric(rho**2, steps - 1)
    )
    return anti_pgd_lower_bound(constants) * total


def pgd_lower_bound(steps: int, constants: Constants) -> float:
    """Return ``γσ²/8``, a lower bound on `pgd_noise` for ``T ≥ log 2/(γL)`` (appendix E)."""
    source = "the lower bound for PGD (appendix E)"
    step_below_one(source, constants)
    least = math.log(2) / constants.step
    if steps < least:
        raise ValueError(f"steps = {steps}: {source} needs at least log 2/(γL) = {least:.1f}")
    return constants.learning_rate * constants.noise_length**2 / 8


def anti_pgd_lower_bound(constants: Constants) -> float:
    """Return ``γ²Lσ²/2``, a lower bound on `anti_pgd_noise` (appendix E)."""
    return constants.step * constants.learning_rate * constants.noise_length**2 / 2


def _geometric(ratio: float, terms: int) -> float:
    """The sum ``1 + ratio + …`` of this many terms."""
    return float(terms) if ratio == 1 else (1 - ratio**terms) / (1 - ratio)
