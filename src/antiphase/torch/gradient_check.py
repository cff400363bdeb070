"""The gradient check: are per-example gradients those of batches of one?

It runs once, in make_private, on made-up inputs that have the shapes, dtypes and value ranges of
the loader's first examples, and nothing else of them. It compares every per-example gradient, and
the norm that it is clipped by, with a backward pass on the example alone, and checks that no pass
writes into the model.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from antiphase.errors import ModelChangedError, PerExampleGradientError
from antiphase.torch.clipping import example_norms, flatten_rows
from antiphase.torch.compilation import eagerly
from antiphase.torch.distributed import plain
from antiphase.torch.earlier_runs import same_randomness
from antiphase.torch.ghost_clipping import gradients_and_bounds
from antiphase.torch.model_state_check import changed_by
from antiphase.torch.probe_inputs import (
    NUM_EXAMPLES,
    CheckImpossibleError,
    ProbeInputs,
    dropout_off,
    floating_outputs,
    make_inputs,
)
from antiphase.torch.sharding import is_shard
from antiphase.torch.user_warnings import warn

Tensor = torch.Tensor
TOLERANCE = 1e-3  # of a gradient, relative to its norm
LOW_PRECISION_TOLERANCE = 3e-2
NORM_TOLERANCE = 1e-6  # relative amount by which a norm may be below the true one
PERTURBATION = 0.02  # of parameters at the second point, where zeros (LoRA's B) hide no gradient


def check_gradients(
    module: nn.Module,
    wrapped: Any,
    mode: str,
    loader: Any,
    probe_inputs: Callable[[int], Any] | None = None,
) -> str | None:
    """Compare per-example gradients and norms with batches of one.

    Args:
        module: the user's model.
        wrapped: what make_private returns for it.
        mode: "hooks", "functorch", "ghost" or "ghost_fsdp".
        loader: its first examples have the shapes, dtypes and ranges of the inputs.
        probe_inputs: makes the model's inputs for so many examples instead: a tensor, a tuple of
            arguments, or a dict of keyword arguments.

    Returns:
        None, or why the check could not be made.

    Raises:
        PerExampleGradientError: if a gradient or norm is wrong; names the parameter and the likely
            cause.
        ModelChangedError: if a forward or backward pass writes into parameters or buffers.
    """
    model = plain(module)
    try:
        if any(is_shard(p) for p in model.parameters()):
            raise CheckImpossibleError("the model is sharded; check it on one process")
        device = next(model.parameters()).device
        with eagerly(), same_randomness(), _restored(model, wrapped), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of layers and hooks about made-up inputs
            inputs = make_inputs(loader, probe_inputs, device, model)
            try:
                torch.manual_seed(0)
                _compare(model, wrapped, mode, inputs)
                torch.manual_seed(1)
                _perturb(model)
                _compare(model, wrapped, mode, inputs.shuffled(1))
            except Exception:
                with _hooks_disabled(wrapped):
                    _refuse_writes(model, model, inputs)  # which may be the cause
                raise
            _refuse_writes(model, wrapped if isinstance(wrapped, nn.Module) else model, inputs)
    except CheckImpossibleError as reason:
        warn(
            f"the gradient check was not made: {reason}. Clipping relies on per-example gradients "
            "that were not compared with batches of one. Pass make_private(…, "
            "probe_inputs=function), which makes inputs for a number of examples"
        )
        return str(reason)
    return None


def _perturb(model: nn.Module) -> None:
    """Add a little noise to trainable parameters."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad and p.numel():
                scale = max(float(p.float().square().mean()) ** 0.5, 0.1)
                noise = torch.randn(p.shape, generator=generator)
                p.add_((PERTURBATION * scale * noise).to(p))


# Comparison


