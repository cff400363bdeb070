"""What the engine refuses before anything is private: each function raises, and says what to do instead."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection
from itertools import chain
from typing import Any

from torch import nn

from antiphase.mechanism import Mechanism
from antiphase.torch.batch_selection import FixedOrder
from antiphase.torch.distributed import Group


def options(
    poisson: bool | None,
    generator: Any,
    how: tuple[str, str],
    ways: Collection[tuple[str, str]],
    reduction: str,
    more: Any,
) -> None:
    """Of make_private, those that Opacus has and this plan does not account for.

    ``how`` gradients are computed and clipped must be one of the ``ways`` there are.
    """
    mode, clipping = how
    if poisson:
        # PRIVACY: no amplification for correlated noise, but by samples that were analysed for it.   [G9]
        raise ValueError(
            "poisson_sampling = True: plain Poisson samples amplify independent noise alone. Leave "
            'poisson_sampling out; or use mechanism="dp-sgd"; or a mechanism of few bands (antiphase.best_bands) '
            "with the batches of antiphase.torch.sampler_for"
        )
    if generator is not None:
        raise ValueError(
            "noise_generator: the noise is a function of a secret key, never of a generator that others may seed. "
            "For repeatable studies: PrivacyEngine(key=Key.insecure(seed)), and the statement will say so"
        )
    if clipping == "adaptive":
        raise ValueError(
            "clipping = 'adaptive': clip norms that follow the data cost privacy that this plan does not account "
            "for. Use clipping='flat' or 'per_layer'"
        )
    if how not in ways:
        known = ", ".join(f"{m} with {c}" for m, c in ways)
        raise ValueError(
            f"grad_sample_mode = {mode!r} with clipping = {clipping!r} is not there; there are: {known}"
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(f"loss_reduction = {reduction!r} must be 'mean' or 'sum'")
    if more:
        raise TypeError(f"{sorted(more)}: make_private has no such option for this mechanism")


def what_sampling_does_not_cover(group: Group, accumulation: int, trusted: bool) -> None:
    # PRIVACY: batches that several processes or several passes draw are not the samples that were analysed.   [G9]
    if group.world > 1 or accumulation > 1 or trusted:
        raise ValueError(
            f"{group.world} process(es), gradient_accumulation_steps = {accumulation}, trusted = {trusted}: batches "
            "that are sampled for amplification are drawn by one process, one a step, and seen by the ledger"
        )


def steps_with_closure(optimizer: Any) -> None:
    """Refuse optimizers whose step evaluates the loss several times (LBFGS): each evaluation is a release."""
    inner = getattr(optimizer, "original_optimizer", optimizer)
    closure = inspect.signature(inner.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"optimizer = {type(inner).__name__}: its step needs a closure, which it may call several times, and the "
            "plan has one release for each step. Use an optimizer that takes gradients as they are, such as SGD or Adam"
        )


def foreign_parameters(module: nn.Module, optimizer: Any) -> None:
    known = set(module.parameters())
    for p in chain.from_iterable(group["params"] for group in optimizer.param_groups):
        if p not in known:
            raise ValueError("Module parameters are different than optimizer Parameters")


def other_batches(mechanism: Mechanism, loader: Any) -> None:
    drawn = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    # PRIVACY: a promise that rests on how batches come about holds for no other batches.   [G9]
    if mechanism.sampler == "hash-slots" and isinstance(drawn, FixedOrder):
        raise ValueError(
            "the mechanism is for slots by a hash of the record, and here batches come in a fixed order. Use a batch "
            'sampler of yours that assigns them, or calibrate for sampler="fixed-order"'
        )


def warn_of_large(delta: float | None, loader: Any) -> None:
    dataset: Any = getattr(loader, "dataset", None)
    if delta is not None and hasattr(dataset, "__len__") and delta * len(dataset) >= 1:
        warnings.warn(
            f"target_delta = {delta:g} with {len(dataset):,} records: whoever publishes one of them whole keeps this "
            "promise. Take a δ far below one over their number",
            stacklevel=3,
        )
