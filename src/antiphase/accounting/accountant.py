"""Base of the accountants: the privacy of a factorization under one sampling scheme."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from antiphase._util import checks as check
from antiphase.factorizations.base import Factorization

ADJACENCIES = ("zero-out", "replace-one", "add-remove")


def adjacency_factor(adjacency: str) -> float:
    """Distance between neighbouring outputs, relative to zeroing out one record.

    Returns:
        2 for ``replace-one``, 1 for ``zero-out`` and ``add-remove``.
    """
    return 2.0 if check.choice("adjacency", adjacency, ADJACENCIES) == "replace-one" else 1.0


class Accountant(ABC):
    """Converts between noise multipliers and (ε, δ) for one factorization and sampling scheme.

    Noise multipliers are in units of `sensitivity`. All results are rounded to the safe side. [G7]
    """

    def __init__(self, factorization: Factorization, adjacency: str = "zero-out") -> None:
        self._factorization = factorization
        self._adjacency = check.choice("adjacency", adjacency, ADJACENCIES)

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """L2 sensitivity, for zeroing out a record, of what one sampling round releases."""

    @property
    def is_exact(self) -> bool:
        """Whether `sensitivity` is attained, rather than only an upper bound."""
        return True

    @abstractmethod
    def epsilon(self, noise_multiplier: float, delta: float, rows: int) -> float:
        """Upper bound on ε of the first ``rows`` rows at ``delta``."""

    @abstractmethod
    def delta(self, noise_multiplier: float, epsilon: float, rows: int) -> float:
        """Upper bound on δ of the first ``rows`` rows at ``epsilon``."""

    @abstractmethod
    def noise_multiplier(self, epsilon: float, delta: float) -> float:
        """A noise multiplier that gives (ε, δ) to all rows together."""

    @abstractmethod
    def epsilon_of_runs(self, noise_multiplier: float, delta: float, runs: Sequence[int]) -> float:
        """Upper bound on ε of several runs over the same records with independent noise.

        Args:
            noise_multiplier: that of every run.
            delta: the δ of the composition.
            runs: how many first rows each run has released.
        """

    def gaussian_noise_multiplier(self, noise_multiplier: float, rows: int) -> float | None:
        """Noise multiplier of the single Gaussian mechanism that the first rows are equal to.

        None if they are not one Gaussian mechanism, because batches are sampled.
        """
        return None

    def caveat(self) -> str:
        """A sentence about further assumptions of the analysis; empty if there are none."""
        return ""


def refuse_replace_one(adjacency: str) -> None:
    """Raise ValueError for the adjacency that amplification is not analysed for."""
    # PRIVACY: a replaced record is not what sampling was analysed for.   [G9]
    if adjacency == "replace-one":
        raise ValueError(
            'adjacency = "replace-one" is not supported with amplification by sampling; use '
            '"add-remove" or "zero-out"'
        )
