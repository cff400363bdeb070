"""Factorizations ``A = B C``: how encoders are stored, and their properties."""

from antiphase.factorizations.base import Factorization

__all__ = ["Factorization"]
