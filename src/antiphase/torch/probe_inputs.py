"""Made-up inputs for the gradient check, with the shapes and ranges of the loader's examples."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from antiphase.torch.function_calls import tensors_in

Tensor = torch.Tensor
NUM_EXAMPLES = 4


class CheckImpossibleError(Exception):
    """The gradient check cannot run; the message is the reason."""


@dataclass(frozen=True)
class ProbeInputs:
    """Arguments of the model for `NUM_EXAMPLES` made-up examples.

    Attributes:
        args: the arguments.
        kwargs: the arguments by name.
        batch_dims: of each tensor among the arguments; None if all examples share the tensor.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batch_dims: list[int | None]

    def select(self, example: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for one example alone."""
        batch_dims = iter(self.batch_dims)

        def of_one(t: Tensor) -> Tensor:
            dim = next(batch_dims)
            return t if dim is None else t.narrow(dim, example, 1)

        selected: tuple[tuple[Any, ...], dict[str, Any]] = self._mapped(of_one)
        return selected

    def shuffled(self, seed: int) -> ProbeInputs:
        """The same inputs with the values of each tensor in another order."""
        generator = torch.Generator().manual_seed(seed)

        def shuffle(t: Tensor) -> Tensor:
            if t.ndim == 0:
                return t
            order = torch.randperm(t.numel(), generator=generator).to(t.device)
            return t.flatten()[order].view(t.shape)

        args, kwargs = self._mapped(shuffle)
        return ProbeInputs(args, kwargs, self.batch_dims)

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> Any:
        return pytree.tree_map_only(Tensor, function, (self.args, self.kwargs))


def make_inputs(
    loader: Any, probe_inputs: Callable[[int], Any] | None, device: Any, model: nn.Module
) -> ProbeInputs:
    """Made-up arguments that the model can be called with.

    Args:
        loader: its first examples have the shapes, dtypes and ranges of the inputs.
        probe_inputs: makes inputs for so many examples instead.
        device: of the inputs.
        model: to try the inputs on.

    Raises:
        CheckImpossibleError: if there are no such inputs.
    """
    if probe_inputs is not None:
        several, one = (_as_call(probe_inputs(count)) for count in (NUM_EXAMPLES, 1))
        return _with_batch_dims(several, one, device)
    try:
        dataset, collate = loader.dataset, loader.collate_fn
        examples = [dataset[i] for i in range(min(NUM_EXAMPLES, len(dataset)))]
        several, one = (collate([examples[0]] * count) for count in (NUM_EXAMPLES, 1))
        alone = [collate([example]) for example in examples]
    except Exception as error:  # the user's data set may raise anything
        reason = f"the first examples could not be read ({type(error).__name__})"
        raise CheckImpossibleError(reason) from error
    if not tensors_in(several):
        raise CheckImpossibleError("the loader's batches hold no tensors")
    random, failure = _random_like(several, alone), ""
    for call_of_several, call_of_one in _possible_calls(several, random, one):
        try:
            inputs = _with_batch_dims(call_of_several, call_of_one, device)
            with torch.no_grad(), dropout_off(model):
                floating_outputs(model(*inputs.args, **inputs.kwargs))
        except Exception as error:  # the model may raise anything on made-up inputs
            failure = failure or _without_values(error, model, call_of_several)
            continue
        return inputs
    raise CheckImpossibleError(f"the model could not be called with made-up inputs ({failure})")


def floating_outputs(output: Any) -> list[Tensor]:
    """Tensors of the model's output that depend on parameters, without scalars (a mean loss)."""
    tensors = [t for t in tensors_in(output) if t.is_floating_point() and t.ndim]
    if not tensors:
        raise CheckImpossibleError("the model returns no tensor of floating-point numbers")
    return [t for t in tensors if t.requires_grad] or tensors[:1]


@contextlib.contextmanager
def dropout_off(model: nn.Module, keep_parameters: bool = False) -> Iterator[None]:
    """Eval mode, except for modules with trainable parameters if ``keep_parameters``.

    Opacus' hooks need such modules in training mode.
    """
    before = [(m, m.training) for m in model.modules()]
    try:
        model.eval()
        if keep_parameters:
            for m in model.modules():
                m.training = any(p.requires_grad for p in m.parameters(recurse=False))
        yield
    finally:
        for m, training in before:
            m.training = training


def _without_values(error: Exception, model: nn.Module, call: Any) -> str:
    """What went wrong, without the error's message: it may quote values that are close to data."""
    try:
        inspect.signature(model.forward).bind(*call[0], **call[1])
    except (TypeError, ValueError) as mismatch:
        return f"{type(error).__name__}: {mismatch}"
    return type(error).__name__


def _possible_calls(batch: Any, random: Any, one: Any) -> Iterator[tuple[Any, Any]]:
    """Ways to call a model with a batch, likely ones first; each for several examples and for one.

    Args:
        batch: a batch of the loader.
        random: the same batch with random values.
        one: a batch of one example.
    """
    if isinstance(batch, Tensor):
        yield ((random,), {}), ((one,), {})
    elif isinstance(batch, dict) or hasattr(batch, "items"):
        names = [n for n in batch if isinstance(batch[n], Tensor)]
        for chosen in ([n for n in names if "label" not in n], names, names[:1]):
            yield ((), {n: random[n] for n in chosen}), ((), {n: one[n] for n in chosen})
        yield ((random[names[0]],), {}), ((one[names[0]],), {})
    elif isinstance(batch, list | tuple):
        for count in [1, len(batch) - 1, len(batch)]:
            yield (tuple(random[:count]), {}), (tuple(one[:count]), {})


def _as_call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The user's inputs as positional and named arguments."""
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs), {}) if isinstance(inputs, list | tuple) else ((inputs,), {})


