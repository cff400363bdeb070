r"""`Tree`: tree aggregation (DP-FTRL), noise on the nodes of a binary tree.

``H`` has a row for each node, a dyadic range of steps that ends by step T. An estimator reads
prefix sums off the nodes: it is a matrix ``B`` with ``B H = S``. *Plain* adds the nodes in the
binary expansion of t; *online* (Honaker) combines each of these with its own subtree; *full* is the
least-squares estimate from all nodes. None of these is square, but an observer sees only
``S G + BZ``, which has the same law for the square lower-triangular ``B' = chol(BBᵀ)`` and
``C' = B'⁻¹S``. So ``sens(C') ≤ sens(H)``, with equality for the full estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array, Indices
from antiphase.errors import FileFormatError
from antiphase.factorizations.base import Factorization, packed_triangle
from antiphase.factorizations.noise_forms import NoiseForm, TreeEstimator
from antiphase.factorizations.segments import Segment, Stream
from antiphase.linalg.cholesky import reversed_cholesky
from antiphase.sensitivity import Columns

ESTIMATORS = ("full", "online", "plain")
SENSITIVITIES = ("square", "nodes")


@dataclass(frozen=True, eq=False, repr=False)
class Tree(Factorization):
    """The square form of a tree mechanism; options ``estimator`` and ``sensitivity``.

    With ``sensitivity="nodes"`` it is that of the tree's nodes, as in the literature. That is never
    less than the encoder's own for the same output noise, and needs no dense matrix.
    """

    def __post_init__(self) -> None:
        _ = self.estimator, self.is_charged_by_nodes  # checks the options

    @property
    def estimator(self) -> str:
        """How prefix sums are read off the nodes: ``"full"``, ``"online"`` or ``"plain"``."""
        return check.choice("estimator", self.options.get("estimator"), ESTIMATORS)

    @property
    def is_charged_by_nodes(self) -> bool:
        """Whether the sensitivity is that of the nodes rather than of the square encoder."""
        choice = check.choice("sensitivity", self.options.get("sensitivity"), SENSITIVITIES)
        return choice == "nodes"

    def _build_encoder(self) -> Array:
        nodes = tree_nodes(self.steps)
        if self.estimator == "full":
            return reversed_cholesky(_node_matrix(nodes, self.steps))
        B = _estimator(nodes, self.steps, honaker=self.estimator == "online")
        S = np.tril(np.ones((self.steps, self.steps)))
        square = np.asarray(np.linalg.qr(B.T, mode="r")).T  # B'B'ᵀ = BBᵀ, lower triangular
        square = square * np.where(np.diagonal(square) < 0, -1.0, 1.0)
        return np.tril(scipy.linalg.solve_triangular(square, S, lower=True))

    def encoder_columns(self, rows: int | None = None) -> Columns:
        """Return the columns of the nodes where they count, else those of the encoder."""
        steps = self.steps if rows is None else rows
        if self.is_charged_by_nodes:
            # PRIVACY: only the full estimator's first rows use incomplete nodes too.   [G1]
            last = self.steps if rows is None or self.estimator == "full" else rows
            # PRIVACY: HᵀH ⪰ C'ᵀC', entrywise non-negative: nodes never cost less.   [G1]
            return _NodeColumns(steps, last)
        if self.estimator == "full" and rows is None:
            return _NodeColumns(steps, steps)  # C'ᵀC' = HᵀH
        return super().encoder_columns(rows)

    @property
    def bands(self) -> int:
        """Number of diagonals: all of them."""
        return self.steps

    def as_stream(self) -> Stream | None:
        """Return the full estimator as a stream, one buffer for each level; None for others."""
        return self._full_estimator_stream if self.estimator == "full" else None

    def noise_form(self) -> NoiseForm:
        """The full estimator is made from buffers, the others from the nodes."""
        if self.estimator == "full":
            return self._full_estimator_stream
        return TreeEstimator(self.steps, honaker=self.estimator == "online")

    @cached_property
    def _full_estimator_stream(self) -> Stream:
        r"""``C⁻¹Z`` of the full estimator with one vector for each level of the tree.

        Its noise ``y`` has the density ``exp(−½ Σ_nodes (Σ_{i∈node} y_i)²)``. Given the past,
        ``y_t`` depends on it through the sums so far of the nodes that contain step t, one on each
        level. Integrating out the future, last step first, leaves a quadratic form in these sums:
        ``K`` before ``y_t`` is integrated out, ``K − rrᵀ`` after it.
        """
        steps = self.steps
        levels = np.arange(steps.bit_length())
        delta, r, g, move = np.empty(steps), *(np.zeros((steps, len(levels), 1)) for _ in range(3))
        K = np.zeros((len(levels), len(levels)))
        for t in reversed(range(steps)):
            contained = ((t >> levels) + 1 << levels <= steps).astype(np.float64)
            ends = (t + 1) % (1 << levels) == 0
            K[levels[ends], levels[ends]] = contained[ends]
            pull = K @ contained
            delta[t] = np.sqrt(contained @ pull)
            r[t, :, 0] = pull / delta[t]
            g[t, :, 0] = contained * ~ends  # the sum of a node that ends here is complete
            if t + 1 < steps:
                move[t + 1, :, 0] = contained * ~ends
            K = K - np.outer(r[t], r[t])
            begins = t % (1 << levels) == 0
            K[begins] = K[:, begins] = 0.0
        return Stream((Segment(steps, np.arange(steps), delta, r, g, move),), (0,))

    @property
    def _is_by_formula(self) -> bool:
        """Whether the sensitivity needs no dense encoder."""
        return self.is_charged_by_nodes or self.estimator == "full"

    def _stored(self) -> dict[str, Any]:
        """The encoder, so that others can check the sensitivity, unless the nodes show it."""
        return {} if self._is_by_formula else {"lower": self.encoder()[np.tril_indices(self.steps)]}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        tree = cls(**common)
        if tree._is_by_formula:
            return tree
        lower = packed_triangle(stored, tree.steps)
        files.spend(f"a tree of {tree.steps} steps", operations=tree.steps**3)
        # PRIVACY: the noise is made from the tree, so a stored encoder must be the tree's.   [G6]
        if not np.allclose(lower, tree._stored()["lower"], rtol=1e-9, atol=1e-12):
            raise FileFormatError("the stored encoder is not that of the tree")
        return tree


class _NodeColumns:
    """The first ``steps`` columns of ``H``, with the nodes that end by step ``last``.

    Two steps share the nodes that contain both.
    """

    def __init__(self, steps: int, last: int) -> None:
        self.steps, self._last = steps, last
        self.reach = steps

    def squared_norms(self) -> Array:
        """Return the number of nodes that contain each step."""
        return self._shared(np.arange(self.steps), np.arange(self.steps))

    def gram(self, indices: Indices) -> Array:
        """Return the number of nodes that each two of these steps share."""
        return self._shared(indices[:, None], indices[None, :])

    def _shared(self, i: Any, j: Any) -> Array:
        shared = np.zeros(np.broadcast(i, j).shape)
        level = 0
        while 1 << level <= self._last:
            complete = (i >> level) + 1 << level <= self._last
            shared += ((i >> level) == (j >> level)) & complete
            level += 1
        return shared


def tree_nodes(steps: int) -> list[tuple[int, int]]:
    """Return all dyadic ranges ``(start, size)`` that end by ``steps``, in order of completion.

    Example:
        >>> tree_nodes(3)
        [(0, 1), (1, 1), (0, 2), (2, 1)]
    """
    nodes = []
    for end in range(1, steps + 1):
        size = 1
        while end % size == 0:
            nodes.append((end - size, size))
            size *= 2
    return nodes


def _node_matrix(nodes: list[tuple[int, int]], steps: int) -> Array:
    H = np.zeros((len(nodes), steps))
    for row, (start, size) in enumerate(nodes):
        H[row, start : start + size] = 1.0
    return H


def _estimator(nodes: list[tuple[int, int]], steps: int, *, honaker: bool) -> Array:
    """``B`` with ``B H = S``: for each prefix, the nodes of its binary expansion.

    With ``honaker`` the estimate of a node weighs its own noisy sum and its children's estimates by
    their variances: a subtree of size n has the variance ``n/(2n − 1)``.
    """
    row_of = {node: i for i, node in enumerate(nodes)}
    estimates = np.zeros((len(nodes), len(nodes)))
    for (start, size), row in row_of.items():  # children are complete before their parent
        if size == 1 or not honaker:
            estimates[row, row] = 1.0
            continue
        # The inverse-variance weight of the node itself against the sum of its two children.
        own = size / (2 * size - 1)
        children = [row_of[start, size // 2], row_of[start + size // 2, size // 2]]
        estimates[row] = (1 - own) * estimates[children].sum(axis=0)
        estimates[row, row] = own
    B = np.zeros((steps, len(nodes)))
    for t in range(1, steps + 1):
        end = 0
        for bit in reversed(range(t.bit_length())):
            if t >> bit & 1:
                B[t - 1] += estimates[row_of[end, 1 << bit]]
                end += 1 << bit
    return B
