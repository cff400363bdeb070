"""Rules for the per-example gradients of a function's parameters.

A rule is called with a function's arguments. It returns what to save in the forward pass, and a
function that computes the gradients of the parameters from the saved tensors and the gradient of
the result. It returns None for uses that it does not know; these, and functions without a rule, are
left to `vjp_rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from antiphase.torch.batch_dim import BatchDim
from antiphase.torch.clipping import at_least_float32, full_precision
from antiphase.torch.convolution_rules import convolution
from antiphase.torch.derived_parameters import ParameterTerm, Use
from antiphase.torch.function_calls import padding_index
from antiphase.torch.gradient_terms import Lookups, Products, Rows, sum_to_shape, token_sums
from antiphase.torch.tensor_roles import TensorRoles

Tensor = torch.Tensor


def rule_of(func: Any, roles: TensorRoles, args: Any, kwargs: Any) -> Use | None:
    """How to compute the gradients of this call; None if no rule knows it."""
    use: Use | None = _RULES[func](roles, *args, **kwargs) if func in _RULES else None
    return use


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """``F.scaled_dot_product_attention`` by functions that have rules: the mask may be trained."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3], query.shape[-3] // value.shape[-3]
        key = key.repeat_interleave(groups[0], dim=-3)
        value = value.repeat_interleave(groups[1], dim=-3)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch._safe_softmax(scores, -1)
    return (F.dropout(weights, dropout_p) if dropout_p else weights) @ value


def _known_batch_dim(roles: TensorRoles, x: Tensor, parameter: Tensor) -> BatchDim:
    """The batch dimension of data that meets a parameter; refused if it is unknown."""
    batch_dim = roles.data.get(x)
    if batch_dim is None:
        raise roles.shape_refusal(parameter, x)
    return batch_dim


def _by_token(tensor: Tensor, dim: int, batch_size: int, features: int = 1) -> Tensor:
    """The tensor as (n, tokens, features), with examples along ``dim``.

    The last ``features`` dimensions are those of the features.
    """
    moved = tensor.movedim(dim, 0)
    split = moved.ndim - features
    tokens = moved.shape[:split].numel() // max(batch_size, 1)
    return moved.reshape(batch_size, tokens, moved.shape[split:].numel())


def _are_parameters(roles: TensorRoles, *tensors: Any) -> list[bool]:
    return [t is not None and roles.is_parameter(t) for t in tensors]


# Products with a matrix


def _affine(roles: TensorRoles, x: Tensor, weight: Tensor, bias: Any, inputs_first: bool) -> Use:
    """``x·W + b``; the weight has the shape (d, p) if ``inputs_first``, else (p, d)."""
    trains_weight, trains_bias = _are_parameters(roles, weight, bias)
    parameter = weight if trains_weight else bias
    dim, batch_size = _known_batch_dim(roles, x, parameter).dim, roles.batch_size
    if dim == x.ndim - 1:
        raise roles.shape_refusal(parameter, x)

    def terms(gradient: Tensor, *saved: Tensor) -> list[ParameterTerm]:
        g = _by_token(gradient, dim, batch_size)
        if not trains_weight:
            return [ParameterTerm(bias, token_sums(g))]
        products = Products(g, _by_token(saved[0], dim, batch_size))
        found = [ParameterTerm(weight, products.transposed() if inputs_first else products)]
        if trains_bias:
            bias_rows = token_sums(g) if inputs_first else products.bias_rows()
            found.append(ParameterTerm(bias, bias_rows))
        return found

    return terms, [x] if trains_weight else []


def _linear(roles: TensorRoles, input: Tensor, weight: Tensor, bias: Any = None) -> Use | None:
    if input not in roles.data or weight.ndim != 2 or weight in roles.data:
        return None
    return _affine(roles, input, weight, bias, inputs_first=False)


def _matmul(roles: TensorRoles, input: Tensor, other: Any = None, mat2: Any = None) -> Use | None:
    weight = mat2 if other is None else other
    if input not in roles.data or not isinstance(weight, Tensor):
        return None
    if weight.ndim != 2 or input.ndim < 2:
        return None
    return _affine(roles, input, weight, None, inputs_first=True)


