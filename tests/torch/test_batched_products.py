"""Batched products: an example's bits do not depend on the others; memory is reused."""

import warnings

import pytest
import torch

from antiphase.torch.batched_products import MAX_GROUP_EXAMPLES, RowBuffers, batched_products

pytestmark = pytest.mark.issue(21)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# In the second line: sizes whose plain torch.bmm depends on the batch on some machines.
SHAPES = [
    (3, 5, 7), (8, 10, 16), (4, 33, 65), (300, 3, 3), (2, 128, 64), (17, 1, 9),
    (8, 7, 9), (8, 2, 31), (300, 33, 7), (8, 64, 1),
]  # fmt: skip


@pytest.mark.parametrize("tokens_first", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_product_of_an_example_has_the_same_bits_wherever_it_is(shape, tokens_first):
    """Alone, first, last, among others of any kind, and in another layout of memory."""
    t, p, d = shape
    left, right = (t, p) if tokens_first else (p, t), (t, d) if tokens_first else (d, t)
    g, a = normal(70, *left), normal(70, *right, seed=1)
    whole = batched_products(g, a, tokens_first)
    for i in (0, 13, 69):
        assert torch.equal(batched_products(g[[i]], a[[i]], tokens_first)[0], whole[i])
        others = torch.full_like(g, 1e30), torch.full_like(a, 1e-30)
        for x, other in zip((g, a), others, strict=True):
            other[(i + 31) % 70] = x[i]
        assert torch.equal(batched_products(*others, tokens_first)[(i + 31) % 70], whole[i])
        assert torch.equal(batched_products(g[i : i + 5], a[i : i + 5], tokens_first)[0], whole[i])


def test_buffers_of_rows_are_kept_for_one_batch_size_alone():
    """Poisson samples differ in size; memory must not grow with the number of sizes."""
    buffers, like = RowBuffers(), torch.zeros(1)
    for n in (3, 4, 5, 4):
        for _ in range(2):
            buffers.give_back(buffers.take(n, 6, 7, like))
        assert [tuple(rows.shape) for kept in buffers._free.values() for rows in kept] == [
            (n, 6, 7)
        ]
    assert buffers.take(4, 6, 7, like) is not buffers.take(4, 6, 7, like)
    other = buffers.take(4, 6, 7, like.double())
    assert other.dtype is torch.float64


def test_the_last_group_may_be_smaller():
    """Also where matrices need no padding; no output is resized, of which torch would warn."""
    n = MAX_GROUP_EXAMPLES + 3
    left, right = normal(n, 4, 16), normal(n, 4, 16, seed=1)
    expected = torch.einsum("ntp,ntd->npd", left.double(), right.double())
    with warnings.catch_warnings(action="error"):
        found = batched_products(left, right).double()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_kept_buffer_of_another_dtype_is_not_given_out():
    """The last one that was given back is the one that would be."""
    buffers, like = RowBuffers(), torch.zeros(1)
    first, second = (buffers.take(3, 2, 2, x) for x in (like, like.double()))
    buffers.give_back(first)
    buffers.give_back(second)
    assert buffers.take(3, 2, 2, like).dtype is torch.float32
    assert buffers.take(3, 2, 2, like.double()) is second
