"""Where the examples are in a tensor, followed from the model's inputs through its functions.

Every rule follows from what its function does with dimensions, never from sizes that happen to agree: a batch may have
as many examples as tokens or features. Where no rule applies the layout is unknown, and parameters that meet such data
are refused.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor


def words(text: str) -> list[str]:
    return text.split()


class Layout(NamedTuple):
    """Examples are along dimension ``dim``; each has ``each`` rows there, one after the other."""

    dim: int = 0
    each: int = 1


class Call(NamedTuple):
    """A call ``out = func(*args, **kwargs)``, seen from one of its arguments."""

    args: Any
    kwargs: Any
    source: Tensor
    layout: Layout
    out: Tensor
    batch: int

    def option(self, name: str, place: int, default: Any = None) -> Any:
        """The argument ``name``, which is at ``place`` if it is not given by name."""
        return self.kwargs.get(name, self.args[place] if len(self.args) > place else default)

    def at(self, dim: int) -> Layout:
        return Layout(dim, self.layout.each)


def function_name(func: Any) -> str:
    """Of a function of torch; of an attribute (``x.T``), the attribute's."""
    name: str = getattr(func, "__name__", "")
    return getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name


def has_rule(name: str) -> bool:
    """Whether the layout of the function's result is known from its arguments."""
    return name in _RULES


def holds(layout: Layout, tensor: Tensor, batch: int) -> bool:
    """Whether the tensor can have this layout."""
    return 0 <= layout.dim < tensor.ndim and tensor.shape[layout.dim] == layout.each * batch


def after(
    name: str,
    args: Any,
    kwargs: Any,
    source: Tensor,
    layout: Layout | None,
    out: Tensor,
    batch: int,
) -> Any:
    """The layout of ``out = name(...)``, one of whose arguments is ``source``; None if it is not known."""
    if layout is None:
        return None
    rule = _RULES.get(name)
    if rule is None:
        # No function without a rule moves dimensions and keeps the shape.
        return layout if out.shape == source.shape and name not in _UNKNOWN else None
    try:
        found = rule(Call(args, kwargs, source, layout, out, batch))
    except (ValueError, TypeError, IndexError, KeyError, AttributeError):
        return None
    return found if found is not None and holds(found, out, batch) else None


# Functions of several tensors, and of matrices


def _broadcast(call: Call) -> Layout | None:
    """Dimensions are counted from the last one."""
    return call.at(call.layout.dim + call.out.ndim - call.source.ndim)


def _where(call: Call) -> Layout | None:
    return (
        _broadcast(call) if len(call.args) + len(call.kwargs) > 1 else None
    )  # else: indices of what is true


def _as_matrix_product(call: Call, left: Any, right: Any) -> Layout | None:
    """Of ``left @ right``: rows of the left and columns of the right matrices are kept, and dimensions before them."""
    from_last = call.source.ndim - call.layout.dim
    vectors = (left.ndim == 1) + (right.ndim == 1)
    if call.source is left and call.source is right:
        return call.at(call.layout.dim) if from_last > 2 else None
    if from_last > 2:
        return call.at(call.out.ndim + vectors - from_last)
    if call.source is left and from_last == 2:
        return call.at(call.out.ndim - (1 if right.ndim == 1 else 2))
    if call.source is right and from_last == 1 and right.ndim > 1:
        return call.at(call.out.ndim - 1)
    return None


def _matmul(call: Call) -> Layout | None:
    return _as_matrix_product(call, call.args[0], call.option("other", 1, call.kwargs.get("mat2")))


def _rmatmul(call: Call) -> Layout | None:
    return _as_matrix_product(call, call.args[1], call.args[0])


def _addmm(call: Call) -> Layout | None:
    if call.source is call.args[0]:
        return _broadcast(call)
    return _as_matrix_product(call, call.args[1], call.args[2])


def _linear(call: Call) -> Layout | None:
    return (
        call.layout
        if call.source is call.args[0] and call.layout.dim < call.source.ndim - 1
        else None
    )


def _attention(call: Call) -> Layout | None:
    """Of scaled_dot_product_attention: the last two dimensions are tokens and features."""
    return _broadcast(call) if call.source.ndim - call.layout.dim > 2 else None


