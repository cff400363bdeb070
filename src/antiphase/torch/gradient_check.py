"""The gradient check: are per-example gradients, as they are computed for clipping, those of batches of one?

It runs once, in make_private, on made-up inputs that have the shapes, dtypes and value ranges of the loader's first
examples and nothing else of them. It compares every per-example gradient, and the norm that it is clipped by, with a
backward pass on the example alone, and looks whether passes write into the model.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from antiphase.errors import AntiphaseWarning, ModelChangedError, PerExampleGradientError
from antiphase.torch.clipping import example_norms, flat
from antiphase.torch.distributed import plain
from antiphase.torch.earlier_runs import same_randomness
from antiphase.torch.ghost_clipping import gradients_and_bounds
from antiphase.torch.model_state_check import changed_by
from antiphase.torch.recorder import tensors_in
from antiphase.torch.sharding import is_shard

Tensor = torch.Tensor
EXAMPLES = 4
POINTS = 2  # random points: inputs of their own, and at the second one other parameters
TOLERANCE = 1e-3  # of a gradient, relative to its norm
LOW_PRECISION_TOLERANCE = 3e-2
NORM_TOLERANCE = 1e-6  # by how much a norm may be below the true one, relatively
PERTURBATION = (
    0.02  # of parameters at the second point: so that zeros (of LoRA's B) hide no gradient
)


@dataclass(frozen=True)
class Inputs:
    """Arguments of the model for a few made-up examples, and along which dimension the examples of a tensor are."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dims: dict[int, int | None]  # by the position among all tensors; None: shared by the examples

    def select(self, example: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for one example alone."""
        leaves, tree = pytree.tree_flatten((self.args, self.kwargs))
        tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for place, i in enumerate(tensors):
            dim = self.dims[place]
            if dim is not None:
                leaves[i] = leaves[i].narrow(dim, example, 1)
        args, kwargs = pytree.tree_unflatten(leaves, tree)
        return args, kwargs


class NotPossible(Exception):
    """The check cannot run; the message says why."""


def check_gradients(
    module: nn.Module,
    wrapped: Any,
    mode: str,
    loader: Any,
    probe_inputs: Callable[[int], Any] | None = None,
) -> str | None:
    """Compare per-example gradients and norms with batches of one. None, or why the check could not be made.

    Args:
        module: the user's model.
        wrapped: what make_private returns for it, in ``mode`` "hooks", "functorch", "ghost" or "ghost_fsdp".
        loader: whose first examples have the shapes, dtypes and ranges of the inputs.
        probe_inputs: makes the model's inputs for so many examples: a tensor, a tuple of arguments, or a dict of
            keyword arguments. Replaces the loader.

    Raises:
        PerExampleGradientError: if a gradient or norm is wrong, with the parameter's name and the likely cause.
        ModelChangedError: if a forward or backward pass writes into parameters or buffers.
    """
    model = plain(module)
    try:
        if any(is_shard(p) for p in model.parameters()):
            raise NotPossible("the model is sharded; check it on one process")
        device = next(model.parameters()).device
        with same_randomness(), _restored(model, wrapped), _without_warnings():
            inputs = _made_up_inputs(loader, probe_inputs, device, model)
            try:
                for point in range(POINTS):
                    torch.manual_seed(point)
                    here = _other_values(inputs, point)
                    with _perturbed(model, PERTURBATION * point):
                        _compare(model, wrapped, mode, here)
            except Exception:
                with _hooks_disabled(wrapped):
                    _look_for_writes(model, model, inputs)  # which may be the cause
                raise
            _look_for_writes(model, wrapped if isinstance(wrapped, nn.Module) else model, inputs)
    except NotPossible as reason:
        warnings.warn(
            f"the gradient check was not made: {reason}. Clipping relies on per-example gradients that nobody "
            "compared with batches of one. Give make_private(…, probe_inputs=function), which makes inputs for a "
            "number of examples",
            AntiphaseWarning,
            stacklevel=4,
        )
        return str(reason)
    return None


# Inputs


def _made_up_inputs(loader: Any, probe_inputs: Any, device: Any, model: nn.Module) -> Inputs:
    """Made-up arguments that the model can be called with."""
    if probe_inputs is not None:
        several, one = (_as_call(probe_inputs(count)) for count in (EXAMPLES, 1))
        return _with_dims(several, one, device)
    try:
        dataset, collate = loader.dataset, loader.collate_fn
        examples = [dataset[i] for i in range(min(EXAMPLES, len(dataset)))]
        batches = [collate([examples[0]] * count) for count in (EXAMPLES, 1)]
        ranges = [collate([example]) for example in examples]
    except Exception as error:  # whatever a data set of the user's raises
        raise NotPossible(
            f"the first examples could not be read ({type(error).__name__})"
        ) from error
    if not tensors_in(batches[0]):
        raise NotPossible("the loader's batches hold no tensors")
    made = _random_like(batches[0], ranges)
    failure = ""
    for call in _calls(batches[0], made, batches[1]):
        try:
            inputs = _with_dims(call[0], call[1], device)
            with torch.no_grad(), _dropout_off(model, keep_parameters=False):
                _outputs(model(*inputs.args, **inputs.kwargs))
        except Exception as error:  # whatever a model does with inputs that are not its own
            failure = failure or _without_values(error, model, call[0])
            continue
        return inputs
    raise NotPossible(f"the model could not be called with made-up inputs ({failure})")


def _without_values(error: Exception, model: nn.Module, call: Any) -> str:
    """What went wrong, without the error's own words: these may quote values, and made-up ones are close to data."""
    try:
        inspect.signature(model.forward).bind(*call[0], **call[1])
    except (TypeError, ValueError) as mismatch:
        return f"{type(error).__name__}: {mismatch}"
    return type(error).__name__


def _calls(batch: Any, made: Any, one: Any) -> Iterator[tuple[Any, Any]]:
    """Ways to call a model with a batch, the likely ones first; each for several examples, and for one."""
    if isinstance(batch, Tensor):
        yield ((made,), {}), ((one,), {})
    elif isinstance(batch, dict) or hasattr(batch, "items"):
        names = [n for n in batch if isinstance(batch[n], Tensor)]
        for chosen in ([n for n in names if "label" not in n], names, names[:1]):
            yield ((), {n: made[n] for n in chosen}), ((), {n: one[n] for n in chosen})
        yield ((made[names[0]],), {}), ((one[names[0]],), {})
    elif isinstance(batch, list | tuple):
        for count in [1, len(batch) - 1, len(batch)]:
            yield (tuple(made[:count]), {}), (tuple(one[:count]), {})


def _as_call(made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(made, dict):
        return (), made
    return (tuple(made), {}) if isinstance(made, list | tuple) else ((made,), {})


def _with_dims(several: Any, one: Any, device: Any) -> Inputs:
    """Where the examples are: in the dimension that is longer for several."""
    dims: dict[int, int | None] = {}
    for place, (a, b) in enumerate(zip(tensors_in(several), tensors_in(one), strict=True)):
        if a.ndim != b.ndim:
            raise NotPossible("inputs of one example have other dimensions than those of several")
        unlike = [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y]
        if len(unlike) > 1:
            raise NotPossible(
                "inputs of one example differ from those of several in more than one dimension"
            )
        dims[place] = unlike[0] if unlike else None
    args, kwargs = pytree.tree_map(lambda t: t.to(device) if isinstance(t, Tensor) else t, several)
    if not any(dim is not None for dim in dims.values()):
        raise NotPossible("no input has a dimension of examples")
    return Inputs(tuple(args), dict(kwargs), dims)


def _random_like(batch: Any, ranges: list[Any]) -> Any:
    """Tensors of the same shapes and dtypes, with random values between the smallest and the largest of ``ranges``."""
    leaves, tree = pytree.tree_flatten(batch)
    seen = [pytree.tree_flatten(r)[0] for r in ranges]
    generator = torch.Generator().manual_seed(0)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            values = [
                s[i] for s in seen if i < len(s) and isinstance(s[i], Tensor) and s[i].numel()
            ]
            leaves[i] = _random(leaf, values, generator)
    return pytree.tree_unflatten(leaves, tree)


def _random(like: Tensor, values: list[Tensor], generator: torch.Generator) -> Tensor:
    if like.dtype is torch.bool or not values or like.is_complex():
        return like.clone() if like.dtype is torch.bool else torch.zeros_like(like)
    low, high = min(v.min() for v in values).item(), max(v.max() for v in values).item()
    uniform = torch.rand(like.shape, generator=generator, dtype=torch.float64)
    if like.is_floating_point():
        return (low + (high - low) * uniform).to(like.dtype)
    return (low + torch.floor((high - low + 1) * uniform).clamp(max=high - low)).to(like.dtype)


def _other_values(inputs: Inputs, point: int) -> Inputs:
    """The same inputs with other values at every point: those of the examples are shuffled along their tokens."""
    if point == 0:
        return inputs
    generator = torch.Generator().manual_seed(point)

    def shuffled(t: Any) -> Any:
        if not isinstance(t, Tensor) or t.ndim == 0:
            return t
        return t.flatten()[torch.randperm(t.numel(), generator=generator).to(t.device)].view(
            t.shape
        )

    args, kwargs = pytree.tree_map(shuffled, (inputs.args, inputs.kwargs))
    return Inputs(args, kwargs, inputs.dims)


# Comparison


def _compare(model: nn.Module, wrapped: Any, mode: str, inputs: Inputs) -> None:
    names = {id(p): n for n, p in model.named_parameters()}
    trained = {names[id(p)]: p for p in model.parameters() if p.requires_grad}
    try:
        with _hooks_disabled(wrapped):
            expected = [_alone(model, inputs, example, trained) for example in range(EXAMPLES)]
    except PerExampleGradientError:
        raise
    except Exception as error:  # whatever a model does with inputs that are not its own
        raise NotPossible(
            f"the model fails on one made-up example ({type(error).__name__})"
        ) from error
    truth = {name: torch.stack([rows[name] for rows in expected]) for name in trained}
    if not all(bool(torch.isfinite(rows).all()) for rows in truth.values()):
        raise NotPossible("gradients of made-up inputs are not finite")
    try:
        found, norms = _computed(model, wrapped, mode, inputs, trained)
    except (PerExampleGradientError, NotPossible):
        raise
    except Exception as error:  # whatever the model does when it is followed
        raise PerExampleGradientError(
            f"the passes of the model cannot be followed ({type(error).__name__}). Nothing was "
            "released. Likely cause: torch.utils.checkpoint without use_reentrant=True, torch.compile, or a layer "
            "that looks into autograd's graph"
        ) from error
    true_norms = torch.stack([torch.linalg.vector_norm(flat(t), dim=1) for t in truth.values()])
    overall = torch.linalg.vector_norm(true_norms, dim=0)
    low = any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    tolerance = LOW_PRECISION_TOLERANCE if low else TOLERANCE
    for name, rows in truth.items():
        own = found.get(name)
        if own is None:
            own = torch.zeros_like(rows)
        if own.shape != rows.shape:
            raise _wrong(
                model, name, f"gradients of shape {tuple(own.shape)} for {EXAMPLES} examples", mode
            )
        distance = torch.linalg.vector_norm(flat(own - rows), dim=1)
        scale = torch.linalg.vector_norm(flat(rows), dim=1) + 1e-3 * overall
        # PRIVACY: clipped is what was computed; it must be the gradient of one example.   [G16]
        if bool((distance > tolerance * scale).any()):
            worst = float((distance / scale.clamp(min=1e-300)).max())
            raise _wrong(
                model,
                name,
                f"the gradient of an example differs from that of a batch of one by {worst:.1e}",
                mode,
            )
    # PRIVACY: an example is divided by this norm; if it is too small, it contributes more than the clip norm.   [G16]
    if (
        norms is not None
        and not low
        and bool((norms < overall * (1 - NORM_TOLERANCE) - 1e-12).any())
    ):
        raise PerExampleGradientError(
            "the norm of an example came out below that of its gradient. Nothing was released. This is a bug of "
            'antiphase: please report it, and use grad_sample_mode="hooks"'
        )


def _alone(
    model: nn.Module, inputs: Inputs, example: int, trained: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients of one example in a batch of one, in float64."""
    args, kwargs = inputs.select(example)
    with _dropout_off(model, keep_parameters=False):
        losses = _losses(model(*args, **kwargs), 1)
        gradients = torch.autograd.grad(losses.sum(), list(trained.values()), allow_unused=True)
    pairs = zip(trained.items(), gradients, strict=True)
    return {
        n: torch.zeros_like(p, dtype=torch.float64) if g is None else g.detach().double()
        for (n, p), g in pairs
    }


def _computed(
    model: nn.Module, wrapped: Any, mode: str, inputs: Inputs, trained: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The gradients, and norms or None, as they are computed for clipping."""
    call = wrapped if isinstance(wrapped, nn.Module) else model
    inner = dict(wrapped._module.named_parameters())
    own_name = {id(p): n for n, p in trained.items()}
    if mode in ("ghost", "ghost_fsdp"):
        with wrapped.recorder.always_on(), _dropout_off(model, keep_parameters=False):
            losses = _losses(call(*inputs.args, **inputs.kwargs), EXAMPLES)
            found, norms = gradients_and_bounds(wrapped, losses)
        return {own_name[id(inner[n])]: r for n, r in found.items()}, norms
    recorder = getattr(wrapped, "recorder", None)
    on = recorder.always_on() if recorder is not None else contextlib.nullcontext()
    with on, _dropout_off(model, keep_parameters=recorder is None):
        losses = _losses(call(*inputs.args, **inputs.kwargs), EXAMPLES)
        (losses.mean() if wrapped.loss_reduction == "mean" else losses.sum()).backward()  # type: ignore[no-untyped-call]
    found, rows_of = {}, list[Tensor]()
    for name, p in trained.items():
        rows = getattr(p, "grad_sample", None)
        if rows is not None:
            if isinstance(rows, list):
                raise _wrong(model, name, "several batches of gradients for one pass", mode)
            rows_of.append(rows)
            found[name] = rows.detach().double()
            p.grad_sample = None  # type: ignore[attr-defined]
    same = rows_of and all(len(r) == len(rows_of[0]) for r in rows_of)
    return found, example_norms(rows_of)[0] if same else None


def _losses(output: Any, count: int) -> Tensor:
    """A random linear loss of the outputs for each example; the same weights whatever the batch."""
    total: Any = 0.0
    for place, tensor in enumerate(_outputs(output)):
        dim = (
            0
            if tensor.shape[0] == count
            else next((i for i, s in enumerate(tensor.shape) if s == count), None)
        )
        if dim is None:
            raise PerExampleGradientError(
                f"the model's output of shape {tuple(tensor.shape)} has no dimension of {count} examples. Nothing was "
                "released. Return one output for each example, examples first"
            )
        moved = tensor.movedim(dim, 0).reshape(count, -1)
        generator = torch.Generator().manual_seed(1000 + place)
        weights = torch.randn(moved.shape[1], generator=generator, dtype=torch.float64)
        total = total + moved.float() @ weights.to(moved.device, torch.float32)
    found: Tensor = total
    return found


def _outputs(output: Any) -> list[Tensor]:
    """Tensors of the model's output that depend on parameters; scalars (a mean loss) are left out."""
    tensors = [t for t in tensors_in(output) if t.is_floating_point() and t.ndim]
    if not tensors:
        raise NotPossible("the model returns no tensor of floating-point numbers")
    return [t for t in tensors if t.requires_grad] or tensors[:1]


def _wrong(model: nn.Module, name: str, what: str, mode: str) -> PerExampleGradientError:
    return PerExampleGradientError(
        f"{name}: {what} (grad_sample_mode = {mode!r}). Nothing was released. Likely cause: {_cause(model, name)}"
    )


def _cause(model: nn.Module, name: str) -> str:
    """The likely reason for a wrong gradient, by the module that has the parameter."""
    owner = model.get_submodule(name.rpartition(".")[0])
    kind = type(owner).__name__
    if getattr(owner, "scale_grad_by_freq", False):
        return (
            f"{kind}(scale_grad_by_freq=True) divides by counts over the whole batch; leave it out"
        )
    if "Norm" in kind:
        return f"{kind} uses statistics of the whole batch; use GroupNorm or LayerNorm"
    if getattr(owner, "batch_first", True) is False:
        return f"{kind} has time before examples; use batch_first=True"
    uses = sum(
        p is dict(model.named_parameters()).get(name)
        for m in model.modules()
        for p in m.parameters(recurse=False)
    )
    if uses > 1:
        return "the parameter belongs to several modules (tied weights)"
    return (
        f"the parameter is used outside its module ({kind}), time comes before examples, or examples are mixed in the "
        "batch; write the layer with examples first"
    )


def _look_for_writes(model: nn.Module, call: nn.Module, inputs: Inputs) -> None:
    def passes() -> None:
        output = _outputs(call(*inputs.args, **inputs.kwargs))
        scalar = torch.stack([t.float().sum() for t in output]).sum()
        if scalar.requires_grad:
            scalar.backward()  # type: ignore[no-untyped-call]

    name = changed_by(model, passes)
    # PRIVACY: what a pass writes into the model goes past clipping and noise.   [G16]
    if name is not None:
        owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
        raise ModelChangedError(
            f"{name}: a forward or backward pass writes into it, past clipping and noise (in {owner}). Nothing was "
            "released. Likely cause: max_norm of an embedding, running statistics or an observer; use a layer without"
        )


# Leaving everything as it was


@contextlib.contextmanager
def _restored(model: nn.Module, wrapped: Any) -> Iterator[None]:
    """Gradients, buffers and per-example gradients are as before; so are parameters, bit for bit."""
    tensors = [*model.parameters(), *model.buffers()]
    kept = [(t, t.detach().clone()) for t in tensors]
    gradients = [(p, p.grad, getattr(p, "grad_sample", None)) for p in model.parameters()]
    training = [(m, m.training) for m in model.modules()]
    model.train()
    for p in model.parameters():
        p.grad = None  # or backward passes would add to it, in place
    try:
        yield
    finally:
        for module, mode in training:
            module.training = mode
        with torch.no_grad():
            for tensor, value in kept:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        for p, grad, rows in gradients:
            p.grad = grad
            if hasattr(p, "grad_sample"):
                p.grad_sample = rows
        recorder = getattr(wrapped, "recorder", None)
        if recorder is not None:
            recorder.forget()
        for part in model.modules():  # what hooks of Opacus keep of a pass without a backward pass
            if getattr(part, "activations", None):
                vars(part)["activations"] = []


@contextlib.contextmanager
def _perturbed(model: nn.Module, scale: float) -> Iterator[None]:
    """Trainable parameters with a little noise; put back at the end."""
    if not scale:
        yield
        return
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(7)
    try:
        with torch.no_grad():
            for p, value in kept:
                size = (
                    scale * max(float(value.float().square().mean()) ** 0.5, 0.1)
                    if value.numel()
                    else 0.0
                )
                p.add_((size * torch.randn(p.shape, generator=generator)).to(p))
        yield
    finally:
        with torch.no_grad():
            for p, value in kept:
                p.copy_(value)


@contextlib.contextmanager
def _dropout_off(model: nn.Module, keep_parameters: bool) -> Iterator[None]:
    """Eval mode; but for modules with parameters of their own if these are kept, since Opacus' hooks need that."""
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


@contextlib.contextmanager
def _hooks_disabled(wrapped: Any) -> Iterator[None]:
    """Passes inside leave no per-example gradients."""
    wrapped.disable_hooks()
    try:
        yield
    finally:
        wrapped.enable_hooks()


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Without the warnings of layers and hooks about made-up inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