def _compare(model: nn.Module, wrapped: Any, mode: str, inputs: ProbeInputs) -> None:
    """Compare gradients and norms at one point."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    expected = _expected(model, wrapped, inputs, trained)
    try:
        computed, norms = _computed(model, wrapped, mode, inputs, trained)
    except (PerExampleGradientError, CheckImpossibleError):
        raise
    except Exception as error:  # the model may raise anything when it is recorded
        raise PerExampleGradientError(
            f"the passes of the model cannot be recorded ({type(error).__name__}). Nothing was "
            "released. Likely cause: torch.utils.checkpoint without use_reentrant=True, "
            "torch.compile, or a layer that reads autograd's graph"
        ) from error
    low = any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters())
    tolerance = LOW_PRECISION_TOLERANCE if low else TOLERANCE
    true_norms = {name: _norms(rows) for name, rows in expected.items()}
    overall = torch.linalg.vector_norm(torch.stack(list(true_norms.values())), dim=0)
    for name, rows in expected.items():
        own = computed.get(name, torch.zeros_like(rows))
        if own.shape != rows.shape:
            what = f"gradients of shape {tuple(own.shape)} for {NUM_EXAMPLES} examples"
            raise _wrong(model, name, what, mode)
        distance = _norms(own - rows)
        scale = true_norms[name] + 1e-3 * overall
        # PRIVACY: what is clipped must be the gradient of one example.   [G16]
        if bool((distance > tolerance * scale).any()):
            worst = float((distance / scale.clamp(min=1e-300)).max())
            what = f"the gradient of an example differs from that of a batch of one by {worst:.1e}"
            raise _wrong(model, name, what, mode)
    least = overall * (1 - NORM_TOLERANCE) - 1e-12
    # PRIVACY: an example whose norm is too small contributes more than the clip norm.   [G16]
    if norms is not None and not low and bool((norms < least).any()):
        raise PerExampleGradientError(
            "the norm of an example came out below that of its gradient. Nothing was released. "
            'This is a bug of antiphase: please report it, and use grad_sample_mode="hooks"'
        )


def _norms(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(flatten_rows(rows), dim=1)
    return norms


def _expected(
    model: nn.Module, wrapped: Any, inputs: ProbeInputs, trained: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients of every example in a batch of one, in float64."""
    rows: dict[str, list[Tensor]] = {name: [] for name in trained}
    try:
        with _hooks_disabled(wrapped), dropout_off(model):
            for example in range(NUM_EXAMPLES):
                args, kwargs = inputs.select(example)
                loss = _losses(model(*args, **kwargs), 1).sum()
                gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
                for (name, p), g in zip(trained.items(), gradients, strict=True):
                    rows[name].append((torch.zeros_like(p) if g is None else g).detach().double())
    except (PerExampleGradientError, CheckImpossibleError):
        raise
    except Exception as error:  # the model may raise anything on made-up inputs
        reason = f"the model fails on one made-up example ({type(error).__name__})"
        raise CheckImpossibleError(reason) from error
    expected = {name: torch.stack(each) for name, each in rows.items()}
    if not all(bool(torch.isfinite(each).all()) for each in expected.values()):
        raise CheckImpossibleError("gradients of made-up inputs are not finite")
    return expected