def _einsum(call: Call) -> Layout | None:
    operands = call.args[1] if isinstance(call.args[1], list | tuple) else call.args[1:]
    inputs, arrow, output = call.args[0].replace(" ", "").partition("->")
    if not arrow or "." in inputs:
        return None
    places = {
        output.find(letters[call.layout.dim])
        for letters, operand in zip(inputs.split(","), operands, strict=True)
        if operand is call.source
    }
    return call.at(places.pop()) if len(places) == 1 else None


# Functions along dimensions


def _dims(dims: Any, ndim: int) -> list[int]:
    return [d % ndim for d in ([dims] if isinstance(dims, int) else list(dims))]


def _along(place: int, default: Any, name: str = "dim") -> Any:
    """Of functions that treat other dimensions one by one, and keep their order: softmax, cumsum, sort, gather."""

    def rule(call: Call) -> Layout | None:
        dims = call.option(name, place, default)
        if (
            dims is None
            or call.out.ndim != call.source.ndim
            or call.layout.dim in _dims(dims, call.source.ndim)
        ):
            return None
        return call.layout

    return rule


def _reduction(place: int) -> Any:
    """Of functions that remove dimensions, or keep them with size 1."""

    def rule(call: Call) -> Layout | None:
        dims = call.kwargs.get(
            "dim", call.kwargs.get("axis", call.args[place] if len(call.args) > place else None)
        )
        if isinstance(dims, Tensor) or isinstance(call.kwargs.get("other"), Tensor):
            return _broadcast(call)  # the larger of two tensors
        if dims is None or isinstance(dims, bool):
            return None
        removed, dim = _dims(dims, call.source.ndim), call.layout.dim
        if dim in removed:
            return None
        kept = call.out.ndim == call.source.ndim
        return call.layout if kept else call.at(dim - sum(d < dim for d in removed))

    return rule


def _rows_alone(call: Call) -> Layout | None:
    """Of functions on images and states, (examples, …): each row of the first dimension is treated alone."""
    return call.layout if call.layout.dim == 0 and call.source.ndim > 1 else None


def _batch_norm(call: Call) -> Layout | None:
    """With running statistics each example is treated alone; else they are mixed."""
    return None if call.option("training", 5, False) else _rows_alone(call)


def _looked_up(call: Call) -> Layout | None:
    """Of embedding and one_hot, which add dimensions at the end."""
    return call.layout if call.source is call.args[0] else None


# Functions that change the shape


def _permuted(order: Any) -> Any:
    def rule(call: Call) -> Layout | None:
        return call.at(order(call, call.source.ndim).index(call.layout.dim))

    return rule


def _swapped(first: int, second: int, ndim: int) -> list[int]:
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return order


def _transpose(call: Call, ndim: int) -> list[int]:
    dims = [*call.args[1:], *call.kwargs.values()]
    return _swapped(dims[0], dims[1], ndim)


def _permute(call: Call, ndim: int) -> list[int]:
    dims = call.args[1:] if len(call.args) > 1 else tuple(call.kwargs.values())
    return _dims(dims[0] if isinstance(dims[0], list | tuple) else dims, ndim)


def _movedim(call: Call, ndim: int) -> list[int]:
    start, end = (_dims(d, ndim) for d in [*call.args[1:], *call.kwargs.values()])
    order = [d for d in range(ndim) if d not in start]
    for place, dim in sorted(zip(end, start, strict=True)):
        order.insert(place, dim)
    return order


def _reversed(call: Call, ndim: int) -> list[int]:
    return list(range(ndim))[::-1]


def _last_two(call: Call, ndim: int) -> list[int]:
    return _swapped(-1, -2, ndim)


