r"""The optimum for several epochs in near-linear time: O(T k²) a node and iteration, nothing of size T².

With the steps ordered by position within the epoch, the k epochs of a position side by side, ``V`` is block diagonal
and ``(W⁻¹ + s²V)⁻¹ = NᵀK_s⁻¹N`` with ``K_s = LLᵀ + s²NVNᵀ``, ``L = PΛ⁻¹``: a ring of blocks, since the last position
of an epoch is next to the first one of the next. The search of `dual` needs the blocks ``X_j`` next to the diagonal.

For a half-bandwidth w of 2 and more, w positions share a block (one more in some, where w does not divide the epoch;
the others are padded), so that each block reaches its neighbours only.

Only the encoder itself is dense, made from the same blocks; between restarts, if there are any, each segment has its
own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from antiphase._util.checks import Array, Indices
from antiphase._util.progress import Progress
from antiphase.factorizations.base import Factorization, refuse_if_too_large
from antiphase.factorizations.block_diagonal import BlockDiagonal
from antiphase.factorizations.dense import Dense
from antiphase.linalg import block_cyclic
from antiphase.linalg.quadrature import inverse_square_root_nodes, nodes_needed
from antiphase.objective import Objective
from antiphase.participation import Participation
from antiphase.problem import Problem, problem_of
from antiphase.sensitivity import sensitivity
from antiphase.solvers import dual
from antiphase.solvers.dense import idle_scale
from antiphase.solvers.single_participation import SAFETY, spectrum, worth_seeing
from antiphase.workload import Workload

EPSILON = 2.0**-53
AT_ONCE = 1 << 18  # numbers in one stack of blocks: what is worked on together stays in the cache


@dataclass(frozen=True)
class Layout:
    """Where each step of a problem lies in the ring: group by group, in it position by position, epochs together."""

    size: int
    every: int
    reach: int  # half-bandwidth

    @property
    def epochs(self) -> int:
        return -(-self.size // self.every)

    @property
    def groups(self) -> int:
        return self.every // self.reach

    @cached_property
    def first(self) -> Indices:
        """The first position of each group; one more for the end."""
        return np.arange(self.groups + 1) * self.every // self.groups

    @property
    def block(self) -> int:
        return int(np.diff(self.first).max()) * self.epochs

    @cached_property
    def group(self) -> Indices:
        """The group of each position."""
        return np.repeat(np.arange(self.groups), np.diff(self.first))

    def place(self, steps: Indices) -> tuple[Indices, Indices]:
        """The group of each step, and the place within its block."""
        position, epoch = steps % self.every, steps // self.every
        group = self.group[position]
        return group, (position - self.first[group]) * self.epochs + epoch

    @cached_property
    def of_positions(self) -> tuple[Indices, Indices]:
        """Group and places of the ``every × epochs`` steps, with those of a short last epoch that do not exist."""
        steps = np.arange(self.every)[:, None] + self.every * np.arange(self.epochs)
        group, place = self.place(steps)
        return group[:, 0], place

    @cached_property
    def sizes(self) -> list[tuple[slice, int]]:
        """``(positions, how many epochs they have)``: all alike, or in two kinds where the last epoch is short."""
        long = self.size - (self.epochs - 1) * self.every
        kinds = [(slice(0, long), self.epochs), (slice(long, self.every), self.epochs - 1)]
        return [
            (positions, count)
            for positions, count in kinds
            if positions.stop > positions.start and count
        ]

    def blocks(self, bands: Array) -> tuple[Array, Array]:
        """A banded lower-triangular matrix: blocks on the diagonal (identity where there is padding), and from each
        group to the one before."""
        own = np.tile(np.eye(self.block), (self.groups, 1, 1))
        before = np.zeros_like(own)
        t = np.arange(self.size)
        own[(*self.place(t), self.place(t)[1])] = bands[:, 0]
        for a in range(1, bands.shape[1]):
            (group, row), (source, column) = self.place(t[a:]), self.place(t[:-a])
            # A step that lies later within its epoch than the one that it follows lies in the next epoch.
            inside = (source == group) & (t[a:] % self.every >= a)
            own[group[inside], row[inside], column[inside]] += bands[a:, a][inside]
            before[group[~inside], row[~inside], column[~inside]] += bands[a:, a][~inside]
        return own, before

    def full(self, V: list[Array]) -> Array:
        """``V`` as one stack, one matrix a position, with the identity for steps that do not exist."""
        out = np.tile(np.eye(self.epochs), (self.every, 1, 1))
        for (positions, count), v in zip(self.sizes, V, strict=True):
            out[positions, :count, :count] = v
        return out

    def spread(self, stack: Array) -> Array:
        """One matrix a position, as blocks on the diagonal of the groups."""
        group, place = self.of_positions
        out = np.tile(np.eye(self.block), (self.groups, 1, 1))
        out[group[:, None, None], place[:, :, None], place[:, None, :]] = stack
        return out

    def gathered(self, blocks: Array) -> list[Array]:
        """The k × k blocks of every position out of those of the groups; the inverse of `spread` and `full`."""
        group, place = self.of_positions
        stack = blocks[group[:, None, None], place[:, :, None], place[:, None, :]]
        return [
            np.ascontiguousarray(stack[positions, :count, :count])
            for positions, count in self.sizes
        ]


@dataclass(frozen=True)
class Factors:
    """``F`` with ``V = FFᵀ``, one triangular matrix a position, applied to vectors in the order of time."""

    layout: Layout
    F: Array

    def _positions(self, x: Array) -> Array:
        padded = np.zeros(self.layout.every * self.layout.epochs)
        padded[: len(x)] = x
        return padded.reshape(self.layout.epochs, self.layout.every).T[:, :, None]

    def _time(self, x: Array) -> Array:
        out: Array = x[:, :, 0].T.ravel()[: self.layout.size]
        return out

    def times(self, x: Array, transposed: bool = False) -> Array:
        F = self.F.swapaxes(1, 2) if transposed else self.F
        return self._time(F @ self._positions(x))

    def solve(self, x: Array, transposed: bool = False) -> Array:
        F = self._inverse.swapaxes(1, 2) if transposed else self._inverse
        return self._time(F @ self._positions(x))

    @cached_property
    def _inverse(self) -> Array:
        return np.asarray(np.linalg.inv(self.F), dtype=np.float64)


@dataclass(frozen=True)
class Search:
    """The dual of one problem with epochs of ``every`` steps: `evaluate` for `dual.climb`, `gram` for the encoder."""

    problem: Problem
    every: int
    accuracy: float  # of the quadrature, relative
    tolerance: float

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.problem.size, self.every, self.problem.half_bandwidth)

    @cached_property
    def _outputs(self) -> tuple[Array, Array]:
        """``L``, by groups."""
        return self.layout.blocks(self.problem.L)

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
        """A first ``V``: correlations within each segment between restarts and, as there are none in W, none beyond."""
        segment = np.zeros(self.every * self.layout.epochs, dtype=np.int64)
        segment[self.problem.starts] = 1
        which = np.cumsum(segment).reshape(self.layout.epochs, self.every).T
        V = 0.8 * np.eye(self.layout.epochs) + 0.2 * (which[:, :, None] == which[:, None, :])
        return [V[positions, :count, :count].copy() for positions, count in self.layout.sizes]

    def _rings(self, full: Array, sharp: bool) -> Callable[[Array], block_cyclic.Ring]:
        """``K_s = LLᵀ + s²NVNᵀ`` as a function of the ``s²`` of a few nodes."""
        F = self.layout.spread(_cholesky(full))
        own, before = self._inputs[0] @ F, self._inputs[1] @ np.roll(F, 1, axis=0)
        if not sharp:
            (D, E), (D_V, E_V) = self._gram_of_outputs, _gram(own, before)
            return lambda s2: block_cyclic.Gram(D + _each(s2) * D_V, E + _each(s2) * E_V)
        outputs, inputs = _rows(*self._outputs), _rows(own, before)

        def root(s2: Array) -> block_cyclic.Root:
            both = [
                np.concatenate(
                    [np.broadcast_to(o, (len(s2), *o.shape)), _each(s2) ** 0.5 * i], axis=2
                )
                for o, i in zip(outputs, inputs, strict=True)
            ]
            return block_cyclic.Root(*both)

        return root

    def evaluate(self, V: list[Array], sharp: bool = False) -> dual.Point:
        """All that `dual.climb` wants to know; ``sharp`` takes some times as long and keeps twice the digits."""
        full = self.layout.full(V)
        low, high = self.ends(full, accuracy=0.1)
        squares, weights = inverse_square_root_nodes(
            nodes_needed(low, high, self.accuracy), low, high
        )
        S, beside = self._summed(self._rings(full, sharp), squares, weights)
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
        # To first order the error after scaling the classes; to second order, what their spread adds.
        mean = share @ sums / trace
        error = mean * trace * (1 + 2 * share @ np.square(sums / mean - 1) / trace)
        # A Gram matrix loses digits with its condition, high / low. Of EPSILON times that, bounds were off by 0.0005 to
        # 0.007 (prefix sums, momentum to 0.95, to 8,000 steps), so a tenth is above. It tells `climb` which bounds are
        # equal, nothing more: what is promised is `certified`.
        noise = 0.1 * EPSILON * high / low
        kept = low, high, float(trace * sums.max())
        return dual.Point(V, blocks, float(trace**2 / budget), float(error), noise, kept)

    def ends(self, full: Array, accuracy: float) -> tuple[float, float]:
        """The ends of the spectrum that the quadrature has to cover, moved apart for safety."""
        F = Factors(self.layout, _cholesky(full))
        low, high = spectrum(self.problem, F, accuracy=accuracy)
        trace = low**-0.5  # at least: the largest of its terms
        return low / SAFETY, min(high * SAFETY, worth_seeing(self.problem, trace, self.tolerance))

    def certified(self, V: list[Array]) -> tuple[float, float]:
        """The bound of ``V``, lowered by what rounding and quadrature may have added, and the error of ``X(V)`` with
        all classes scaled alike, raised likewise: the optimum is between."""
        point = self.evaluate(V, sharp=True)
        low, high, error = point.more
        margin = 10 * self.accuracy + dual.ROUNDING + 100 * EPSILON * np.sqrt(high / low)
        return point.bound * (1 - margin), error * (1 + margin)

    def _summed(
        self, rings: Callable[[Array], block_cyclic.Ring], squares: Array, weights: Array
    ) -> tuple[Array, Array]:
        """``Σ w_k K_k⁻¹`` next to the diagonal; half of the nodes in another thread."""
        shape = self.layout.groups, self.layout.block, self.layout.block
        at_once = max(1, AT_ONCE // int(np.prod(shape)))

        def work(nodes: Indices) -> tuple[Array, Array]:
            S, beside = np.zeros(shape), np.zeros(shape)
            for some in np.split(nodes, range(at_once, len(nodes), at_once)):
                near, next_to = block_cyclic.near_diagonal(
                    rings(squares[some]), self._inputs_couple
                )
                S += np.tensordot(weights[some], near, 1)
                if self._inputs_couple:
                    beside += np.tensordot(weights[some], next_to, 1)
            return S, beside

        nodes = np.arange(len(squares))
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(work, nodes[::2])
            mine = work(nodes[1::2])
            theirs = other.result()
        return mine[0] + theirs[0], mine[1] + theirs[1]

    def gram(self, full: Array) -> Array:
        """``X(V)`` as a whole, in the order of time."""
        layout = self.layout
        low, high = self.ends(full, accuracy=0.1)
        squares, weights = inverse_square_root_nodes(
            nodes_needed(low, high, self.accuracy), low, high
        )
        rings = self._rings(
            full, sharp=layout.reach > 1
        )  # where the Gram matrix alone would lose too much
        total = np.zeros((layout.groups, layout.block, layout.groups, layout.block))
        for i in range(len(squares)):
            block_cyclic.add_inverse(total, rings(squares[i : i + 1]), float(weights[i]))
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


def _each(squares: Array) -> Array:
    return squares[:, None, None, None]


def can_be_ringed(workload: Workload, objective: Objective, participation: Participation) -> bool:
    """Whether `epoch_optimum` applies: a short recurrence, idle steps at the ends only, epochs longer than its
    memory."""
    problem = problem_of(workload, objective)
    if problem is None or participation.steps_per_epoch is None:
        return False
    contiguous = problem.live[-1] - problem.live[0] + 1 == problem.size
    return bool(contiguous) and problem.half_bandwidth <= participation.separation < problem.size


def epoch_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    tolerance: float,
    progress: Progress | None = None,
) -> Factorization:
    """The optimal factorization for several epochs, and its certificate."""
    problem = problem_of(workload, objective)
    assert problem is not None
    refuse_if_too_large(int(np.diff([*problem.starts, problem.size]).max()), copies=5)
    sharper, V = tolerance, None
    best: Factorization | None = None
    while True:
        search = Search(problem, participation.separation, max(sharper / 1000, 1e-16), sharper)
        found = dual.climb(
            search.evaluate, V or search.start(), tolerance=sharper / 2, progress=progress
        )
        bound = max(search.certified(found.best.V)[0], 0.0 if best is None else best.lower_bound)
        blocks = _encoder(search, found.best, workload, participation)
        made = _judged(
            blocks,
            participation,
            name=name,
            workload=workload,
            objective=objective,
            options=options,
            bound=bound,
        )
        if best is not None and made.gap >= best.gap / 2:
            return min(made, best, key=lambda f: f.gap)  # as good as rounding allows
        if made.gap <= tolerance or found.stopped:
            return made
        sharper, V, best = sharper / 10, found.best.V, made


def _judged(blocks: list[Array], participation: Participation, **common: Any) -> Factorization:
    """The encoder with these diagonal blocks."""
    # PRIVACY: normalised by the one sensitivity there is, not by what the optimisation believes.   [G1]
    if len(blocks) == 1:
        encoder = blocks[0] / sensitivity(blocks[0], participation)
        return Dense(participation=participation, matrix=encoder, **common)
    sequence = tuple(range(len(blocks)))
    norm = BlockDiagonal(
        participation=participation, distinct=tuple(blocks), sequence=sequence, **common
    ).sensitivity
    blocks = [block / norm for block in blocks]
    return BlockDiagonal(
        participation=participation, distinct=tuple(blocks), sequence=sequence, **common
    )


def bound_only(
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    tolerance: float,
    progress: Progress | None = None,
) -> tuple[float, float]:
    """``(lower, upper)``: the optimum lies between. Nothing of size T² is made, so any number of steps will do.

    The upper one is the error of ``X(V)`` with all classes scaled by the largest.
    """
    problem = problem_of(workload, objective)
    if problem is None or participation.steps_per_epoch is None:
        raise ValueError(
            "there is a bound without an encoder for short recurrences and epochs only"
        )
    search = Search(problem, participation.separation, max(tolerance / 1000, 1e-16), tolerance)
    found = dual.climb(search.evaluate, search.start(), tolerance=tolerance, progress=progress)
    return search.certified(found.best.V)


def _encoder(
    search: Search, point: dual.Point, workload: Workload, participation: Participation
) -> list[Array]:
    """The diagonal blocks of the encoder, one for each segment between restarts and one for idle steps at an end."""
    problem, every = search.problem, search.every
    # PRIVACY: left-over cross terms are counted, not zeroed: the whole class is scaled by them.   [G1]
    sums = np.concatenate([np.abs(x).sum(axis=(1, 2)) for x in point.X])
    scale, shrink = idle_scale(workload.steps, problem.live, participation.patterns(workload.steps))
    shrink = shrink * (sums**-0.5)[np.arange(problem.size) % every]
    V = search.layout.full(point.V)
    blocks = []
    first, last = int(problem.live[0]), int(problem.live[-1]) + 1
    for start, stop in zip(problem.starts, [*problem.starts[1:], problem.size], strict=True):
        part = Search(
            problem.part(start, stop), min(every, stop - start), search.accuracy, search.tolerance
        )
        own = np.tile(np.eye(part.layout.epochs), (part.every, 1, 1))
        for i, t in enumerate(range(start, start + part.every)):
            count, e = len(range(t, stop, every)), t // every
            own[i, :count, :count] = V[t % every, e : e + count, e : e + count]
        blocks.append(_factor(part.gram(own)) * shrink[start:stop])
    idle = [np.diag(scale[s]) for s in (slice(0, first), slice(last, workload.steps))]
    return [block for block in (idle[0], *blocks, idle[1]) if len(block)]


def _factor(X: Array) -> Array:
    """The lower-triangular ``C`` with ``CᵀC = X``."""
    # PRIVACY: CᵀC = X, so columns carry the sensitivity; hence the reversed factor.   [G1]
    L, info = scipy.linalg.lapack.dpotrf(
        np.asfortranarray(X[::-1, ::-1]), lower=1, overwrite_a=1, clean=1
    )
    if info:
        raise np.linalg.LinAlgError(
            "the optimal Gram matrix is not definite to the precision it was computed with"
        )
    return np.ascontiguousarray(L.T[::-1, ::-1])
