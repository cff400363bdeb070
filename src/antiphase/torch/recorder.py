"""Follow the uses of trainable parameters through forward and backward passes, and record per-example gradients.

While the model runs, a `Recorder` sees every function of torch. Tensors that depend on the model's inputs are data,
tensors that depend on parameters alone are derived parameters. Where data and (derived) parameters meet, the function
runs with the parameters detached, and its result is marked: in the private backward pass the gradient with respect to
the result arrives there, and a rule of `layer_rules` makes the per-example gradients of the parameters from it.
Autograd computes no gradient of a parameter, so that no other backward pass can leave one that is released.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from antiphase.errors import PerExampleGradientError
from antiphase.torch import layouts
from antiphase.torch.clipping import row_norms
from antiphase.torch.gradient_terms import Lookups, Products, RowBuffers, Rows, Term, formed_term
from antiphase.torch.layouts import Layout, function_name, words

Tensor = torch.Tensor
_PASSES = itertools.count(1)  # of all recorders: two of them may follow one model
GROUP = 1  # examples of one vector-Jacobian product: in larger groups rounding depends on an example's place
# Functions and attributes that make no tensor out of a tensor, by far the most frequent calls.
_METADATA = frozenset(
    words("""
    shape dtype device ndim size dim requires_grad is_cuda layout stride numel is_floating_point is_contiguous
    data_ptr grad_fn is_leaf __len__ names is_complex is_sparse is_nested is_quantized itemsize nbytes element_size
    is_cpu is_meta is_mps is_xpu grad backward register_hook requires_grad_ retain_grad __repr__ __format__
    storage_offset untyped_storage is_inference
    """)
)
_CONSTANTS = frozenset(["new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"])
_RESHAPES_IN_PLACE = frozenset(
    [
        "transpose_",
        "t_",
        "swapaxes_",
        "swapdims_",
        "unsqueeze_",
        "squeeze_",
        "resize_",
        "resize_as_",
        "set_",
    ]
)


class TensorMap:
    """Values by tensor (the object, not its numbers), for as long as the tensor lives."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Any]] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        entry = self._entries.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def get(self, tensor: Tensor) -> Any:
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def __setitem__(self, tensor: Tensor, value: Any) -> None:
        key = id(tensor)
        entry = self._entries.get(key)
        alive = entry is not None and entry[0]() is tensor
        reference = (
            entry[0] if entry is not None and alive else weakref.KeyedRef(tensor, self._drop, key)
        )
        self._entries[key] = (reference, value)

    def _drop(self, reference: Any) -> None:
        entry = self._entries.get(reference.key)
        if entry is not None and entry[0] is reference:
            del self._entries[reference.key]


class ForwardPass(NamedTuple):
    """Which forward pass of the model, and of how many examples."""

    number: int
    examples: int


class Contribution(NamedTuple):
    """A term of the gradient of a (derived) parameter.

    ``sliced``: each example has only met its own rows of the tensor, which come one after the other.
    """

    tensor: Tensor
    term: Term
    sliced: bool = False


class Derived(NamedTuple):
    """How a tensor depends on parameters: ``kind`` is "transpose", "expand", "lookup" or "graph"."""

    kind: str
    parents: tuple[Tensor, ...]
    indices: Tensor | None = None