def _reshaped(call: Call) -> Layout | None:
    """Rows stay in order: each example has the same number of them in the dimension that starts where its own did."""
    start, batch = call.layout.dim, call.batch
    if call.out.shape[: start + 1] == call.source.shape[: start + 1]:
        return call.layout
    before, count = math.prod(call.source.shape[:start]), 1
    for dim, size in enumerate(call.out.shape):
        if batch and count == before and size % batch == 0 and (size > 1 or batch == 1):
            return Layout(dim, size // batch)
        count *= size
    return Layout(call.out.shape.index(0)) if not batch else None


def _stacked(call: Call) -> Layout | None:
    place = call.option("dim", 1, 0) % call.out.ndim
    return call.at(call.layout.dim + (place <= call.layout.dim))


def _squeezed(call: Call) -> Layout | None:
    shape, dims = call.source.shape, call.option("dim", 1)
    chosen = range(len(shape)) if dims is None else _dims(dims, len(shape))
    removed = [d for d in chosen if shape[d] == 1]
    dim = call.layout.dim
    return None if dim in removed else call.at(dim - sum(d < dim for d in removed))


def _without(call: Call) -> Layout | None:
    """Of unbind and select, which remove a dimension."""
    removed, dim = call.option("dim", 1, 0) % call.source.ndim, call.layout.dim
    return None if removed == dim else call.at(dim - (removed < dim))


def _repeated(call: Call) -> Layout | None:
    times, dim = call.option("repeats", 1), call.option("dim", 2)
    if dim is None or dim % call.source.ndim != call.layout.dim:
        return None if dim is None else call.layout
    return Layout(call.layout.dim, call.layout.each * times)


def _indexed(call: Call) -> Layout | None:
    index = _parts(call.args[1])
    by_tensors = any(isinstance(i, Tensor | list) for i in index)
    used = sum(_consumed(i) for i in index)
    full: list[Any] = []
    for i in index:
        full += [slice(None)] * (call.source.ndim - used) if i is Ellipsis else [i]
    if Ellipsis not in [i for i in index if not isinstance(i, Tensor | list)]:
        full += [slice(None)] * (call.source.ndim - used)
    if not by_tensors:
        return _sliced(call, full)
    chosen = [k for k, i in enumerate(full) if isinstance(i, Tensor | list | int)]
    if chosen != list(range(chosen[0], chosen[-1] + 1)) or None in full:
        return None  # such dimensions come first in the result
    width = max(_index_ndim(full[k]) for k in chosen)
    dim = place = 0
    for k, i in enumerate(full):
        if dim == call.layout.dim:
            if isinstance(i, slice):
                return call.at(place) if i == slice(None) else None
            own = (
                k == chosen[0] and call.layout.each == 1 and _is_every_example(i, width, call.batch)
            )
            return call.at(place) if own else None
        dim += _consumed(i)
        place += 1 if isinstance(i, slice) else width if k == chosen[-1] else 0
    return None


def _sliced(call: Call, full: list[Any]) -> Layout | None:
    """Of an index of whole numbers, slices and None."""
    dim = place = 0
    for i in full:
        if i is not None and dim == call.layout.dim:
            return call.at(place) if isinstance(i, slice) and i == slice(None) else None
        dim += i is not None
        place += not isinstance(i, int)
    return None


def _assigned(call: Call) -> Layout | None:
    """Of ``target[index] = value`` where the target is no data yet: examples are where the value's go."""
    target, index, value = call.args
    if call.source is not value or any(isinstance(i, Tensor | list) for i in _parts(index)):
        return None
    aligned = call.layout.dim - value.ndim  # counted from the last dimension
    for dim in range(target.ndim):
        there = _indexed(Call((target, index), {}, target, call.at(dim), target, call.batch))
        if there is not None and there.dim - target[index].ndim == aligned:
            return call.at(dim)
    return None


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _consumed(index: Any) -> int:
    """How many dimensions a part of an index is for."""
    if index is None or index is Ellipsis:
        return 0
    return (
        index.ndim if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) else 1
    )


def _index_ndim(index: Any) -> int:
    if isinstance(index, int):
        return 0
    return 1 if isinstance(index, list) or index.dtype in (torch.bool, torch.uint8) else index.ndim


def _is_every_example(index: Any, width: int, batch: int) -> bool:
    """Whether an index, as x[arange(n), last] has it, is that of each example in order."""
    if (
        not isinstance(index, Tensor)
        or index.dtype is not torch.int64
        or index.ndim != width
        or not width
    ):
        return False
    if len(index) != batch:
        return False
    order = torch.arange(batch, device=index.device).view(batch, *[1] * (width - 1))
    return bool((index == order).all())


