"""Batched matrix products whose rounding does not depend on the other examples.

Libraries choose a kernel by the size, the alignment and the strides of a batch of matrices. Here
all groups have one size, and all matrices the same layout in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from antiphase.torch.clipping import full_precision

Tensor = torch.Tensor
FEATURE_BLOCK = 128  # features that are added up in float32 within inner products of tokens
MAX_GROUP_MULTIPLICATIONS = 2**26  # in one group of examples
MAX_GROUP_EXAMPLES = 16
ALIGNMENT = 16  # float32 numbers of a cache line; matrices start at multiples of it


class RowBuffers:
    """Memory of per-example gradients, used again in the next step.

    On a CPU, allocating new pages takes as long as the products themselves.
    """

    def __init__(self) -> None:
        self._free: dict[tuple[int, ...], list[Tensor]] = {}
        self._batch_size = 0  # buffers for other batch sizes are dropped

    def take(self, n: int, p: int, d: int, like: Tensor) -> Tensor:
        """An uninitialised (n, p, d) tensor with the dtype and device of ``like``."""
        if n != self._batch_size:
            self._free.clear()
            self._batch_size = n
        free = self._free.get((n, p, d), [])
        if free and free[-1].dtype is like.dtype and free[-1].device == like.device:
            return free.pop()
        return like.new_empty(n, p, d)

    def give_back(self, rows: Tensor) -> None:
        """Keep the memory of these rows, which nothing else may use any more."""
        if rows.device.type == "cpu" and rows.ndim == 3 and len(rows) == self._batch_size:
            self._free.setdefault(tuple(rows.shape), []).append(rows)


def batched_products(
    left: Tensor, right: Tensor, tokens_first: bool = True, out: Tensor | None = None
) -> Tensor:
    """One matrix product per example: ``leftᵀ right`` of (n, t, p) and (n, t, d).

    Guarantee: the result for an example has the same bits wherever the example is in the batch and
    whatever the others are; tests/torch/test_batched_products.py checks it on the machine. [G16]

    Args:
        left: (n, t, p), or (n, p, t) with ``tokens_first=False``.
        right: (n, t, d), or (n, d, t) with ``tokens_first=False``.
        tokens_first: the product is ``leftᵀ right`` if True, ``left rightᵀ`` if False.
        out: memory for the result, (n, p, d).
    """
    n, dim = len(left), 2 if tokens_first else 1
    p, d, length = left.shape[dim], right.shape[dim], left.shape[3 - dim]
    padded_p, padded_d = _aligned_sizes(p, d)
    work = max(1, length * padded_p * padded_d)
    group = max(1, min(MAX_GROUP_EXAMPLES, MAX_GROUP_MULTIPLICATIONS // work))
    products = left.new_empty(n, p, d) if out is None else out
    with full_precision(), torch.no_grad():
        for start in range(0, n, group):
            # PRIVACY: one size and layout, or others would change an example's rounding.   [G16]
            x = _fixed_layout(left[start : start + group], group, dim, padded_p)
            y = _fixed_layout(right[start : start + group], group, dim, padded_d)
            x, y = (x.transpose(1, 2), y) if tokens_first else (x, y.transpose(1, 2))
            if start + group <= n and (padded_p, padded_d) == (p, d):
                torch.bmm(x, y, out=products[start : start + group])
            else:
                products[start : start + group] = torch.bmm(x, y)[: n - start, :p, :d]
    return products


def token_products(left: Tensor, right: Tensor) -> Tensor:
    """Inner products of tokens, (n, t, s): float32 within blocks of features, float64 over them."""
    total = left.new_zeros(0)
    for block in slices(left.shape[2], FEATURE_BLOCK):
        product = batched_products(left[:, :, block], right[:, :, block], tokens_first=False)
        total = product.double() if block.start == 0 else total.add_(product.double())
    return total


def slices(length: int, step: int) -> Iterator[slice]:
    """Consecutive slices of at most ``step``; one empty slice for length 0."""
    for start in range(0, max(length, 1), step):
        yield slice(start, min(start + step, length))


def _aligned_sizes(p: int, d: int) -> tuple[int, int]:
    """Size of the smallest matrix that holds (p, d) and has a multiple of `ALIGNMENT` numbers.

    Where a matrix starts in memory decides how some libraries round.
    """
    choices = []
    for columns in (d, -(-d // 2) * 2, -(-d // 4) * 4, -(-d // 8) * 8, -(-d // 16) * 16):
        step = ALIGNMENT // math.gcd(ALIGNMENT, columns)
        choices.append((-(-p // step) * step, columns))
    return min(choices, key=lambda size: size[0] * size[1])


def _fixed_layout(x: Tensor, group: int, dim: int, size: int) -> Tensor:
    """The tensor, or a zero-padded copy, with ``group`` examples and ``size`` along ``dim``.

    Each example's matrix starts at a multiple of `ALIGNMENT` numbers, and has the strides that it
    has in every other group of the same tensor.
    """
    if len(x) == group and x.shape[dim] == size and _is_aligned(x):
        return x
    rows, columns = (size, x.shape[2]) if dim == 1 else (x.shape[1], size)
    width = x.stride(1) if x.shape[dim] == size and _is_aligned(x) else columns
    start = x.stride(0) if width > columns else -(-rows * columns // ALIGNMENT) * ALIGNMENT
    shape, strides = (group, rows, columns), (start, width, 1)
    padded = torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device).zero_()
    padded.narrow(0, 0, len(x)).narrow(dim, 0, x.shape[dim]).copy_(x)
    return padded


def _is_aligned(x: Tensor) -> bool:
    """Whether libraries use each example's matrix as it is in memory, and all in the same way."""
    step, width, unit = x.stride()
    length = (x.shape[1] - 1) * width + x.shape[2]  # from the first to the last number of a matrix
    is_matrix = unit == 1 and width >= x.shape[2] and step >= length
    return is_matrix and step % ALIGNMENT == 0 and x.data_ptr() % (4 * ALIGNMENT) == 0
