"""The reversed Cholesky factor: the lower-triangular C with CᵀC = X."""

from __future__ import annotations

import numpy as np

from antiphase._util.checks import Array


def reversed_cholesky(factor: Array) -> Array:
    """The lower-triangular ``C`` with ``CᵀC = YᵀY`` and a positive diagonal, from ``Y`` (by QR, not through the Gram
    matrix)."""
    # PRIVACY: CᵀC = X, so columns carry the sensitivity; hence the reversed factor. cholesky(X) has CCᵀ = X,
    # whose columns are not of unit norm.   [G1]
    R = np.asarray(np.linalg.qr(factor[:, ::-1], mode="r"))
    R = R * np.where(np.diagonal(R) < 0, -1.0, 1.0)[:, None]
    return np.tril(R[::-1, ::-1])
