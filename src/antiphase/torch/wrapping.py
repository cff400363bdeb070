"""Wrap model, optimizer, criterion and loader for a planned private training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from antiphase.ledger.participation import ParticipationLedger
from antiphase.mechanism import Mechanism
from antiphase.noise.key import Key
from antiphase.participation import Participation, min_separation
from antiphase.sampling import HashSlots, Poisson
from antiphase.torch import earlier_runs
from antiphase.torch.batch_selection import FixedOrderBatches
from antiphase.torch.coverage import Coverage
from antiphase.torch.distributed import Group, plain
from antiphase.torch.frozen_settings import FrozenSettings, ReleasedOnce
from antiphase.torch.ghost_clipping import GhostLoss
from antiphase.torch.gradient_check import check_gradients
from antiphase.torch.model_state_check import UnchangedModel
from antiphase.torch.optimizers import PRIVATE_OPTIMIZERS
from antiphase.torch.plan import TrainingPlan
from antiphase.torch.recorded_loader import (
    StepCounter,
    fixed_order_loader,
    public_batch_size,
    sampled_loader,
)
from antiphase.torch.recorded_module import recorded
from antiphase.torch.release import Release
from antiphase.torch.request import Request
from antiphase.torch.training_warnings import PlannedLearningRates, UnusedParameters


@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """What one call of `make_private` set up.

    Attributes:
        plan: steps, participation and workload.
        release: adds noise to the sums of clipped gradients.
        module: the wrapped model.
        optimizer: the private optimizer.
        criterion: the loss of ghost clipping, or None.
        loader: the loader whose batches are recorded.
        coverage: which parameters are trained.
        is_trusted: whether the user vouches for who takes part.
        unchecked: why the gradient check was not made, or None.
        frozen_settings: the guard of the settings.
        unchanged_model: the guard of the model's parameters and buffers.
        released_once: the hook of the inner optimizer that requires a release for each step.
    """

    plan: TrainingPlan
    release: Release
    module: Any
    optimizer: Any
    criterion: Any
    loader: Any
    coverage: Coverage
    is_trusted: bool
    unchecked: str | None
    frozen_settings: FrozenSettings
    unchanged_model: UnchangedModel
    released_once: Any

    @property
    def mechanism(self) -> Mechanism:
        """The calibrated mechanism."""
        return self.release.mechanism

    @property
    def result(self) -> tuple[Any, ...]:
        """What `make_private` returns."""
        if self.criterion is None:
            return self.module, self.optimizer, self.loader
        return self.module, self.optimizer, self.criterion, self.loader

    def replace_by(self, other: PrivateTraining) -> None:
        """Let nothing more be released by this training."""
        # PRIVACY: ε is that of one plan; optimizers of both could release otherwise.   [G15]
        self.release.void("make_private was called again on its engine, which replaced its plan")
        self.unchanged_model.detach()
        if self.optimizer.original_optimizer is other.optimizer.original_optimizer:
            self.optimizer.detach()  # the new private optimizer guards the inner one from now on
            self.released_once.remove()


def wrap(
    request: Request, plan: TrainingPlan, mechanism: Mechanism, group: Group, key: Key
) -> PrivateTraining:
    """Wrap the parts of a validated training.

    Args:
        request: model, optimizer, criterion and loader.
        plan: steps and participation.
        mechanism: the calibrated mechanism.
        group: the processes that train together.
        key: the secret that the noise is made from.

    Raises:
        ValueError: if the loader's batches are not those that the mechanism is for.
        PerExampleGradientError: if a per-example gradient is wrong.
        ModelChangedError: if a pass writes into the model.
        StateError: if the processes disagree.
    """
    steps = StepCounter()
    loader = _private_loader(request, mechanism, group, steps)
    wrapped = recorded(
        request.module,
        request.grad_sample_mode,
        batch_first=request.batch_first,
        loss_reduction=request.loss_reduction,
        wrap_model=request.wrap_model,
    )
    optimizer = _private_optimizer(request, plan, mechanism, group)
    release = _release(request, plan, mechanism, group, key, loader, optimizer, steps)
    unchecked = _check_gradients(request, wrapped)
    optimizer.attach(release)
    criterion = None
    if request.is_ghost:
        criterion = GhostLoss(wrapped, optimizer, request.criterion, request.loss_reduction)
    inner = optimizer.original_optimizer
    frozen = FrozenSettings(
        module=request.module,
        wrapped=wrapped,
        optimizer=optimizer,
        release=release,
        loader=loader,
        criterion=criterion,
    )
    unchanged = UnchangedModel(plain(request.module), optimizer)
    unchanged.attach()
    scheduler_every = None if request.scheduler is None else request.scheduler_every
    rates = PlannedLearningRates(plan, inner, steps, scheduler_every)
    release.guards += [frozen, unchanged, rates, UnusedParameters(plan, optimizer)]
    return PrivateTraining(
        plan=plan,
        release=release,
        module=wrapped,
        optimizer=optimizer,
        criterion=criterion,
        loader=loader,
        coverage=Coverage.of(request.module),
        is_trusted=request.is_trusted,
        unchecked=unchecked,
        frozen_settings=frozen,
        unchanged_model=unchanged,
        released_once=inner.register_step_pre_hook(ReleasedOnce(release)),
    )


def _check_gradients(request: Request, wrapped: Any) -> str | None:
    """Check the per-example gradients; return why they were not checked, or None."""
    if not request.probe:
        return "probe = False"
    mode, loader = request.grad_sample_mode, request.data_loader
    return check_gradients(request.module, wrapped, mode, loader, request.probe_inputs)


def _private_loader(
    request: Request, mechanism: Mechanism, group: Group, steps: StepCounter
) -> Any:
    """The loader with recorded batches; the user's own if participation is trusted."""
    loader: Any = request.data_loader
    if mechanism.amplified:
        loader = sampled_loader(loader, mechanism, steps)
    elif not request.is_trusted:
        loader = fixed_order_loader(loader)
        group.share(loader)
    # PRIVACY: a promise that rests on how batches come about holds for no other batches.   [G9]
    if isinstance(mechanism.sampling, HashSlots) and _is_fixed_order(loader):
        raise ValueError(
            "the mechanism is for slots by a hash of the record, and here batches come in a fixed "
            "order. Use a batch sampler that assigns them, or calibrate for sampling=FixedOrder()"
        )
    return loader