def _computed(
    model: nn.Module, wrapped: Any, mode: str, inputs: ProbeInputs, trained: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The gradients, and the norms or None, as they are computed for clipping."""
    call = wrapped if isinstance(wrapped, nn.Module) else model
    if mode in ("ghost", "ghost_fsdp"):
        with wrapped.recorder.always_on(), dropout_off(model):
            losses = _losses(call(*inputs.args, **inputs.kwargs), NUM_EXAMPLES)
            recorded, norms = gradients_and_bounds(wrapped, losses)
        own_names = {id(p): name for name, p in trained.items()}
        inner = dict(wrapped._module.named_parameters())
        return {own_names[id(inner[name])]: rows for name, rows in recorded.items()}, norms
    recorder = getattr(wrapped, "recorder", None)
    on = recorder.always_on() if recorder is not None else contextlib.nullcontext()
    with on, dropout_off(model, keep_parameters=recorder is None):
        losses = _losses(call(*inputs.args, **inputs.kwargs), NUM_EXAMPLES)
        loss = losses.mean() if wrapped.loss_reduction == "mean" else losses.sum()
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = {}
    for name, p in trained.items():
        rows: Any = getattr(p, "grad_sample", None)
        if rows is not None:
            if isinstance(rows, list):
                raise _wrong(model, name, "several batches of gradients for one pass", mode)
            gradients[name] = rows
            p.grad_sample = None  # type: ignore[attr-defined]
    found = {name: rows.detach().double() for name, rows in gradients.items()}
    one_length = len({len(rows) for rows in gradients.values()}) == 1
    return found, example_norms(list(gradients.values()))[0] if one_length else None


def _losses(output: Any, count: int) -> Tensor:
    """A random linear loss of the outputs for each example; the weights depend on no batch."""
    total: Any = 0.0
    for number, tensor in enumerate(floating_outputs(output)):
        dim = next((i for i, size in enumerate(tensor.shape) if size == count), None)
        if dim is None:
            raise PerExampleGradientError(
                f"the model's output of shape {tuple(tensor.shape)} has no dimension of {count} "
                "examples. Nothing was released. Return one output for each example, with the "
                "examples in the first dimension"
            )
        rows = tensor.movedim(dim, 0).reshape(count, -1)
        generator = torch.Generator().manual_seed(1000 + number)
        weights = torch.randn(rows.shape[1], generator=generator, dtype=torch.float64)
        total = total + rows.float() @ weights.to(rows.device, torch.float32)
    losses: Tensor = total
    return losses


def _wrong(model: nn.Module, name: str, what: str, mode: str) -> PerExampleGradientError:
    return PerExampleGradientError(
        f"{name}: {what} (grad_sample_mode = {mode!r}). Nothing was released. "
        f"Likely cause: {_cause(model, name)}"
    )


def _cause(model: nn.Module, name: str) -> str:
    """The likely cause of a wrong gradient, by the module that has the parameter."""
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
    parameter = dict(model.named_parameters()).get(name)
    owned = (p for m in model.modules() for p in m.parameters(recurse=False))
    if sum(p is parameter for p in owned) > 1:
        return "the parameter belongs to several modules (tied weights)"
    return (
        f"the parameter is used outside its module ({kind}), time comes before examples, or "
        "examples are mixed in the batch; write the layer with the examples in the first dimension"
    )


def _refuse_writes(model: nn.Module, call: nn.Module, inputs: ProbeInputs) -> None:
    """Refuse a model whose forward or backward pass writes into parameters or buffers."""

    def passes() -> None:
        outputs = floating_outputs(call(*inputs.args, **inputs.kwargs))
        loss = torch.stack([t.float().sum() for t in outputs]).sum()
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]

    name = changed_by(model, passes)
    # PRIVACY: what a pass writes into the model is neither clipped nor noised.   [G16]
    if name is not None:
        owner = type(model.get_submodule(name.rpartition(".")[0])).__name__
        raise ModelChangedError(
            f"{name}: a forward or backward pass writes into it, past clipping and noise (in "
            f"{owner}). Nothing was released. Likely cause: max_norm of an embedding, running "
            "statistics or an observer; use a layer without"
        )


# Leave everything as it was


@contextlib.contextmanager
def _restored(model: nn.Module, wrapped: Any) -> Iterator[None]:
    """Restore parameters, buffers, gradients, per-example gradients and training modes."""
    tensors = [*model.parameters(), *model.buffers()]
    values = [(t, t.detach().clone()) for t in tensors]
    gradients = [(p, p.grad, getattr(p, "grad_sample", None)) for p in model.parameters()]
    modes = [(m, m.training) for m in model.modules()]
    model.train()
    for p in model.parameters():
        p.grad = None  # or backward passes would add to it, in place
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
        for p, grad, rows in gradients:
            p.grad = grad
            if hasattr(p, "grad_sample"):
                p.grad_sample = rows
        recorder = getattr(wrapped, "recorder", None)
        if recorder is not None:
            recorder.forget()
        for part in model.modules():  # what Opacus' hooks keep of a pass without a backward pass
            if getattr(part, "activations", None):
                vars(part)["activations"] = []


@contextlib.contextmanager
def _hooks_disabled(wrapped: Any) -> Iterator[None]:
    """Passes inside leave no per-example gradients."""
    wrapped.disable_hooks()
    try:
        yield
    finally:
        wrapped.enable_hooks()
