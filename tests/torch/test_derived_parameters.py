"""Gradients of derived parameters: their uncancelled norms."""

import torch

from antiphase.torch.derived_parameters import (
    _in_proportion,
    _summed_expansion,
    _term_of_parent,
)
from antiphase.torch.gradient_terms import Rows
from antiphase.torch.tensor_roles import Derived


def test_each_example_keeps_its_uncancelled_norm_where_a_parameter_is_expanded():
    """Of four examples, each with a row of the expanded tensor."""
    sizes = torch.tensor([3.0, 7.0, 1.0, 9.0], dtype=torch.float64)
    term = Rows(torch.ones(4, 5), sizes)
    found = _summed_expansion(torch.zeros(4, 5), torch.Size([5]), term)
    assert found is not None
    assert torch.equal(found.rows, torch.ones(4, 5))
    assert torch.equal(found.uncancelled, sizes)


def test_uncancelled_norms_change_in_proportion_and_zero_stays_zero():
    rows, sizes = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([10.0, 0.0]).double()
    found = _in_proportion(sizes, rows, 2 * rows)
    torch.testing.assert_close(found, torch.tensor([20.0, 0.0]).double())


def test_an_expanded_parameter_is_summed_without_autograd():
    """An example's row of an expansion alone is its gradient."""
    parent = torch.zeros(5)
    tensor = parent.expand(4, 5)
    term = Rows(torch.arange(20.0).view(4, 5))
    found = _term_of_parent(tensor, Derived("expand", (parent,)), term, is_split=True)
    assert found is not None
    assert torch.equal(found.to_rows(parent.shape).rows, term.rows)
    two = Derived("expand", (parent, parent))
    assert _term_of_parent(tensor, two, term, is_split=True) is None
