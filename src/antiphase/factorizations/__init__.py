"""Factorizations ``A = B C``: how encoders are stored, and their properties."""

# All forms, so that each of them can be loaded from a file.
from antiphase.factorizations import (  # noqa: F401
    banded,
    block_diagonal,
    blt,
    dense,
    identity,
    inverse_toeplitz,
    streaming,
    toeplitz,
    tree,
)
from antiphase.factorizations.base import Factorization

__all__ = ["Factorization"]
