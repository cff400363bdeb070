r"""Inverse square roots as sums of a few resolvents, for a known spectrum.

``A^-½ = (2/π)∫₀^∞ (A + s²)⁻¹ ds ≈ Σ_k w_k (A + s_k²)⁻¹``. With ``s = √low·sc(u)`` (Jacobi's sn/cn)
the integrand becomes periodic, and the midpoint rule converges like ``exp(−2π²m/(ln κ + 3))``
(Hale, Higham and Trefethen 2008, method 3). The function is computed by Landen's transformation of
the complementary modulus ``√(low/high)``, which for a small modulus reaches a hyperbolic sine after
two or three steps. It is evaluated in the lower half of the period only; the upper half is its
mirror image, ``s·s' = √(low·high)``.
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._util.checks import Array


def inverse_square_root_nodes(count: int, low: float, high: float) -> tuple[Array, Array]:
    """The nodes ``s_k²`` and weights ``w_k``.

    Args:
        count: number of nodes.
        low: the least eigenvalue.
        high: the largest eigenvalue.

    Example:
        >>> squares, weights = inverse_square_root_nodes(14, 0.1, 4.0)
        >>> bool(abs((weights / (2.0 + squares)).sum() * 2**0.5 - 1) < 1e-14)
        True
    """
    low = min(low, (1 - 1e-6) * high)
    modulus = math.sqrt(low / high)
    moduli = [modulus]
    while moduli[-1] > 1e-20:
        moduli.append((moduli[-1] / (1 + math.sqrt((1 - moduli[-1]) * (1 + moduli[-1])))) ** 2)
    moduli = moduli[1:]
    stretch = math.prod(1 + k for k in moduli)
    period = _quarter_period(modulus)
    u = (np.arange(count) + 0.5) * period / count
    mirrored = u > period / 2 * (1 + 1e-12)
    ratio = np.sinh(np.where(mirrored, period - u, u) / stretch)
    for k in reversed(moduli):
        ratio = (1 + k) * ratio / (1 - k * ratio**2)
    s = math.sqrt(low) * ratio
    slope = math.sqrt(low) * np.sqrt((1 + (modulus * ratio) ** 2) * (1 + ratio**2))
    product = math.sqrt(low * high)
    slope = np.where(mirrored, product / s**2 * slope, slope)
    s = np.where(mirrored, product / s, s)
    return s**2, 2 / math.pi * period / count * slope


def nodes_needed(low: float, high: float, accuracy: float = 1e-16) -> int:
    """Number of nodes that reach a relative accuracy, by the rate of convergence.

    Example:
        >>> nodes_needed(1.0, 1e6, accuracy=1e-8)
        17
    """
    return math.ceil(-math.log(accuracy) * (math.log(high / low) + 3) / (2 * math.pi**2)) + 1


def _quarter_period(complementary_modulus: float) -> float:
    a, b = 1.0, complementary_modulus
    for _ in range(64):  # converges quadratically, after some steps for a small modulus
        a, b = (a + b) / 2, math.sqrt(a * b)
    return math.pi / (2 * a)
