"""Ways to factor a workload as ``A = B C``, one file each, behind the interface of `Factorization`."""

from antiphase.factorization.base import Factorization, load

__all__ = ["Factorization", "load"]
