r"""Tree aggregation (DP-FTRL): noise on the nodes of a binary tree over the steps, and three ways to read prefix sums
off it.

``H`` has a row for each dyadic segment of steps that ends by step T. An estimator is a matrix ``B`` with ``B H = S``:
the nodes in the binary expansion of t (plain); each of these combined with its own subtree (online, Honaker); the
least-squares estimate from all nodes (full). None of these is square; all that an observer sees is ``S G + BZ``, and
the same law comes from the square lower-triangular ``B' = chol(BBᵀ)`` and ``C' = B'⁻¹S``. So ``sens(C') ≤ sens(H)``,
with equality for the full estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from antiphase._util import checks as check
from antiphase._util import files
from antiphase._util.checks import Array, Indices
from antiphase.errors import FileFormatError
from antiphase.factorizations.base import Factorization, packed_triangle
from antiphase.factorizations.streaming import Segment, Streaming
from antiphase.linalg.cholesky import reversed_cholesky
from antiphase.sensitivity import Columns

ESTIMATORS = ("full", "online", "plain")
SENSITIVITIES = ("square", "nodes")


@dataclass(frozen=True, eq=False, repr=False)
class Tree(Factorization):
    """The square form of a tree mechanism; options ``estimator`` and ``sensitivity``.

    ``sensitivity="nodes"`` charges for the tree's nodes as the literature does: never less than the encoder's own,
    for the same output noise, and without a dense matrix, so for any number of steps.
    """

    @property
    def estimator(self) -> str:
        return check.choice("estimator", self.options.get("estimator"), ESTIMATORS)

    @property
    def by_nodes(self) -> bool:
        return (
            check.choice("sensitivity", self.options.get("sensitivity"), SENSITIVITIES) == "nodes"
        )

    def __post_init__(self) -> None:
        _ = self.estimator, self.by_nodes  # refused here rather than later

    def _build_encoder(self) -> Array:
        nodes = tree_nodes(self.steps)
        if self.estimator == "full":
            return reversed_cholesky(_node_matrix(nodes, self.steps))
        B = _estimator(nodes, self.steps, honaker=self.estimator == "online")
        S = np.tril(np.ones((self.steps, self.steps)))
        square = np.asarray(np.linalg.qr(B.T, mode="r")).T  # B'B'ᵀ = BBᵀ, lower triangular
        square = square * np.where(np.diagonal(square) < 0, -1.0, 1.0)
        return np.tril(scipy.linalg.solve_triangular(square, S, lower=True))

    def _columns(self, rows: int | None = None) -> Columns:
        if self.by_nodes:
            # PRIVACY: the full estimator's first rows rest on incomplete nodes too; the others' do not.   [G1]
            last = self.steps if rows is None or self.estimator == "full" else rows
            # PRIVACY: HᵀH ⪰ C'ᵀC', and entry by entry non-negative: the nodes never cost less than the encoder.   [G1]
            return _NodeColumns(self.steps if rows is None else rows, last)
        if self.estimator == "full" and rows is None:
            return _NodeColumns(self.steps, self.steps)  # C'ᵀC' = HᵀH
        return super()._columns(rows)

    @property
    def bands(self) -> int:
        return self.steps

    def _stored(self) -> dict[str, Any]:
        """Not needed to build it again, but an outsider can check the sensitivity with it (or else with the nodes)."""
        return {} if self._is_by_formula else {"lower": self.encoder()[np.tril_indices(self.steps)]}

    @property
    def _is_by_formula(self) -> bool:
        """Whether the sensitivity needs no dense encoder."""
        return self.by_nodes or self.estimator == "full"

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        tree = cls(**common)
        if tree._is_by_formula:
            return tree
        lower = packed_triangle(stored, tree.steps)
        files.spend(f"a tree of {tree.steps} steps", operations=tree.steps**3)
        # PRIVACY: the noise is made from the tree, so a file must not show another encoder than the tree's.   [G6]
        if not np.allclose(lower, tree._stored()["lower"], rtol=1e-9, atol=1e-12):
            raise FileFormatError("the stored encoder is not that of the tree")
        return tree


class _NodeColumns:
    """The first ``steps`` columns of ``H``: two steps share the nodes that hold both and end by step ``last``."""

    def __init__(self, steps: int, last: int) -> None:
        self.steps, self._last = steps, last
        self.reach = steps

    def squared_norms(self) -> Array:
        return self._shared(np.arange(self.steps), np.arange(self.steps))

    def gram(self, indices: Indices) -> Array:
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
    """All dyadic segments ``(start, size)`` that end by ``steps``, in the order in which they are complete.

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


def full_estimator_stream(tree: Tree) -> Streaming:
    r"""``C⁻¹Z`` of the full estimator as a stream, one vector for each level of the tree.

    Its noise ``y`` has the density ``exp(−½ Σ_nodes (Σ_{i∈node} y_i)²)``. Given the past, ``y_t`` depends on it
    through the sums so far of the nodes that hold step t, one a level. Integrating out the future, last step first,
    leaves a quadratic form in these sums: ``K`` before ``y_t`` is integrated out, ``K − rrᵀ`` after it.
    """
    steps = tree.steps
    levels = np.arange(steps.bit_length())
    delta, r, g, move = np.empty(steps), *(np.zeros((steps, len(levels), 1)) for _ in range(3))
    form = np.zeros((len(levels), len(levels)))
    for t in reversed(range(steps)):
        held = ((t >> levels) + 1 << levels <= steps).astype(np.float64)
        ends = (t + 1) % (1 << levels) == 0
        form[levels[ends], levels[ends]] = held[ends]
        pull = form @ held
        delta[t] = np.sqrt(held @ pull)
        r[t, :, 0] = pull / delta[t]
        g[t, :, 0] = held * ~ends  # a node that ends here is summed no further
        if t + 1 < steps:
            move[t + 1, :, 0] = held * ~ends
        form = form - np.outer(r[t], r[t])
        begins = t % (1 << levels) == 0
        form[begins] = form[:, begins] = 0.0
    segment = Segment(steps, np.arange(steps), delta, r, g, move)
    return Streaming(tree.name, tree.workload, tree.objective, tree.participation, (segment,), (0,))


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
        own = size / (
            2 * size - 1
        )  # inverse-variance weight of the node itself against the sum of its two children
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
