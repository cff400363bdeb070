r"""The optimum as a stream: an encoder given by a few time-varying buffers.

For one participation, and for several epochs if the objective restarts at least once in each.

Each ``(W⁻¹ + s²D)⁻¹`` of the quadrature is semiseparable, so with m nodes the optimal encoder is ``C_jj = δ_j``,
``C_ij = r_iᵀ Φ(i, j+1) g_j``, and its noise ``y_i = (z_i − r_iᵀS_i)/δ_i``, ``S_{i+1} = T_{i+1}S_i + g_i y_i`` with a
state of ``m·q`` vectors (q the half-bandwidth; ``Φ`` the product of the T). Few nodes give a factor of another,
nearby X, whose columns are then scaled to what they may have: few buffers cost a little utility, never privacy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphase import _checks as check
from antiphase import files
from antiphase._checks import Array
from antiphase.factorization.base import Factorization
from antiphase.factorization.blocks import decouples
from antiphase.factorization.dual import Progress
from antiphase.factorization.quadrature import inverse_square_root_nodes, nodes_needed
from antiphase.factorization.recurrent import DualPoint, Problem, maximise, problem_of
from antiphase.objective import Average, Objective, Restarts
from antiphase.participation import Epochs, Indices, Once, Participation
from antiphase.sensitivity import Columns
from antiphase.workload import Workload

WITHIN = 1e-3  # of the optimum: what buffers="auto" keeps to
FIELDS = ("delta", "r", "g", "move")
MOST_BUFFERS = 2048
Maker = Callable[[list["Stretch"], list[int], float], "Streamed"]


@dataclass(frozen=True)
class Stretch:
    """The coefficients of one stretch between restarts: rows for its ``live`` steps, independent noise at the
    others."""

    size: int
    live: Indices
    delta: Array  # (n,)
    r: Array  # (n, m, q)
    g: Array  # (n, m, q)
    move: Array  # (n, m, q): T into row i

    def __post_init__(self) -> None:
        # PRIVACY: copies that nobody can change, in the type that the norms are computed in.   [G1]
        for name, axes in zip(FIELDS, (1, 3, 3, 3), strict=True):
            object.__setattr__(self, name, check.real_array(name, getattr(self, name), ndim=axes))
        live = np.array(self.live)
        if live.ndim != 1 or live.dtype.kind != "i":
            raise ValueError("the live steps of a stream are not whole numbers")
        live = live.astype(np.int64)
        live.setflags(write=False)
        object.__setattr__(self, "live", live)
        n = len(live)
        shape = self.r.shape
        if (
            len(shape) != 3
            or shape[0] != n
            or self.g.shape != shape
            or self.move.shape != shape
            or self.delta.shape != (n,)
        ):
            raise ValueError("the coefficients of a stream do not fit together")
        if n and (live[0] < 0 or live[-1] >= self.size or (np.diff(live) <= 0).any()):
            raise ValueError("the live steps of a stream are not in order")
        if shape[1] * shape[2] > MOST_BUFFERS:
            raise ValueError(f"a stream of {shape[1] * shape[2]} buffers; {MOST_BUFFERS} are the most there can be")
        if any(np.abs(getattr(self, name)).max(initial=0.0) > 1e50 for name in FIELDS):
            raise ValueError("the coefficients of a stream are too large: their squares would overflow")
        if not (self.delta > 0).all():
            raise ValueError("delta is not positive: the noise cannot be made")

    def cut(self, rows: int) -> Stretch:
        n = int(np.searchsorted(self.live, rows))
        return Stretch(rows, self.live[:n], self.delta[:n], self.r[:n], self.g[:n], self.move[:n])

    def squared_norms(self) -> Array:
        from antiphase.factorization import kernels

        n, m, q = self.r.shape
        files.spend("a stream", operations=n * (m * q) ** 2 if q < 3 else n * n * m * q)
        out = np.ones(self.size)
        if len(self.live):
            # PRIVACY: from the coefficients that the noise is made with, not from what the design believes.   [G1]
            # With two vectors a node they nearly cancel, with three the difference of their difference counts.
            ways = (kernels.column_norms, kernels.column_norms_of_pairs, kernels.column_norms_one_by_one)
            norms = ways[min(self.r.shape[2], 3) - 1](self.delta, self.r, self.g, self.move)
            out[self.live] = norms
            if self.r.shape[2] == 1:
                # PRIVACY: rows that cancel in float64 need not in the float32 state that makes the noise.   [G1]
                most = kernels.column_norms(self.delta, np.abs(self.r), np.abs(self.g), np.abs(self.move))
                if not (most <= 100 * norms).all():
                    raise ValueError(
                        "the coefficients of a stream cancel one another: its noise would be rounding error"
                    )
        return out

    @cached_property
    def reach(self) -> int:
        """Columns this many steps apart, or more, share no row: every buffer has been emptied in between."""
        n, m, q = self.r.shape
        if q > 1 or not n:
            return self.size if n else 1
        furthest = 0
        rows = np.arange(n)
        for k in range(m):
            emptied = np.append(np.flatnonzero(self.move[:, k, 0] == 0), [n, n + 1])
            # Column j is in a buffer that it feeds from row j + 1 to the one before the next that empties it.
            last = np.minimum(emptied[np.searchsorted(emptied, rows + 2)], n) - 1
            last = np.where(self.g[:, k, 0] != 0, last, rows)
            furthest = max(furthest, int((self.live[last] - self.live).max()))
        return furthest + 1

    @cached_property
    def _meetings(self) -> Array:
        from antiphase.factorization import kernels

        met: Array = kernels.meetings(self.delta, self.r, self.g, self.move)
        return met

    def products(self, indices: Indices) -> Array:
        """``X_ij`` for i > j among these steps, in ascending order; 0 on the diagonal and above."""
        n, _, q = self.r.shape
        rows = np.searchsorted(self.live, indices)
        known: Any = np.flatnonzero((rows < n) & (self.live[np.minimum(rows, n - 1)] == indices)) if n else []
        files.spend("products of columns of a stream", operations=len(indices) ** 2 * self.r.shape[1])
        out = np.zeros((len(indices),) * 2)
        if q > 1:
            columns = self.dense()[:, indices]
            return np.tril(columns.T @ columns, -1)
        states = np.zeros((0, self.r.shape[1]))
        for count, place in enumerate(known):
            i = rows[place]
            if count:
                before = rows[known[count - 1]]
                # From the row after the last of these steps to this one.
                passed = np.prod(self.move[before + 2 : i + 1, :, 0], axis=0)
                moved = np.vstack([states * self.move[before + 1, :, 0], self.g[before, :, 0]])
                states = moved * passed
                out[place, known[:count]] = states @ self._meetings[i]
        return out

    def dense(self) -> Array:
        n, m, q = self.r.shape
        files.spend(f"a dense encoder of {n} steps", operations=2 * n * n * m * q)
        C = np.zeros((n, n))
        S = np.zeros((n, m, q))
        for i in range(n):
            if i:
                new = np.einsum("jkb,kb->jk", S[:i], self.move[i])
                S[:i, :, 1:] = S[:i, :, :-1].copy()
                S[:i, :, 0] = new
                S[i - 1] = self.g[i - 1]
            C[i, :i] = np.einsum("jkb,kb->j", S[:i], self.r[i])
            C[i, i] = self.delta[i]
        out = np.eye(self.size)
        out[np.ix_(self.live, self.live)] = C
        return out


@dataclass(frozen=True, eq=False, repr=False)
class Streamed(Factorization):
    """An encoder of buffers: ``sequence[i]`` says which of the ``distinct`` stretches is the i-th."""

    distinct: tuple[Stretch, ...]
    sequence: tuple[int, ...]

    def __post_init__(self) -> None:
        used = set(self.sequence)
        if used != set(range(len(self.distinct))):
            raise ValueError(f"the sequence of a stream must use each of its {len(self.distinct)} stretches")
        if sum(self.distinct[i].size for i in self.sequence) != self.steps:
            raise ValueError(f"the stretches do not add up to {self.steps} steps")
        object.__setattr__(self, "sequence", tuple(int(i) for i in self.sequence))

    @property
    def buffers(self) -> int:
        """How many vectors the noise keeps."""
        return max(int(s.r.shape[1] * s.r.shape[2]) for s in self.distinct)

    @cached_property
    def starts(self) -> list[int]:
        sizes = [self.distinct[i].size for i in self.sequence]
        return [0, *np.cumsum(sizes)[:-1].tolist()]

    def restarts(self) -> list[int]:
        return self.starts

    @property
    def bands(self) -> int:
        return max(int(s.size) for s in self.distinct)

    def stretch_at(self, step: int) -> tuple[Stretch, int]:
        """The stretch that holds ``step``, and where in it the step is."""
        b = bisect_right(self.starts, step) - 1
        return self.distinct[self.sequence[b]], step - self.starts[b]

    def _build_encoder(self) -> Array:
        out = np.zeros((self.steps, self.steps))
        dense = [s.dense() for s in self.distinct]
        for start, i in zip(self.starts, self.sequence, strict=True):
            out[start : start + len(dense[i]), start : start + len(dense[i])] = dense[i]
        return out

    def _columns(self, rows: int | None = None) -> Columns:
        return _StreamColumns(self, self.steps if rows is None else rows)

    # ---- how good it is, in O(T m²) ------------------------------------------------------------------------

    def _variances(self, P: Array, N: Array) -> Array:
        return _variances([self.distinct[i] for i in self.sequence], P, N, self.workload.delay)

    # ---- files ---------------------------------------------------------------------------------------------

    def _stored(self) -> dict[str, Any]:
        stretches = {
            str(i): {"size": s.size, "live": np.asarray(s.live, dtype=np.int64)} | {n: getattr(s, n) for n in FIELDS}
            for i, s in enumerate(self.distinct)
        }
        return {"stretches": stretches, "sequence": np.array(self.sequence, dtype=np.int64)}

    @classmethod
    def _restored(cls, common: dict[str, Any], stored: dict[str, Any]) -> Factorization:
        distinct = []
        for i in range(len(stored["stretches"])):
            fields = dict(stored["stretches"][str(i)])
            fields["size"] = check.whole_number("size", fields["size"])
            distinct.append(Stretch(**fields))
        return cls(**common, distinct=tuple(distinct), sequence=tuple(stored["sequence"].tolist()))


class _StreamColumns:
    """The columns of a stream, or of its first ``rows`` rows."""

    def __init__(self, stream: Streamed, rows: int) -> None:
        self._stream, self.steps = stream, rows

    def squared_norms(self) -> Array:
        known = [s.squared_norms() for s in self._stream.distinct]
        parts = []
        for start, i in zip(self._stream.starts, self._stream.sequence, strict=True):
            stretch = self._stream.distinct[i]
            if start + stretch.size <= self.steps:
                parts.append(known[i])
            elif start < self.steps:
                parts.append(stretch.cut(self.steps - start).squared_norms())
        return np.concatenate(parts)

    @cached_property
    def _norms(self) -> Array:
        return self.squared_norms()

    @cached_property
    def reach(self) -> int:
        return min(max(s.reach for s in self._stream.distinct), self.steps)

    def gram(self, indices: Indices) -> Array:
        out = np.diag(self._norms[indices])
        # PRIVACY: columns of different stretches share no row, and only of those may the products be left out.   [G1]
        owner = np.searchsorted(self._stream.starts, indices, side="right") - 1
        for b in np.unique(owner):
            inside = np.flatnonzero(owner == b)
            if len(inside) > 1:
                start, stretch = self._stream.starts[b], self._stream.distinct[self._stream.sequence[b]]
                stretch = stretch.cut(self.steps - start) if start + stretch.size > self.steps else stretch
                products = stretch.products(indices[inside] - start)
                out[np.ix_(inside, inside)] += products + products.T
        return out


def _variances(stretches: list[Stretch], P: Array, N: Array, delay: int = 0) -> Array:
    """The variance of every ``u_t``, ``P u = N Z^delay g``, under the noise of the stretches, one after the other."""
    from antiphase.factorization import kernels

    N = np.column_stack([np.zeros((len(N), delay)), N])
    m, q = max(s.r.shape[1] for s in stretches), max(s.r.shape[2] for s in stretches)
    total = sum(len(s.live) for s in stretches)
    delta = np.concatenate([s.delta for s in stretches])
    arrays = {name: np.zeros((total, m, q)) for name in ("r", "g", "move")}
    live: Any = np.full(len(P), -1)
    fresh: Any = np.zeros(len(P), dtype=np.bool_)
    row = step = 0
    for s in stretches:
        n = len(s.live)
        for name, array in arrays.items():
            array[row : row + n, : s.r.shape[1], : s.r.shape[2]] = getattr(s, name)
        live[step + s.live] = np.arange(row, row + n)
        fresh[step] = True
        row, step = row + n, step + s.size
    found: Array = kernels.variances(
        delta, arrays["r"], arrays["g"], arrays["move"], live, fresh, np.ascontiguousarray(P), np.ascontiguousarray(N)
    )
    return found


# ---- making one --------------------------------------------------------------------------------------------


def stretch_of(problem: Problem, size: int, point: DualPoint, nodes: int) -> Stretch:
    """The stream with so many quadrature nodes, its columns scaled so that the squares of a class add up to 1."""
    from antiphase.factorization import kernels

    squares, weights = inverse_square_root_nodes(nodes, point.low, point.high)
    common = problem.L, problem.N, point.v, problem.half_bandwidth
    move, g, h, x = kernels.generators(*common, squares, weights)
    total = np.bincount(point.owner, x)[point.owner]
    share = x / total
    scale = total**-0.5  # of the columns; then rounding is put right from the coefficients themselves
    delta, r = kernels.factor(move, g * scale[:, None, None], h * scale[:, None, None], share)
    g = g * scale[:, None, None]
    norms = np.sqrt(Stretch(size, problem.live, delta, r, g, move).squared_norms()[problem.live] / share)
    return Stretch(size, problem.live, delta / norms, r, g / norms[:, None, None], move)


def streamed_optimum(
    name: str,
    workload: Workload,
    objective: Objective,
    participation: Participation,
    *,
    options: dict[str, Any],
    tolerance: float,
    buffers: str | int,
    progress: Progress | None = None,
) -> Streamed:
    """The optimum in stream form, and its certificate."""

    def made(stretches: list[Stretch], sequence: list[int], bound: float) -> Streamed:
        return Streamed(
            name, workload, objective, participation, tuple(stretches), tuple(sequence), options=options, bound=bound
        )

    single = not isinstance(participation, Epochs)
    if isinstance(objective, Restarts) and decouples(workload, objective) and workload.delay == 0 and single:
        return _by_blocks(workload, objective, tolerance, buffers, progress, made)
    problem = problem_of(workload, objective)
    assert problem is not None
    owner = problem.live % participation.every if isinstance(participation, Epochs) else None

    def error(stretch: Stretch) -> float:
        return made(*split(stretch, problem.starts), 1.0).error

    stretch, bound = _solved(problem, workload.steps, tolerance, buffers, error, progress, owner)
    return made(*split(stretch, problem.starts), bound)


def split(stretch: Stretch, starts: list[int]) -> tuple[list[Stretch], list[int]]:
    """A stretch in which nothing is coupled across the starts, as one for each of them; equal ones are kept once."""
    if len(stretch.live) < stretch.size:
        return [stretch], [0]
    distinct: dict[bytes, int] = {}
    parts: list[Stretch] = []
    sequence = []
    for start, stop in zip(starts, [*starts[1:], stretch.size], strict=True):
        fields = [np.array(getattr(stretch, name)[start:stop]) for name in FIELDS]
        fields[3][0] = 0.0  # nothing comes from before
        key = b"".join(field.tobytes() for field in fields)
        if key not in distinct:
            distinct[key] = len(parts)
            parts.append(Stretch(stop - start, np.arange(stop - start), *fields))
        sequence.append(distinct[key])
    return parts, sequence


def _by_blocks(
    workload: Workload,
    objective: Restarts,
    tolerance: float,
    buffers: str | int,
    progress: Progress | None,
    made: Maker,
) -> Streamed:
    """DP-MF⁺: each stretch between restarts is a problem of its own; equal ones are solved once."""
    rates = workload.learning_rates
    assert rates is not None
    known: dict[bytes, tuple[int, float]] = {}
    stretches: list[Stretch] = []
    sequence, bound = [], 0.0
    for start, stop, weights in objective.blocks(workload.steps):
        key = rates[start:stop].tobytes() + weights.tobytes()
        if key not in known:
            stretch, its_bound = solved_block(rates[start:stop], weights, tolerance, buffers, progress)
            known[key] = len(stretches), its_bound
            stretches.append(stretch)
        sequence.append(known[key][0])
        bound += known[key][1]
    return made(stretches, sequence, bound)


def solved_block(
    rates: Array, weights: Array, tolerance: float, buffers: str | int, progress: Progress | None
) -> tuple[Stretch, float]:
    """The optimum for so many steps of SGD alone, its columns of norm 1, and the certified bound."""
    size = len(rates)
    if not rates.any():
        empty = np.zeros((0, 1, 1))
        return Stretch(size, np.zeros(0, dtype=np.int64), np.zeros(0), empty, empty, empty), 0.0
    block, objective = Workload.sgd(size, learning_rates=rates), Average(weights)
    problem = problem_of(block, objective)
    assert problem is not None

    def error(stretch: Stretch) -> float:
        norms = stretch.squared_norms().max()
        assert block.bands is not None
        return float(norms * (weights**2 @ _variances([stretch], *block.bands)))

    return _solved(problem, size, tolerance, buffers, error, progress)


def _solved(
    problem: Problem,
    size: int,
    tolerance: float,
    buffers: str | int,
    error: Any,
    progress: Progress | None,
    owner: Indices | None = None,
) -> tuple[Stretch, float]:
    """The stretch and its certified bound. The search is as sharp as the form is: few buffers need no more digits."""
    start = None
    if buffers != "exact":
        tolerance = max(tolerance, 1e-8 if size <= 50_000 else 1e-6)
        for _ in range(4):
            point = maximise(problem, tolerance=tolerance, start=start, owner=owner, progress=progress)
            stretch = _with_buffers(problem, size, point, buffers, error)
            if buffers != "auto" or error(stretch) <= (1 + WITHIN) * point.lower_bound:
                break
            tolerance, start = tolerance / 100, point.v  # what falls short is the bound
        return stretch, point.lower_bound
    sharper = tolerance / 10
    while True:
        point = maximise(problem, tolerance=sharper, start=start, owner=owner, progress=progress)
        nodes = nodes_needed(point.low, point.high, max(tolerance / 1000, 1e-16))
        stretch = stretch_of(problem, size, point, nodes)
        if error(stretch) <= (1 + tolerance) * point.lower_bound or sharper < 1e-4 * tolerance:
            return stretch, point.lower_bound
        sharper, start = sharper / 30, point.v


def _with_buffers(problem: Problem, size: int, point: DualPoint, buffers: str | int, error: Any) -> Stretch:
    """As many nodes as ``buffers`` asks for, or the fewest that are within 0.1 % of the optimum."""
    q = problem.half_bandwidth
    full = nodes_needed(point.low, point.high)
    if buffers != "auto":
        return stretch_of(problem, size, point, min(max(int(buffers) // q, 1), full))
    nodes = max(1, min(full, round(0.57 * nodes_needed(point.low, point.high, WITHIN))))
    stretch = stretch_of(problem, size, point, nodes)

    def good(stretch: Stretch) -> bool:
        return bool(error(stretch) <= (1 + 0.95 * WITHIN) * point.lower_bound)

    if good(stretch):
        while nodes > 1:
            fewer = stretch_of(problem, size, point, nodes - 1)
            if not good(fewer):
                break
            stretch, nodes = fewer, nodes - 1
    else:
        most = min(full, 2 * nodes + 8)
        while nodes < most:
            nodes += 1
            stretch = stretch_of(problem, size, point, nodes)
            if good(stretch):
                break
    return stretch


def can_be_streamed(workload: Workload, objective: Objective, participation: Participation) -> bool:
    """Whether the optimum has this form: for one participation, or with a restart between any two."""
    problem = problem_of(workload, objective)
    if problem is None or not isinstance(participation, Once | Epochs):
        return False
    if isinstance(participation, Once) or participation.every >= workload.steps:
        return True
    longest = int(np.diff([*problem.starts, problem.size]).max())
    return longest <= participation.every and not workload.idle.any()