def _with_batch_dims(several: Any, one: Any, device: Any) -> ProbeInputs:
    """Inputs whose examples are in the dimension that is longer for several than for one."""
    batch_dims: list[int | None] = []
    for a, b in zip(tensors_in(several), tensors_in(one), strict=True):
        if a.ndim != b.ndim:
            raise CheckImpossibleError(
                "inputs of one example have other dimensions than those of several"
            )
        unlike = [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y]
        if len(unlike) > 1:
            raise CheckImpossibleError(
                "inputs of one example differ from those of several in more than one dimension"
            )
        batch_dims.append(unlike[0] if unlike else None)
    if all(dim is None for dim in batch_dims):
        raise CheckImpossibleError("no input has a dimension of examples")
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to(device), several)
    return ProbeInputs(tuple(args), dict(kwargs), batch_dims)


def _random_like(batch: Any, examples: list[Any]) -> Any:
    """The batch with random values between the smallest and the largest of the examples'."""
    leaves, tree = pytree.tree_flatten(batch)
    values_of = [pytree.tree_flatten(example)[0] for example in examples]
    generator = torch.Generator().manual_seed(0)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            values = [v[i] for v in values_of if i < len(v) and isinstance(v[i], Tensor)]
            leaves[i] = _random(leaf, [v for v in values if v.numel()], generator)
    return pytree.tree_unflatten(leaves, tree)


def _random(like: Tensor, values: list[Tensor], generator: torch.Generator) -> Tensor:
    """Uniform random values in the range of ``values``; booleans are kept."""
    if like.dtype is torch.bool:
        return like.clone()
    if not values or like.is_complex():
        return torch.zeros_like(like)
    low, high = min(v.min() for v in values).item(), max(v.max() for v in values).item()
    uniform = torch.rand(like.shape, generator=generator, dtype=torch.float64)
    if like.is_floating_point():
        return (low + (high - low) * uniform).to(like.dtype)
    return (low + torch.floor((high - low + 1) * uniform).clamp(max=high - low)).to(like.dtype)
