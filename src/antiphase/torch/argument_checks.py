"""Checks of the arguments of `make_private`: type, range and what fits together."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from antiphase._util import checks as check
from antiphase.participation import Participation
from antiphase.torch.request import Request

CLIPPING = ("flat", "per_layer", "adaptive")  # "adaptive" is Opacus' own


def check_arguments(request: Request) -> None:
    """Refuse arguments that are wrong for every mechanism, before anything else is done.

    Args:
        request: the arguments of `make_private`.

    Raises:
        ValueError: if an argument is out of range, or two do not go together.
        TypeError: if an argument has the wrong type.
    """
    _check_module(request.module)
    _check_optimizer(request)
    check.choice("clipping", request.clipping, CLIPPING)
    check.choice("loss_reduction", request.loss_reduction, ("mean", "sum"))
    _check_clip_norm(request)
    _check_noise(request)
    for name in ("batch_first", "wrap_model", "rand_on_empty", "probe", "progress"):
        check.flag(name, getattr(request, name))
    if request.poisson_sampling is not None:
        check.flag("poisson_sampling", request.poisson_sampling)
    if request.probe_inputs is not None:
        check.function("probe_inputs", request.probe_inputs)
    if not (request.is_trusted or isinstance(request.participation, Participation | None)):
        raise ValueError(
            f'participation = {request.participation!r} must be "trusted" or a Participation such '
            "as antiphase.once()"
        )
    check.parse_memory(request.memory)
    _check_scheduler(request)
    if request.is_ghost:
        _check_criterion(request)
    _check_loader(request)


def _check_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, not {type(module).__name__}")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(
            "module has no parameter that requires a gradient, so there is nothing to train. "
            "Unfreeze some: requires_grad_(True)"
        )


def _check_optimizer(request: Request) -> None:
    if isinstance(request.optimizer, list | tuple):
        raise TypeError(
            f"optimizer is a {type(request.optimizer).__name__} of {len(request.optimizer)}: one "
            "step clips and releases all gradients together. Use one optimizer, with parameter "
            "groups for different options: SGD([{'params': …, 'lr': …}, …])"
        )
    if not isinstance(request.optimizer, torch.optim.Optimizer):
        name = type(request.optimizer).__name__
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, not {name}")
    # An optimizer such as LBFGS evaluates the loss several times, and each would be a release.
    closure = inspect.signature(request.inner_optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"optimizer = {type(request.inner_optimizer).__name__}: its step needs a closure, "
            "which it may call several times, and a step has one release. Use an optimizer "
            "such as SGD or Adam"
        )


def _check_clip_norm(request: Request) -> None:
    norm = request.max_grad_norm
    if request.clipping != "per_layer":
        if isinstance(norm, list | tuple):
            raise TypeError(
                f"max_grad_norm = {norm!r} is for clipping='per_layer', and clipping = "
                f"{request.clipping!r} has one norm for all tensors. Give a number"
            )
        check.positive_number("max_grad_norm", norm)
        return
    own = {id(p) for group in request.optimizer.param_groups for p in group["params"]}
    tensors = sum(p.requires_grad and id(p) in own for p in request.module.parameters())
    if not isinstance(norm, list | tuple) or len(norm) != tensors:
        raise TypeError(
            f"max_grad_norm = {norm!r}: clipping='per_layer' needs a list of {tensors} norms, one "
            "for each trainable tensor in the order of the optimizer"
        )
    for i, number in enumerate(norm):
        check.positive_number(f"max_grad_norm[{i}]", number)


def _check_noise(request: Request) -> None:
    if request.noise_multiplier is not None:
        # Zero is Opacus' way to train without noise; every mechanism of ours refuses it.
        check.real_number("noise_multiplier", request.noise_multiplier, minimum=0.0)
    if request.target_epsilon is not None:
        check.positive_number("target_epsilon", request.target_epsilon)
        if request.target_delta is None:
            raise TypeError(
                "target_delta = None: ε needs a δ. Give target_delta=…, well below one over the "
                "number of records"
            )
    if (
        request.target_delta is not None
        and check.positive_number("target_delta", request.target_delta) >= 1
    ):
        raise ValueError(
            f"target_delta = {request.target_delta} must be below 1; usually it is well below one "
            "over the number of records"
        )


def _check_scheduler(request: Request) -> None:
    scheduler = request.scheduler
    if scheduler is None:
        return
    if not callable(getattr(scheduler, "step", None)):
        raise TypeError(
            f"scheduler must be a learning-rate scheduler of torch, not {type(scheduler).__name__}"
        )
    own: Any = getattr(scheduler, "optimizer", None)
    if own is not None and own not in (request.optimizer, request.inner_optimizer):
        raise ValueError(
            f"scheduler = {type(scheduler).__name__} changes the rates of another optimizer. Make "
            "it for the optimizer that is given to make_private"
        )


def _check_criterion(request: Request) -> None:
    criterion = request.criterion
    if not callable(criterion):
        raise TypeError(
            f"criterion = {criterion!r} must be a loss such as nn.CrossEntropyLoss(), not "
            f"{type(criterion).__name__}"
        )
    reduction = getattr(criterion, "reduction", request.loss_reduction)
    if reduction != request.loss_reduction:
        raise ValueError(
            f"criterion.reduction = {reduction!r}, loss_reduction = {request.loss_reduction!r}: "
            "ghost clipping needs the same of both. Change one of them"
        )


def _check_loader(request: Request) -> None:
    loader = request.data_loader
    if not isinstance(loader, DataLoader):
        raise TypeError(
            f"data_loader must be a torch.utils.data.DataLoader, not {type(loader).__name__}"
        )
    if loader.batch_sampler is None:
        raise ValueError(
            "data_loader has batch_size = None: the number of examples in a batch is not known. "
            "Let the loader form the batches: DataLoader(…, batch_size=…)"
        )
    batches = length(loader)
    if batches is None:
        return
    if batches == 0:
        dataset: Any = loader.dataset
        raise ValueError(
            f"data_loader has no batches: {len(dataset)} example(s), batch_size = "
            f"{loader.batch_size}, drop_last = {loader.drop_last}. Use drop_last=False, or a "
            "smaller batch"
        )
    passes = check.whole_number("gradient_accumulation_steps", request.gradient_accumulation_steps)
    if passes > batches:
        raise ValueError(
            f"gradient_accumulation_steps = {passes} is more than the {batches} batches of an "
            "epoch, and a step has examples of one epoch. Use at most so many"
        )


def length(loader: Any) -> int | None:
    """The number of batches; None for an IterableDataset without a length."""
    try:
        return len(loader)
    except TypeError:
        return None