def _private_optimizer(
    request: Request, plan: TrainingPlan, mechanism: Mechanism, group: Group
) -> Any:
    # The batch size of all processes together; a trusted loader is each process's own.
    loaders = group.world if request.is_trusted else 1
    return PRIVATE_OPTIMIZERS[request.grad_sample_mode, request.clipping](
        optimizer=request.inner_optimizer,
        noise_multiplier=mechanism.noise_multiplier,
        max_grad_norm=request.max_grad_norm,
        expected_batch_size=public_batch_size(request.data_loader) * loaders * plan.accumulation,
        loss_reduction=request.loss_reduction,
    )


def _release(
    request: Request,
    plan: TrainingPlan,
    mechanism: Mechanism,
    group: Group,
    key: Key,
    loader: Any,
    optimizer: Any,
    steps: StepCounter,
) -> Release:
    batch_size = optimizer.expected_batch_size
    shapes = _named_shapes(request.module, optimizer.params)
    divisor = float(batch_size) if request.loss_reduction == "mean" else 1.0
    group.require_same("tensors and batches", [*shapes.items(), divisor])
    batches = ledger = None
    if not request.is_trusted:
        batches = loader.batch_sampler
        ledger = ParticipationLedger(_accounted_participation(mechanism), len(loader.dataset))
    return Release(
        mechanism,
        key,
        shapes,
        divisor,
        batches=batches,
        ledger=ledger,
        group=group,
        # The rounding of sums is covered for so many examples.
        max_batch_size=int(batch_size) if _is_fixed_order(loader) else 2 * int(batch_size) + 100,
        accumulation=plan.accumulation,
        memory=request.memory,
        data=earlier_runs.fingerprint(key, getattr(request.data_loader, "dataset", None)),
        steps=steps,
    )


def _is_fixed_order(loader: Any) -> bool:
    """Whether batches are ours, in a fixed order."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return isinstance(getattr(batch_sampler, "sampler", None), FixedOrderBatches)


def _accounted_participation(mechanism: Mechanism) -> Participation:
    """The participation that the mechanism was accounted for.

    A Poisson sample may hold every record; each step is accounted for as one that does.
    """
    # PRIVACY: ε is that of the mechanism's participation, whatever the plan's is.   [G14]
    own = mechanism.factorization.participation
    return min_separation(mechanism.steps, 1) if isinstance(mechanism.sampling, Poisson) else own


def _named_shapes(module: nn.Module, params: list[torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes of the optimizer's tensors, by their names in the model; noise has these names."""
    names = {id(p): name for name, p in plain(module).named_parameters()}
    return {names[id(p)]: tuple(p.shape) or (1,) for p in params}