_BROADCASTING = words("""
    add sub mul div true_divide floor_divide remainder fmod pow float_power atan2 hypot maximum minimum fmax fmin lerp
    addcmul addcdiv masked_fill clamp clip eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or
    bitwise_xor isclose logaddexp logaddexp2 xlogy subtract multiply divide copysign heaviside expand broadcast_to
    expand_as repeat tile rsub
    __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__ __rdiv__ __floordiv__ __mod__
    __pow__ __rpow__ __and__ __rand__ __or__ __ror__ __xor__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__
    greater less greater_equal less_equal not_equal
""")
_REDUCING = words("""
    sum mean prod amax amin max min logsumexp var std var_mean std_mean median nanmedian mode any all argmax argmin
    nansum nanmean count_nonzero aminmax
""")
_ROWS_ALONE = words("""
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool2d max_pool3d avg_pool1d
    avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool2d adaptive_max_pool3d lp_pool1d lp_pool2d interpolate upsample pixel_shuffle pixel_unshuffle
    channel_shuffle grid_sample affine_grid fold unfold pad group_norm instance_norm local_response_norm gru_cell
    rnn_tanh_cell rnn_relu_cell max_pool2d_with_indices
""")
# Functions whose result may have the shape of an argument, and has its examples elsewhere or nowhere.
_UNKNOWN = frozenset(
    words("""
    nonzero argwhere masked_select unique unique_consecutive take put bincount histc rot90 as_strided tensordot inner
    outer ger kron cdist cov corrcoef inverse pinverse det trapz  set_ resize_ combinations
    cartesian_prod block_diag vander tensor_split hsplit vsplit dsplit index_put index_put_ index_copy index_copy_
    index_add index_add_ masked_scatter masked_scatter_ fliplr flipud scatter_reduce scatter_reduce_ addbmm addbmm_
    cosine_similarity lstm gru rnn_tanh rnn_relu
    """)
)
_RULES: dict[str, Any] = {
    **dict.fromkeys(
        [*_BROADCASTING, *[f"{name}_" for name in _BROADCASTING if "__" not in name]], _broadcast
    ),
    **dict.fromkeys(_REDUCING, _reduction(1)),
    **dict.fromkeys(
        ["norm", "vector_norm", "linalg_vector_norm", "quantile", "nanquantile"], _reduction(2)
    ),
    **dict.fromkeys(_ROWS_ALONE, _rows_alone),
    **dict.fromkeys(["softmax", "log_softmax", "softmin", "_softmax"], _along(1, None)),
    **dict.fromkeys(["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"], _along(1, None)),
    **dict.fromkeys(
        ["gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_select"],
        _along(1, None),
    ),
    **dict.fromkeys(["narrow", "index_fill", "index_fill_", "renorm"], _along(1, None)),
    **dict.fromkeys(["sort", "argsort", "glu"], _along(1, -1)),
    **dict.fromkeys(
        ["split", "split_with_sizes", "chunk", "unsafe_chunk", "unsafe_split"], _along(2, 0)
    ),
    **dict.fromkeys(["topk", "kthvalue", "diff"], _along(2, -1)),
    **dict.fromkeys(["cat", "concat", "concatenate"], _along(1, 0)),
    "normalize": _along(2, 1),
    "take_along_dim": _along(2, None),
    "flip": _along(1, None, "dims"),
    "roll": _along(2, None, "dims"),
    "where": _where,
    "batch_norm": _batch_norm,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "__rmatmul__": _rmatmul,
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "linear": _linear,
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    "embedding": _looked_up,
    "one_hot": _looked_up,
    **dict.fromkeys(["transpose", "transpose_", "swapaxes", "swapdims"], _permuted(_transpose)),
    "permute": _permuted(_permute),
    **dict.fromkeys(["movedim", "moveaxis"], _permuted(_movedim)),
    **dict.fromkeys(["t", "T", "numpy_T"], _permuted(_reversed)),
    **dict.fromkeys(["mT", "mH", "H", "adjoint"], _permuted(_last_two)),
    **dict.fromkeys(
        [
            "view",
            "reshape",
            "flatten",
            "unflatten",
            "ravel",
            "view_as",
            "reshape_as",
            "_unsafe_view",
        ],
        _reshaped,
    ),
    "stack": _stacked,
    "unsqueeze": _stacked,
    "unsqueeze_": _stacked,
    "squeeze": _squeezed,
    "squeeze_": _squeezed,
    "unbind": _without,
    "select": _without,
    "repeat_interleave": _repeated,
    "__getitem__": _indexed,
    "__setitem__": _assigned,
}
