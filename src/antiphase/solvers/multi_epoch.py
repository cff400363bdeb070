r"""Certified optimum for several epochs, by block-cyclic matrices.

It takes O(T k²) for each node and iteration. With the steps ordered by position within the epoch,
and the k epochs of a position side by side, ``V`` is block diagonal and ``(W⁻¹ + s²V)⁻¹ =
NᵀK_s⁻¹N`` with ``K_s = LLᵀ + s²NVNᵀ``, ``L = PΛ⁻¹``. ``K_s`` is block-cyclic tridiagonal, since the
last position of an epoch is next to the first of the next epoch. The search of `dual` needs the
blocks ``X_j`` next to the diagonal; nothing of size T².

For a half-bandwidth w of 2 and more, w positions share a block (one more in some, where w does not
divide the epoch; the others are padded), so that each block reaches its neighbours only.

The encoder itself is dense, computed from the same blocks. If the objective restarts, it has one
dense block for each segment between restarts.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress
from antiphase.factorizations.base import Factorization, refuse_if_too_large
from antiphase.factorizations.block_diagonal import BlockDiagonal
from antiphase.factorizations.dense import Dense
from antiphase.linalg import block_cyclic
from antiphase.linalg.cholesky import reversed_cholesky_of_gram
from antiphase.linalg.quadrature import inverse_square_root_nodes, nodes_needed
from antiphase.problem import BandedProblem, Problem
from antiphase.sensitivity import sensitivity
from antiphase.solvers import dual
from antiphase.solvers.dense import idle_scale
from antiphase.solvers.epoch_layout import EpochFactor, EpochLayout
from antiphase.solvers.spectrum import SAFETY, extreme_eigenvalues, spectral_cutoff

UNIT_ROUNDOFF = 2.0**-53
MAX_STACK_SIZE = 1 << 18  # numbers in one stack of blocks, which should fit in the cache


@dataclass(frozen=True)
class MultiEpochDual:
    """The dual of a banded problem with epochs.

    Attributes:
        problem: the banded problem.
        every: number of steps in an epoch.
        tolerance: the relative gap that is asked for.
        accuracy: the relative accuracy of the quadrature.
    """

    problem: BandedProblem
    every: int
    tolerance: float
    accuracy: float

    @classmethod
    def of(cls, problem: Problem, tolerance: float) -> MultiEpochDual:
        """The dual of a problem that `is_block_cyclic`."""
        accuracy = max(tolerance / 1000, 1e-16)
        return cls(problem.short_recurrence, problem.period, tolerance, accuracy)

    @cached_property
    def layout(self) -> EpochLayout:
        """The place of each step in block-cyclic matrices."""
        return EpochLayout(self.problem.size, self.every, self.problem.half_bandwidth)

    @cached_property
    def _outputs(self) -> tuple[Array, Array]:
        """``L``, by groups."""
        return self.layout.blocks(self.problem.weighted_bands)

    @cached_property
    def _inputs(self) -> tuple[Array, Array]:
        """``N``, by groups."""
        return self.layout.blocks(self.problem.N)

    @cached_property
    def _gram_of_outputs(self) -> tuple[Array, Array]:
        return _gram(*self._outputs)

    @cached_property
    def _inputs_couple(self) -> bool:
        return bool(self._inputs[1].any())

    def start(self) -> list[Array]:
        """A first ``V``, which like W correlates steps of the same segment only."""
        first = np.zeros(self.every * self.layout.epochs, dtype=np.int64)
        first[[start for start, _ in self.problem.segments]] = 1
        segment = np.cumsum(first).reshape(self.layout.epochs, self.every).T
        V = 0.8 * np.eye(self.layout.epochs) + 0.2 * (segment[:, :, None] == segment[:, None, :])
        return [V[positions, :count, :count].copy() for positions, count in self.layout.sizes]

    def _matrices(
        self, full: Array, sharp: bool
    ) -> Callable[[Array], block_cyclic.BlockCyclicMatrix]:
        """``K_s = LLᵀ + s²NVNᵀ`` as a function of the ``s²`` of a few nodes."""
        F = self.layout.spread(_cholesky(full))
        own, before = self._inputs[0] @ F, self._inputs[1] @ np.roll(F, 1, axis=0)
        if not sharp:
            (D, E), (D_V, E_V) = self._gram_of_outputs, _gram(own, before)
            return lambda s2: block_cyclic.GramForm(
                D + _as_stack(s2) * D_V, E + _as_stack(s2) * E_V
            )
        outputs, inputs = _rows(*self._outputs), _rows(own, before)

        def root(s2: Array) -> block_cyclic.RootForm:
            both = [
                np.concatenate(
                    [np.broadcast_to(o, (len(s2), *o.shape)), _as_stack(s2) ** 0.5 * i], axis=2
                )
                for o, i in zip(outputs, inputs, strict=True)
            ]
            return block_cyclic.RootForm(*both)

        return root

    def evaluate(
        self, V: list[Array], previous: dual.Point | None = None, sharp: bool = False
    ) -> dual.Point:
        """The dual function for `dual.climb`.

        Args:
            V: a dual point.
            previous: the point before; far from the optimum fewer digits are computed.
            sharp: eliminate by QR, which takes longer and keeps twice the digits.
        """
        full = self.layout.full(V)
        low, high = self.ends(full)
        accuracy = max(self.accuracy, min(0.1, previous.gap / 1e4) if previous else 0.0)
        squares, weights = inverse_square_root_nodes(nodes_needed(low, high, accuracy), low, high)
        S, beside, condition = self._summed(self._matrices(full, sharp), squares, weights)
        own, before = self._inputs
        X = own.swapaxes(1, 2) @ S @ own
        if self._inputs_couple:
            later = np.roll(before, -1, axis=0)
            across = own.swapaxes(1, 2) @ beside @ later
            X += (
                across
                + across.swapaxes(1, 2)
                + later.swapaxes(1, 2) @ np.roll(S, -1, axis=0) @ later
            )
        blocks = self.layout.gathered(X)
        shares = [np.einsum("jab,jab->j", x, v) for x, v in zip(blocks, V, strict=True)]
        sums = np.concatenate([np.abs(x).sum(axis=(1, 2)) for x in blocks])
        share = np.concatenate(shares)
        trace, budget = share.sum(), sum(v[:, 0, 0].sum() for v in V)
        # The error after scaling the classes, with the second-order effect of their spread.
        mean = share @ sums / trace
        error = mean * trace * (1 + 2 * share @ np.square(sums / mean - 1) / trace)
        # It only tells `climb` which bounds are equal; the guarantee is that of `certified`.
        noise = 0.1 * UNIT_ROUNDOFF * condition + accuracy
        kept = condition, float(trace * sums.max())
        return dual.Point(V, blocks, float(trace**2 / budget), float(error), noise, kept)

    def ends(self, full: Array) -> tuple[float, float]:
        """The spectral interval that the quadrature has to cover, widened for safety."""
        F = EpochFactor(self.layout, _cholesky(full))
        low, high = extreme_eigenvalues(self.problem, F, accuracy=0.1)
        trace = low**-0.5  # its largest term, hence a lower bound
        cutoff = spectral_cutoff(self.problem, trace, self.tolerance)
        return low / SAFETY, min(high * SAFETY, cutoff)

    def certified(self, V: list[Array]) -> tuple[float, float]:
        """A lower and an upper bound on the optimum, with margins for rounding and quadrature.

        The upper bound is the error of ``X(V)`` with all classes scaled by the largest.
        """
        point = self.evaluate(V, sharp=True)
        condition, error = point.more
        margin = 10 * self.accuracy + dual.ROUNDING + 100 * UNIT_ROUNDOFF * np.sqrt(condition)
        return float(point.bound * (1 - margin)), float(error * (1 + margin))

    def _summed(
        self,
        matrices: Callable[[Array], block_cyclic.BlockCyclicMatrix],
        squares: Array,
        weights: Array,
    ) -> tuple[Array, Array, float]:
        """``Σ w_k K_k⁻¹`` next to the diagonal, with half of the nodes in another thread.

        Also an upper bound on the condition number of every ``K_k`` with its rows and columns
        scaled to diagonal 1, by which rounding errors grow: of ``K_k⁻¹``, or its root for QR, whose
        errors are relative to the norm of each column. The norm of the inverse is at most its
        trace, and that of the matrix at most its number of entries in a row.
        """
        shape = self.layout.groups, self.layout.block, self.layout.block
        at_once = max(1, MAX_STACK_SIZE // int(np.prod(shape)))

        def work(nodes: Indices) -> tuple[Array, Array, float]:
            S, beside, condition = np.zeros(shape), np.zeros(shape), 0.0
            for chunk in np.split(nodes, range(at_once, len(nodes), at_once)):
                matrix = matrices(squares[chunk])
                near, next_to = block_cyclic.near_diagonal(matrix, self._inputs_couple)
                S += np.tensordot(weights[chunk], near, 1)
                if self._inputs_couple:
                    beside += np.tensordot(weights[chunk], next_to, 1)
                scaled = matrix.diagonal * np.diagonal(near, axis1=2, axis2=3)
                condition = max(condition, float(scaled.sum(axis=(1, 2)).max(initial=0.0)))
            return S, beside, condition

        nodes = np.arange(len(squares))
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(work, nodes[::2])
            S, beside, condition = work(nodes[1::2])
            even = other.result()
        row = 3 * self.layout.block
        return S + even[0], beside + even[1], row * max(condition, even[2])

    def gram(self, full: Array) -> Array:
        """``X(V)`` as a dense matrix, in the order of time."""
        layout = self.layout
        low, high = self.ends(full)
        squares, weights = inverse_square_root_nodes(
            nodes_needed(low, high, self.accuracy), low, high
        )
        matrices = self._matrices(full, sharp=layout.reach > 1)  # wider bands need more digits
        total = np.zeros((layout.groups, layout.block, layout.groups, layout.block))
        for i in range(len(squares)):
            block_cyclic.add_inverse(total, matrices(squares[i : i + 1]), float(weights[i]))
        group, place = layout.place(np.arange(layout.size))
        rows = group * layout.block + place
        X: Array = total.reshape(layout.groups * layout.block, -1)[np.ix_(rows, rows)]
        for _ in range(2):  # NᵀSN
            inputs, X = X, X * self.problem.N[:, :1]
            for a in range(1, self.problem.N.shape[1]):
                X[:-a] += self.problem.N[a:, a, None] * inputs[a:]
            X = X.T
        return X


def _gram(own: Array, before: Array) -> tuple[Array, Array]:
    """``LLᵀ`` of a matrix by groups: on the diagonal, and from each group to the next."""
    return own @ own.swapaxes(1, 2) + before @ before.swapaxes(1, 2), own @ np.roll(
        before, -1, axis=0
    ).swapaxes(1, 2)


def _rows(own: Array, before: Array) -> tuple[Array, Array]:
    """``Lᵀ`` of a matrix by groups, as equations between each group and the next."""
    return own.swapaxes(1, 2), np.roll(before, -1, axis=0).swapaxes(1, 2)


def _cholesky(stack: Array) -> Array:
    return np.asarray(np.linalg.cholesky(stack), dtype=np.float64)


def _as_stack(squares: Array) -> Array:
    return squares[:, None, None, None]


def is_block_cyclic(problem: Problem) -> bool:
    """Whether `multi_epoch_optimum` applies.

    That needs a short recurrence, idle steps at the ends only, and epochs longer than its memory.
    """
    banded = problem.banded
    if banded is None or problem.participation.steps_per_epoch is None:
        return False
    contiguous = bool(banded.live[-1] - banded.live[0] + 1 == banded.size)
    return contiguous and banded.half_bandwidth <= problem.period < banded.size


def multi_epoch_optimum(
    problem: Problem, *, tolerance: float, progress: Progress | None = None
) -> Factorization:
    """The optimal factorization for several epochs, with its certificate.

    Args:
        problem: a problem that `is_block_cyclic`.
        tolerance: the relative gap to reach.
        progress: called in every iteration; stops the search if it returns True.

    Example:
        >>> from antiphase import Workload, epochs, objective
        >>> problem = Problem(Workload.sgd(24), objective.Average(), epochs(4, every=6))
        >>> multi_epoch_optimum(problem, tolerance=1e-6).gap < 1e-6
        True
    """
    refuse_if_too_large(problem.short_recurrence.longest_segment, copies=5)
    sharper, V = tolerance, None
    best: Factorization | None = None
    while True:
        search = MultiEpochDual.of(problem, sharper)
        ascent = dual.climb(
            search.evaluate, V or search.start(), tolerance=sharper / 2, progress=progress
        )
        bound = max(search.certified(ascent.best.V)[0], 0.0 if best is None else best.lower_bound)
        current = _normalised(_encoder_blocks(search, ascent.best, problem), problem, bound)
        if best is not None and current.gap >= best.gap / 2:
            return min(current, best, key=lambda f: f.gap)  # converged up to rounding
        if current.gap <= tolerance or ascent.stopped:
            return current
        sharper, V, best = sharper / 10, ascent.best.V, current


def multi_epoch_bounds(
    problem: Problem, *, tolerance: float, progress: Progress | None = None
) -> tuple[float, float]:
    """A lower and an upper bound on the optimal error, without an encoder.

    Nothing of size T² is computed, so that the number of steps is not limited by memory.

    Raises:
        ValueError: the problem has no banded form, or no epochs.
    """
    if problem.banded is None or problem.participation.steps_per_epoch is None:
        raise ValueError(
            "there is a bound without an encoder for short recurrences and epochs only"
        )
    search = MultiEpochDual.of(problem, tolerance)
    ascent = dual.climb(search.evaluate, search.start(), tolerance=tolerance, progress=progress)
    return search.certified(ascent.best.V)


def _normalised(blocks: list[Array], problem: Problem, bound: float | None) -> Factorization:
    """The encoder with these diagonal blocks, scaled to sensitivity 1."""
    # PRIVACY: normalised by the computed sensitivity, not by the search's own estimate.   [G1]
    if len(blocks) == 1:
        encoder = blocks[0] / sensitivity(blocks[0], problem.participation)
        return Dense("optimal", **problem.fields, matrix=encoder, bound=bound)
    common = problem.fields | {"sequence": tuple(range(len(blocks)))}
    norm = BlockDiagonal("optimal", **common, distinct=tuple(blocks)).sensitivity
    blocks = [block / norm for block in blocks]
    return BlockDiagonal("optimal", **common, distinct=tuple(blocks), bound=bound)


def _encoder_blocks(search: MultiEpochDual, point: dual.Point, problem: Problem) -> list[Array]:
    """The diagonal blocks of the encoder: one for each segment, and for idle steps at an end."""
    banded, every = search.problem, search.every
    # PRIVACY: cross terms within a class count in its norm; they are not set to zero.   [G1]
    sums = np.concatenate([np.abs(x).sum(axis=(1, 2)) for x in point.X])
    patterns = problem.participation.patterns(problem.steps)
    scale, shrink = idle_scale(problem.steps, banded.live, patterns)
    shrink = shrink * (sums**-0.5)[np.arange(banded.size) % every]
    V = search.layout.full(point.V)
    blocks = []
    for start, stop in banded.segments:
        part = MultiEpochDual(
            banded.part(start, stop), min(every, stop - start), search.tolerance, search.accuracy
        )
        own = np.tile(np.eye(part.layout.epochs), (part.every, 1, 1))
        for i, t in enumerate(range(start, start + part.every)):
            count, e = len(range(t, stop, every)), t // every
            own[i, :count, :count] = V[t % every, e : e + count, e : e + count]
        blocks.append(reversed_cholesky_of_gram(part.gram(own)) * shrink[start:stop])
    first, last = int(banded.live[0]), int(banded.live[-1]) + 1
    before, after = np.diag(scale[:first]), np.diag(scale[last:])
    return [block for block in (before, *blocks, after) if len(block)]