class Mark(torch.autograd.Function):
    """The identity; its backward pass hands the gradient to the recorder."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, anchor: Tensor, use: Any, *saved: Tensor) -> Tensor:
        ctx.save_for_backward(*saved)
        ctx.use, ctx.saved = use, len(saved)
        if result._is_view() and not ctx.use[3]:
            # F.linear returns a view of a product that nobody else has. Marked in place, the backward pass would copy
            # its gradient three times; this is a new tensor on the same memory, as torch.matmul returns it.
            fresh: Tensor = torch.ops.aten._unsafe_view(result, result.shape)
            return fresh
        ctx.mark_dirty(result)  # no copy, and in-place functions may follow
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        recorder, terms, forward_pass, _ = ctx.use
        # PRIVACY: in ghost mode only the backward pass of the private loss is recorded.   [G16]
        if recorder.is_collecting:
            saved = ctx.saved_tensors
            with recorder.paused(), torch.no_grad():
                recorder.collect(terms(gradients[0], *saved), forward_pass)
        return (gradients[0], None, None, *[None] * ctx.saved)


class Recorder(TorchFunctionMode):
    """Of one model; see the module's docstring."""

    def __init__(self, module: nn.Module, batch_first: bool = True) -> None:
        super().__init__()
        self.batch, self.is_collecting, self.is_always_on = 0, False, False
        self.terms: dict[str, list[Term]] = {}
        self.buffers: RowBuffers | None = None
        self._passes = 0
        self._collected: ForwardPass | None = None  # that the terms are of
        self._module, self._dim, self._paused = module, 0 if batch_first else 1, False
        self._names: dict[int, str] = {}
        self._data, self._derived = TensorMap(), TensorMap()

    @contextlib.contextmanager
    def following(self, inputs: Any) -> Iterator[None]:
        """Follow a forward pass of the model on these inputs."""
        if (
            not torch.is_grad_enabled()
            or self._paused
            or not (self._module.training or self.is_always_on)
        ):
            yield
            return
        found = [t for t in tensors_in(inputs) if t.ndim]
        if not found:
            raise ValueError(
                "the model was called without a tensor: its examples cannot be told apart"
            )
        first = found[0]
        self.batch = first.shape[self._dim if first.ndim > 2 or self._dim == 0 else first.ndim - 1]
        self._names = {}
        self._name()
        for tensor in found:
            if self.is_parameter(tensor):
                continue  # one of the model's own
            layout = Layout(self._dim if tensor.ndim > self._dim and self._dim else 0)
            self._data[tensor] = layout if layouts.holds(layout, tensor, self.batch) else None
        self._passes = next(_PASSES)
        with self:
            yield

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Record the per-example gradients of the backward passes inside, into ``terms``."""
        self.terms, self.is_collecting, self._collected = {}, True, None
        try:
            with self:  # forward passes that activation checkpointing repeats
                yield
        finally:
            self.is_collecting = False

    @contextlib.contextmanager
    def always_on(self) -> Iterator[None]:
        """Follow passes in eval mode too."""
        self.is_always_on = True
        try:
            yield
        finally:
            self.is_always_on = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Functions inside are not followed."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def forget(self) -> None:
        """Keep nothing of the data."""
        self.terms = {}
        self._data, self._derived = TensorMap(), TensorMap()

    def __reduce__(self) -> Any:
        # A copy of the model has the same recorder, without anything that was recorded.
        return type(self), (self._module, self._dim == 0)

    # Names and kinds of tensors

    def _name(self) -> None:
        self._names.update(
            (id(p), name) for name, p in self._module.named_parameters() if p.requires_grad
        )

    def name_of(self, tensor: Tensor) -> str | None:
        """Of a parameter; None for other tensors."""
        name = self._names.get(id(tensor))
        if name is None and isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            self._name()  # shards are put together in the course of a pass
            name = self._names.get(id(tensor))
        return name

    def is_parameter(self, tensor: Any) -> bool:
        """Whether it is a trainable parameter or depends on such alone."""
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            return False
        return tensor in self._derived or self.name_of(tensor) is not None

    def derivation(self, tensor: Tensor) -> Derived | None:
        found: Derived | None = self._derived.get(tensor)
        return found

    def layout(self, tensor: Tensor) -> Layout | None:
        found: Layout | None = self._data.get(tensor)
        return found

    def parents(self, tensor: Tensor) -> list[str]:
        """The names of the parameters that a tensor is derived from."""
        name = self.name_of(tensor)
        if name is not None:
            return [name]
        derived = self.derivation(tensor)
        return (
            [] if derived is None else sorted({n for p in derived.parents for n in self.parents(p)})
        )

    # The forward pass

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        name = function_name(func)
        if name in _METADATA or name in _CONSTANTS:
            return func(*args, **kwargs)
        if name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        given = tensors_in(args)
        if kwargs:
            given += tensors_in(kwargs)
        sources, parameters = [], []
        followed = torch.is_grad_enabled()
        for tensor in given:
            if tensor in self._data:
                sources.append(tensor)
            elif followed and self.is_parameter(tensor):
                parameters.append(tensor)
        if not parameters or name == "detach":
            out = func(*args, **kwargs)
        elif not sources:
            out = func(*args, **kwargs)
            self._derive(name, args, kwargs, parameters, out)
            return out
        else:
            from antiphase.torch.layer_rules import apply_rule

            out = apply_rule(self, func, args, kwargs, parameters, sources)
        if sources:
            self._note(name, args, kwargs, sources, out)
        return out

    def _note(self, name: str, args: Any, kwargs: Any, sources: list[Tensor], out: Any) -> None:
        """Results of data are data."""
        found, writes = tensors_in(out), writes_in_place(name)
        if writes:
            if args[0] in self._data and name not in _RESHAPES_IN_PLACE:
                return
            found = [args[0]]
        known = [(s, layout) for s in sources if (layout := self._data.get(s)) is not None]
        for tensor in found:
            if not writes and tensor in self._data:
                continue  # one of the arguments, as it was
            choices = {
                layouts.after(name, args, kwargs, s, layout, tensor, self.batch)
                for s, layout in known
            }
            choices.discard(None)
            self._data[tensor] = (
                choices.pop() if len(choices) == 1 and name not in _RESHAPES_IN_PLACE else None
            )

    def _derive(
        self, name: str, args: Any, kwargs: Any, parameters: list[Tensor], out: Any
    ) -> None:
        """Results of parameters alone are derived parameters."""
        kind, indices = "graph", None
        first = parameters[0]
        if writes_in_place(name):
            written: Tensor = args[0]
            before = self.derivation(written)
            parents = [
                *(p for p in parameters if p is not written),
                *(before.parents if before else ()),
            ]
            if written.requires_grad and self.name_of(written) is None:
                self._derived[written] = Derived(kind, tuple(parents))
            return
        if first.ndim == 2 and name in (
            "t",
            "T",
            "mT",
            "transpose",
            "permute",
            "swapaxes",
            "adjoint",
            "H",
            "mH",
        ):
            swapped = (
                isinstance(out, Tensor)
                and out.shape == first.shape[::-1]
                and out.stride() == first.stride()[::-1]
            )
            kind = "transpose" if swapped else "graph"
        elif name in ("expand", "repeat", "broadcast_to", "tile", "expand_as"):
            kind = "expand"
        elif name == "embedding" and len(args) > 1 and args[1] is first:
            from antiphase.torch.layer_rules import padding_index

            kind, indices = "lookup", args[0]
            if padding_index(first, args, kwargs) is not None:
                kind, indices = "graph", None
        for tensor in tensors_in(out):
            # Functions such as `to` and `contiguous` may return their argument.
            if (
                tensor.requires_grad
                and self.name_of(tensor) is None
                and not any(tensor is p for p in parameters)
            ):
                self._derived[tensor] = Derived(kind, tuple(parameters), indices)

    def marked(
        self,
        out: Tensor,
        anchor: Tensor,
        terms: Callable[..., list[Contribution]],
        saved: list[Tensor],
        in_place: bool = False,
    ) -> Tensor:
        """``out``, whose gradient goes to ``terms(gradient, *saved)`` in the private backward pass.

        Args:
            out: the result of the function; its memory is used by the tensor that is returned.
            anchor: a tensor that requires a gradient.
            terms: the rule.
            saved: tensors that the rule needs.
            in_place: whether the function wrote into one of its arguments, which ``out`` then is.
        """
        with self.paused():
            use = self, terms, ForwardPass(self._passes, self.batch), in_place
            result: Tensor = Mark.apply(out, anchor, use, *saved)  # type: ignore[no-untyped-call]
        return result

    # The backward pass

    def collect(self, contributions: list[Contribution], forward_pass: ForwardPass) -> None:
        """Keep terms under the names of the parameters that they belong to."""
        # PRIVACY: rows of two passes are those of different examples, and one row for both is clipped once.   [G16]
        if self._collected is not None and self._collected != forward_pass:
            raise PerExampleGradientError(
                "a loss of two forward passes: their examples cannot be told apart. Nothing was released. Call "
                "backward() for each batch, or call the network twice inside one forward()"
            )
        self._collected = forward_pass
        for tensor, term, sliced in contributions:
            self._collect(tensor, term, sliced)

    def _collect(self, tensor: Tensor, term: Term, sliced: bool) -> None:
        name = self.name_of(tensor)
        if name is not None and not sliced:
            if isinstance(term, Products) and term.is_formed_cheaply:
                term = term.formed(self.buffers)
            self.terms.setdefault(name, []).append(term)
            return
        derived = self.derivation(tensor)
        if derived is None and name is None:
            raise ValueError(
                "a parameter that the model has no longer was used in its forward pass"
            )
        if derived is not None and derived.kind == "transpose" and isinstance(term, Products):
            turned = Products(term.inputs, term.outputs)
            self._collect(derived.parents[0], turned, False)
            return
        formed = formed_term(term, tensor.shape)
        rows, size = formed.rows, formed.size
        n = len(rows)
        if (
            derived is not None
            and derived.kind == "expand"
            and len(derived.parents) == 1
            and sliced
        ):
            parent = derived.parents[0]
            if _is_expansion(parent.shape, tensor.shape):
                summed = summed_to(rows.view(n, -1, *tensor.shape[1:]), parent.shape)
                self._collect(parent, _with_size(summed, size), False)
                return
        if derived is not None and derived.kind == "lookup" and derived.indices is not None:
            indices = derived.indices
            own = indices.reshape(n, -1) if sliced else indices.reshape(1, -1).expand(n, -1)
            self._collect(
                derived.parents[0],
                Lookups(own, rows.reshape(n, own.shape[1], tensor.shape[-1])),
                False,
            )
            return
        if sliced:
            placed = rows.new_zeros(n, n, tensor.numel() // max(n, 1))
            placed[torch.arange(n), torch.arange(n)] = rows.view(n, -1)
            rows = placed
        rows = rows.view(n, *tensor.shape)
        if name is not None:
            self.terms.setdefault(name, []).append(Rows(rows, size))
            return
        assert derived is not None
        for leaf, found in _pulled_back(tensor, self._leaves(tensor), rows).items():
            self.terms.setdefault(leaf, []).append(Rows(found, _in_proportion(size, rows, found)))

    def _leaves(self, tensor: Tensor) -> dict[str, Tensor]:
        name = self.name_of(tensor)
        if name is not None:
            return {name: tensor}
        derived = self.derivation(tensor)
        found: dict[str, Tensor] = {}
        for parent in () if derived is None else derived.parents:
            found.update(self._leaves(parent))
        return found


def _pulled_back(tensor: Tensor, leaves: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Rows of gradients with respect to the tensor, as gradients with respect to the parameters it depends on."""
    found: dict[str, list[Tensor]] = {name: [] for name in leaves}
    for start in range(0, len(rows), GROUP):
        part = rows[start : start + GROUP].to(tensor.dtype)
        size = len(part)
        part = torch.cat([part, part.new_zeros(GROUP - size, *part.shape[1:])])
        with torch.enable_grad():
            each = torch.autograd.grad(
                tensor,
                list(leaves.values()),
                part,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=True,
            )
        for (name, leaf), gradient in zip(leaves.items(), each, strict=True):
            found[name].append(
                leaf.new_zeros(size, *leaf.shape) if gradient is None else gradient[:size]
            )
    return {name: torch.cat(parts) if parts else rows.new_zeros(0) for name, parts in found.items()}


