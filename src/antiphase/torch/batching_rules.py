"""Batching rules: which dimension of a function's result holds the examples.

A rule follows from what its function does with dimensions, never from sizes that happen to agree:
a batch may have as many examples as tokens or features. Where no rule applies, the batch dimension
is unknown, and parameters that meet such data are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from antiphase.torch.batch_dim import BatchDim, Call, can_have
from antiphase.torch.indexing_rules import getitem, setitem

Tensor = torch.Tensor


Rule = Callable[[Call], BatchDim | None]


def has_rule(name: str) -> bool:
    """Whether the function of this name has a batching rule."""
    return name in _RULES


def result_batch_dim(name: str, call: Call) -> BatchDim | None:
    """The batch dimension of the result of the function ``name``, or None if it is unknown."""
    rule = _RULES.get(name)
    if rule is None:
        # No function without a rule moves dimensions and keeps the shape.
        keeps_shape = call.out.shape == call.source.shape and name not in _UNKNOWN
        return call.batch_dim if keeps_shape else None
    try:
        result = rule(call)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError):
        return None
    return result if result is not None and can_have(result, call.out, call.batch_size) else None


# Functions of several tensors, and of matrices


def _broadcast(call: Call) -> BatchDim | None:
    """Dimensions are aligned at the last one."""
    return call.at(call.batch_dim.dim + call.out.ndim - call.source.ndim)


def _where(call: Call) -> BatchDim | None:
    """With one argument, `where` returns indices."""
    return _broadcast(call) if len(call.args) + len(call.kwargs) > 1 else None


def _matrix_product(call: Call, left: Any, right: Any) -> BatchDim | None:
    """``left @ right`` keeps rows of the left and columns of the right, and leading dimensions."""
    from_last = call.source.ndim - call.batch_dim.dim
    if call.source is left and call.source is right:
        return call.at(call.batch_dim.dim) if from_last > 2 else None
    if from_last > 2:
        vectors = (left.ndim == 1) + (right.ndim == 1)
        return call.at(call.out.ndim + vectors - from_last)
    if call.source is left and from_last == 2:
        return call.at(call.out.ndim - (1 if right.ndim == 1 else 2))
    if call.source is right and from_last == 1 and right.ndim > 1:
        return call.at(call.out.ndim - 1)
    return None


def _matmul(call: Call) -> BatchDim | None:
    return _matrix_product(call, call.args[0], call.option("other", 1, call.kwargs.get("mat2")))


def _rmatmul(call: Call) -> BatchDim | None:
    return _matrix_product(call, call.args[1], call.args[0])


def _addmm(call: Call) -> BatchDim | None:
    if call.source is call.args[0]:
        return _broadcast(call)
    return _matrix_product(call, call.args[1], call.args[2])


def _linear(call: Call) -> BatchDim | None:
    is_input = call.source is call.args[0]
    return call.batch_dim if is_input and call.batch_dim.dim < call.source.ndim - 1 else None


def _attention(call: Call) -> BatchDim | None:
    """The last two dimensions of scaled_dot_product_attention are tokens and features."""
    return _broadcast(call) if call.source.ndim - call.batch_dim.dim > 2 else None


def _einsum(call: Call) -> BatchDim | None:
    operands = call.args[1] if isinstance(call.args[1], list | tuple) else call.args[1:]
    inputs, arrow, output = call.args[0].replace(" ", "").partition("->")
    if not arrow or "." in inputs:
        return None
    dims = {
        output.find(letters[call.batch_dim.dim])
        for letters, operand in zip(inputs.split(","), operands, strict=True)
        if operand is call.source
    }
    return call.at(dims.pop()) if len(dims) == 1 else None


# Functions along dimensions


def normalized_dims(dims: Any, ndim: int) -> list[int]:
    """One dimension or several, as a list of numbers from 0 to ndim − 1."""
    return [d % ndim for d in ([dims] if isinstance(dims, int) else list(dims))]


def _along(position: int, default: Any, name: str = "dim") -> Rule:
    """Rule of functions that work along dimensions and keep all of them: softmax, sort, gather."""

    def rule(call: Call) -> BatchDim | None:
        dims = call.option(name, position, default)
        if dims is None or call.out.ndim != call.source.ndim:
            return None
        mixed = call.batch_dim.dim in normalized_dims(dims, call.source.ndim)
        return None if mixed else call.batch_dim

    return rule


def _reduction(position: int) -> Rule:
    """Rule of functions that remove dimensions, or keep them with size 1."""

    def rule(call: Call) -> BatchDim | None:
        dims = call.kwargs.get("dim", call.option("axis", position))
        if isinstance(dims, Tensor) or isinstance(call.kwargs.get("other"), Tensor):
            return _broadcast(call)  # the larger of two tensors
        if dims is None or isinstance(dims, bool):
            return None
        removed, dim = normalized_dims(dims, call.source.ndim), call.batch_dim.dim
        if dim in removed:
            return None
        keepdim = call.out.ndim == call.source.ndim
        return call.batch_dim if keepdim else call.at(dim - sum(d < dim for d in removed))

    return rule


def _examples_first(call: Call) -> BatchDim | None:
    """Functions of images and states (examples, …) treat each row of the first dimension alone."""
    return call.batch_dim if call.batch_dim.dim == 0 and call.source.ndim > 1 else None


def _batch_norm(call: Call) -> BatchDim | None:
    """With running statistics each example is treated alone; in training they are mixed."""
    return None if call.option("training", 5, False) else _examples_first(call)


def _lookup(call: Call) -> BatchDim | None:
    """Functions `embedding` and `one_hot` add dimensions at the end."""
    return call.batch_dim if call.source is call.args[0] else None


# Functions that change the shape


def _permuted(order: Callable[[Call, int], list[int]]) -> Rule:
    """Rule of functions whose result has the dimensions ``order(call, ndim)`` of the source."""
    return lambda call: call.at(order(call, call.source.ndim).index(call.batch_dim.dim))


def _swapped(first: int, second: int, ndim: int) -> list[int]:
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return order


def _transpose(call: Call, ndim: int) -> list[int]:
    dims = [*call.args[1:], *call.kwargs.values()]
    return _swapped(dims[0], dims[1], ndim)


def _permute(call: Call, ndim: int) -> list[int]:
    dims = call.args[1:] if len(call.args) > 1 else tuple(call.kwargs.values())
    return normalized_dims(dims[0] if isinstance(dims[0], list | tuple) else dims, ndim)


def _movedim(call: Call, ndim: int) -> list[int]:
    start, end = (normalized_dims(d, ndim) for d in [*call.args[1:], *call.kwargs.values()])
    order = [d for d in range(ndim) if d not in start]
    for position, dim in sorted(zip(end, start, strict=True)):
        order.insert(position, dim)
    return order


def _reshape(call: Call) -> BatchDim | None:
    """Rows stay in order: the result has the examples in the dimension that starts where it did."""
    start, batch_size = call.batch_dim.dim, call.batch_size
    if call.out.shape[: start + 1] == call.source.shape[: start + 1]:
        return call.batch_dim
    before, count = math.prod(call.source.shape[:start]), 1
    for dim, size in enumerate(call.out.shape):
        divides = batch_size and size % batch_size == 0 and (size > 1 or batch_size == 1)
        if count == before and divides:
            return BatchDim(dim, size // batch_size)
        count *= size
    return BatchDim(call.out.shape.index(0)) if not batch_size else None


def _stack(call: Call) -> BatchDim | None:
    """Stack and unsqueeze add a dimension."""
    added = call.option("dim", 1, 0) % call.out.ndim
    return call.at(call.batch_dim.dim + (added <= call.batch_dim.dim))


def _squeeze(call: Call) -> BatchDim | None:
    shape, dims = call.source.shape, call.option("dim", 1)
    chosen = range(len(shape)) if dims is None else normalized_dims(dims, len(shape))
    removed = [d for d in chosen if shape[d] == 1]
    dim = call.batch_dim.dim
    return None if dim in removed else call.at(dim - sum(d < dim for d in removed))


def _select(call: Call) -> BatchDim | None:
    """Select and unbind remove a dimension."""
    removed, dim = call.option("dim", 1, 0) % call.source.ndim, call.batch_dim.dim
    return None if removed == dim else call.at(dim - (removed < dim))


def _repeat_interleave(call: Call) -> BatchDim | None:
    times, dim = call.option("repeats", 1), call.option("dim", 2)
    if dim is None:
        return None
    if dim % call.source.ndim != call.batch_dim.dim:
        return call.batch_dim
    return BatchDim(call.batch_dim.dim, call.batch_dim.rows * times)


# The table

_BROADCASTING = """
    add sub mul div true_divide floor_divide remainder fmod pow float_power atan2 hypot maximum
    minimum fmax fmin lerp addcmul addcdiv masked_fill clamp clip eq ne lt le gt ge logical_and
    logical_or logical_xor bitwise_and bitwise_or bitwise_xor isclose logaddexp logaddexp2 xlogy
    subtract multiply divide copysign heaviside expand broadcast_to expand_as repeat tile rsub
    greater less greater_equal less_equal not_equal
