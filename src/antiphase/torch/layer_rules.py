"""Rules that make per-example gradients of a function's parameters from its data and the gradient of its result.

Functions without a rule of their own are differentiated one example at a time by `torch.func`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from antiphase.errors import PerExampleGradientError
from antiphase.torch import layouts
from antiphase.torch.clipping import NORM_ERROR, full_precision, working
from antiphase.torch.gradient_terms import (
    Lookups,
    Products,
    Rows,
    batched_products,
    is_formed_cheaply,
    token_sums,
)
from antiphase.torch.layouts import Layout, function_name
from antiphase.torch.recorder import GROUP, Contribution, Recorder, summed_to, writes_in_place

Tensor = torch.Tensor
Terms = Callable[..., list[Contribution]]
UNFOLDED = (
    2**21
)  # numbers of unfolded inputs at one time: few enough for the caches, and for memory that is kept


def apply_rule(
    recorder: Recorder,
    func: Any,
    args: Any,
    kwargs: Any,
    parameters: list[Tensor],
    sources: list[Tensor],
) -> Any:
    """Run ``func`` with its parameters detached, and mark the result."""
    name = function_name(func)
    if recorder.is_parameter(args[0] if args else None) and (
        writes_in_place(name) or "out" in kwargs
    ):
        raise _refusal(recorder, parameters, f"{name} writes into it")
    if func is F.scaled_dot_product_attention:
        with recorder:
            return _attention(*args, **kwargs)
    found = _RULES[func](recorder, *args, **kwargs) if func in _RULES else None
    ids = {id(p) for p in parameters}
    if name == "embedding" and recorder.is_parameter(
        args[1] if len(args) > 1 else kwargs["weight"]
    ):
        _refuse_embedding(recorder, args, kwargs, parameters)
    if found is not None:
        out = func(*_detached(args, ids), **_detached(kwargs, ids))
    else:
        if writes_in_place(name) or "out" in kwargs:
            raise _refusal(recorder, parameters, f"{name} writes the result into data")
        with _Deterministic(recorder, parameters, name):
            out = func(*_detached(args, ids), **_detached(kwargs, ids))
        found = _general(recorder, func, args, kwargs, parameters, sources, out)
        out = out.clone() if isinstance(out, Tensor) else out
    terms, saved = found
    return recorder.marked(out, parameters[0], terms, saved, in_place=writes_in_place(name))


def _detached(tree: Any, ids: set[int]) -> Any:
    """Arguments of a function with the tensors of these ids detached."""
    if isinstance(tree, Tensor):
        return tree.detach() if id(tree) in ids else tree
    if isinstance(tree, dict):
        return {name: _detached(part, ids) for name, part in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        parts = [_detached(part, ids) for part in tree]
        return (
            type(tree)(parts)
            if type(tree) in (list, tuple)
            else pytree.tree_map(lambda t: _detached(t, ids), tree)
        )
    return tree


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """``F.scaled_dot_product_attention`` in single functions, which are followed: a bias may be a parameter."""
    if enable_gqa:
        key, value = (
            t.repeat_interleave(query.shape[-3] // t.shape[-3], dim=-3) for t in (key, value)
        )
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


class _Deterministic:
    """Refuses functions that draw random numbers: they are run again for single examples, with other numbers."""

    def __init__(self, recorder: Recorder, parameters: list[Tensor], name: str) -> None:
        self._recorder, self._parameters, self._name = recorder, parameters, name
        self._devices = {p.device for p in parameters if p.is_cuda}

    def _state(self) -> list[Tensor]:
        return [
            torch.get_rng_state(),
            *(torch.cuda.get_rng_state(device) for device in self._devices),
        ]

    def __enter__(self) -> None:
        self._before = self._state()

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None and not all(map(torch.equal, self._before, self._state())):
            why = f"used by {self._name} together with random numbers (dropout?)"
            raise _refusal(self._recorder, self._parameters, why)


def _refusal(recorder: Recorder, parameters: list[Tensor], why: str) -> PerExampleGradientError:
    names = ", ".join(n for p in parameters for n in recorder.parents(p))
    return PerExampleGradientError(
        f"{names}: {why}, so that the gradients of single examples cannot be told apart. Nothing was released. "
        "Write the layer so that examples come first in every tensor, or freeze the parameter"
    )


def _tokens(recorder: Recorder, x: Tensor, parameter: Tensor) -> Callable[[Tensor], Tensor]:
    """A function that brings ``x``, and tensors with the same examples, into the shape (n, tokens, features)."""
    layout = recorder.layout(x)
    if layout is None or layout.dim >= x.ndim - 1:
        raise _refusal(
            recorder,
            [parameter],
            f"used on data of shape {tuple(x.shape)} in a batch of {recorder.batch}",
        )
    batch = recorder.batch

    def arranged(tensor: Tensor) -> Tensor:
        moved = tensor.movedim(layout.dim, 0)
        tokens = moved.shape[:-1].numel() // batch if batch else 0
        return moved.reshape(batch, tokens, moved.shape[-1])

    return arranged


def _rows_first(recorder: Recorder, x: Tensor, parameter: Tensor) -> int:
    """How many rows of ``x`` belong to one example, one after the other."""
    layout = recorder.layout(x)
    if layout is None or layout.dim != 0:
        raise _refusal(
            recorder,
            [parameter],
            f"used on data of shape {tuple(x.shape)} in a batch of {recorder.batch}",
        )
    return layout.each


def _is(recorder: Recorder, *tensors: Any) -> list[bool]:
    return [t is not None and recorder.is_parameter(t) for t in tensors]


def _linear(recorder: Recorder, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    trained, shifted = _is(recorder, weight, bias)
    if recorder.layout(input) is None and input not in recorder._data:
        return None
    if weight.ndim != 2 or weight in recorder._data:
        return None
    arranged = _tokens(recorder, input, weight if trained else bias)  # type: ignore[arg-type]

    def terms(gradient: Tensor, *saved: Tensor) -> list[Contribution]:
        g = arranged(gradient)
        if not trained:
            return [Contribution(bias, token_sums(g))]  # type: ignore[arg-type]
        products = Products(g, arranged(saved[0]))
        found = [Contribution(weight, products)]
        return [*found, Contribution(bias, products.sums())] if shifted else found  # type: ignore[arg-type]

    return terms, [input] if trained else []


def _matmul(recorder: Recorder, input: Tensor, other: Tensor) -> Any:
    if (
        input not in recorder._data
        or not isinstance(other, Tensor)
        or other.ndim != 2
        or input.ndim < 2
    ):
        return None
    arranged = _tokens(recorder, input, other)

    def terms(gradient: Tensor, x: Tensor) -> list[Contribution]:
        return [Contribution(other, Products(arranged(x), arranged(gradient)))]

    return terms, [input]


def _addmm(
    recorder: Recorder, bias: Tensor, x: Tensor, weight: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Any:
    if (
        beta != 1
        or alpha != 1
        or x not in recorder._data
        or bias.ndim != 1
        or bias in recorder._data
    ):
        return None
    trained, shifted = _is(recorder, weight, bias)
    arranged = _tokens(recorder, x, weight if trained else bias)

    def terms(gradient: Tensor, *saved: Tensor) -> list[Contribution]:
        g = arranged(gradient)
        found = [Contribution(weight, Products(arranged(saved[0]), g))] if trained else []
        return found + ([Contribution(bias, token_sums(g))] if shifted else [])

    return terms, [x] if trained else []


def _elementwise(kind: str) -> Any:
    """Of sums, differences and products of data with a parameter, either of which may be broadcast."""

    def rule(recorder: Recorder, first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
        x, p, sign = (first, second, -1 if kind == "sub" else 1)
        if isinstance(first, Tensor) and recorder.is_parameter(first):
            x, p, sign = second, first, 1
        layout = recorder.layout(x) if isinstance(x, Tensor) else None
        if args or kwargs or layout is None or p in recorder._data or not recorder.is_parameter(p):
            return None
        ndim, batch = max(x.ndim, p.ndim), recorder.batch
        dim = layout.dim + ndim - x.ndim  # of the examples in the result
        own = dim - (ndim - p.ndim)  # and in the parameter
        sliced = own >= 0 and p.shape[own] > 1
        if sliced and (own or p.shape[0] != batch * layout.each):
            return None
        shape = torch.Size([layout.each, *p.shape[1:]]) if sliced else p.shape
        scaled = kind == "mul"

        def terms(gradient: Tensor, *saved: Tensor) -> list[Contribution]:
            rows = working(gradient) * working(saved[0]) if scaled else working(gradient)
            rows = rows.reshape(
                *rows.shape[:dim], batch, layout.each, *rows.shape[dim + 1 :]
            ).movedim(dim, 0)
            found = summed_to(rows if sign > 0 else -rows, shape)
            return [
                Contribution(p, Rows(found.rows.reshape(batch, shape.numel()), found.size), sliced)
            ]

        return terms, [x] if scaled else []

    return rule


def _written(kind: str) -> Any:
    """The same where the result is written into the data."""

    def rule(recorder: Recorder, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = _elementwise(kind)(recorder, x, *args, **kwargs) if x in recorder._data else None
        if found is None:
            return None
        terms, saved = found
        return terms, [x.detach().clone() for x in saved]

    return rule


def _cat(recorder: Recorder, tensors: Any, dim: int = 0) -> Any:
    """Of parameters beside data; each has a row for every example."""
    layouts_of = {recorder.layout(t) for t in tensors if t in recorder._data}
    ndim, batch = tensors[0].ndim, recorder.batch
    layout = layouts_of.pop() if len(layouts_of) == 1 else None
    if layout != Layout() or dim % ndim == 0 or any(t.ndim != ndim for t in tensors):
        return None
    sizes = [t.shape[dim] for t in tensors]
    parts = [
        (t, sum(sizes[:i]), sizes[i]) for i, t in enumerate(tensors) if recorder.is_parameter(t)
    ]

    def terms(gradient: Tensor) -> list[Contribution]:
        rows = [
            working(gradient.narrow(dim, start, size)).reshape(batch, -1)
            for _, start, size in parts
        ]
        return [
            Contribution(p, Rows(r), batch > 1) for (p, _, _), r in zip(parts, rows, strict=True)
        ]

    return terms, []


def padding_index(weight: Tensor, args: Any, kwargs: Any) -> int | None:
    """Of a call of ``F.embedding``: the row that is not trained."""
    index = args[2] if len(args) > 2 else kwargs.get("padding_idx")
    return None if index is None else int(index) % weight.shape[0]


def _refuse_embedding(recorder: Recorder, args: Any, kwargs: Any, parameters: list[Tensor]) -> None:
    more = dict(
        zip(
            ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
            args[2:],
            strict=False,
        )
    )
    more.update(kwargs)
    if more.get("scale_grad_by_freq"):
        # PRIVACY: gradients divided by how often all examples use a token mix the examples.   [G16]
        raise _refusal(
            recorder, parameters, "scale_grad_by_freq divides by counts over the whole batch"
        )
    if more.get("max_norm") is not None:
        raise _refusal(recorder, parameters, "max_norm writes into it in the forward pass")


def _embedding(recorder: Recorder, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    if input not in recorder._data:
        return None
    layout, batch = recorder.layout(input), recorder.batch
    if layout is None:
        raise _refusal(
            recorder, [weight], f"used on data of shape {tuple(input.shape)} in a batch of {batch}"
        )
    padding, width = padding_index(weight, (input, weight, *args), kwargs), weight.shape[1]

    def terms(gradient: Tensor, ids: Tensor) -> list[Contribution]:
        tokens = ids.numel() // batch if batch else 0
        indices = ids.movedim(layout.dim, 0).reshape(batch, tokens)
        g = gradient.movedim(layout.dim, 0).reshape(batch, tokens, width)
        if padding is not None:
            g = torch.where((indices == padding)[..., None], 0.0, g)
        return [Contribution(weight, Lookups(indices, g))]

    return terms, [input]


def _normalized(
    recorder: Recorder, x: Tensor, weight: Any, bias: Any, normalize: Any, channels_first: bool
) -> Any:
    """Affine normalisation: ``weight·x̂ + bias``; ``normalize(x)`` makes x̂."""
    trained, shifted = _is(recorder, weight, bias)
    parameter = weight if trained else bias
    if x not in recorder._data or (x in recorder._data and recorder.layout(x) is None):
        raise _refusal(
            recorder,
            [parameter],
            f"used on data of shape {tuple(x.shape)} in a batch of {recorder.batch}",
        )
    layout, batch, width = recorder.layout(x), recorder.batch, parameter.numel()
    assert layout is not None
    if channels_first:
        _rows_first(recorder, x, parameter)

    def arranged(tensor: Tensor) -> Tensor:
        tensor = tensor.movedim(1, -1) if channels_first else tensor
        moved = tensor if channels_first else tensor.movedim(layout.dim, 0)
        return working(moved).reshape(
            batch, moved.numel() // (batch * width) if batch else 0, width
        )

    def terms(gradient: Tensor, *saved: Tensor) -> list[Contribution]:
        g, found = arranged(gradient), []
        if trained:
            with full_precision():
                unit = normalize(working(saved[0]))
            found.append(Contribution(weight, token_sums(g * arranged(unit))))
        return found + ([Contribution(bias, token_sums(g))] if shifted else [])

    return terms, [x] if trained else []


def _layer_norm(
    recorder: Recorder,
    input: Tensor,
    shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    return _normalized(
        recorder, input, weight, bias, lambda x: F.layer_norm(x, shape, None, None, eps), False
    )


def _rms_norm(
    recorder: Recorder, input: Tensor, shape: Any, weight: Any = None, eps: Any = None
) -> Any:
    return _normalized(
        recorder, input, weight, None, lambda x: F.rms_norm(x, shape, None, eps), False
    )


def _group_norm(
    recorder: Recorder,
    input: Tensor,
    groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    return _normalized(
        recorder, input, weight, bias, lambda x: F.group_norm(x, groups, None, None, eps), True
    )


def _instance_norm(
    recorder: Recorder, input: Tensor, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if running_mean is not None:
        raise _refusal(
            recorder, [weight], "running statistics of the layer are written in the forward pass"
        )
    return _normalized(recorder, input, weight, bias, lambda x: F.instance_norm(x, eps=eps), True)


def _conv(dims: int) -> Any:
    def rule(
        recorder: Recorder, input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> Any:  # fmt: skip
        trained, shifted = _is(recorder, weight, bias)
        if input not in recorder._data or weight in recorder._data:
            return None
        parameter = weight if trained else bias
        _rows_first(recorder, input, parameter)
        if input.ndim != dims + 2:
            raise _refusal(
                recorder, [parameter], f"used on one example of shape {tuple(input.shape)}"
            )
        batch = recorder.batch
        steps, holes = _each(stride, dims), _each(dilation, dims)
        pad = _padding(padding, weight.shape[2:], holes)

        def terms(gradient: Tensor, *saved: Tensor) -> list[Contribution]:
            g = working(gradient).flatten(2)  # (rows, channels, positions)
            found = []
            if trained:
                found.append(
                    Contribution(
                        weight, _conv_term(saved[0], g, weight, pad, steps, holes, groups, batch)
                    )
                )
            if shifted:
                found.append(
                    Contribution(bias, token_sums(g, dim=2).summed(len(g) // batch if batch else 1))
                )
            return found

        return terms, [input] if trained else []

    return rule


def _each(value: Any, dims: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


def _padding(padding: Any, kernel: Any, holes: list[int]) -> list[int]:
    """As ``F.pad`` takes it: the last dimension first."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        total = [h * (k - 1) for h, k in zip(holes, kernel, strict=True)]
        sides = [(t // 2, t - t // 2) for t in total]
    else:
        sides = [(p, p) for p in _each(padding, len(kernel))]
    return [side for pair in reversed(sides) for side in pair]


def _unfolded(x: Tensor, kernel: Any, steps: list[int], holes: list[int]) -> Tensor:
    """Windows of the padded input: (rows, channels·kernel, positions).

    A copy by strides, several times faster than ``F.unfold`` on a CPU.
    """
    if all(k == 1 for k in kernel):
        places: Any = (..., *[slice(None, None, step) for step in steps])
        return x[places].flatten(2)
    for dim, (k, step, hole) in enumerate(zip(kernel, steps, holes, strict=True)):
        x = x.unfold(2 + dim, hole * (k - 1) + 1, step)[..., ::hole]
    dims = len(kernel)
    windows = x.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    return windows.flatten(2 + dims).flatten(1, 1 + dims)


def _conv_term(
    x: Tensor,
    g: Tensor,
    weight: Tensor,
    pad: list[int],
    steps: list[int],
    holes: list[int],
    groups: int,
    batch: int,
) -> Any:
    """Gradients of a convolution's weight: formed where they are small, else as factors."""
    kernel, p, d = weight.shape[2:], weight.shape[0] // groups, weight[0].numel()
    rows, positions = g.shape[0], g.shape[2]
    if not rows:
        return Rows(g.new_zeros(0, weight.numel()))
    each = rows // batch if batch else 1  # rows of one example, one after the other
    if groups == 1 and each == 1 and not is_formed_cheaply(positions, p, d):
        windows = _unfolded(F.pad(working(x), pad), kernel, steps, holes)
        return Products(g.transpose(1, 2), windows.transpose(1, 2))
    found = g.new_empty(rows, groups, p, d)
    size = g.new_empty(rows, dtype=torch.float64)
    step = max(1, UNFOLDED // max(1, positions * d * groups))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        padded = F.pad(working(x[part]), pad)
        windows = _unfolded(padded, kernel, steps, holes)
        n = len(windows)
        left, right = (
            g[part].reshape(n * groups, p, positions),
            windows.reshape(n * groups, d, positions),
        )
        batched_products(left, right, tokens_first=False, out=found[part].view(n * groups, p, d))
        size[part] = _conv_size(padded, g[part], kernel, steps, holes, groups)
    return Rows(found.view(rows, -1), size, is_own=True).summed(each)


def _conv_size(
    x: Tensor, g: Tensor, kernel: Any, steps: list[int], holes: list[int], groups: int
) -> Tensor:
    """``S = Σ ‖g‖‖window‖`` over the positions, of each group of channels, and its norm over the groups."""
    rows, _, positions = g.shape
    squares = x.view(rows, groups, -1, *x.shape[2:]).square().sum(dim=2)
    windows = (
        _unfolded(squares.flatten(0, 1)[:, None], kernel, steps, holes)
        .sum(dim=1)
        .view(rows, groups, positions)
    )
    gradients = g.view(rows, groups, -1, positions).square().sum(dim=2)
    each = (windows.double() * gradients).sqrt_().sum(dim=2)
    found: Tensor = torch.linalg.vector_norm(each, dim=1) * (1 + NORM_ERROR)
    return found


def _general(
    recorder: Recorder,
    func: Any,
    args: Any,
    kwargs: Any,
    parameters: list[Tensor],
    sources: list[Tensor],
    out: Any,
) -> tuple[Terms, list[Tensor]]:
    """Any function of one result: its vector-Jacobian product for one example at a time."""
    batch, name = recorder.batch, function_name(func)
    unknown = [s for s in sources if recorder.layout(s) is None or recorder.layout(s).dim != 0]  # type: ignore[union-attr]
    if not isinstance(out, Tensor) or not out.ndim or (batch and out.shape[0] % batch) or unknown:
        raise _refusal(
            recorder, parameters, f"used by {name} with data whose examples do not come first"
        )
    flattened, tree = pytree.tree_flatten((args, kwargs))
    data = [i for i, t in enumerate(flattened) if isinstance(t, Tensor) and t in recorder._data]
    places = [
        i for i, t in enumerate(flattened) if isinstance(t, Tensor) and recorder.is_parameter(t)
    ]
    each = {i: recorder.layout(flattened[i]).each for i in data}  # type: ignore[union-attr]
    result = Layout(0, out.shape[0] // batch if batch else 1)
    if batch > 1 and layouts.has_rule(name):
        followed = {
            layouts.after(name, args, kwargs, s, recorder.layout(s), out, batch) for s in sources
        } - {None}
        if followed != {result}:
            raise _refusal(
                recorder,
                parameters,
                f"used by {name} with a result whose examples do not come first",
            )
    sliced = _sliced(func, flattened, tree, data, places, each, out, batch)
    if sliced is None:
        raise _refusal(recorder, parameters, f"used by {name} in a way that mixes the examples")
    tensors = [flattened[i] for i in places]
    fixed = list(flattened)

    def one(values: list[Tensor], inputs: list[Tensor], gradient: Tensor) -> tuple[Tensor, ...]:
        def call(*chosen: Tensor) -> Tensor:
            full = list(fixed)
            for i, x in zip(data, inputs, strict=True):
                full[i] = x
            for i, value in zip(places, chosen, strict=True):
                full[i] = value
            again_args, again = pytree.tree_unflatten(full, tree)
            made: Tensor = func(*again_args, **again)
            return made

        made, pull, *_ = torch.func.vjp(call, *values)
        found: tuple[Tensor, ...] = pull(gradient.to(made.dtype))
        return found

    def terms(gradient: Tensor, *saved: Tensor) -> list[Contribution]:
        inputs = [
            x.detach().reshape(batch, each[i], *x.shape[1:])
            for i, x in zip(data, saved, strict=True)
        ]
        g = gradient.reshape(batch, result.each, *gradient.shape[1:])
        own = [
            t.detach().reshape(batch, len(t) // batch, *t.shape[1:]) if s else t.detach()
            for t, s in zip(tensors, sliced, strict=True)
        ]
        mapped = torch.func.vmap(
            one, in_dims=([0 if s else None for s in sliced], [0] * len(inputs), 0)
        )
        found: list[list[Tensor]] = [[] for _ in tensors]
        for start in range(0, batch, GROUP):
            part = slice(start, start + GROUP)
            values = [_filled(t[part]) if s else t for t, s in zip(own, sliced, strict=True)]
            made = mapped(values, [_filled(x[part]) for x in inputs], _filled(g[part]))
            for rows, more in zip(found, made, strict=True):
                rows.append(more[: len(g[part])])
        contributions = []
        for tensor, rows, s in zip(tensors, found, sliced, strict=True):
            gradients = torch.cat(rows) if rows else tensor.new_zeros(0, *tensor.shape)
            contributions.append(Contribution(tensor, Rows(gradients.flatten(1)), s))
        return contributions

    return terms, [flattened[i] for i in data]


def _filled(rows: Tensor) -> Tensor:
    """As many rows as a whole group has; those that are missing repeat the last one."""
    missing = GROUP - len(rows)
    return (
        torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])
        if missing and len(rows)
        else rows
    )


def _sliced(
    func: Any,
    flattened: list[Any],
    tree: Any,
    data: list[int],
    places: list[int],
    each: dict[int, int],
    out: Tensor,
    batch: int,
) -> list[bool] | None:
    """Which parameters have rows for each example, told from the shape of the result for one example alone."""
    if batch <= 1:
        return [False] * len(places)
    one = torch.Size([out.shape[0] // batch, *out.shape[1:]])
    choices = [[False] * len(places)]
    sizes = {batch, *(batch * rows for rows in each.values())}
    aligned = [flattened[i].ndim > 0 and flattened[i].shape[0] in sizes for i in places]
    if any(aligned):
        choices.append(aligned)
    for choice in choices:
        full = list(flattened)
        for i in data:
            full[i] = full[i].detach()[: each[i]]
        for i, s in zip(places, choice, strict=True):
            full[i] = full[i].detach()[: len(full[i]) // batch] if s else full[i].detach()
        args, kwargs = pytree.tree_unflatten(full, tree)
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                if func(*args, **kwargs).shape == one:
                    return choice
        except (RuntimeError, IndexError, ValueError):
            continue
    return None


_RULES: dict[Any, Any] = {
    F.linear: _linear,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.Tensor.__matmul__: _matmul,
    torch.mm: _matmul,
    torch.Tensor.mm: _matmul,
    torch.addmm: _addmm,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.conv1d: _conv(1),
    F.conv2d: _conv(2),
    F.conv3d: _conv(3),
    **dict.fromkeys([torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__], _elementwise("add")),
    **dict.fromkeys([torch.sub, Tensor.sub, Tensor.__sub__], _elementwise("sub")),
    **dict.fromkeys([torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__], _elementwise("mul")),
    **dict.fromkeys([Tensor.add_, Tensor.__iadd__], _written("add")),
    **dict.fromkeys([Tensor.sub_, Tensor.__isub__], _written("sub")),
    **dict.fromkeys([Tensor.mul_, Tensor.__imul__], _written("mul")),
    **dict.fromkeys([torch.cat, torch.concat, torch.concatenate], _cat),
}
