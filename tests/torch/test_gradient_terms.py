"""Per-example gradients as products and lookups: norm bounds, and sums of each example alone."""

import itertools

import pytest
import torch

from antiphase.torch.clipping import MAX_CANCELLATION
from antiphase.torch.gradient_terms import (
    Lookups,
    Products,
    Rows,
    bound_of,
    merged,
)

pytestmark = pytest.mark.issue(21)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cancelling(n, tokens, p, d, scale, remainder, seed=0):
    """Products whose tokens come in pairs with opposite output gradients, up to a remainder."""
    half = tokens // 2
    g, a = scale * normal(n, tokens, p, seed=seed), normal(n, tokens, d, seed=seed + 1)
    g[:, half : 2 * half], a[:, half : 2 * half] = -g[:, :half] * (1 - remainder), a[:, :half]
    return Products(g, a)


def true_gradients(products):
    return torch.einsum("ntp,ntd->npd", products.outputs.double(), products.inputs.double())


@pytest.mark.parametrize("tokens", [1, 2, 8, 300])
def test_norms_of_products_are_upper_bounds_where_tokens_cancel(tokens):
    """Row 28: scales 1e-2 … 1e5, remainders 1 … 0. Without the error term up to 3,882 C."""
    for scale, remainder in itertools.product((1e-2, 1.0, 1e5), (1.0, 1e-2, 1e-4, 1e-6, 0.0)):
        products = cancelling(6, tokens, 20, 30, scale, remainder)
        bound = products.bound()
        assert bool(
            (bound.norm >= true_gradients(products).flatten(1).norm(dim=1) * (1 - 3e-5)).all()
        )
        if tokens > 1:
            size = (
                products.outputs.double().norm(dim=2) * products.inputs.double().norm(dim=2)
            ).sum(dim=1)
            assert bool((bound.floor >= size / MAX_CANCELLATION).all())
            assert bool((bound.norm >= 1e-3 * size).all()), "the error of inner products is added"


def test_norms_of_ordinary_products_are_close():
    products = Products(normal(6, 8, 40), normal(6, 8, 50, seed=1))
    exact = true_gradients(products).flatten(1).norm(dim=1)
    assert float((products.bound().norm / exact - 1).abs().max()) < 1e-3


def test_lookups_that_cancel_are_limited():
    """+g and −g on one row leave rounding; an example is divided by at least Σ‖g‖/κ."""
    g = normal(3, 1, 5).repeat(1, 4, 1) * torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None]
    bound = Lookups(torch.full((3, 4), 2), g).bound()
    assert bool(
        (bound.floor >= g.double().norm(dim=2).sum(dim=1) / MAX_CANCELLATION * (1 - 1e-9)).all()
    )


@pytest.mark.parametrize("opposite", [False, True])
def test_the_bound_of_two_uses_is_one_of_their_sum(opposite):
    """Row 29: an embedding that is also the weight of the output layer."""
    indices = torch.randint(7, (5, 4), generator=torch.Generator().manual_seed(0))
    products = Products(normal(5, 1, 7), normal(5, 1, 6, seed=1))
    lookups = Lookups(indices, normal(5, 4, 6, seed=2))
    if not opposite:  # both uses in the same direction
        lookups = Lookups(
            torch.arange(7).expand(5, -1), products.outputs[:, 0, :, None] * products.inputs
        )
    whole = true_gradients(products) + lookups.to_rows(torch.Size([7, 6])).rows
    assert bool(
        (bound_of([products, lookups]).norm >= whole.flatten(1).norm(dim=1) * (1 - 1e-5)).all()
    )


@pytest.mark.parametrize("tokens", [1, 3])
def test_products_of_examples_that_are_not_finite_add_nothing(tokens):
    """Row 37: masked in place, so the others keep their place."""
    g, a = normal(4, tokens, 3), normal(4, tokens, 5, seed=1)
    g[2, 0, 0] = torch.nan
    mask, factors = (
        torch.tensor([True, True, False, True]),
        torch.tensor([1.0, 0.5, torch.nan, 0.25]).double(),
    )
    total = torch.zeros(3, 5, dtype=torch.float64)
    Products(g, a).add(total, factors, mask, 2)
    expected = sum(
        f * true_gradients(Products(g[[i]], a[[i]]))[0] for i, f in ((0, 1.0), (1, 0.5), (3, 0.25))
    )
    torch.testing.assert_close(total, expected, atol=1e-6, rtol=1e-6)


