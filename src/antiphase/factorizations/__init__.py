"""Ways to factor a workload as ``A = B C``, one file each, behind the interface of `Factorization`."""

from antiphase.factorizations.base import Factorization

__all__ = ["Factorization"]
