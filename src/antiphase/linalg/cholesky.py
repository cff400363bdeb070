"""Reversed Cholesky factors: the lower-triangular ``C`` with ``CᵀC = X``."""

from __future__ import annotations

import numpy as np
import scipy

from antiphase._util.checks import Array


def reversed_cholesky(factor: Array) -> Array:
    """Lower-triangular ``C`` with ``CᵀC = YᵀY`` and a positive diagonal, by QR.

    The Gram matrix is not formed, which would square the condition number.

    Args:
        factor: the matrix ``Y``.

    Example:
        >>> reversed_cholesky(np.array([[1.0, 2.0], [0.0, 2.0]])).round(6)
        array([[0.707107, 0.      ],
               [0.707107, 2.828427]])
    """
    # PRIVACY: CᵀC = X, so columns carry the sensitivity; hence the reversed factor. cholesky(X) has
    # CCᵀ = X, whose columns are not of unit norm.   [G1]
    R = np.asarray(np.linalg.qr(factor[:, ::-1], mode="r"))
    R = R * np.where(np.diagonal(R) < 0, -1.0, 1.0)[:, None]
    return np.tril(R[::-1, ::-1])


def reversed_cholesky_of_gram(X: Array) -> Array:
    """Lower-triangular ``C`` with ``CᵀC = X`` and a positive diagonal.

    Raises:
        numpy.linalg.LinAlgError: ``X`` is not positive definite to the precision it is given in.

    Example:
        >>> reversed_cholesky_of_gram(np.array([[1.0, 2.0], [2.0, 8.0]])).round(6)
        array([[0.707107, 0.      ],
               [0.707107, 2.828427]])
    """
    # PRIVACY: CᵀC = X, so columns carry the sensitivity; hence the reversed factor.   [G1]
    L, info = scipy.linalg.lapack.dpotrf(
        np.asfortranarray(X[::-1, ::-1]), lower=1, overwrite_a=1, clean=1
    )
    if info:
        raise np.linalg.LinAlgError(
            "the Gram matrix is not positive definite to the precision it was computed with"
        )
    return np.ascontiguousarray(L.T[::-1, ::-1])