def _with_size(rows: Rows, size: Tensor | None) -> Rows:
    return (
        rows
        if size is None
        else Rows(rows.rows, size if rows.size is None else torch.maximum(size, rows.size))
    )


def _in_proportion(size: Tensor | None, rows: Tensor, found: Tensor) -> Tensor | None:
    """S of gradients that were pulled back through a function of the parameters: in proportion to their norms."""
    if size is None:
        return None
    before, after = row_norms(rows), row_norms(found)
    return size * after / before.clamp(min=1e-300)


def _is_expansion(shape: torch.Size, expanded: torch.Size) -> bool:
    """Whether the rows of the expanded tensor are all the same, and not longer than the tensor by repetition."""
    wide = [1] * (len(expanded) - len(shape)) + list(shape)
    return wide[0] == 1 and all(a in (1, b) for a, b in zip(wide, expanded, strict=True))


def summed_to(rows: Tensor, shape: torch.Size) -> Rows:
    """Rows of shape (n, *expanded) summed to (n, *shape), as the gradient of an expansion."""
    from antiphase.torch.gradient_terms import token_sums

    n, extra = len(rows), rows.ndim - 1 - len(shape)
    wide = torch.Size([1] * extra + list(shape))
    dims = [i for i, size in enumerate(wide) if size == 1 and rows.shape[i + 1] > 1]
    rest = [i for i in range(len(wide)) if i not in dims]
    moved = rows.permute(0, *[i + 1 for i in dims], *[i + 1 for i in rest]).reshape(
        n,
        torch.Size([rows.shape[i + 1] for i in dims]).numel(),
        torch.Size([wide[i] for i in rest]).numel(),
    )
    summed = token_sums(moved)
    return Rows(summed.rows.view(n, *shape), summed.size)


_SCALARS = (int, float, bool, str, slice, torch.dtype, torch.device, type(None))


def writes_in_place(name: str) -> bool:
    """Whether the function of torch with this name changes its first argument."""
    return (name[-1:] == "_" and name[-2:] != "__") or name in _WRITING


_WRITING = frozenset(
    [
        "__setitem__",
        *(f"__i{n}__" for n in ("add", "sub", "mul", "truediv", "div", "pow", "floordiv")),
    ]
)
_WRITING |= frozenset(f"__i{n}__" for n in ("mod", "and", "or", "xor", "lshift", "rshift"))


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors in nested lists, tuples and mappings."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, list | tuple):
        found: list[Tensor] = []
        for part in tree:
            if isinstance(part, Tensor):
                found.append(part)
            elif not isinstance(part, _SCALARS):
                found += tensors_in(part)
        return found
    if isinstance(tree, _SCALARS):
        return []
    if isinstance(tree, dict) or hasattr(tree, "items"):
        return [t for part in dict(tree).values() for t in tensors_in(part)]
    return []
