"""Record per-example gradients of a model in one forward and one backward pass.

While the model runs, a `Recorder` intercepts every function of torch. Where data and parameters
meet, the function runs with its parameters detached, and its result is tapped: in the private
backward pass the gradient with respect to the result arrives there, and a rule of `layer_rules`
computes the per-example gradients of the parameters from it (book-keeping, Bu et al. 2022).
Autograd computes no gradient of a parameter, so no other backward pass can leave one that would be
released.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from antiphase.errors import PerExampleGradientError
from antiphase.torch.batched_products import RowBuffers
from antiphase.torch.compilation import eagerly
from antiphase.torch.derived_parameters import ParameterTerm, terms_of_leaves
from antiphase.torch.function_calls import function_name, tensors_in, writes_in_place
from antiphase.torch.gradient_terms import Products, Term
from antiphase.torch.layer_rules import rule_of, scaled_dot_product_attention
from antiphase.torch.tensor_roles import TensorRoles
from antiphase.torch.vjp_rule import refuse_random_numbers, vjp_rule

Tensor = torch.Tensor
_PASSES = itertools.count(1)  # of all recorders, since two of them may record one model
# Functions and attributes that make no data out of data. They are the most frequent calls.
_METADATA = """
    shape dtype device ndim size dim requires_grad is_cuda layout stride numel is_floating_point
    is_contiguous data_ptr grad_fn is_leaf __len__ names is_complex is_sparse is_nested
    is_quantized itemsize nbytes element_size is_cpu is_meta is_mps is_xpu grad backward
    register_hook requires_grad_ retain_grad __repr__ __format__ storage_offset untyped_storage
    is_inference new_zeros new_ones new_empty new_full new_tensor
"""
_NOT_FOLLOWED = frozenset(_METADATA.split())


class ForwardPass(NamedTuple):
    """A forward pass of the model: its number, and how many examples it has."""

    number: int
    examples: int


class GradientTap(torch.autograd.Function):
    """The identity; its backward pass hands the gradient to the recorder."""

    @staticmethod
    def forward(
        ctx: Any, result: Tensor, anchor: Tensor, recorder: Any, terms: Any, in_place: bool,
        *saved: Tensor,
    ) -> Tensor:  # fmt: skip
        """Return the result, on the same memory, with a backward pass of its own."""
        ctx.save_for_backward(*saved)
        ctx.recorder, ctx.terms, ctx.forward_pass = recorder, terms, recorder.forward_pass
        if result._is_view() and not in_place:
            # F.linear returns a view of a product that nothing else uses. Tapped in place, the
            # backward pass would copy its gradient three times; this is a new tensor on the same
            # memory, as torch.matmul returns it.
            fresh: Tensor = torch.ops.aten._unsafe_view(result, result.shape)
            return fresh
        ctx.mark_dirty(result)  # no copy, and in-place functions may follow
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Hand the gradient to the recorder, and pass it on."""
        recorder, (gradient,) = ctx.recorder, gradients
        # PRIVACY: in ghost mode only the backward pass of the private loss is recorded.   [G16]
        if recorder.is_collecting:
            saved = ctx.saved_tensors
            with recorder.paused(), torch.no_grad():
                recorder.collect(ctx.terms(gradient, *saved), ctx.forward_pass)
        return (gradient, *[None] * (len(ctx.needs_input_grad) - 1))


