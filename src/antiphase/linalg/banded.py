"""Lower-banded matrices by diagonals: products, solves, shifts.

``bands[t, i]`` is the entry ``i`` places left of the diagonal in row ``t``; entries that would lie
outside the matrix are ignored.
"""

from __future__ import annotations

import numpy as np
import scipy

from antiphase._util.checks import Array


def apply(bands: Array, rows: Array) -> Array:
    """Return the product of the matrix with ``rows``, a vector or a matrix."""
    out = np.zeros_like(rows)
    for i in range(bands.shape[1]):
        band = bands[:, i] if rows.ndim == 1 else bands[:, i, None]
        out += band * shift_rows(rows, i)
    return out


def solve(bands: Array, rows: Array) -> Array:
    """Solve the triangular system for the right-hand sides ``rows``, a vector or a matrix."""
    columns = rows if rows.ndim == 2 else rows[:, None]
    # dtbtrs does not pivot, so a triangular right-hand side has a triangular solution.
    solution, info = scipy.linalg.lapack.dtbtrs(_by_columns(bands), columns, uplo="L")
    if info:
        raise np.linalg.LinAlgError(
            f"row {info - 1} of a banded triangular matrix has a 0 on the diagonal"
        )
    return np.ascontiguousarray(solution).reshape(rows.shape)


def apply_transposed(bands: Array, x: Array) -> Array:
    """Return the product of the transposed matrix with the vector ``x``."""
    out = np.zeros_like(x)
    for i in range(min(bands.shape[1], len(x))):
        out[: len(x) - i] += bands[i:, i] * x[i:]
    return out


def solve_transposed(bands: Array, x: Array) -> Array:
    """Solve the transposed triangular system for the vector ``x``."""
    solution, _ = scipy.linalg.lapack.dtbtrs(_by_columns(bands), x[:, None], uplo="L", trans="T")
    return np.asarray(solution[:, 0])


def add(left: Array, right: Array) -> Array:
    """Return the bands of the sum of two matrices."""
    out = np.zeros((len(left), max(left.shape[1], right.shape[1])))
    out[:, : left.shape[1]] += left
    out[:, : right.shape[1]] += right
    return out


def multiply(left: Array, right: Array) -> Array:
    """Return the bands of the product of two matrices."""
    out = np.zeros((len(left), left.shape[1] + right.shape[1] - 1))
    for i in range(left.shape[1]):
        out[:, i : i + right.shape[1]] += left[:, i, None] * shift_rows(right, i)
    return out


def _by_columns(bands: Array) -> Array:
    """Return the bands as LAPACK stores them: column j of the matrix in column j."""
    width, steps = bands.shape[1], len(bands)
    stored = np.zeros((width, steps))
    for i in range(min(width, steps)):
        stored[i, : steps - i] = bands[i:, i]
    return stored


def trim(bands: Array) -> Array:
    """Drop outer diagonals that are zero or lie outside the matrix."""
    inside = np.arange(len(bands))[:, None] >= np.arange(bands.shape[1])
    used = np.flatnonzero((inside & (bands != 0)).any(axis=0))
    return np.where(inside, bands, 0.0)[:, : used[-1] + 1]


def shift_rows(rows: Array, by: int) -> Array:
    """Return ``Z^by rows``: rows moved down by ``by``, or up if negative, filled with zeros."""
    if by == 0:
        return rows
    out = np.zeros_like(rows)
    if by > 0:
        out[by:] = rows[:-by]
    else:
        out[:by] = rows[-by:]
    return out


def delay_columns(bands: Array, by: int) -> Array:
    """Return the bands of ``M Z^by``: the same rows, reaching ``by`` steps further back."""
    return np.column_stack([np.zeros((len(bands), by)), bands])


def is_time_invariant(*matrices: Array) -> bool:
    """Whether each matrix is Toeplitz, that is, its rows are equal except where the matrix ends."""
    return all(
        bool((bands[a:, a] == bands[-1, a]).all())
        for bands in matrices
        for a in range(min(bands.shape[1], len(bands)))
    )
