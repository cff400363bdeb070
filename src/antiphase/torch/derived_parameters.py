"""Gradients of derived parameters (transposed, tied, reparametrized) as those of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from antiphase.torch.clipping import row_norms
from antiphase.torch.gradient_terms import Lookups, Products, Rows, Term, sum_to_shape
from antiphase.torch.tensor_roles import Derived, TensorRoles

Tensor = torch.Tensor


# Per-example gradients of a function's parameters: computes the terms from the gradient of the
# function's result and from saved tensors, and the tensors to save.
Use = tuple[Callable[..., "list[ParameterTerm]"], list[Tensor]]


class ParameterTerm(NamedTuple):
    """A term of the gradient of a parameter or derived parameter.

    Attributes:
        tensor: the (derived) parameter.
        term: gradients with respect to the tensor.
        is_split: whether the tensor has rows of its own for each example, one after the other, and
            the term has only these.
    """

    tensor: Tensor
    term: Term
    is_split: bool = False


def terms_of_leaves(
    roles: TensorRoles, tensor: Tensor, term: Term, is_split: bool = False
) -> Iterator[tuple[str, Term]]:
    """The terms of named parameters that a `ParameterTerm` stands for."""
    name, derived = roles.name_of(tensor), roles.derived.get(tensor)
    if name is not None and not is_split:
        yield name, term
        return
    if name is None and derived is None:
        raise ValueError("the forward pass used a parameter that the model no longer has")
    if derived is not None:
        parent_term = _term_of_parent(tensor, derived, term, is_split)
        if parent_term is not None:
            yield from terms_of_leaves(roles, derived.parents[0], parent_term)
            return
    rows = term.to_rows(tensor.shape)
    n, gradients = len(rows), rows.rows
    if is_split:
        gradients = gradients.new_zeros(n, n, tensor.numel() // max(n, 1))
        gradients[torch.arange(n), torch.arange(n)] = rows.rows.view(n, -1)
    gradients = gradients.view(n, *tensor.shape)
    if name is not None:
        yield name, Rows(gradients, rows.uncancelled)
        return
    for leaf, pulled in _pulled_back(tensor, roles.leaves(tensor), gradients).items():
        yield leaf, Rows(pulled, _in_proportion(rows.uncancelled, gradients, pulled))


def _term_of_parent(tensor: Tensor, derived: Derived, term: Term, is_split: bool) -> Term | None:
    """The term of the tensor's only parent, where it can be given without autograd."""
    parent = derived.parents[0]
    if derived.kind == "transpose":
        return term.transposed() if isinstance(term, Products) else None
    if derived.kind == "expand" and is_split and len(derived.parents) == 1:
        return _summed_expansion(tensor, parent.shape, term)
    if derived.kind == "lookup" and derived.indices is not None:
        rows, indices = term.to_rows(tensor.shape).rows, derived.indices
        n = len(rows)
        own = indices.reshape(n, -1) if is_split else indices.reshape(1, -1).expand(n, -1)
        return Lookups(own, rows.reshape(n, own.shape[1], tensor.shape[-1]))
    return None


def _summed_expansion(tensor: Tensor, shape: torch.Size, term: Term) -> Rows | None:
    """The gradient with respect to a parent of this shape, whose values the tensor repeats."""
    wide = [1] * (tensor.ndim - len(shape)) + list(shape)
    repeats = all(size in (1, full) for size, full in zip(wide, tensor.shape, strict=True))
    if wide[0] != 1 or not repeats:  # e.g. `repeat`, which can make a dimension longer
        return None
    rows = term.to_rows(tensor.shape)
    summed = sum_to_shape(rows.rows.view(len(rows), -1, *tensor.shape[1:]), shape)
    sizes = [size for size in (rows.uncancelled, summed.uncancelled) if size is not None]
    return Rows(summed.rows, torch.stack(sizes).amax(dim=0) if sizes else None)


def _pulled_back(tensor: Tensor, leaves: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Gradients with respect to a tensor, as gradients with respect to its leaves, by autograd.

    One example at a time: in larger groups rounding depends on the place of an example.
    """
    pulled: dict[str, list[Tensor]] = {name: [] for name in leaves}
    for i in range(len(rows)):
        row = rows[i : i + 1].to(tensor.dtype, copy=True)
        with torch.enable_grad():
            gradients = torch.autograd.grad(
                tensor, list(leaves.values()), row, retain_graph=True, allow_unused=True,
                is_grads_batched=True,
            )  # fmt: skip
        for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
            zero = leaf.new_zeros(1, *leaf.shape)
            pulled[name].append(zero if gradient is None else gradient)
    return {
        name: torch.cat(parts) if parts else rows.new_zeros(0) for name, parts in pulled.items()
    }


def _in_proportion(uncancelled: Tensor | None, rows: Tensor, pulled: Tensor) -> Tensor | None:
    """S of gradients that were pulled back: it changes in proportion to their norms."""
    if uncancelled is None:
        return None
    return uncancelled * row_norms(pulled) / row_norms(rows).clamp(min=1e-300)
