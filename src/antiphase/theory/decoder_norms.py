"""Row and column norms of the decoder, in O(T) if the encoder is a stream."""

from __future__ import annotations

import numpy as np
import scipy

from antiphase._util.checks import Array
from antiphase.factorizations.base import Factorization
from antiphase.factorizations.segments import Segment
from antiphase.objective import Average, Objective


class DecoderNorms:
    """Sums over the rows and columns of ``sens(C)·B``, without the matrix for short streams."""

    def __init__(self, f: Factorization) -> None:
        self._f, self._stream = f, f.as_stream()

    def squared_rows(self, objective: Objective) -> Array:
        """Return the squared norm of each row of ``ΛB``, times ``sens(C)²``."""
        f, recurrence = self._f, objective.recurrence(self._f.workload)
        if self._stream is None or recurrence is None:
            return f.sensitivity**2 * f.squared_row_norms(objective.root(f.workload))
        P, N, weights = recurrence
        return (f.sensitivity * weights) ** 2 * self._stream.variances(P, N)

    def squared_row(self, t: int) -> float:
        """Return ``sens(C)²‖b_t‖²``, with rows counted from 1."""
        if self._stream is not None:
            return float(self.squared_rows(Average())[t - 1])
        f = self._f
        return float(f.sensitivity**2 * f.squared_row_norms(f.workload.dense()[t - 1 : t])[0])

    def column_sums(self) -> Array:
        """Return ``sens(C)·Bᵀ1 = sens(C)·C⁻ᵀ(Sᵀ1)``."""
        f = self._f
        lengths = np.arange(f.steps, 0, -1, dtype=np.float64)
        if self._stream is None:
            solution = scipy.linalg.solve_triangular(f.encoder(), lengths, lower=True, trans="T")
            return f.sensitivity * np.asarray(solution)
        parts = [
            _solve_transposed(segment, lengths[start : start + segment.size])
            for start, segment in self._stream
        ]
        return f.sensitivity * np.concatenate(parts)

    def stale_and_fresh(self, kappa: float) -> tuple[float, float]:
        """Return ``κ‖B − S diag(m)‖_F²`` and ``‖m‖²`` for the m with the least sum of both.

        Both times ``sens(C)²``. Column j of B has the sum ``s_j`` over the ``n_j = T − j + 1`` rows
        from j on: ``m_j = κ s_j/(1 + κ n_j)``.
        """
        s, n = self.column_sums(), np.arange(self._f.steps, 0, -1, dtype=np.float64)
        m = kappa * s / (1 + kappa * n)
        total = float(self.squared_rows(Average()).sum())
        stale = kappa * (total - 2 * float(s @ m) + float(n @ m**2))
        return max(stale, 0.0), float(m @ m)


def _solve_transposed(segment: Segment, right: Array) -> Array:
    """``s = C⁻ᵀ·right`` for ``C_ij = r_iᵀT_i ⋯ T_{j+2}g_j``.

    ``δ_j s_j = right_j − g_jᵀp_j``, and backwards ``p_{j−1} = r_j s_j + T_{j+1}ᵀp_j``.
    """
    s, p = np.empty(segment.size), np.zeros(segment.r.shape[1:])
    move = np.concatenate([segment.move[1:], np.zeros_like(segment.move[:1])])
    for j in reversed(range(segment.size)):
        s[j] = (right[j] - np.vdot(segment.g[j], p)) / segment.delta[j]
        before = segment.r[j] * s[j] + move[j] * p[:, :1]
        before[:, :-1] += p[:, 1:]
        p = before
    return s
