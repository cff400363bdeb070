r"""The square root of the prefix sums: ``c_k = binom(2k, k)/4^k``, so that ``C² = S`` and ``B = C``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import toeplitz

from antiphase._checks import Array
from antiphase.factorization.base import Factorization


def square_root_coefficients(steps: int) -> Array:
    """``c_k = Π_{i≤k} (2i − 1)/(2i)``: no binomial is formed, so nothing overflows.

    >>> square_root_coefficients(4)
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    i = np.arange(1, steps)
    coefficients: Array = np.cumprod(np.concatenate([[1.0], (2 * i - 1) / (2 * i)]))
    return coefficients


@dataclass(frozen=True, eq=False, repr=False)
class SquareRoot(Factorization):
    """The square-root Toeplitz encoder; ``normalized`` in the options scales its columns to norm 1."""

    def _build_encoder(self) -> Array:
        encoder: Array = toeplitz(square_root_coefficients(self.steps), np.zeros(self.steps))
        if self.options.get("normalized"):
            encoder = encoder / np.linalg.norm(encoder, axis=0)
        return encoder