"""
_OPERATORS = """
    add radd sub rsub mul rmul truediv rtruediv div rdiv floordiv mod pow rpow and rand or ror xor
    eq ne lt le gt ge
"""
_REDUCING = """
    sum mean prod amax amin max min logsumexp var std var_mean std_mean median nanmedian mode any
    all argmax argmin nansum nanmean count_nonzero aminmax
"""
_EXAMPLES_FIRST = """
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d
    max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lp_pool1d
    lp_pool2d interpolate upsample pixel_shuffle pixel_unshuffle channel_shuffle grid_sample
    affine_grid fold unfold pad group_norm instance_norm local_response_norm gru_cell rnn_tanh_cell
    rnn_relu_cell max_pool2d_with_indices
"""
# Their result may have the shape of an argument, and its examples elsewhere or nowhere.
_UNKNOWN_NAMES = """
    nonzero argwhere masked_select unique unique_consecutive take put bincount histc rot90
    as_strided tensordot inner outer ger kron cdist cov corrcoef inverse pinverse det trapz set_
    resize_ combinations cartesian_prod block_diag vander tensor_split hsplit vsplit dsplit
    index_put index_put_ index_copy index_copy_ index_add index_add_ masked_scatter masked_scatter_
    fliplr flipud scatter_reduce scatter_reduce_ addbmm addbmm_ cosine_similarity lstm gru rnn_tanh
    rnn_relu
