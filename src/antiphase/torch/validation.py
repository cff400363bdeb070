"""Checks of model, optimizer and processes before a training becomes private."""

from __future__ import annotations

from itertools import chain
from typing import Any

from opacus.validators import ModuleValidator
from torch import nn

from antiphase.mechanism import Mechanism
from antiphase.torch import coverage
from antiphase.torch.distributed import Group
from antiphase.torch.example_mixing import refuse_mixing
from antiphase.torch.plan import TrainingPlan
from antiphase.torch.request import Request


def validate(request: Request, plan: TrainingPlan, mechanism: Mechanism) -> Group:
    """Refuse what the guarantee would not hold for.

    Args:
        request: model, optimizer and loader.
        plan: steps and participation.
        mechanism: the calibrated mechanism, which must be the same in all processes.

    Returns:
        The processes that train together.

    Raises:
        ValueError: if processes, model or optimizer are not supported.
        StateError: if the processes disagree on the mechanism.
    """
    group = Group.of(request.module, request.grad_sample_mode)
    group.require_same("mechanism", mechanism.digest)
    if mechanism.amplified:
        _refuse_unsampled(request, plan, group)
    refuse_foreign_parameters(request.module, request.optimizer)
    coverage.require_coverage(request.module, request.optimizer, request.uncovered)
    ModuleValidator.validate(request.module, strict=True)
    if request.probe:
        refuse_mixing(request.module, request.data_loader)
    return group


def _refuse_unsampled(request: Request, plan: TrainingPlan, group: Group) -> None:
    # PRIVACY: batches of several processes or passes are not the samples that were analysed.   [G9]
    if group.world > 1 or plan.accumulation > 1 or request.is_trusted:
        raise ValueError(
            f"{group.world} process(es), gradient_accumulation_steps = {plan.accumulation}, "
            f"trusted = {request.is_trusted}: batches that are sampled for amplification are drawn "
            "by one process, one batch for each step, and recorded by the participation ledger"
        )


def refuse_foreign_parameters(module: nn.Module, optimizer: Any) -> None:
    """Refuse an optimizer that has parameters of another module.

    Raises:
        ValueError: with the message of Opacus.
    """
    known = set(module.parameters())
    groups = optimizer.param_groups
    if any(p not in known for p in chain.from_iterable(group["params"] for group in groups)):
        raise ValueError("Module parameters are different than optimizer Parameters")
