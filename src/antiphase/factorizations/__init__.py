"""Factorizations ``A = B C``: how an encoder is stored and what can be asked of it."""

from antiphase.factorizations.base import Factorization

__all__ = ["Factorization"]
