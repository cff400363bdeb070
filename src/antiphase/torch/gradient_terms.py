"""Per-example gradients of a parameter, as rows or as the factors of a product: bounds of their norms, and sums.

A parameter's gradient of an example is the sum of its terms, one for each use of the parameter:

- `Rows`: the gradients themselves, one row an example.
- `Products`: ``G = Σ_t g_t a_tᵀ`` over the tokens t of an example, from the layer's inputs a and output gradients g.
- `Lookups`: ``g_t`` added to row ``index_t``, of embeddings.

docs/clipping.md has the error bounds. What is computed for one example does not depend on the other examples, not
even in its rounding: `batched_products` is the only batched product, in groups of a fixed size and layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from antiphase.torch.clipping import (
    CANCELLATION,
    NORM_ERROR,
    SMALLEST,
    UNIT,
    flat,
    full_precision,
    row_norms,
    weighted_sum,
    working,
)

Tensor = torch.Tensor
TOKENS = 256  # that are added up in float32
FEATURES = 128  # that are added up in float32 within inner products of tokens
GRAM_ERROR = 4 * (FEATURES + 2) * UNIT  # of Σ(g_t·g_s)(a_t·a_s), relative to S²
GROUP_WORK = 2**26  # multiplications in one group of batched products
MAX_GROUP = 16  # examples in one group
ALIGNMENT = (
    16  # float32 numbers of a cache line; results of a batched product start at multiples of it
)
UNDERFLOW = 2.0**-126  # smallest normal float32; products below may be flushed to zero


class Bound(NamedTuple):
    """Of each example: an upper bound of the norm, and the least norm to clip by, for what cancels (`Products`)."""

    norm: Tensor
    least: Tensor | None = None


class RowBuffers:
    """Memory of formed gradients, used again at the next step: on a CPU new pages cost as much as the products."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, ...], list[Tensor]] = {}
        self._examples = 0  # of the last batch; buffers for batches of other sizes are dropped

    def take(self, n: int, p: int, d: int, like: Tensor) -> Tensor:
        if n != self._examples:
            self._free.clear()
            self._examples = n
        free = self._free.get((n, p, d), [])
        if free and free[-1].dtype is like.dtype and free[-1].device == like.device:
            return free.pop()
        return like.new_empty(n, p, d)

    def give_back(self, rows: Tensor) -> None:
        """Nobody uses these rows any more."""
        if rows.device.type == "cpu" and rows.ndim == 3 and len(rows) == self._examples:
            self._free.setdefault(tuple(rows.shape), []).append(rows)


