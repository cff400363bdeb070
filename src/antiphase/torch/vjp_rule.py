"""Per-example gradients of any function, by its VJP for one example at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from antiphase.torch.batch_dim import BatchDim
from antiphase.torch.batching_rules import has_rule
from antiphase.torch.derived_parameters import ParameterTerm, Use
from antiphase.torch.function_calls import function_name
from antiphase.torch.gradient_terms import Rows
from antiphase.torch.tensor_roles import TensorRoles

Tensor = torch.Tensor


@dataclass(frozen=True)
class _Call:
    """A call ``func(*args, **kwargs)`` whose data and parameters can be replaced."""

    func: Any
    leaves: list[Any]
    tree: Any
    data: list[int]  # positions among the leaves
    parameters: list[int]

    def with_tensors(self, data: list[Tensor], parameters: list[Tensor]) -> Any:
        """The result with other data and parameters."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.data + self.parameters, [*data, *parameters], strict=True):
            leaves[i] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.tree)
        return self.func(*args, **kwargs)


@contextlib.contextmanager
def refuse_random_numbers(
    roles: TensorRoles, parameters: list[Tensor], name: str
) -> Iterator[None]:
    """Refuse functions that draw random numbers: a second call would draw others."""
    devices = {p.device for p in parameters if p.is_cuda}

    def states() -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]

    before = states()
    yield
    if not all(map(torch.equal, before, states())):
        raise roles.refusal(parameters, f"used by {name} together with random numbers (dropout?)")


def vjp_rule(
    roles: TensorRoles, func: Any, args: Any, kwargs: Any, parameters: list[Tensor],
    sources: list[Tensor], out: Any,
) -> Use:  # fmt: skip
    """How to compute the gradients of a call whose result is ``out``.

    Args:
        roles: the roles of the arguments.
        func: the function.
        args: its arguments.
        kwargs: its arguments by name.
        parameters: those that are (derived) parameters.
        sources: those that are data.
        out: the result; its examples must come first, as those of the data.
    """
    name, batch_size = function_name(func), roles.batch_size
    batch_dims = [roles.data.get(source) for source in sources]
    is_batched = isinstance(out, Tensor) and out.ndim and not (batch_size and len(out) % batch_size)
    if not is_batched or any(dim is None or dim.dim != 0 for dim in batch_dims):
        why = f"used by {name} with data whose examples do not come first"
        raise roles.refusal(parameters, why)
    rows_of_result = len(out) // batch_size if batch_size else 1
    if batch_size > 1 and has_rule(name):
        result_dims = roles.result_batch_dims(name, args, kwargs, sources, out)
        if result_dims != {BatchDim(0, rows_of_result)}:
            why = f"used by {name} with a result whose examples do not come first"
            raise roles.refusal(parameters, why)
    leaves, tree = pytree.tree_flatten((args, kwargs))
    tensors = [(i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    data = [i for i, t in tensors if t in roles.data]
    call = _Call(func, leaves, tree, data, [i for i, t in tensors if roles.is_parameter(t)])
    known = [roles.data.get(leaves[i]) for i in data]
    rows_of_data = [dim.rows for dim in known if dim is not None]
    split = _split_parameters(call, rows_of_data, out, batch_size)
    if split is None:
        raise roles.refusal(parameters, f"used by {name} in a way that mixes the examples")

    def terms(gradient: Tensor, *saved: Tensor) -> list[ParameterTerm]:
        inputs = [_by_example(x, batch_size) for x in saved]
        return _vjp_terms(call, inputs, split, _by_example(gradient, batch_size))

    return terms, [leaves[i] for i in data]


def _by_example(tensor: Tensor, batch_size: int) -> Tensor:
    """The rows of each example, (n, rows, …)."""
    rows = len(tensor) // batch_size if batch_size else 1
    return tensor.detach().reshape(batch_size, rows, *tensor.shape[1:])


def _vjp_terms(
    call: _Call, inputs: list[Tensor], split: list[bool], gradient: Tensor
) -> list[ParameterTerm]:
    """The terms of all parameters, one example at a time.

    In larger groups rounding depends on the place of an example.
    """

    def of_one(parameters: list[Tensor], data: list[Tensor], g: Tensor) -> tuple[Tensor, ...]:
        result, pullback, *_ = torch.func.vjp(
            lambda *values: call.with_tensors(data, list(values)), *parameters
        )
        gradients: tuple[Tensor, ...] = pullback(g.to(result.dtype))
        return gradients

    n, tensors = len(gradient), [call.leaves[i] for i in call.parameters]
    values = [_by_example(t, n) if s else t.detach() for t, s in zip(tensors, split, strict=True)]
    in_dims = [0 if s else None for s in split], [0] * len(inputs), 0
    mapped = torch.func.vmap(of_one, in_dims=in_dims)
    results = []
    for i in range(n):
        part = slice(i, i + 1)
        parameters = [v[part] if s else v for v, s in zip(values, split, strict=True)]
        results.append(mapped(parameters, [x[part] for x in inputs], gradient[part]))
    terms = []
    for k, (tensor, is_split) in enumerate(zip(tensors, split, strict=True)):
        rows = [result[k] for result in results]
        gradients = torch.cat(rows) if rows else tensor.new_zeros(0, *tensor.shape)
        terms.append(ParameterTerm(tensor, Rows(gradients.flatten(1)), is_split))
    return terms


def _split_parameters(
    call: _Call, rows_of_data: list[int], out: Tensor, batch_size: int
) -> list[bool] | None:
    """Which parameters have rows for each example, by the result's shape for one example alone.

    None if neither choice (none of them, or those as long as the data) gives that shape.
    """
    tensors = [call.leaves[i].detach() for i in call.parameters]
    none = [False] * len(tensors)
    if batch_size <= 1:
        return none
    lengths = {batch_size, *(batch_size * rows for rows in rows_of_data)}
    aligned = [t.ndim > 0 and t.shape[0] in lengths for t in tensors]
    data = [call.leaves[i].detach()[:rows] for i, rows in zip(call.data, rows_of_data, strict=True)]
    for split in [none, aligned] if any(aligned) else [none]:
        parameters = [
            t[: len(t) // batch_size] if s else t for t, s in zip(tensors, split, strict=True)
        ]
        with contextlib.suppress(RuntimeError, IndexError, ValueError), torch.no_grad():
            with torch.random.fork_rng(devices=[]):
                result = call.with_tensors(data, parameters)
            if result.shape == (len(out) // batch_size, *out.shape[1:]):
                return split
    return None