def test_lookups_of_examples_that_are_not_finite_add_nothing():
    g = normal(3, 2, 4)
    g[1, 0, 0] = torch.inf
    mask, factors = torch.tensor([True, False, True]), torch.tensor([1.0, 0.0, 0.5]).double()
    total = torch.zeros(6, 4, dtype=torch.float64)
    Lookups(torch.tensor([[0, 1], [1, 2], [1, 5]]), g).add(total, factors, mask, 1)
    assert bool(torch.isfinite(total).all())
    torch.testing.assert_close(total[1], g[0, 1].double() + 0.5 * g[2, 0].double())


def test_examples_of_several_tokens_do_not_share_a_float32_product():
    """The sum of a batch has the bits of the float64 sum of every example's own product."""
    products, factors = cancelling(9, 4, 6, 7, 1e4, 1e-3), torch.linspace(0.1, 1.0, 9).double()
    together = torch.zeros(6, 7, dtype=torch.float64)
    products.add(together, factors, None, 64)
    apart = torch.zeros_like(together)
    for i in range(9):
        Products(products.outputs[[i]], products.inputs[[i]]).add(apart, factors[[i]], None, 64)
    assert torch.equal(together, apart)


def test_merged_terms_have_the_same_gradient():
    rows, products = (
        Rows(normal(3, 4, 5)),
        Products(normal(3, 2, 4, seed=1), normal(3, 2, 5, seed=2)),
    )
    lookups = Lookups(torch.tensor([[0, 1], [1, 1], [3, 0]]), normal(3, 2, 5, seed=3))
    expected = (
        rows.rows.double() + true_gradients(products) + lookups.to_rows(torch.Size([4, 5])).rows
    )
    (found,) = merged([rows, products, lookups], torch.Size([4, 5]))
    torch.testing.assert_close(found.rows.view(3, 4, 5).double(), expected, atol=1e-5, rtol=1e-5)


def test_two_uses_of_a_table_keep_the_examples_apart():
    """Each example's gradient is the sum of its own lookups in both uses."""
    first = Lookups(torch.tensor([[0, 1], [1, 1], [3, 0]]), normal(3, 2, 5))
    second = Lookups(torch.tensor([[2], [1], [0]]), normal(3, 1, 5, seed=1))
    shape = torch.Size([4, 5])
    expected = first.to_rows(shape).rows + second.to_rows(shape).rows
    (found,) = merged([first, second], shape)
    torch.testing.assert_close(found.to_rows(shape).rows, expected)
    norms = expected.flatten(1).norm(dim=1)
    torch.testing.assert_close(found.bound().norm, norms, rtol=2e-5, atol=0.0)


def test_uses_that_cancel_are_limited():
    """Of G and −G, S is twice the norm of G, and examples are divided by at least S/κ."""
    g = normal(3, 4, 5)
    (total,) = merged([Rows(g), Rows(-g)], torch.Size([4, 5]))
    assert not total.rows.any()
    expected = 2 * g.double().flatten(1).norm(dim=1)
    torch.testing.assert_close(total.uncancelled_norm(), expected, rtol=2e-5, atol=0.0)
    torch.testing.assert_close(
        bound_of([total]).floor, expected / MAX_CANCELLATION, rtol=2e-5, atol=0.0
    )


def test_the_bound_of_underflow_is_added():
    """2⁻¹²⁶·d((Σ‖g_t‖)² + (Σ‖a_t‖)² + 2⁻¹²⁶·d·T²), computed by hand for d = 40, T = 2."""
    products = Products(2.0 * torch.ones(1, 2, 1), 3.0 * torch.ones(1, 2, 40))
    most = 40 * 2.0**-126
    expected = most * (4.0**2 + (2 * 3 * 40**0.5) ** 2 + most * 4)
    assert float(products.underflow()) == pytest.approx(expected, rel=1e-4, abs=0.0)
