r"""Tree aggregation (DP-FTRL): noise on the nodes of a binary tree over the steps, and three ways to read prefix sums
off it.

``H`` has a row for each dyadic stretch of steps that ends by step T. An estimator is a matrix ``B`` with ``B H = S``:
the nodes in the binary expansion of t (plain); each of these combined with its own subtree (online, Honaker); the
least-squares estimate from all nodes (full). None of these is square; all that an observer sees is ``S G + BZ``, and
the same law comes from the square lower-triangular ``B' = chol(BBᵀ)`` and ``C' = B'⁻¹S``. So ``sens(C') ≤ sens(H)``,
with equality for the full estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from antiphase._checks import Array
from antiphase.factorization.base import Factorization
from antiphase.factorization.dense import reversed_cholesky
from antiphase.sensitivity import sensitivity

ESTIMATORS = ("full", "online", "plain")
SENSITIVITIES = ("square", "nodes")


@dataclass(frozen=True, eq=False, repr=False)
class Tree(Factorization):
    """The square form of a tree mechanism; options ``estimator`` and ``sensitivity``.

    ``sensitivity="nodes"`` charges for the tree's nodes as the literature does: never less than the encoder's own,
    and the same output noise.
    """

    def _build_encoder(self) -> Array:
        nodes = tree_nodes(self.steps)
        if self.options["estimator"] == "full":
            return reversed_cholesky(_node_matrix(nodes, self.steps))
        B = _estimator(nodes, self.steps, honaker=self.options["estimator"] == "online")
        S = np.tril(np.ones((self.steps, self.steps)))
        square = np.asarray(np.linalg.qr(B.T, mode="r")).T  # B'B'ᵀ = BBᵀ, lower triangular
        square = square * np.where(np.diagonal(square) < 0, -1.0, 1.0)
        return np.tril(solve_triangular(square, S, lower=True))

    @cached_property
    def sensitivity(self) -> float:
        own = sensitivity(self._columns(), self.participation)
        if self.options["sensitivity"] == "nodes":
            nodes = _node_matrix(tree_nodes(self.steps), self.steps)
            return max(own, sensitivity(nodes, self.participation))
        return own

    @cached_property
    def sensitivity_is_exact(self) -> bool:
        return self.sensitivity == sensitivity(self._columns(), self.participation) and super().sensitivity_is_exact


def tree_nodes(steps: int) -> list[tuple[int, int]]:
    """All dyadic stretches ``(start, size)`` that end by ``steps``, in the order in which they are complete.

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
    """``B`` with ``B H = S``: for each prefix, the nodes of its binary expansion, each read alone or with its subtree.

    Honaker's estimate of a node weighs its own noisy sum and its children's estimates by their variances: a subtree
    of size n has the variance ``n/(2n − 1)``.
    """
    row_of = {node: i for i, node in enumerate(nodes)}
    estimates = np.zeros((len(nodes), len(nodes)))
    for (start, size), row in row_of.items():  # children are complete before their parent
        if size == 1 or not honaker:
            estimates[row, row] = 1.0
            continue
        own = size / (2 * size - 1)  # inverse-variance weight of the node itself against the sum of its two children
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