def _addmm(
    roles: TensorRoles, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Use | None:
    if beta != 1 or alpha != 1 or mat1 not in roles.data:
        return None
    if input.ndim != 1 or input in roles.data:
        return None
    return _affine(roles, mat1, mat2, input, inputs_first=True)


# Elementwise functions


def _elementwise(kind: str) -> Any:
    """Rule of sums, differences and products; data or parameter may be broadcast."""

    def rule(roles: TensorRoles, input: Any, other: Any, *args: Any, **kwargs: Any) -> Use | None:
        x, p, sign = input, other, -1 if kind == "sub" else 1
        if isinstance(input, Tensor) and roles.is_parameter(input):
            x, p, sign = other, input, 1
        batch_dim = roles.data.get(x) if isinstance(x, Tensor) else None
        if args or kwargs or batch_dim is None or p in roles.data or not roles.is_parameter(p):
            return None
        ndim, batch_size, rows_each = max(x.ndim, p.ndim), roles.batch_size, batch_dim.rows
        dim = batch_dim.dim + ndim - x.ndim  # of the examples in the result
        own_dim = dim - (ndim - p.ndim)  # and in the parameter
        is_split = own_dim >= 0 and p.shape[own_dim] > 1
        if is_split and (own_dim or p.shape[0] != batch_size * rows_each):
            return None
        shape = torch.Size([rows_each, *p.shape[1:]]) if is_split else p.shape

        def terms(gradient: Tensor, *saved: Tensor) -> list[ParameterTerm]:
            rows = at_least_float32(gradient)
            rows = rows * at_least_float32(saved[0]) if saved else rows
            by_example = rows.reshape(
                *rows.shape[:dim], batch_size, rows_each, *rows.shape[dim + 1 :]
            )
            by_example = by_example.movedim(dim, 0)
            sums = sum_to_shape(by_example if sign > 0 else -by_example, shape)
            flat = sums.rows.reshape(batch_size, shape.numel())
            return [ParameterTerm(p, Rows(flat, sums.uncancelled), is_split)]

        return terms, [x] if kind == "mul" else []

    return rule


def _in_place(kind: str) -> Any:
    """The same, where the result is written into the data."""

    def rule(roles: TensorRoles, x: Tensor, *args: Any, **kwargs: Any) -> Use | None:
        use = _elementwise(kind)(roles, x, *args, **kwargs) if x in roles.data else None
        if use is None:
            return None
        terms, saved = use
        return terms, [t.detach().clone() for t in saved]

    return rule


def _cat(roles: TensorRoles, tensors: Any, dim: int = 0, **unknown: Any) -> Use | None:
    """Parameters beside data, with a row for every example each."""
    if unknown:  # axis, NumPy's name of dim
        return None
    batch_dims = {roles.data.get(t) for t in tensors if t in roles.data}
    ndim, batch_size = tensors[0].ndim, roles.batch_size
    if batch_dims != {BatchDim()} or dim % ndim == 0 or any(t.ndim != ndim for t in tensors):
        return None
    parts, start = [], 0
    for t in tensors:
        if roles.is_parameter(t):
            parts.append((t, start, t.shape[dim]))
        start += t.shape[dim]

    def terms(gradient: Tensor) -> list[ParameterTerm]:
        found = []
        for p, start, size in parts:
            rows = at_least_float32(gradient.narrow(dim, start, size)).reshape(batch_size, -1)
            found.append(ParameterTerm(p, Rows(rows), batch_size > 1))
        return found

    return terms, []


# Embeddings


def _embedding(
    roles: TensorRoles, input: Tensor, weight: Tensor, padding_idx: Any = None,
    max_norm: Any = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Use | None:  # fmt: skip
    if scale_grad_by_freq:
        # PRIVACY: gradients divided by counts over the whole batch mix the examples.   [G16]
        raise roles.refusal([weight], "scale_grad_by_freq divides by counts over the whole batch")
    if max_norm is not None:
        raise roles.refusal([weight], "max_norm writes into it in the forward pass")
    if input not in roles.data:
        return None
    dim, batch_size = _known_batch_dim(roles, input, weight).dim, roles.batch_size
    padding = padding_index(weight, (), {"padding_idx": padding_idx})

    def terms(gradient: Tensor, ids: Tensor) -> list[ParameterTerm]:
        indices = _by_token(ids, dim, batch_size, features=0)[:, :, 0]
        g = _by_token(gradient, dim, batch_size)
        if padding is not None:
            g = torch.where((indices == padding)[..., None], 0.0, g)
        return [ParameterTerm(weight, Lookups(indices, g))]

    return terms, [input]


# Normalisation layers


def _affine_normalization(
    roles: TensorRoles,
    x: Tensor,
    weight: Any,
    bias: Any,
    normalize: Callable[[Tensor], Tensor],
    channels_first: bool = False,
) -> Use:
    """``weight·x̂ + bias``, where ``normalize(x)`` returns x̂.

    The last dimensions are those of the weight, or the second one is if ``channels_first``.
    """
    trains_weight, trains_bias = _are_parameters(roles, weight, bias)
    parameter = weight if trains_weight else bias
    dim = _known_batch_dim(roles, x, parameter).dim
    if channels_first and dim != 0:
        raise roles.shape_refusal(parameter, x)
    batch_size, features = roles.batch_size, parameter.ndim

    def by_token(tensor: Tensor) -> Tensor:
        tensor = tensor.movedim(1, -1) if channels_first else tensor
        return at_least_float32(_by_token(tensor, dim, batch_size, features))

    def terms(gradient: Tensor, *saved: Tensor) -> list[ParameterTerm]:
        g, found = by_token(gradient), []
        if trains_weight:
            with full_precision():
                normalized = normalize(at_least_float32(saved[0]))
            found.append(ParameterTerm(weight, token_sums(g * by_token(normalized))))
        return found + ([ParameterTerm(bias, token_sums(g))] if trains_bias else [])

    return terms, [x] if trains_weight else []


def _layer_norm(
    roles: TensorRoles, input: Tensor, shape: Any, weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> Use:  # fmt: skip
    normalize = lambda x: F.layer_norm(x, shape, None, None, eps)  # noqa: E731
    return _affine_normalization(roles, input, weight, bias, normalize)


def _rms_norm(
    roles: TensorRoles, input: Tensor, shape: Any, weight: Any = None, eps: Any = None
) -> Use:
    normalize = lambda x: F.rms_norm(x, shape, None, eps)  # noqa: E731
    return _affine_normalization(roles, input, weight, None, normalize)


def _group_norm(
    roles: TensorRoles, input: Tensor, groups: int, weight: Any = None, bias: Any = None,
    eps: float = 1e-5,
) -> Use:  # fmt: skip
    normalize = lambda x: F.group_norm(x, groups, None, None, eps)  # noqa: E731
    return _affine_normalization(roles, input, weight, bias, normalize, channels_first=True)


def _instance_norm(
    roles: TensorRoles, input: Tensor, running_mean: Any = None, running_var: Any = None,
    weight: Any = None, bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Use:  # fmt: skip
    if running_mean is not None:
        raise roles.refusal([weight], "the forward pass writes the layer's running statistics")
    normalize = lambda x: F.instance_norm(x, eps=eps)  # noqa: E731
    return _affine_normalization(roles, input, weight, bias, normalize, channels_first=True)


_RULES: dict[Any, Any] = {
    F.linear: _linear,
    **dict.fromkeys([torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.mm, Tensor.mm], _matmul),
    torch.addmm: _addmm,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.conv1d: convolution(1),
    F.conv2d: convolution(2),
    F.conv3d: convolution(3),
    **dict.fromkeys([torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__], _elementwise("add")),
    **dict.fromkeys([torch.sub, Tensor.sub, Tensor.__sub__], _elementwise("sub")),
    **dict.fromkeys([torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__], _elementwise("mul")),
    **dict.fromkeys([Tensor.add_, Tensor.__iadd__], _in_place("add")),
    **dict.fromkeys([Tensor.sub_, Tensor.__isub__], _in_place("sub")),
    **dict.fromkeys([Tensor.mul_, Tensor.__imul__], _in_place("mul")),
    **dict.fromkeys([torch.cat, torch.concat, torch.concatenate], _cat),
}