class Recorder(TorchFunctionMode):
    """Records the uses of one model's parameters.

    Attributes:
        roles: which tensors of the model are data, and which parameters.
        terms: what the last backward pass added to the gradient of each parameter.
        buffers: memory for per-example gradients; None to allocate it anew.
        forward_pass: the forward pass that is recorded, or was recorded last.
        is_collecting: whether backward passes are recorded.
        is_paused: whether functions of torch are not followed.
    """

    def __init__(self, module: nn.Module, batch_first: bool = True) -> None:
        super().__init__()
        self.roles = TensorRoles(module)
        self.terms: dict[str, list[Term]] = {}
        self.buffers: RowBuffers | None = None
        self.forward_pass = ForwardPass(0, 0)
        self.is_collecting = self.is_paused = self._in_eval_mode = False
        self._collected: ForwardPass | None = None  # the forward pass of the terms
        self._module, self._batch_dim = module, 0 if batch_first else 1

    def __reduce__(self) -> Any:
        # A copy of the model has a recorder of its own, without anything that was recorded.
        return type(self), (self._module, self._batch_dim == 0)

    @contextlib.contextmanager
    def following(self, inputs: Any) -> Iterator[None]:
        """Follow a forward pass of the model on these inputs."""
        is_training = self._module.training or self._in_eval_mode
        if not torch.is_grad_enabled() or self.is_paused or not is_training:
            yield
            return
        self.roles.begin(inputs, self._batch_dim)
        self.forward_pass = ForwardPass(next(_PASSES), self.roles.batch_size)
        with eagerly(), self:
            yield

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Record the per-example gradients of the backward passes inside, into ``terms``."""
        self.terms, self.is_collecting, self._collected = {}, True, None
        try:
            with eagerly(), self:  # activation checkpointing repeats forward passes
                yield
        finally:
            self.is_collecting = False

    @contextlib.contextmanager
    def always_on(self) -> Iterator[None]:
        """Follow passes in eval mode too."""
        self._in_eval_mode = True
        try:
            yield
        finally:
            self._in_eval_mode = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not follow the functions inside."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def forget(self) -> None:
        """Keep nothing of the data."""
        self.terms = {}
        self.roles.forget()

    # The forward pass

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.is_paused:
            return func(*args, **kwargs)
        name = function_name(func)
        if name in _NOT_FOLLOWED:
            return func(*args, **kwargs)
        if name == "__iter__":
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        tensors = tensors_in(args)
        if kwargs:
            tensors += tensors_in(kwargs)
        roles, sources, parameters = self.roles, [], []
        trains = torch.is_grad_enabled() and name != "detach"
        for tensor in tensors:
            if tensor in roles.data:
                sources.append(tensor)
            elif trains and roles.is_parameter(tensor):
                parameters.append(tensor)
        if parameters and sources:
            out = self._use(func, name, args, kwargs, parameters, sources)
        else:
            out = func(*args, **kwargs)
        if sources:
            roles.note_data(name, args, kwargs, sources, out)
        elif parameters:
            roles.note_derived(name, args, kwargs, parameters, out)
        return out

    def _use(
        self, func: Any, name: str, args: Any, kwargs: Any, parameters: list[Tensor],
        sources: list[Tensor],
    ) -> Any:  # fmt: skip
        """Run a function of data and parameters with the parameters detached; tap its result."""
        roles, in_place = self.roles, writes_in_place(name)
        if "out" in kwargs:
            raise roles.refusal(parameters, f"{name} writes the result into its argument `out`")
        if in_place and roles.is_parameter(args[0]):
            raise roles.refusal(parameters, f"{name} writes into it")
        if func is F.scaled_dot_product_attention:
            with self:
                return scaled_dot_product_attention(*args, **kwargs)
        use = rule_of(func, roles, args, kwargs)
        detached = {id(p): p.detach() for p in parameters}
        if use is not None:
            out = func(*_replaced(args, detached), **_replaced(kwargs, detached))
        elif in_place:
            raise roles.refusal(parameters, f"{name} writes the result into data")
        else:
            with refuse_random_numbers(roles, parameters, name):
                out = func(*_replaced(args, detached), **_replaced(kwargs, detached))
            use = vjp_rule(roles, func, args, kwargs, parameters, sources, out)
            out = out.clone()
        return self._tapped(out, parameters[0], *use, in_place)

    def _tapped(
        self,
        out: Tensor,
        anchor: Tensor,
        terms: Callable[..., list[ParameterTerm]],
        saved: list[Tensor],
        in_place: bool,
    ) -> Tensor:
        """The result, whose gradient goes to ``terms(gradient, *saved)`` in the backward pass.

        Args:
            out: the result of a function; the tensor that is returned uses its memory.
            anchor: a tensor that requires a gradient.
            terms: computes per-example gradients.
            saved: tensors that ``terms`` needs.
            in_place: whether the function wrote into its first argument, which ``out`` then is.
        """
        with self.paused():
            apply: Any = GradientTap.apply
            tapped: Tensor = apply(out, anchor, self, terms, in_place, *saved)
        return tapped

    # The backward pass

    def collect(self, parameter_terms: list[ParameterTerm], forward_pass: ForwardPass) -> None:
        """Keep terms under the names of the parameters that they belong to."""
        # PRIVACY: two passes have different examples; a row for both is clipped once.   [G16]
        if self._collected is not None and self._collected != forward_pass:
            raise PerExampleGradientError(
                "the loss combines two forward passes, whose examples cannot be told apart. "
                "Nothing was released. Call backward() for each batch, or call the network twice "
                "inside one forward()"
            )
        self._collected = forward_pass
        for parameter_term in parameter_terms:
            for name, term in terms_of_leaves(self.roles, *parameter_term):
                if isinstance(term, Products) and term.is_formed_cheaply:
                    term = term.to_rows(buffers=self.buffers)
                self.terms.setdefault(name, []).append(term)


def _replaced(tree: Any, tensors: dict[int, Tensor]) -> Any:
    """Arguments of a function, with other tensors for those of these ids."""
    if isinstance(tree, Tensor):
        return tensors.get(id(tree), tree)
    if type(tree) in (list, tuple):
        return type(tree)(_replaced(part, tensors) for part in tree)
    if isinstance(tree, dict):
        return {name: _replaced(part, tensors) for name, part in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        return pytree.tree_map(lambda leaf: _replaced(leaf, tensors), tree)
    return tree