"""
_UNKNOWN = frozenset(_UNKNOWN_NAMES.split())


def _table(*rows: tuple[str | list[str], Rule]) -> dict[str, Rule]:
    """The rule of each name, from rows of names and their rule."""
    return {
        name: rule
        for names, rule in rows
        for name in (names.split() if isinstance(names, str) else names)
    }


_RULES = _table(
    (_BROADCASTING, _broadcast),
    ([f"{name}_" for name in _BROADCASTING.split()], _broadcast),
    ([f"__{name}__" for name in _OPERATORS.split()], _broadcast),
    ("where", _where),
    ("matmul __matmul__ mm bmm mv", _matmul),
    ("__rmatmul__", _rmatmul),
    ("addmm baddbmm", _addmm),
    ("linear", _linear),
    ("einsum", _einsum),
    ("scaled_dot_product_attention", _attention),
    (_REDUCING, _reduction(1)),
    ("norm vector_norm linalg_vector_norm quantile nanquantile", _reduction(2)),
    (_EXAMPLES_FIRST, _examples_first),
    ("batch_norm", _batch_norm),
    ("embedding one_hot", _lookup),
    ("softmax log_softmax softmin _softmax", _along(1, None)),
    ("cumsum cumprod cummax cummin logcumsumexp", _along(1, None)),
    ("gather scatter scatter_ scatter_add scatter_add_ index_select", _along(1, None)),
    ("narrow index_fill index_fill_ renorm", _along(1, None)),
    ("sort argsort glu", _along(1, -1)),
    ("split split_with_sizes chunk unsafe_chunk unsafe_split", _along(2, 0)),
    ("topk kthvalue diff", _along(2, -1)),
    ("cat concat concatenate", _along(1, 0)),
    ("normalize", _along(2, 1)),
    ("take_along_dim", _along(2, None)),
    ("flip", _along(1, None, "dims")),
    ("roll", _along(2, None, "dims")),
    ("transpose transpose_ swapaxes swapdims", _permuted(_transpose)),
    ("permute", _permuted(_permute)),
    ("movedim moveaxis", _permuted(_movedim)),
    ("t T numpy_T", _permuted(lambda _, ndim: list(range(ndim))[::-1])),
    ("mT mH H adjoint", _permuted(lambda _, ndim: _swapped(-1, -2, ndim))),
    ("view reshape flatten unflatten ravel view_as reshape_as _unsafe_view", _reshape),
    ("stack unsqueeze unsqueeze_", _stack),
    ("squeeze squeeze_", _squeeze),
    ("unbind select", _select),
    ("repeat_interleave", _repeat_interleave),
    ("__getitem__", getitem),
    ("__setitem__", setitem),
)