@dataclass
class Rows:
    """Gradients, one row an example; ``size`` is S, what was added up without regard to signs, or None for 1 term."""

    rows: Tensor
    size: Tensor | None = None
    is_own: bool = False  # nobody else has the rows, so that they may be written to

    def bound(self) -> Bound:
        # PRIVACY: a row whose tokens cancel is rounding, which may change with the other examples.   [G16]
        return Bound(row_norms(self.rows), None if self.size is None else self.size / CANCELLATION)

    def summed(self, each: int) -> Rows:
        """The sum of ``each`` rows one after the other, for every example."""
        if each == 1:
            return self
        parts = self.rows.reshape(len(self.rows) // each, each, -1)
        size = row_norms(self.rows) if self.size is None else self.size
        return Rows(parts.sum(dim=1), size.view(-1, each).sum(dim=1))

    def add(self, total: Tensor, factors: Tensor, kept: Tensor | None, together: int) -> None:
        total += weighted_sum(factors, self.rows, kept, together).view(total.shape)

    def dense(self) -> Tensor:
        return self.rows


@dataclass
class Products:
    """``Σ_t g_t a_tᵀ``: ``outputs`` (n, T, p), ``inputs`` (n, T, d), and whether the parameter is (d, p)."""

    outputs: Tensor
    inputs: Tensor
    transposed: bool = False

    def __post_init__(self) -> None:
        self._norms: Tensor | None = None
        if self.transposed:
            self.outputs, self.inputs, self.transposed = self.inputs, self.outputs, False
        self.outputs, self.inputs = working(self.outputs), working(self.inputs)
        if torch.float64 in (self.outputs.dtype, self.inputs.dtype):
            self.outputs, self.inputs = self.outputs.double(), self.inputs.double()

    @property
    def tokens(self) -> int:
        return self.outputs.shape[1]

    @property
    def is_formed_cheaply(self) -> bool:
        """Whether the gradients themselves take at most twice the memory of what they are made of."""
        return self.tokens > 1 and is_formed_cheaply(
            self.tokens, self.outputs.shape[2], self.inputs.shape[2]
        )

    def dense(self) -> Tensor:
        """The gradients, ``(n, p, d)``."""
        return self.formed().rows

    def formed(self, buffers: RowBuffers | None = None) -> Rows:
        """The gradients with their S."""
        if self.tokens == 1:
            return Rows(self.outputs.transpose(1, 2) * self.inputs, is_own=True)
        shape = self.outputs.shape[0], self.outputs.shape[2], self.inputs.shape[2]
        out = None if buffers is None else buffers.take(*shape, self.outputs)
        return Rows(batched_products(self.outputs, self.inputs, out=out), self.size(), is_own=True)

    def size(self) -> Tensor:
        """``S = Σ_t ‖g_t‖‖a_t‖`` of each example, an upper bound of it."""
        return self._token_sizes().sum(dim=1) * (1 + 3 * NORM_ERROR)

    def _token_sizes(self) -> Tensor:
        """``‖g_t‖‖a_t‖`` of each token, (n, T)."""
        return self._output_norms() * row_norms(self.inputs.flatten(0, 1)).view(
            self.inputs.shape[:2]
        )

    def _output_norms(self) -> Tensor:
        """``‖g_t‖`` of each token, (n, T)."""
        if self._norms is None:
            self._norms = row_norms(self.outputs.flatten(0, 1)).view(self.outputs.shape[:2])
        return self._norms

    def sums(self) -> Rows:
        """``Σ_t g_t``, the gradient of a bias beside this weight."""
        if self.tokens == 1:
            return Rows(self.outputs[:, 0])
        return Rows(self.outputs.sum(dim=1), self._output_norms().sum(dim=1))

    def bound(self) -> Bound:
        if self.tokens == 1:
            return Bound(self._token_sizes()[:, 0])  # ‖g‖‖a‖, good to 2·NORM_ERROR
        size = self.size()
        if self.outputs.dtype is torch.float64:
            return Bound(row_norms(self.dense()), size / CANCELLATION)
        # PRIVACY: where tokens cancel, the computed norm may be far too small; its error is added.   [G16]
        squares = self.squares().clamp_(min=0.0) + GRAM_ERROR * size * size + self.underflow()
        return Bound(squares.sqrt() + 2 * (TOKENS + 1) * UNIT * size, size / CANCELLATION)

    def squares(self) -> Tensor:
        """``‖G‖²`` by inner products of tokens, with an error of at most ``GRAM_ERROR·S²``."""
        n, t = self.outputs.shape[:2]
        found = self.outputs.new_zeros(n, dtype=torch.float64)
        for i, first in _slices(t, TOKENS):
            for j, second in _slices(t, TOKENS):
                if j < i:
                    continue
                pairs = token_products(self.outputs[:, first], self.outputs[:, second])
                pairs *= token_products(self.inputs[:, first], self.inputs[:, second])
                found += pairs.sum(dim=(1, 2)) * (1 if i == j else 2)
        return found

    def underflow(self) -> Tensor:
        """What `squares` may have lost because float32 numbers vanished."""
        n, t, p = self.outputs.shape
        most = UNDERFLOW * max(p, self.inputs.shape[2])
        lengths = [
            row_norms(x.flatten(0, 1)).view(n, t).sum(dim=1) for x in (self.outputs, self.inputs)
        ]
        return most * (lengths[0].square() + lengths[1].square() + most * t * t)

    def add(self, total: Tensor, factors: Tensor, kept: Tensor | None, together: int) -> None:
        outputs, inputs = self.outputs, self.inputs
        if kept is not None:
            # PRIVACY: what is not finite contributes nothing.   [G16]
            kept = kept.to(outputs.device)
            outputs = torch.where(kept[:, None, None], outputs, 0.0)
            inputs = torch.where(kept[:, None, None], inputs, 0.0)
            factors = torch.where(kept, factors.to(outputs.device), 0.0)
        # PRIVACY: factors below float32's normal numbers have few digits; an example would be too long.   [G16]
        if bool((factors < SMALLEST).any()):
            outputs, inputs = outputs.double(), inputs.double()
        factors = factors.to(outputs.device, outputs.dtype)
        total = total.view(outputs.shape[2], inputs.shape[2])
        # PRIVACY: examples of one token share float32 products as in `weighted_sum`; others have their own.   [G16]
        together = together if self.tokens == 1 else 1
        with full_precision():
            for start in range(0, len(outputs), together):
                part = slice(start, start + together)
                g = outputs[part] * factors[part, None, None]
                for _, tokens in _slices(self.tokens, TOKENS):
                    left = g[:, tokens].flatten(0, 1)
                    total += left.T @ inputs[part, tokens].flatten(0, 1)


@dataclass
class Lookups:
    """``gradients`` (n, T, d) that are added to the rows ``indices`` (n, T) of a table."""

    indices: Tensor
    gradients: Tensor

    def __post_init__(self) -> None:
        self.gradients = self.gradients.double()
        self._found: tuple[Tensor, Tensor, int] | None = None

    def _rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """Each row of the table that an example meets, once: the example, the row's index, its gradient."""
        keys, places, width = self._keys()
        rows = self.gradients.new_zeros(len(keys), self.gradients.shape[2])
        rows.index_add_(0, places.flatten(), self.gradients.flatten(0, 1))
        return keys // width, keys % width, rows

    def _keys(self) -> tuple[Tensor, Tensor, int]:
        """Numbers of all pairs of an example and a row that it meets, which pair a token has, and rows + 1 at most."""
        if self._found is None:
            width = int(self.indices.max()) + 1 if self.indices.numel() else 1
            example = torch.arange(len(self.indices), device=self.indices.device)[:, None]
            keys, places = torch.unique(example * width + self.indices, return_inverse=True)
            self._found = keys, places, width
        return self._found

    def size(self) -> Tensor:
        """``Σ_t ‖g_t‖`` of each row that an example meets, and the norm of these over the rows."""
        n = len(self.indices)
        keys, places, width = self._keys()
        each = torch.linalg.vector_norm(self.gradients, dim=2).flatten()
        rows = each.new_zeros(len(keys)).index_add_(0, places.flatten(), each)
        example = keys // width
        found: Tensor = each.new_zeros(n).index_add_(0, example, rows.square()).sqrt_()
        return found

    def bound(self) -> Bound:
        example, _, rows = self._rows()
        squares = rows.new_zeros(len(self.indices)).index_add_(0, example, rows.square().sum(dim=1))
        # PRIVACY: where tokens cancel, what is left is rounding that depends on the order of summation.   [G16]
        return Bound(squares.sqrt() * (1 + NORM_ERROR), self.size() / CANCELLATION)

    def add(self, total: Tensor, factors: Tensor, kept: Tensor | None, together: int) -> None:
        example, index, rows = self._rows()
        factors = factors.to(rows.device)
        if kept is not None:
            # PRIVACY: what is not finite contributes nothing.   [G16]
            kept = kept.to(rows.device)
            rows, factors = (
                torch.where(kept[example, None], rows, 0.0),
                torch.where(kept, factors, 0.0),
            )
        total.index_add_(0, index, rows * factors[example, None])

    def dense_in(self, shape: torch.Size) -> Tensor:
        """The gradients of a table of this shape, ``(n, *shape)``."""
        example, index, rows = self._rows()
        found = torch.zeros(len(self.indices), *shape, dtype=torch.float64, device=rows.device)
        found[example, index] = rows
        return found

    def formed_in(self, shape: torch.Size) -> Rows:
        """The gradients of a table of this shape with their S."""
        return Rows(self.dense_in(shape), self.size())


Term = Rows | Products | Lookups


def formed_term(term: Term, shape: torch.Size) -> Rows:
    """The rows of a term of a parameter of this shape."""
    if isinstance(term, Rows):
        return term
    return term.formed_in(shape) if isinstance(term, Lookups) else term.formed()


def merged(terms: list[Term], shape: torch.Size) -> list[Term]:
    """The same gradients in fewer terms, at most one of each kind: products and lookups side by side, rows added."""
    products = [t for t in terms if isinstance(t, Products)]
    lookups = [t for t in terms if isinstance(t, Lookups)]
    rows = [t for t in terms if isinstance(t, Rows)]
    if len(products) > 1:
        together = Products(
            torch.cat([p.outputs for p in products], 1),
            torch.cat([p.inputs.to(p.outputs.dtype) for p in products], 1),
        )
        products = [together]
    if len(lookups) > 1:
        lookups = [
            Lookups(
                torch.cat([t.indices for t in lookups], 1),
                torch.cat([t.gradients for t in lookups], 1),
            )
        ]
    if products and (products[0].is_formed_cheaply or rows):
        rows.append(products.pop().formed())
    if lookups and rows:
        rows.append(lookups.pop().formed_in(shape))
    if rows:
        rows = [_added(rows)]
    return [*rows, *products, *lookups]


def _added(terms: list[Rows]) -> Rows:
    """The sum of several terms; those of one use each have their own norm for S."""
    if len(terms) == 1:
        return terms[0]
    total, size = flat(terms[0].rows), None
    for more in terms[1:]:
        total = total + flat(more.rows)
    for term in terms:
        each = row_norms(term.rows) if term.size is None else term.size
        size = each if size is None else size + each.to(size.device)
    return Rows(total, size)


def bound_of(terms: list[Term]) -> Bound:
    """Of the sum of the terms, after `merged`."""
    bounds = [t.bound() for t in terms]
    least = [b.least for b in bounds if b.least is not None]
    lower = torch.stack(least).sum(dim=0) if least else None
    if len(terms) == 1:
        return Bound(bounds[0].norm, lower)
    products = next((t for t in terms if isinstance(t, Products)), None)
    lookups = next((t for t in terms if isinstance(t, Lookups)), None)
    # PRIVACY: the norm of a sum is at most the sum of the norms.   [G16]
    together = torch.stack([b.norm for b in bounds]).sum(dim=0)
    if products is not None and lookups is not None and len(terms) == 2:
        sizes = products.size() * lookups.size()
        crossed = 2 * cross_term(products, lookups) + 2 * GRAM_ERROR * sizes
        exact = (bounds[0].norm.square() + bounds[1].norm.square() + crossed).clamp(min=0.0).sqrt()
        together = torch.minimum(together, exact)
    return Bound(together, lower)


def cross_term(products: Products, lookups: Lookups) -> Tensor:
    """The inner product of both gradients of each example: ``Σ_{t,s} (g_s·e_{index_t})(h_t·a_s)``."""
    found = []
    with full_precision():
        for g, a, index, h in zip(
            products.outputs, products.inputs, lookups.indices, lookups.gradients, strict=True
        ):  # one example at a time: a table's row for each pair of tokens
            total = h.new_zeros(())
            for _, part in _slices(len(index), TOKENS):
                total = total + ((h[part] @ a.double().T) * g[:, index[part]].T.double()).sum()
            found.append(total)
    return torch.stack(found) if found else lookups.gradients.new_zeros(0)


def is_formed_cheaply(tokens: int, p: int, d: int) -> bool:
    """Whether a gradient of p·d numbers takes at most twice the memory of ``tokens`` inputs and output gradients."""
    return p * d <= 2 * tokens * (p + d)


def token_products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products of tokens (n, t, s) in float64, of blocks of at most `FEATURES` in float32."""
    total: Any = None
    for _, part in _slices(left.shape[2], FEATURES):
        product = batched_products(left[:, :, part], right[:, :, part], tokens_first=False).double()
        total = product if total is None else total.add_(product)
    found: Tensor = total
    return found


def token_sums(rows: Tensor, dim: int = 1) -> Rows:
    """``Σ_t rows[:, t]`` of each example; ``rows`` is (n, T, p), or (n, p, T) with ``dim=2``."""
    rows = working(rows)
    if rows.shape[dim] == 1:
        return Rows(rows.select(dim, 0))
    absolute = torch.linalg.vector_norm(rows, ord=1, dim=dim)
    return Rows(rows.sum(dim=dim), row_norms(absolute))


def batched_products(
    left: Tensor, right: Tensor, tokens_first: bool = True, out: Tensor | None = None
) -> Tensor:
    """One matrix product for each example: ``leftᵀ right`` of (n, t, p) and (n, t, d), or ``left rightᵀ``.

    Guarantee: the result for an example has the same bits wherever it is in the batch, and whatever the others
    are; tests/torch/test_gradient_terms.py checks it on the machine at hand.   [G16]
    """
    n = len(left)
    wide = 2 if tokens_first else 1
    p, d, length = left.shape[wide], right.shape[wide], left.shape[3 - wide]
    padded_p, padded_d = _aligned_sizes(p, d)
    group = max(1, min(MAX_GROUP, GROUP_WORK // max(1, length * padded_p * padded_d)))
    found = left.new_empty(n, p, d) if out is None else out
    with full_precision(), torch.no_grad():
        for start in range(0, n, group):
            # PRIVACY: groups of one size and layout, so that others do not change the rounding of an example.   [G16]
            x = _fixed_layout(left[start : start + group], group, wide, padded_p)
            y = _fixed_layout(right[start : start + group], group, wide, padded_d)
            x, y = (x.transpose(1, 2), y) if tokens_first else (x, y.transpose(1, 2))
            if start + group <= n and (padded_p, padded_d) == (p, d):
                torch.bmm(x, y, out=found[start : start + group])
            else:
                found[start : start + group] = torch.bmm(x, y)[: n - start, :p, :d]
    return found


def _aligned_sizes(p: int, d: int) -> tuple[int, int]:
    """Sizes of a matrix, at least p by d, with a multiple of `ALIGNMENT` numbers: where a matrix starts in memory
    decides how some libraries round."""
    choices = []
    for columns in (d, -(-d // 2) * 2, -(-d // 4) * 4, -(-d // 8) * 8, -(-d // 16) * 16):
        step = ALIGNMENT // math.gcd(ALIGNMENT, columns)
        choices.append((-(-p // step) * step, columns))
    return min(choices, key=lambda size: size[0] * size[1])


def _fixed_layout(x: Tensor, group: int, dim: int, size: int) -> Tensor:
    """``x``, or a copy filled up with zeros, with ``group`` examples and ``size`` along ``dim``.

    Each example's matrix starts at a multiple of `ALIGNMENT` numbers, and has the strides that it has in every other
    group of the same tensor.
    """
    if len(x) == group and x.shape[dim] == size and _is_aligned(x):
        return x
    rows, columns = (size, x.shape[2]) if dim == 1 else (x.shape[1], size)
    width = x.stride(1) if x.shape[dim] == size and _is_aligned(x) else columns
    start = x.stride(0) if width > columns else -(-rows * columns // ALIGNMENT) * ALIGNMENT
    found = torch.empty_strided(
        (group, rows, columns), (start, width, 1), dtype=x.dtype, device=x.device
    ).zero_()
    found.narrow(0, 0, len(x)).narrow(dim, 0, x.shape[dim]).copy_(x)
    return found


def _is_aligned(x: Tensor) -> bool:
    """Whether libraries take each example's matrix as it lies in memory, and all of them in the same way."""
    each = x.stride(0)
    is_matrix = (
        x.stride(2) == 1
        and x.stride(1) >= x.shape[2]
        and each >= x.shape[1] * x.stride(1) - x.stride(1) + x.shape[2]
    )
    return is_matrix and each % ALIGNMENT == 0 and x.data_ptr() % (4 * ALIGNMENT) == 0


def _slices(length: int, step: int) -> Iterator[tuple[int, slice]]:
    for start in range(0, max(length, 1), step):
        yield start, slice(start, min(start + step, length))
