"""Per-example gradients of a parameter in three forms, with norm bounds and weighted sums.

A parameter's gradient of one example is the sum of its terms, one for each use of the parameter:

- `Rows`: the gradient itself, one row per example.
- `Products`: ``G = Σ_t g_t a_tᵀ`` over the example's tokens t, kept as the layer's inputs a and
  output gradients g.
- `Lookups`: ``g_t`` added to row ``index_t`` of an embedding table.

docs/clipping.md has the error bounds. S, the *uncancelled norm*, is what the norm of G would be if
no two tokens cancelled. Nothing here lets an example's rounding depend on the other examples:
`batched_products` is the only batched product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from antiphase.torch.batched_products import (
    FEATURE_BLOCK,
    RowBuffers,
    batched_products,
    slices,
    token_products,
)
from antiphase.torch.clipping import (
    MAX_CANCELLATION,
    MIN_FLOAT32_FACTOR,
    NORM_ERROR,
    UNIT_ROUNDOFF,
    at_least_float32,
    flatten_rows,
    full_precision,
    row_norms,
    weighted_sum,
)

Tensor = torch.Tensor
TOKEN_BLOCK = 256  # tokens that are added up in float32
GRAM_ERROR = 4 * (FEATURE_BLOCK + 2) * UNIT_ROUNDOFF  # of Σ(g_t·g_s)(a_t·a_s), relative to S²
MIN_NORMAL_FLOAT32 = 2.0**-126  # smaller products may be flushed to zero


class Bound(NamedTuple):
    """Of each example: an upper bound of the norm, and the norm it is clipped by at least."""

    norm: Tensor
    floor: Tensor | None = None  # S / MAX_CANCELLATION; None where nothing can cancel


@dataclass
class Rows:
    """Gradients, one row per example.

    Attributes:
        rows: (n, …).
        uncancelled: S of each row; None if rows are not sums.
        is_own: whether nothing else uses the memory of the rows.
    """

    rows: Tensor
    uncancelled: Tensor | None = None
    is_own: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def bound(self) -> Bound:
        """Bound of the norm of each example."""
        floor = None if self.uncancelled is None else self.uncancelled / MAX_CANCELLATION
        # PRIVACY: what cancels leaves rounding error, which other examples can change.   [G16]
        return Bound(row_norms(self.rows), floor)

    def uncancelled_norm(self) -> Tensor:
        """S of each example; a gradient of one use has its own norm."""
        return row_norms(self.rows) if self.uncancelled is None else self.uncancelled

    def summed(self, count: int) -> Rows:
        """The sum of every ``count`` consecutive rows."""
        if count == 1:
            return self
        parts = self.rows.reshape(len(self.rows) // count, count, -1)
        return Rows(parts.sum(dim=1), self.uncancelled_norm().view(-1, count).sum(dim=1))

    def add(self, total: Tensor, factors: Tensor, mask: Tensor | None, group: int) -> None:
        """Add the weighted sum over the examples to ``total``, in float64."""
        total += weighted_sum(factors, self.rows, mask, group).view(total.shape)

    def to_rows(self, shape: torch.Size) -> Rows:
        """The term itself."""
        return self

    @staticmethod
    def merge(terms: Sequence[Rows]) -> Rows:
        """The sum of several terms."""
        if len(terms) == 1:
            return terms[0]
        total = flatten_rows(terms[0].rows)
        uncancelled = terms[0].uncancelled_norm()
        for term in terms[1:]:
            total = total + flatten_rows(term.rows)
            uncancelled = uncancelled + term.uncancelled_norm().to(uncancelled.device)
        return Rows(total, uncancelled)


@dataclass
class Products:
    """``Σ_t g_t a_tᵀ``, a (p, d) matrix per example, kept as its factors.

    Attributes:
        outputs: g, the gradients of the layer's outputs, (n, T, p).
        inputs: a, the layer's inputs, (n, T, d).
    """

    outputs: Tensor
    inputs: Tensor

    def __post_init__(self) -> None:
        self._norms: Tensor | None = None
        self.outputs = at_least_float32(self.outputs)
        self.inputs = at_least_float32(self.inputs)
        if torch.float64 in (self.outputs.dtype, self.inputs.dtype):
            self.outputs, self.inputs = self.outputs.double(), self.inputs.double()

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def tokens(self) -> int:
        """Number of tokens of an example."""
        return self.outputs.shape[1]

    @property
    def is_formed_cheaply(self) -> bool:
        """Whether the gradients take at most twice the memory of their factors."""
        p, d = self.outputs.shape[2], self.inputs.shape[2]
        return self.tokens > 1 and is_formed_cheaply(self.tokens, p, d)

    def to_rows(self, shape: torch.Size | None = None, buffers: RowBuffers | None = None) -> Rows:
        """The gradients, (n, p, d), with their S."""
        if self.tokens == 1:
            return Rows(self.outputs.transpose(1, 2) * self.inputs, is_own=True)
        n, p, d = len(self), self.outputs.shape[2], self.inputs.shape[2]
        out = None if buffers is None else buffers.take(n, p, d, self.outputs)
        rows = batched_products(self.outputs, self.inputs, out=out)
        return Rows(rows, self.uncancelled_norm(), is_own=True)

    def transposed(self) -> Products:
        """The same gradient of the transposed parameter."""
        return Products(self.inputs, self.outputs)

    def uncancelled_norm(self) -> Tensor:
        """An upper bound of ``S = Σ_t ‖g_t‖‖a_t‖`` of each example."""
        return self._token_norms().sum(dim=1) * (1 + 3 * NORM_ERROR)

    def _token_norms(self) -> Tensor:
        """``‖g_t‖‖a_t‖`` of each token, (n, T)."""
        return self._output_norms() * _norms_of_tokens(self.inputs)

    def _output_norms(self) -> Tensor:
        """``‖g_t‖`` of each token, (n, T)."""
        if self._norms is None:
            self._norms = _norms_of_tokens(self.outputs)
        return self._norms

    def bias_rows(self) -> Rows:
        """``Σ_t g_t``, the gradient of a bias beside this weight."""
        if self.tokens == 1:
            return Rows(self.outputs[:, 0])
        return Rows(self.outputs.sum(dim=1), self._output_norms().sum(dim=1))

    def bound(self) -> Bound:
        """Bound of the norm of each example."""
        if self.tokens == 1:
            return Bound(self._token_norms()[:, 0])  # ‖g‖‖a‖, accurate to 2·NORM_ERROR
        size = self.uncancelled_norm()
        if self.outputs.dtype is torch.float64:
            return Bound(row_norms(self.to_rows().rows), size / MAX_CANCELLATION)
        # PRIVACY: if tokens cancel, the computed norm can be too small by this error.   [G16]
        squares = self.squared_norms().clamp_(min=0.0) + GRAM_ERROR * size * size + self.underflow()
        own_rounding = 2 * (TOKEN_BLOCK + 1) * UNIT_ROUNDOFF * size
        return Bound(squares.sqrt() + own_rounding, size / MAX_CANCELLATION)

    def squared_norms(self) -> Tensor:
        """``‖G‖²`` by inner products of tokens, with an error of at most ``GRAM_ERROR·S²``."""
        squares = self.outputs.new_zeros(len(self), dtype=torch.float64)
        blocks = list(slices(self.tokens, TOKEN_BLOCK))
        for i, first in enumerate(blocks):
            for second in blocks[i:]:
                pairs = token_products(self.outputs[:, first], self.outputs[:, second])
                pairs *= token_products(self.inputs[:, first], self.inputs[:, second])
                squares += pairs.sum(dim=(1, 2)) * (1 if first == second else 2)
        return squares

    def underflow(self) -> Tensor:
        """A bound of what `squared_norms` loses where float32 numbers underflow."""
        most = MIN_NORMAL_FLOAT32 * max(self.outputs.shape[2], self.inputs.shape[2])
        g, a = (_norms_of_tokens(x).sum(dim=1) for x in (self.outputs, self.inputs))
        return most * (g.square() + a.square() + most * self.tokens * self.tokens)

    def add(self, total: Tensor, factors: Tensor, mask: Tensor | None, group: int) -> None:
        """Add the weighted sum over the examples to ``total``, in float64."""
        outputs, inputs = self.outputs, self.inputs
        if mask is not None:
            # PRIVACY: a non-finite example adds zero.   [G16]
            mask = mask.to(outputs.device)
            outputs = torch.where(mask[:, None, None], outputs, 0.0)
            inputs = torch.where(mask[:, None, None], inputs, 0.0)
            factors = torch.where(mask, factors.to(outputs.device), 0.0)
        # PRIVACY: tiny factors have few digits in float32; rounded up, they are too large.   [G16]
        if bool((factors < MIN_FLOAT32_FACTOR).any()):
            outputs, inputs = outputs.double(), inputs.double()
        factors = factors.to(outputs.device, outputs.dtype)
        total = total.view(outputs.shape[2], inputs.shape[2])
        # PRIVACY: only examples of one token share float32 products, as in `weighted_sum`.   [G16]
        group = group if self.tokens == 1 else 1
        with full_precision():
            for start in range(0, len(outputs), group):
                part = slice(start, start + group)
                g = outputs[part] * factors[part, None, None]
                for tokens in slices(self.tokens, TOKEN_BLOCK):
                    left = g[:, tokens].flatten(0, 1)
                    total += left.T @ inputs[part, tokens].flatten(0, 1)

    @staticmethod
    def merge(terms: Sequence[Products]) -> Products:
        """The sum of several terms: their tokens side by side."""
        if len(terms) == 1:
            return terms[0]
        outputs = torch.cat([term.outputs for term in terms], 1)
        return Products(
            outputs, torch.cat([term.inputs.to(term.outputs.dtype) for term in terms], 1)
        )


@dataclass
class Lookups:
    """Gradients that are added to rows of a table.

    Attributes:
        indices: which row each token looks up, (n, T).
        gradients: the gradient of each token, (n, T, d).
    """

    indices: Tensor
    gradients: Tensor

    def __post_init__(self) -> None:
        self.gradients = self.gradients.double()
        self._keys: tuple[Tensor, Tensor, int] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def _table_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """The rows of the table that each example uses: example, index, gradient."""
        keys, inverse, width = self._unique_keys()
        rows = self.gradients.new_zeros(len(keys), self.gradients.shape[2])
        rows.index_add_(0, inverse.flatten(), self.gradients.flatten(0, 1))
        return keys // width, keys % width, rows

    def _unique_keys(self) -> tuple[Tensor, Tensor, int]:
        """Distinct pairs as ``example·width + index``, their inverse, and width."""
        if self._keys is None:
            width = int(self.indices.max()) + 1 if self.indices.numel() else 1
            example = torch.arange(len(self), device=self.indices.device)[:, None]
            keys, inverse = torch.unique(example * width + self.indices, return_inverse=True)
            self._keys = keys, inverse, width
        return self._keys

    def uncancelled_norm(self) -> Tensor:
        """S: ``Σ_t ‖g_t‖`` for each row that an example uses, then the norm over the rows."""
        keys, inverse, width = self._unique_keys()
        norms = torch.linalg.vector_norm(self.gradients, dim=2).flatten()
        sums = norms.new_zeros(len(keys)).index_add_(0, inverse.flatten(), norms)
        total: Tensor = norms.new_zeros(len(self)).index_add_(0, keys // width, sums.square())
        return total.sqrt_()

    def bound(self) -> Bound:
        """Bound of the norm of each example."""
        example, _, rows = self._table_rows()
        squares = rows.new_zeros(len(self)).index_add_(0, example, rows.square().sum(dim=1))
        floor = self.uncancelled_norm() / MAX_CANCELLATION
        # PRIVACY: what cancels leaves rounding error, by the order of summation.   [G16]
        return Bound(squares.sqrt() * (1 + NORM_ERROR), floor)

    def add(self, total: Tensor, factors: Tensor, mask: Tensor | None, group: int) -> None:
        """Add the weighted sum over the examples to ``total``, in float64."""
        example, index, rows = self._table_rows()
        factors = factors.to(rows.device)
        if mask is not None:
            # PRIVACY: a non-finite example adds zero.   [G16]
            mask = mask.to(rows.device)
            rows = torch.where(mask[example, None], rows, 0.0)
            factors = torch.where(mask, factors, 0.0)
        total.index_add_(0, index, rows * factors[example, None])

    def to_rows(self, shape: torch.Size) -> Rows:
        """The gradients of a table of this shape, (n, *shape), with their S."""
        example, index, rows = self._table_rows()
        table = torch.zeros(len(self), *shape, dtype=torch.float64, device=rows.device)
        table[example, index] = rows
        return Rows(table, self.uncancelled_norm())

    @staticmethod
    def merge(terms: Sequence[Lookups]) -> Lookups:
        """The sum of several terms: their tokens side by side."""
        if len(terms) == 1:
            return terms[0]
        indices = torch.cat([term.indices for term in terms], 1)
        return Lookups(indices, torch.cat([term.gradients for term in terms], 1))


Term = Rows | Products | Lookups


def merged(terms: list[Term], shape: torch.Size) -> list[Term]:
    """The same gradient in fewer terms: `Rows`, or at most one `Products` and one `Lookups`."""
    rows = [term for term in terms if isinstance(term, Rows)]
    products = [term for term in terms if isinstance(term, Products)]
    lookups = [term for term in terms if isinstance(term, Lookups)]
    if products:
        products = [Products.merge(products)]
        if products[0].is_formed_cheaply or rows:
            rows.append(products.pop().to_rows())
    if lookups:
        lookups = [Lookups.merge(lookups)]
        if rows:
            rows.append(lookups.pop().to_rows(shape))
    return [*([Rows.merge(rows)] if rows else []), *products, *lookups]


def bound_of(terms: list[Term]) -> Bound:
    """Bound of the norm of the sum of the terms, which `merged` has returned."""
    bounds = [term.bound() for term in terms]
    floors = [bound.floor for bound in bounds if bound.floor is not None]
    floor = torch.stack(floors).sum(dim=0) if floors else None
    if len(terms) == 1:
        return Bound(bounds[0].norm, floor)
    # PRIVACY: the norm of a sum is at most the sum of the norms.   [G16]
    norm = torch.stack([bound.norm for bound in bounds]).sum(dim=0)
    products, lookups = terms
    if isinstance(products, Products) and isinstance(lookups, Lookups):
        error = 2 * GRAM_ERROR * (products.uncancelled_norm() * lookups.uncancelled_norm())
        crossed = 2 * cross_term(products, lookups) + error
        squares = bounds[0].norm.square() + bounds[1].norm.square() + crossed
        norm = torch.minimum(norm, squares.clamp(min=0.0).sqrt())
    return Bound(norm, floor)


def cross_term(products: Products, lookups: Lookups) -> Tensor:
    """Inner product of both gradients of each example: ``Σ_{t,s} (g_s·e_{index_t})(h_t·a_s)``."""
    crossed = lookups.gradients.new_zeros(len(products))
    with full_precision():
        for i in range(len(products)):  # alone: each pair of tokens has a row of the table
            g, a = products.outputs[i], products.inputs[i].double()
            index, h = lookups.indices[i], lookups.gradients[i]
            for part in slices(len(index), TOKEN_BLOCK):
                crossed[i] += ((h[part] @ a.T) * g[:, index[part]].T.double()).sum()
    return crossed


def is_formed_cheaply(tokens: int, p: int, d: int) -> bool:
    """Whether a (p, d) gradient takes at most twice the memory of ``tokens`` pairs of factors."""
    return p * d <= 2 * tokens * (p + d)


def token_sums(rows: Tensor, dim: int = 1) -> Rows:
    """``Σ_t rows[:, t]`` of each example; ``rows`` is (n, T, p), or (n, p, T) with ``dim=2``."""
    rows = at_least_float32(rows)
    if rows.shape[dim] == 1:
        return Rows(rows.select(dim, 0))
    absolute = torch.linalg.vector_norm(rows, ord=1, dim=dim)
    return Rows(rows.sum(dim=dim), row_norms(absolute))


def sum_to_shape(rows: Tensor, shape: torch.Size) -> Rows:
    """Rows of shape (n, *expanded) summed to (n, *shape): the gradient of an expansion."""
    n, expanded = len(rows), rows.shape[1:]
    wide = [1] * (len(expanded) - len(shape)) + list(shape)
    summed = [i for i, size in enumerate(wide) if size == 1 and expanded[i] > 1]
    kept = [i for i in range(len(wide)) if i not in summed]
    moved = rows.permute(0, *[i + 1 for i in summed], *[i + 1 for i in kept]).reshape(
        n,
        torch.Size([expanded[i] for i in summed]).numel(),
        torch.Size([wide[i] for i in kept]).numel(),
    )
    sums = token_sums(moved)
    return Rows(sums.rows.view(n, *shape), sums.uncancelled)


def _norms_of_tokens(x: Tensor) -> Tensor:
    """The norm of each token of (n, T, …), as (n, T)."""
    return row_norms(x.flatten(0, 1)).view(x.shape[:2])
