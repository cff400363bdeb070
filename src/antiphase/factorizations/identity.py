"""`Identity`: independent noise (DP-SGD)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._util.checks import Array
from antiphase.factorizations.toeplitz import ToeplitzEncoder


@dataclass(frozen=True, eq=False, repr=False)
class Identity(ToeplitzEncoder):
    """``C = I``: independent noise (DP-SGD, the paper's PGD)."""

    is_identity = True

    @cached_property
    def coefficients(self) -> Array:
        """``c = (1)``."""
        return np.ones(1)
